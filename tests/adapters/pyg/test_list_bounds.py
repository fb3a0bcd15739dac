"""Places of the elements of lists, beside plain loops."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

pytest.importorskip("torch_geometric")

from peergraph_pyg.data.lists import ListBounds
from tests.named_case import named_cases


@named_cases(
    "shapes",
    [
        [],
        [(0, 1)],
        [(3, 1), (0, 1), (5, 1)],
        [(4, 2), (7, 3), (0, 2), (2, 1), (1, 3), (9, 2)],
    ],
)
def test_places(shapes: list[tuple[int, int]], device: torch.device) -> None:
    random = torch.Generator().manual_seed(len(shapes))
    lists = ListBounds(shapes, device)
    expected = []
    for (rows, width), bounds in zip(shapes, lists.bounds, strict=True):
        assert bounds.shape == (rows, width + 1)
        assert bounds.is_contiguous()
        # Rows are anywhere in the store; the lists of a row follow each other.
        values = torch.randint(4, (rows, width + 1), generator=random).cumsum(1)
        values += torch.randint(1000, (rows, 1), generator=random)
        bounds.copy_(values)
        ends, places = [0], []
        for row in values.tolist():
            for begin, end in pairwise(row):
                places += range(begin, end)
                ends.append(len(places))
        expected.append((ends, places))
    assert [(ends.tolist(), at.tolist()) for ends, at in lists.places()] == expected
