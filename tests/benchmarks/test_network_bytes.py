"""network_bytes.py: the arithmetic of what gathers send."""

from __future__ import annotations

import sys

import pytest
import torch
from tests.benchmarks.running import BENCHMARKS
from torch import Tensor

sys.path.insert(0, str(BENCHMARKS))

from network.gather_bytes import (
    Layout,
    Sent,
    distinct_rows,
    distributed,
    hierarchy,
)


def batches(*ids: list[int]) -> list[Tensor]:
    return [torch.tensor(some, dtype=torch.int64) for some in ids]


def test_rows_by_hand() -> None:
    # Ten rows in blocks of three: rows 0 to 5 are on machine 0, the others on machine 1.
    layout = Layout(2, 2, 10)
    assert layout.owners(torch.arange(10)).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    step = batches([0, 6, 7], [7, 9], [5, 6], [])
    # Ranks 0 and 1 both need row 7; rank 2 needs row 5.
    assert distributed(step, layout) == Sent(5, 8)
    assert hierarchy(step, layout) == Sent(4, 4)
    assert Sent(5, 8).num_bytes(100, 8) == 5 * 108 + 64
    # With row 7 on every machine.
    cold = distinct_rows(step, layout, lambda ids, m: layout.elsewhere(ids[ids != 7], m))
    assert cold == 3


@pytest.mark.parametrize(("machines", "ranks"), [(1, 3), (2, 1), (3, 2), (4, 4)])
def test_rows_of_random_batches(machines: int, ranks: int) -> None:
    """Beside counts one row at a time."""
    generator = torch.Generator().manual_seed(machines)
    layout = Layout(machines, ranks, 1003)
    step = [torch.randperm(1003, generator=generator)[: 50 * r] for r in range(machines * ranks)]
    block = -(-1003 // (machines * ranks))
    alone, merged = 0, set()
    for rank, ids in enumerate(step):
        for row in ids.tolist():
            if row // block // ranks != rank // ranks:
                alone += 1
                merged.add((rank // ranks, row))
    assert distributed(step, layout).rows == alone
    assert hierarchy(step, layout).rows == len(merged)
    if machines == 1:
        assert distributed(step, layout) == hierarchy(step, layout) == Sent(0, 0)
