"""DGL's `FeatureStorage` over tables of the store, read directly to the device of the batch."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

import torch
from dgl.storages import FeatureStorage
from torch import Tensor

from peergraph.memory import Table
from peergraph.store import NODE, EdgeType, NodeType, Store

from ..backend.materialize import materialize

Owner = NodeType | EdgeType

# Threads that read tables of CPU ranks, each a column of the batch.
_NUM_THREADS = 4

# Smaller reads run in the calling thread: waking another one takes longer.
_MIN_THREAD_BYTES = 1 << 18


class RowsFuture:
    """Rows of a table that are being read; :meth:`wait` returns them."""

    def __init__(self, finish: Callable[[], Any]) -> None:
        self._finish = finish

    def wait(self) -> Any:
        """Waits for the rows and returns them; raises the errors of the read.

        On a GPU the rows are ready for work on the current stream.
        """
        return self._finish()


def read_rows(
    table: Table, ids: Tensor, device: str | torch.device, pin_memory: bool = False
) -> RowsFuture:
    """Starts to read the rows ``ids`` to ``device``. One-sided.

    Args:
        table: a table on any tier, of CPU or GPU ranks.
        ids: int32 or int64 ids on any device.
        device: the device of the result.
        pin_memory: whether rows on the CPU get pinned memory; ignored without a GPU.

    Other threads read large selections from tables of CPU ranks, and the current stream reads
    tables of GPU ranks, so that several reads overlap.
    """
    target = torch.device(device)
    ids = materialize(ids)
    if table.device.type == "cpu":
        return _read_on_cpu(table, ids.cpu(), target, pin_memory)
    if ids.device != table.device:
        ids = ids.to("cpu" if ids.device.type == "cpu" else table.device)
    rows = table.gather(ids)
    if target.type != "cpu":
        on_target = rows.to(target, non_blocking=True)
        return RowsFuture(lambda: on_target)
    return _copy_to_cpu(rows, pin_memory)


def _read_on_cpu(table: Table, ids: Tensor, target: torch.device, pin_memory: bool) -> RowsFuture:
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
    large = ids.numel() * row_bytes >= _MIN_THREAD_BYTES
    # Threads find the rows of other machines that the caller has received.
    future = _pool.submit(partial(copy_context().run, read)) if large else _run_now(read)
    if to_gpu:
        return RowsFuture(lambda: future.result().to(target, non_blocking=True))
    return RowsFuture(future.result)


def _run_now(work: Callable[[], Tensor]) -> Future[Tensor]:
    """Runs work now; its errors are raised by ``result()``, as for work of a thread."""
    future: Future[Tensor] = Future()
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
    return future


def _copy_to_cpu(rows: Tensor, pin_memory: bool) -> RowsFuture:
    pinned = torch.empty(rows.shape, dtype=rows.dtype, device="cpu", pin_memory=True)
    pinned.copy_(rows, non_blocking=True)
    done = torch.cuda.current_stream(rows.device).record_event()

    def finish() -> Tensor:
        done.synchronize()
        return pinned if pin_memory else pinned.clone()

    return RowsFuture(finish)


class _Pool:
    """Threads of this process. They are started again after a fork, which copies no threads."""

    def __init__(self) -> None:
        self._pid = -1
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], Tensor]) -> Any:
        if self._executor is None or self._pid != os.getpid():
            self._executor = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="peergraph")
            self._pid = os.getpid()
        return self._executor.submit(work)


_pool = _Pool()


class TableStorage(FeatureStorage):  # type: ignore[misc]
    """One table of a store as a DGL feature storage.

    Serves ``DataLoader.attach_data`` and users' own graphs.

    Args:
        store: the store.
        name: name of the table.
        owner: node type (``str``) or edge type (``tuple``).

    Raises:
        KeyError: the type has no such table.
    """

    def __init__(self, store: Store, name: str, owner: Owner = NODE) -> None:
        lookup: Any = store.edge_table if isinstance(owner, tuple) else store.node_table
        self.table: Table = lookup(name, owner)

    def fetch(
        self, indices: Tensor, device: str | torch.device, pin_memory: bool = False
    ) -> RowsFuture:
        """Starts to read the rows ``indices`` to ``device``. One-sided; see :func:`read_rows`.

        Returns:
            An awaitable, which ``DataLoader`` waits for.
        """
        return read_rows(self.table, indices, device, bool(pin_memory))


class TypedStorage(FeatureStorage):  # type: ignore[misc]
    """Tables of several node types or edge types with one name, as a DGL feature storage.

    Args:
        store: the store.
        name: name of the tables.
        owners: node types or edge types; default: all node types that have such a table.
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
    ) -> RowsFuture:
        """Does the same as :meth:`TableStorage.fetch`, for a dict of ids by type; waits for a dict
        of rows.
        """
        futures = {
            owner: self.storages[owner].fetch(ids, device, pin_memory)
            for owner, ids in indices.items()
        }
        return RowsFuture(lambda: {owner: future.wait() for owner, future in futures.items()})
