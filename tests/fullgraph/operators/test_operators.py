"""One sample of each operator, on partitioned rows of three ranks and on offloaded rows."""

from __future__ import annotations

import pytest
import torch

from peergraph.testing import run_ranks
from tests.fullgraph.operators.calls import Extent
from tests.fullgraph.operators.compare import compare

_DTYPES = [torch.float64, torch.complex128]


@pytest.mark.timeout(280)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize(("ranks", "chunks"), [(3, None), (1, 2)], ids=["partitioned", "offloaded"])
def test_operators_end_as_on_plain_tensors(ranks: int, chunks: int | None, part: int) -> None:
    ends, faults = run_ranks(compare, ranks, part, 4, Extent(1), chunks, _DTYPES, "cpu")[0]
    assert not faults, "\n".join(faults)
    assert ends["equal"] > 50, ends


@pytest.mark.timeout(280)
@pytest.mark.parametrize("ranks", [pytest.param(n, marks=pytest.mark.gpus(n)) for n in (1, 2)])
@pytest.mark.parametrize("chunks", [None, 2])
def test_operators_on_gpus(ranks: int, chunks: int | None) -> None:
    _, faults = run_ranks(compare, ranks, 0, 8, Extent(1), chunks, _DTYPES, "cuda", device="cuda")[
        0
    ]
    assert not faults, "\n".join(faults)
