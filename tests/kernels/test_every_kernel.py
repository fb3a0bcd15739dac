"""Every kernel on a GPU has the results of the CPU, and the CPU has the same with the narrowest
vectors, as other processors have them; benchmarks/sanitize_gpu.sh checks accesses to memory.
"""

from __future__ import annotations

from contextlib import nullcontext

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
from tests.kernels.digests import digest, main
from tests.kernels.sources import kernels
from tests.named_case import named_cases
from tests.vector_width import running


def test_no_kernel_is_left_out() -> None:
    covered = frozenset().union(*(case.kernels for case in CASES.values()))
    assert covered == kernels()


@named_cases("name", CASES)
def test_results(name: str, device: torch.device) -> None:
    case = CASES[name]
    on_cpu = device.type == "cpu"
    with running(16, 1) if on_cpu else nullcontext():
        results = [tensor.cpu() for tensor in case.run(device)]
    peergraph.synchronize()
    expected = list(case.run(torch.device("cpu")))
    for got, want in zip(results, expected, strict=True):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        if case.exact or on_cpu:
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


def test_digests(capsys: pytest.CaptureFixture[str]) -> None:
    """They differ by value, dtype and shape; strides change nothing."""
    x = torch.arange(6.0).view(2, 3)
    others = [x + 1, x.double(), x.view(3, 2), -x * 0, x[:0], x.bfloat16()]
    assert len({digest([y]) for y in (x, *others)}) == 7
    assert digest([x.t().contiguous().t()]) == digest([x])
    assert digest([x[:1, :1].expand(1, 1)]) == digest([x[:1, :1].clone()])
    assert main(["gather", "sums"]) == 0
    exact, rounded = capsys.readouterr().out.splitlines()
    assert exact.split()[0] == "gather"
    assert rounded.endswith("# torch adds")
