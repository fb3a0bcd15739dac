"""Group.current in one process."""

from __future__ import annotations

import pickle
import threading
from contextlib import nullcontext

import pytest
import torch

import peergraph._C as _C
from peergraph.integration.worker_thread import WorkerThread
from peergraph.memory import Group, SharedRegion
from peergraph.memory.group.daemon_threads import await_daemons, start_daemon


def test_single_rank() -> None:
    group = Group.current(device="cpu")
    assert (group.rank, group.world_size, group.device) == (0, 1, torch.device("cpu"))
    assert group.timeout == 300
    group.barrier()
    assert group.all_gather({"a": 1}) == [{"a": 1}]
    assert group.broadcast([2]) == [2]
    copy = pickle.loads(pickle.dumps(group))
    assert repr(copy) == "Group(rank=0, world_size=1, device=cpu)"


def test_timeout_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEERGRAPH_TIMEOUT", "12.5")
    assert Group.current("cpu").timeout == 12.5
    assert Group.current("cpu", timeout=3).timeout == 3
    monkeypatch.setenv("PEERGRAPH_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="PEERGRAPH_TIMEOUT must be a number of seconds"):
        Group.current("cpu")


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_bad_timeout(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be a positive number of seconds"):
        Group.current("cpu", timeout=timeout)


@pytest.mark.parametrize("device", ["meta", "gpu", 1.5])
def test_bad_device(device: str) -> None:
    with pytest.raises(ValueError, match='device must be "cpu", "cuda" or "cuda:i"'):
        Group.current(device)


def test_cuda_where_there_is_none() -> None:
    if not _C.has_cuda:
        with pytest.raises(RuntimeError, match="peergraph was built without CUDA"):
            Group.current("cuda")
    elif not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="torch finds no usable GPU"):
            Group.current("cuda")
    else:
        with pytest.raises(ValueError, match="device is cuda:99, but there are"):
            Group.current("cuda:99")


@pytest.mark.gpus(1)
def test_default_device_is_the_gpu() -> None:
    assert Group.current().device == torch.device("cuda", 0)


def test_region_of_one_rank(device: torch.device) -> None:
    region = SharedRegion.create(24, Group.current(device))
    local = region.local(torch.int32, (2, 3))
    assert local.device == device
    assert local.data_ptr() == region.addresses[0]
    local.fill_(7)
    assert region.part(0, torch.int32, (3, 2)).tolist() == [[7, 7]] * 3
    del region
    assert local.sum() == 42  # the view keeps its memory


@pytest.mark.alone
@pytest.mark.gpus(1)
def test_gpu_memory_of_one_rank_is_freed_with_the_region() -> None:
    group = Group.current("cuda:0")
    free = torch.cuda.mem_get_info(0)[0]
    for _ in range(4):
        SharedRegion.create(free // 2, group)
    region = SharedRegion.create(free // 2, group)
    region.close()
    with pytest.raises(MemoryError, match="bytes on cuda:0 were asked for"):
        SharedRegion.create(1 << 50, group)


def test_calls_of_torch_are_awaited_before_the_process_ends() -> None:
    may_end = threading.Event()
    start_daemon(may_end.wait, "a call that waits")
    assert not await_daemons(0.01)
    may_end.set()
    assert await_daemons(60.0)


def test_threads_that_a_thread_starts_as_the_process_ends_are_awaited() -> None:
    """As by a watcher that sees a loss while the main thread has raised it already."""
    may_start, may_end = threading.Event(), threading.Event()

    def watch() -> None:
        may_start.wait()
        start_daemon(may_end.wait, "a call that waits")

    start_daemon(watch, "a watcher")
    threading.Timer(0.1, may_start.set).start()
    assert not await_daemons(0.3)
    may_end.set()
    assert await_daemons(60.0)


def test_threads_that_wait_for_work_are_not_awaited() -> None:
    worker = WorkerThread("a worker", nullcontext)
    worker.submit(lambda: None).result()
    assert await_daemons(60.0)
    has_begun, may_end = threading.Event(), threading.Event()
    worker.submit(lambda: (has_begun.set(), may_end.wait()))
    has_begun.wait()
    assert not await_daemons(0.05)
    may_end.set()
    assert await_daemons(60.0)
    worker.close()
