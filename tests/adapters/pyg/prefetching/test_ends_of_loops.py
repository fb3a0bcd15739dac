"""How a loop ends: by break, by exceptions, by closing the store, with the interpreter."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import traceback
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import peergraph_pyg
from peergraph_pyg.prefetching import prefetch_iterator
from tests.adapters.pyg.prefetching.loops import node_loader
from tests.held_resources import prefetch_threads


def test_exception_reaches_the_loop(device: torch.device) -> None:
    def fail_at_three(batch: Data) -> Data:
        if 3 * 7 in batch.input_id:
            raise KeyError("the fourth batch")
        return batch

    loader = node_loader(device, shuffle=False, transform=fail_at_three)
    iterator = iter(peergraph_pyg.prefetch(loader, 2))
    for _ in range(3):
        next(iterator)
    with pytest.raises(KeyError, match="the fourth batch") as caught:
        next(iterator)
    trace = "".join(traceback.format_exception(caught.value))
    assert "fail_at_three" in trace
    # As without prefetching, the loop may go on.
    assert next(iterator).input_id[0] == 4 * 7
    assert len(list(iterator)) == 4
    with pytest.raises(StopIteration):
        next(iterator)


def test_wrong_seed_is_an_index_error(device: torch.device) -> None:
    loader = node_loader(device, input_nodes=torch.tensor([3, 60]))
    with pytest.raises(IndexError, match="60"):
        list(peergraph_pyg.prefetch(loader, 2))


def test_error_of_the_thread_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_iterator, "_make", lambda *_: 1 / 0)
    loader = node_loader("cpu", transform=lambda batch: batch)  # made by a thread of Python
    iterator = iter(peergraph_pyg.prefetch(loader, 2))
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert list(iterator) == []


def test_break_and_garbage(device: torch.device) -> None:
    """Each way to leave a loop ends its thread; the fixture counts them."""
    ahead = peergraph_pyg.prefetch(node_loader(device), 2)
    before = prefetch_threads()
    for _ in range(20):
        for _ in ahead:
            break
    assert prefetch_threads() == before
    iterator = iter(ahead)
    assert prefetch_threads() == before + 1
    iterator.close()  # type: ignore[attr-defined]
    assert prefetch_threads() == before
    assert list(iterator) == []
    cycle: list[Any] = [iter(ahead)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert prefetch_threads() == before
    with pytest.raises(RuntimeError, match="training failed"):
        _fail_in_the_loop(ahead)
    gc.collect()
    assert prefetch_threads() == before


def _fail_in_the_loop(loader: Any) -> None:
    for _ in loader:
        raise RuntimeError("training failed")


def test_closing_the_store_is_told_to_loops(device: torch.device) -> None:
    before = prefetch_threads()
    loader = node_loader(device)
    iterator = iter(peergraph_pyg.prefetch(loader, 5))
    next(iterator)
    peergraph_pyg.store_of(loader.data).close()
    assert prefetch_threads() == before
    # Not as at the end of an epoch.
    with pytest.raises(RuntimeError, match="this store has been closed: there are no more batches"):
        next(iterator)
    assert list(iterator) == []


def test_a_loop_that_has_ended_stays_so_when_its_store_is_closed() -> None:
    loader = node_loader("cpu")
    iterator = iter(peergraph_pyg.prefetch(loader, 1))
    assert len(list(iterator)) == 9
    peergraph_pyg.store_of(loader.data).close()
    assert list(iterator) == []


def test_a_loop_that_waits_for_a_batch_is_told_of_closing() -> None:
    going = threading.Event()

    def wait(batch: Data) -> Data:
        going.wait()
        return batch

    loader = node_loader("cpu", transform=wait)
    iterator = iter(peergraph_pyg.prefetch(loader, 1))
    errors = []

    def loop() -> None:
        try:
            list(iterator)
        except RuntimeError as error:
            errors.append(str(error))

    waiting = threading.Thread(target=loop)
    waiting.start()
    closing = threading.Thread(target=peergraph_pyg.store_of(loader.data).close)
    closing.start()
    going.set()
    for thread in (waiting, closing):
        thread.join()
    assert errors == ["this store has been closed: there are no more batches of it"]


def test_exit_of_the_interpreter_with_an_open_loop() -> None:
    program = """
import torch, peergraph_pyg
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
data = peergraph_pyg.share(Data(x=torch.rand(50, 2), edge_index=torch.randint(50, (2, 99))),
                           device="cpu")
iterator = iter(peergraph_pyg.prefetch(NeighborLoader(data, [2], batch_size=3), 2))
print(next(iterator).batch_size)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
