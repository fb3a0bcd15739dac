"""Every kernel on a GPU has the results of the CPU; benchmarks/sanitize_gpu.sh checks what it reads
and writes on the way.
"""

from __future__ import annotations

import pytest
import torch

import peergraph
from tests.aggregate.graphs import assert_same
from tests.kernels import (  # noqa: F401
    aggregate_cases,
    fullgraph_cases,
    memory_cases,
    sampling_cases,
)
from tests.kernels.cases import CASES
from tests.kernels.sources import kernels
from tests.named_case import named_cases


def test_no_kernel_is_left_out() -> None:
    covered = frozenset().union(*(case.kernels for case in CASES.values()))
    assert covered == kernels()


@named_cases("name", CASES)
def test_results(name: str, device: torch.device) -> None:
    case = CASES[name]
    found = [tensor.cpu() for tensor in case.run(device)]
    peergraph.synchronize()
    expected = list(case.run(torch.device("cpu")))
    for got, want in zip(found, expected, strict=True):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        if case.exact:
            assert torch.equal(got, want)
        else:
            assert_same(got, want)


@pytest.mark.gpus(1)
@pytest.mark.parametrize("name", CASES)
def test_launches(name: str) -> None:
    """A case launches the kernels that it says it does."""
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    with profile:
        list(CASES[name].run(torch.device("cuda", 0)))
        torch.cuda.synchronize()
    launched = [event.key for event in profile.key_averages()]
    if not launched:
        pytest.skip("the profiler sees no kernels here")
    missing = {kernel for kernel in CASES[name].kernels if not any(kernel in k for k in launched)}
    assert missing == set()
