"""DGL's `FeatureStorage` over tables of the store: rows read straight to where they are wanted."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from dgl.storages import FeatureStorage
from torch import Tensor

from peergraph.memory import Table
from peergraph.store import NODE, EdgeType, NodeType, Store, StoreTensor

Owner = NodeType | EdgeType

# Tables of CPU ranks are read by these: a batch has a few columns.
_THREADS = 4

# Fewer bytes are read at once: to wake a thread takes longer.
_WORTH_A_THREAD = 1 << 18


class Reading:
    """Rows on their way; :meth:`wait` gives them."""

    def __init__(self, finish: Callable[[], Any]) -> None:
        self._finish = finish

    def wait(self) -> Any:
        """The rows, when they are there; raises what reading them raised.

        On a GPU they are ready for what is given to the current stream.
        """
        return self._finish()


def start_reading(
    table: Table, ids: Tensor, device: str | torch.device, pin_memory: bool = False
) -> Reading:
    """Begins to read the rows ``ids`` to ``device``. One-sided.

    Args:
        table: on any tier, of CPU or GPU ranks.
        ids: int32 or int64 on any device.
        device: where the rows go.
        pin_memory: whether rows that go to the CPU get pinned memory, where there is a GPU.

    Rows of CPU ranks are read by other threads (few rows at once), those of GPU ranks by the
    current stream, so that several readings overlap.
    """
    target = torch.device(device)
    ids = in_memory(ids)
    if table.device.type == "cpu":
        return _read_on_cpu(table, ids.cpu(), target, pin_memory)
    if ids.device != table.device:
        ids = ids.to("cpu" if ids.device.type == "cpu" else table.device)
    rows = table.gather(ids)
    if target.type != "cpu":
        near = rows.to(target, non_blocking=True)
        return Reading(lambda: near)
    return _copy_to_cpu(rows, pin_memory)


def in_memory(ids: Tensor) -> Tensor:
    """Ids as the core takes them: a column of a shared graph is read."""
    return ids.whole() if isinstance(ids, StoreTensor) else ids


def _read_on_cpu(table: Table, ids: Tensor, target: torch.device, pin_memory: bool) -> Reading:
    to_gpu = target.type == "cuda"

    pinned = (to_gpu or pin_memory) and torch.cuda.is_available()

    def read() -> Tensor:
        if not pinned:
            return table.gather(ids)
        shape = (*ids.shape, *table.shape[1:])
        return table.gather(
            ids, out=torch.empty(shape, dtype=table.dtype, pin_memory=True, device="cpu")
        )

    row_bytes = table.dtype.itemsize * math.prod(table.shape[1:])
    large = ids.numel() * row_bytes >= _WORTH_A_THREAD
    future = _pool.submit(read) if large else _done(read)
    if to_gpu:
        return Reading(lambda: future.result().to(target, non_blocking=True))
    return Reading(future.result)


def _done(work: Callable[[], Tensor]) -> Future[Tensor]:
    """Work that is done at once; errors are for who asks for the result, as those of a thread."""
    future: Future[Tensor] = Future()
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
    return future


def _copy_to_cpu(rows: Tensor, pin_memory: bool) -> Reading:
    pinned = torch.empty(rows.shape, dtype=rows.dtype, device="cpu", pin_memory=True)
    pinned.copy_(rows, non_blocking=True)
    done = torch.cuda.current_stream(rows.device).record_event()

    def finish() -> Tensor:
        done.synchronize()
        return pinned if pin_memory else pinned.clone()

    return Reading(finish)


class _Pool:
    """Threads of this process: a forked one has its parent's object, but not its threads."""

    def __init__(self) -> None:
        self._pid = -1
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], Tensor]) -> Any:
        if self._executor is None or self._pid != os.getpid():
            self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="peergraph")
            self._pid = os.getpid()
        return self._executor.submit(work)


_pool = _Pool()


class TableStorage(FeatureStorage):  # type: ignore[misc]
    """One table of a store as a DGL feature storage, for ``DataLoader.attach_data`` and graphs of
    one's own.

    Args:
        store: the store.
        name: of the table.
        owner: the node type (``str``) or edge type (``tuple``); ``KeyError`` where it has no such
            table.
    """

    def __init__(self, store: Store, name: str, owner: Owner = NODE) -> None:
        lookup: Any = store.edge_table if isinstance(owner, tuple) else store.node_table
        self.table: Table = lookup(name, owner)

    def fetch(
        self, indices: Tensor, device: str | torch.device, pin_memory: bool = False
    ) -> Reading:
        """Begins to read the rows ``indices`` to ``device``; one-sided, see :func:`start_reading`.

        Returns:
            an awaitable, as ``DataLoader`` takes it.
        """
        return start_reading(self.table, indices, device, bool(pin_memory))


class TypedStorage(FeatureStorage):  # type: ignore[misc]
    """The tables of one name of several node types, or edge types, as a DGL feature storage.

    Args:
        store: the store.
        name: of the tables.
        owners: the types; default: all node types that have such a table.
    """

    def __init__(self, store: Store, name: str, owners: list[Any] | None = None) -> None:
        if owners is None:
            owners = [t for t in store.node_types if name in store.node_table_names(t)]
        if not owners:
            raise ValueError(f"no node type of the store has a table {name!r}")
        self.storages = {owner: TableStorage(store, name, owner) for owner in owners}

    def fetch(
        self,
        indices: Mapping[Any, Tensor],
        device: str | torch.device,
        pin_memory: bool = False,
    ) -> Reading:
        """As :meth:`TableStorage.fetch`, for a dict of ids by type; awaited, a dict of rows."""
        readings = {
            owner: self.storages[owner].fetch(ids, device, pin_memory)
            for owner, ids in indices.items()
        }
        return Reading(lambda: {owner: reading.wait() for owner, reading in readings.items()})
