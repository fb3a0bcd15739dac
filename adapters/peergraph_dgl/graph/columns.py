"""Columns of DGL's frames whose values are in the store."""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Iterable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from dgl.frame import Column
from torch import Tensor

from peergraph.memory import DistributedTable, FetchedRows, RemoteRowsError, Table
from peergraph.store import EdgeType, NodeType, Store, TableTensor

from ..compat import LazyIndex
from .storages import read_rows

_CPU = torch.device("cpu")


class StoreColumn(Column):  # type: ignore[misc]
    """A column of a shared graph: a table of the store, or a selection of its rows.

    Selected rows are read on first use. ``fetch`` reads rows directly to the device that a loader
    wants. ``g.nodes[ids].data[name] = values`` writes rows to the store, for all ranks. In a local
    scope, on a copy of the graph, or with values that require gradients, it works out of place as
    in DGL: it reads the whole column into this process. Operations on all values (conversion, move
    to a device) read all of them.

    ``copy.deepcopy`` returns a column that reads the same table and keeps its changes on this
    rank. ``multiprocessing`` sends a column to a process of this machine as a handle of the table;
    ``pickle`` and ``torch.save`` save a plain DGL column with the values.
    """

    storage: Any
    index: Any
    device: Any
    writes_through = False
    fetched: FetchedRows | None = None
    """Rows of other machines that a loader has received for the batch of this column."""
    unread: tuple[NodeType | EdgeType, str] | None = None
    """Owner and name of the table, if a worker has sent the ids without the rows."""

    @classmethod
    def from_table(cls, tensor: TableTensor) -> StoreColumn:
        """Makes the column of a shared graph, whose changes go to the store."""
        column = cls(tensor)
        column.writes_through = True
        return column

    @property
    def table(self) -> TableTensor | None:
        """The table, if the column is the table without a selection or a conversion."""
        pending = self.index is not None or self.deferred_dtype is not None
        if pending or not isinstance(self.storage, TableTensor):
            return None
        return self.storage

    def _get_data(self) -> Tensor:
        if isinstance(self.storage, TableTensor) and self.index is not None:
            index = self.index.flatten() if isinstance(self.index, LazyIndex) else self.index
            target = index.device if self.device is None else self.device[0]
            self.storage = self._read(index, target)
            self.index = self.device = self.fetched = None
        data: Tensor = Column.data.fget(self)
        return data

    data = property(_get_data, Column.data.fset)

    def _read(self, index: Tensor, target: torch.device) -> Any:
        if self.fetched is None:
            return read_rows(self.storage.table, index, target).wait()
        try:
            with self.fetched.reading():
                return read_rows(self.storage.table, index, target).wait()
        except RemoteRowsError as error:
            raise RemoteRowsError(
                f"{error}. Of nodes and of edges, where a sampler prefetches columns "
                "(prefetch_node_feats, prefetch_edge_feats), its batches have no others: name "
                f"{self.storage.table_name!r} there, too"
            ) from error

    def selected(self) -> tuple[Table, Tensor] | None:
        """Returns the table and the ids of the pending read; None without one."""
        if self.index is None or not isinstance(self.storage, TableTensor):
            return None
        if isinstance(self.index, LazyIndex):
            self.index = self.index.flatten()
        return self.storage.table, self.index

    def fetch(
        self,
        indices: Tensor,
        device: str | torch.device,
        pin_memory: bool | None = False,
        **kwargs: Any,
    ) -> Any:
        """Starts to read rows to ``device``. One-sided. Returns an awaitable."""
        table = self.table
        if table is None:
            return super().fetch(indices, device, pin_memory=pin_memory, **kwargs)
        return read_rows(table.table, indices, device, bool(pin_memory))

    def clone(self) -> StoreColumn:
        """Returns a column of the same values."""
        return self._with_index(self.index)

    def _with_index(self, index: Any) -> StoreColumn:
        column = StoreColumn(self.storage, self.scheme, index, self.device, self.deferred_dtype)
        column.fetched = self.fetched
        return column

    def __deepcopy__(self, memo: dict[int, Any]) -> StoreColumn:
        return StoreColumn(*copy.deepcopy(self._flushed(), memo))

    def _flushed(self) -> tuple[Any, ...]:
        """Returns the constructor's arguments after pending reads, which DGL's columns pickle.

        A column without storage, as DGL sends it from its workers, keeps its index.
        """
        if self.storage is not None:
            _ = self.data
        return self.storage, self.scheme, self.index, self.device, self.deferred_dtype

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Column, self._flushed()

    def reduce_to_process(self) -> Any:
        """Returns what ``__reduce_ex__`` returns, for a process of this machine."""
        selected = self.selected()
        if selected and isinstance(selected[0], DistributedTable) and self.fetched is None:
            table = self.storage.owner, self.storage.table_name
            pending = self.scheme, self.index, self.device, self.deferred_dtype
            return StoreColumn._with_ids_of, (table, pending)
        return copyreg.__newobj__, (StoreColumn,), self.__getstate__()  # type: ignore[attr-defined]

    @classmethod
    def _with_ids_of(cls, table: tuple[NodeType | EdgeType, str], pending: Any) -> StoreColumn:
        column = cls(None, *pending)
        column.unread = table
        return column

    def connect(self, store: Store) -> None:
        """Connects a column that a worker has sent without rows to the tables of this process."""
        if self.unread is not None:
            self.storage, self.unread = TableTensor(store, *self.unread, _CPU), None

    def subcolumn(self, rowids: Tensor) -> StoreColumn:
        """Selects rows, which are read on first use, to the device of ``rowids``."""
        index: Any = rowids
        if self.index is not None:
            lazy = self.index if isinstance(self.index, LazyIndex) else LazyIndex(self.index)
            index = lazy.slice(rowids)
        return self._with_index(index)

    def update(self, rowids: Tensor, feats: Tensor) -> None:
        """Writes rows to the store, or out of place, as the class describes."""
        table = self.table
        fits = tuple(feats.shape[1:]) == tuple(self.scheme.shape) and feats.dtype == self.dtype
        if table is None or not self.writes_through or feats.requires_grad or not fits:
            super().update(rowids, feats)
        else:
            table.write(rowids, feats)

    def pin_memory_(self) -> None:
        """Pins values in memory; has no effect on values in the store, which GPUs read directly."""
        if not isinstance(self.storage, TableTensor):
            super().pin_memory_()

    def unpin_memory_(self) -> None:
        """Unpins values in memory; has no effect on values in the store."""
        if not isinstance(self.storage, TableTensor):
            super().unpin_memory_()


ForkingPickler.register(StoreColumn, StoreColumn.reduce_to_process)


def make_columns(
    store: Store, owner: NodeType | EdgeType, names: Iterable[str]
) -> dict[str, StoreColumn]:
    """Makes the columns of a node or edge type for these tables, with the CPU as their device."""
    return {name: StoreColumn.from_table(TableTensor(store, owner, name, _CPU)) for name in names}
