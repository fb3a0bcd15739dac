"""Columns of DGL's frames whose values stay in the store."""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Iterable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from dgl.frame import Column, _LazyIndex
from torch import Tensor

from peergraph.store import EdgeType, NodeType, Store, TableTensor

from .storages import start_reading

_CPU = torch.device("cpu")


class StoreColumn(Column):  # type: ignore[misc]
    """A column of a shared graph: a table of the store, or rows of it that are read when needed.

    ``fetch`` reads rows straight to the device that a loader wants them on. Changing rows by
    ``g.nodes[ids].data[name] = values`` writes them to the store, for all ranks; in a local scope,
    on a copy of the graph, or with values that have gradients, it does what DGL does, out of place:
    the whole column is read into this process. Operations on all values (conversion, moving to a
    device) read all of them.

    ``copy.deepcopy`` gives a column that reads the same table, and whose changes stay on this
    rank. Sent to a process of this machine by ``multiprocessing``, a column stays what it is;
    ``pickle`` and ``torch.save`` make it a column of DGL's with the values.
    """

    storage: Any
    index: Any
    device: Any
    writes_through = False

    @classmethod
    def of(cls, tensor: TableTensor) -> StoreColumn:
        """The column of a graph that :func:`share` returns."""
        column = cls(tensor)
        column.writes_through = True
        return column

    @property
    def table(self) -> TableTensor | None:
        """What this column is, as long as it is all rows of a table, as they are."""
        pending = self.index is not None or self.deferred_dtype is not None
        if pending or not isinstance(self.storage, TableTensor):
            return None
        return self.storage

    def _get_data(self) -> Tensor:
        if isinstance(self.storage, TableTensor) and self.index is not None:
            index = self.index.flatten() if isinstance(self.index, _LazyIndex) else self.index
            target = index.device if self.device is None else self.device[0]
            self.storage = start_reading(self.storage.table, index, target).wait()
            self.index = self.device = None
        data: Tensor = Column.data.fget(self)
        return data

    data = property(_get_data, Column.data.fset)

    def fetch(
        self,
        indices: Tensor,
        device: str | torch.device,
        pin_memory: bool | None = False,
        **kwargs: Any,
    ) -> Any:
        """Begins to read rows to ``device``; one-sided. Returns an awaitable."""
        table = self.table
        if table is None:
            return super().fetch(indices, device, pin_memory=pin_memory, **kwargs)
        return start_reading(table.table, indices, device, bool(pin_memory))

    def clone(self) -> StoreColumn:
        """Another column of the same values."""
        return StoreColumn(self.storage, self.scheme, self.index, self.device, self.deferred_dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> StoreColumn:
        return StoreColumn(*copy.deepcopy(self._flushed(), memo))

    def _flushed(self) -> tuple[Any, ...]:
        """What a column is made of, nothing of it pending, as DGL pickles it; a column without
        storage, as DGL sends it from its workers, keeps its index."""
        if self.storage is not None:
            _ = self.data
        return self.storage, self.scheme, self.index, self.device, self.deferred_dtype

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Column, self._flushed()

    def reduce_to_process(self) -> Any:
        """What ``__reduce_ex__`` returns, for a process of this machine."""
        return copyreg.__newobj__, (StoreColumn,), self.__getstate__()  # type: ignore[attr-defined]

    def subcolumn(self, rowids: Tensor) -> StoreColumn:
        """Rows of this column, read when they are asked for, to the device of ``rowids``."""
        index: Any = rowids
        if self.index is not None:
            lazy = self.index if isinstance(self.index, _LazyIndex) else _LazyIndex(self.index)
            index = lazy.slice(rowids)
        return StoreColumn(self.storage, self.scheme, index, self.device, self.deferred_dtype)

    def update(self, rowids: Tensor, feats: Tensor) -> None:
        """Changes rows; see the class."""
        table = self.table
        fits = tuple(feats.shape[1:]) == tuple(self.scheme.shape) and feats.dtype == self.dtype
        if table is None or not self.writes_through or feats.requires_grad or not fits:
            super().update(rowids, feats)
        else:
            table.write(rowids, feats)

    def pin_memory_(self) -> None:
        """Nothing to do while the values are in the store: GPUs reach it."""
        if not isinstance(self.storage, TableTensor):
            super().pin_memory_()

    def unpin_memory_(self) -> None:
        """Nothing to do while the values are in the store."""
        if not isinstance(self.storage, TableTensor):
            super().unpin_memory_()


ForkingPickler.register(StoreColumn, StoreColumn.reduce_to_process)


def store_columns(
    store: Store, owner: NodeType | EdgeType, names: Iterable[str]
) -> dict[str, StoreColumn]:
    """The columns of a node or edge type whose values are these tables, on the CPU as DGL's are."""
    return {name: StoreColumn.of(TableTensor(store, owner, name, _CPU)) for name in names}
