"""On the CPU, kernels work in torch's threads; in a forked process, which has none of them, too."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkProcess

import numpy as np
import pytest
import torch

from peergraph.aggregate import Csc, g_spmm

NODES, EDGES, WIDTH = 3000, 40_000, 32

# After one call with 3 threads: how many more threads the process has, and whether torch has such
# as can be used. The tensors are too small for torch to start them.
_COUNT_THREADS = """
import ctypes, os
import torch
from peergraph.aggregate import Csc, g_spmm
torch.set_num_threads(3)
csc = Csc(torch.arange(0, 20001, 50), torch.arange(20000) % 400, 400)
x = torch.zeros(400, 64)
before = len(os.listdir("/proc/self/task"))
g_spmm(csc, "copy_u", "sum", x)
print(len(os.listdir("/proc/self/task")) - before, hasattr(ctypes.CDLL(None), "GOMP_parallel"))
"""


Case = tuple[Csc, torch.Tensor]


@pytest.fixture(scope="module")
def case() -> Case:
    random = torch.Generator().manual_seed(5)
    indptr = torch.randint(0, EDGES + 1, (NODES - 1,), generator=random).sort().values
    indptr = torch.cat([torch.tensor([0]), indptr, torch.tensor([EDGES])])
    csc = Csc(indptr, torch.randint(0, NODES, (EDGES,), generator=random), NODES)
    return csc, torch.rand(NODES, WIDTH, generator=random)


def sum_and_max(case: Case) -> list[np.ndarray]:
    csc, x = case
    return [g_spmm(csc, "copy_u", reduce, x).numpy() for reduce in ("sum", "max")]


@pytest.fixture(autouse=True)
def _three_threads() -> Iterator[None]:
    most = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(most)


def _fork(queue: multiprocessing.Queue, case: Case, generations: int) -> ForkProcess:
    child = multiprocessing.get_context("fork").Process(
        target=_reduce_in_child, args=(queue, case, generations)
    )
    child.start()
    return child


def _reduce_in_child(queue: multiprocessing.Queue, case: Case, generations: int) -> None:
    if generations > 1:
        _fork(queue, case, generations - 1).join(60)
    else:
        queue.put(sum_and_max(case))


@pytest.mark.parametrize("generations", [1, 2])
def test_forked_after_use(case: Case, generations: int) -> None:
    expected = sum_and_max(case)
    queue = multiprocessing.get_context("fork").Queue()
    child = _fork(queue, case, generations)
    try:
        for actual, one in zip(queue.get(timeout=250), expected, strict=True):
            np.testing.assert_array_equal(actual, one)
    finally:
        child.join(10)
        child.kill()


def test_callers_at_once(case: Case) -> None:
    expected = sum_and_max(case)
    with ThreadPoolExecutor(4) as pool:
        for results in pool.map(lambda _: sum_and_max(case), range(12)):
            for actual, one in zip(results, expected, strict=True):
                np.testing.assert_array_equal(actual, one)


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_threads_are_torchs() -> None:
    process = subprocess.run(
        [sys.executable, "-c", _COUNT_THREADS], capture_output=True, text=True, timeout=250
    )
    assert process.returncode == 0, process.stderr
    more, has_openmp = process.stdout.split()
    # They stay; those that calls start do not.
    assert int(more) == (2 if has_openmp == "True" else 0)
