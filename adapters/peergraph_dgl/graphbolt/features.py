"""The tables of a store as GraphBolt's features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from dgl import graphbolt as gb
from torch import Tensor

from peergraph.memory import DistributedTable, Table
from peergraph.store import EDGE, NODE, Store

from ..backend.materialize import materialize
from ..graph.endpoints import ENDPOINT_TABLES
from ..graph.storages import RowsFuture, read_rows

Key = tuple[str, str | None, str]


class _UnmovedFeature(gb.Feature):  # type: ignore[misc]
    """A feature whose device a script cannot change."""

    def __init__(self, metadata: Mapping[str, Any] | None) -> None:
        super().__init__()
        self._metadata = dict(metadata or {})

    def metadata(self) -> dict[str, Any]:
        """Returns the metadata that the feature store was made with."""
        return self._metadata

    def read_async_num_stages(self, ids_device: torch.device) -> int:
        """Returns the number of stages of `read_async`."""
        return 1

    def to(self, device: Any) -> _UnmovedFeature:
        """Returns the feature itself."""
        return self

    def pin_memory_(self) -> _UnmovedFeature:
        """Returns the feature itself."""
        return self


class TableFeature(_UnmovedFeature):
    """One table of a store as a feature. Reads and writes are one-sided.

    Args:
        table: a node or edge table, read by the user's ids.
        metadata: result of :meth:`metadata`.
    """

    def __init__(self, table: Table, metadata: Mapping[str, Any] | None = None) -> None:
        super().__init__(metadata)
        self.table = table

    def __repr__(self) -> str:
        return f"TableFeature({list(self.table.shape)}, {self.table.dtype})"

    def read(self, ids: Tensor | None = None) -> Tensor:
        """Returns rows `ids` on the device of `ids`, or all rows on the CPU.

        Raises:
            NotImplementedError: the rows are split over machines.
        """
        self._check_whole()
        if ids is None:
            return self.table.read()
        rows: Tensor = read_rows(self.table, ids, ids.device).wait()
        return rows

    def read_async(self, ids: Tensor) -> Iterator[RowsFuture]:
        """Does the same as :meth:`read`, in one asynchronous stage (DGL 2.2 and later)."""
        self._check_whole()
        yield read_rows(self.table, ids, ids.device)

    def size(self) -> torch.Size:
        """Returns the shape of a row."""
        return torch.Size(self.table.shape[1:])

    def count(self) -> int:
        """Returns the number of rows."""
        return int(self.table.rows)

    def update(self, value: Tensor, ids: Tensor | None = None) -> None:
        """Writes rows `ids`, or all rows, for all ranks.

        Raises:
            ValueError: values of another shape or dtype, which ``FeatureStore.update`` accepts.
        """
        if ids is not None:
            self.table.scatter(ids, value)
        elif value.shape[0] != self.table.rows:
            raise ValueError(f"value: expected {self.table.rows} rows, got {value.shape[0]}")
        else:
            self.table.load(value)

    def _check_whole(self) -> None:
        if isinstance(self.table, DistributedTable):
            raise NotImplementedError(
                f"{self!r}: GraphBolt fetches the features of a batch on one rank alone, and rows "
                "are split over machines. dgl.dataloading.DataLoader brings them; or call "
                'collective_read(ids) of the table on all ranks, or share with machines="replicate"'
            )

    def accepts(self, value: Tensor) -> bool:
        """Returns whether a tensor has the dtype and the row shape of the table."""
        return value.dtype == self.table.dtype and value.shape[1:] == self.size()


class LocalFeature(_UnmovedFeature):
    """A tensor of this process as a feature, which other ranks do not see.

    Args:
        values: [rows, *shape of a row].
        metadata: result of :meth:`metadata`.
    """

    def __init__(self, values: Tensor, metadata: Mapping[str, Any] | None = None) -> None:
        super().__init__(metadata)
        self.values = values

    def __repr__(self) -> str:
        return f"LocalFeature({list(self.values.shape)}, {self.values.dtype})"

    def read(self, ids: Tensor | None = None) -> Tensor:
        """Returns rows `ids` on the device of `ids`, or the tensor itself."""
        if ids is None:
            return self.values
        return self.values.index_select(0, ids.to(self.values.device)).to(ids.device)

    def read_async(self, ids: Tensor) -> Iterator[RowsFuture]:
        """Does the same as :meth:`read`, in one stage (DGL 2.2 and later)."""
        rows = self.read(ids)
        yield RowsFuture(lambda: rows)

    def size(self) -> torch.Size:
        """Returns the shape of a row."""
        return self.values.shape[1:]

    def count(self) -> int:
        """Returns the number of rows."""
        return self.values.shape[0]

    def update(self, value: Tensor, ids: Tensor) -> None:
        """Writes rows `ids` in this process.

        Raises:
            ValueError: values of another shape or dtype.
        """
        shape = (*ids.shape, *self.size())
        if value.dtype != self.values.dtype or tuple(value.shape) != shape:
            raise ValueError(
                f"value: expected {self.values.dtype} of shape {shape}, "
                f"got {value.dtype} of {tuple(value.shape)}"
            )
        device = self.values.device
        self.values.index_copy_(0, ids.to(device, torch.int64), value.detach().to(device))


class FeatureStore(gb.FeatureStore):  # type: ignore[misc]
    """All tables of a store as a GraphBolt feature store.

    Keys are ``("node", type, name)`` and ``("edge", "source:type:destination", name)``; the type is
    ``None`` in a homogeneous store. :meth:`update` can add features of this process only.

    Args:
        store: the store, such as ``store_of(g)``.
        metadata: results of :meth:`metadata` by key, such as ``{"num_categories": 12}``.
    """

    def __init__(
        self, store: Store, metadata: Mapping[Key, Mapping[str, Any]] | None = None
    ) -> None:
        super().__init__()
        self.store = store
        self._metadata = dict(metadata or {})
        self._local: dict[Key, LocalFeature] = {}

    def __repr__(self) -> str:
        return f"FeatureStore({[*map(self.__getitem__, self.keys())]})"

    def __len__(self) -> int:
        return len(self.keys())

    def __getitem__(self, key: Key) -> TableFeature | LocalFeature:
        local = self._local.get(key)
        return self._store_feature(key) if local is None else local

    def __contains__(self, key: Key) -> bool:
        return key in self.keys()

    def to(self, device: Any) -> FeatureStore:
        """Returns the feature store itself: rows are read to the device of the ids."""
        return self

    def pin_memory_(self) -> FeatureStore:
        """Returns the feature store itself: GPUs read the store directly."""
        return self

    def read(
        self, domain: str, type_name: str | None, feature_name: str, ids: Tensor | None = None
    ) -> Tensor:
        """See :meth:`TableFeature.read`."""
        return self[domain, type_name, feature_name].read(ids)

    def size(self, domain: str, type_name: str | None, feature_name: str) -> torch.Size:
        """Returns the shape of a row."""
        return self[domain, type_name, feature_name].size()

    def count(self, domain: str, type_name: str | None, feature_name: str) -> int:
        """Returns the number of rows."""
        return self[domain, type_name, feature_name].count()

    def metadata(self, domain: str, type_name: str | None, feature_name: str) -> dict[str, Any]:
        """Returns the metadata of a feature that the constructor got."""
        return self[domain, type_name, feature_name].metadata()

    def update(
        self,
        domain: str,
        type_name: str | None,
        feature_name: str,
        value: Tensor,
        ids: Tensor | None = None,
    ) -> None:
        """Writes a feature. Not collective.

        Rows with the shape and dtype of the store's table are written to the table, for all ranks.
        If every rank replaces a whole feature, call a barrier before others read it. All rows with
        another shape or dtype, or with a new name, become a :class:`LocalFeature` that refers to
        the tensor and hides the store's table of that name from this object.

        Raises:
            KeyError: unknown type, or with `ids` unknown name.
            ValueError: wrong number of rows, or with `ids` rows of another shape or dtype.
        """
        key = (domain, type_name, feature_name)
        if not isinstance(value, Tensor):
            raise TypeError(f"value: expected a tensor, got {type(value).__name__}")
        value = materialize(value)
        if ids is not None:
            self[key].update(value, ids)
            return
        rows = self._rows(domain, type_name)
        if value.dim() == 0 or value.shape[0] != rows:
            raise ValueError(f"value: expected {rows} rows, got shape {list(value.shape)}")
        if key not in self._local and key in self and self._store_feature(key).accepts(value):
            self._store_feature(key).update(value)
        else:
            self._local[key] = LocalFeature(value.detach(), self._metadata.get(key))

    def keys(self) -> list[Key]:
        """Returns the keys of all features, tables of the store first."""
        store = self.store
        untyped = store.is_homogeneous
        nodes: list[Key] = [
            ("node", None if untyped else t, name)
            for t in store.node_types
            for name in store.node_table_names(t)
        ]
        edges: list[Key] = [
            ("edge", None if untyped else gb.etype_tuple_to_str(t), name)
            for t in store.edge_types
            for name in store.edge_table_names(t)
            if name not in ENDPOINT_TABLES
        ]
        return list(dict.fromkeys([*nodes, *edges, *self._local]))

    def _store_feature(self, key: Key) -> TableFeature:
        domain, type_name, name = key
        metadata = self._metadata.get(key)
        if domain == "node":
            return TableFeature(self.store.node_table(name, type_name or NODE), metadata)
        _check_domain(domain)
        return TableFeature(self.store.edge_table(name, _edge_type(type_name)), metadata)

    def _rows(self, domain: str, type_name: str | None) -> int:
        if domain == "node":
            return self.store.num_nodes(type_name or NODE)
        _check_domain(domain)
        return self.store.num_edges(_edge_type(type_name))


def _check_domain(domain: str) -> None:
    if domain != "edge":
        raise KeyError(f"domain: expected 'node' or 'edge', got {domain!r}")


def _edge_type(name: str | None) -> Any:
    return EDGE if name is None else gb.etype_str_to_tuple(name)
