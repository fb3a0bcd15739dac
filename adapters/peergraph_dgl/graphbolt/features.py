"""Tables of a store as GraphBolt's features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from dgl import graphbolt as gb
from torch import Tensor

from peergraph.memory import Table
from peergraph.store import EDGE, NODE, Store

from ..graph.endpoints import NAMES
from ..graph.storages import Reading, in_memory, start_reading

Key = tuple[str, str | None, str]


class _Placed(gb.Feature):  # type: ignore[misc]
    """A feature that stays where it is: what a script says about devices changes nothing."""

    def __init__(self, metadata: Mapping[str, Any] | None) -> None:
        super().__init__()
        self._metadata = dict(metadata or {})

    def metadata(self) -> dict[str, Any]:
        """What the feature store was told about it."""
        return self._metadata

    def to(self, device: Any) -> _Placed:
        """Itself."""
        return self

    def pin_memory_(self) -> _Placed:
        """Itself: GPUs reach it without being told."""
        return self


class StoreFeature(_Placed):
    """One table as a feature; reads and writes are one-sided.

    Args:
        table: of nodes or edges, whose ids are the user's.
        metadata: what :meth:`metadata` gives.
    """

    def __init__(self, table: Table, metadata: Mapping[str, Any] | None = None) -> None:
        super().__init__(metadata)
        self.table = table

    def __repr__(self) -> str:
        return f"StoreFeature({list(self.table.shape)}, {self.table.dtype})"

    def read(self, ids: Tensor | None = None) -> Tensor:
        """Rows `ids` on the device of `ids`, or all rows on the CPU."""
        if ids is None:
            return self.table.read()
        rows: Tensor = start_reading(self.table, ids, ids.device).wait()
        return rows

    def read_async(self, ids: Tensor) -> Iterator[Reading]:
        """As :meth:`read`, in one stage that has begun and is to be awaited (DGL 2.2 and later)."""
        yield start_reading(self.table, ids, ids.device)

    def read_async_num_stages(self, ids_device: torch.device) -> int:
        """How many stages :meth:`read_async` has."""
        return 1

    def size(self) -> torch.Size:
        """The shape of a row."""
        return torch.Size(self.table.shape[1:])

    def count(self) -> int:
        """How many rows there are."""
        return int(self.table.rows)

    def update(self, value: Tensor, ids: Tensor | None = None) -> None:
        """Writes rows `ids`, or all rows, for all ranks.

        Raises:
            ValueError: values of another shape or dtype. ``StoreFeatures.update`` takes them.
        """
        if ids is not None:
            self.table.scatter(ids, value)
        elif value.shape[0] != self.table.rows:
            raise ValueError(f"value: expected {self.table.rows} rows, got {value.shape[0]}")
        else:
            self.table.load(value)

    def takes(self, value: Tensor) -> bool:
        """Whether the rows of a tensor are like those of the table."""
        return value.dtype == self.table.dtype and value.shape[1:] == self.size()


class PrivateFeature(_Placed):
    """A tensor of this process as a feature.

    Args:
        values: [rows, *shape of a row].
        metadata: what :meth:`metadata` gives.
    """

    def __init__(self, values: Tensor, metadata: Mapping[str, Any] | None = None) -> None:
        super().__init__(metadata)
        self.values = values

    def __repr__(self) -> str:
        return f"PrivateFeature({list(self.values.shape)}, {self.values.dtype})"

    def read(self, ids: Tensor | None = None) -> Tensor:
        """Rows `ids` on the device of `ids`, or the tensor itself."""
        if ids is None:
            return self.values
        return self.values.index_select(0, ids.to(self.values.device)).to(ids.device)

    def read_async(self, ids: Tensor) -> Iterator[Reading]:
        """As :meth:`read`, in one stage (DGL 2.2 and later)."""
        rows = self.read(ids)
        yield Reading(lambda: rows)

    def read_async_num_stages(self, ids_device: torch.device) -> int:
        """How many stages :meth:`read_async` has."""
        return 1

    def size(self) -> torch.Size:
        """The shape of a row."""
        return self.values.shape[1:]

    def count(self) -> int:
        """How many rows there are."""
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


class StoreFeatures(gb.FeatureStore):  # type: ignore[misc]
    """All tables of a store as a GraphBolt feature store.

    Keys are ``("node", type, name)`` and ``("edge", "source:type:destination", name)``; the type is
    ``None`` in a homogeneous store. :meth:`update` may add features that are this process's alone.

    Args:
        store: as ``store_of(g)`` gives it.
        metadata: by key, what :meth:`metadata` gives, such as ``{"num_categories": 12}``.
    """

    def __init__(
        self, store: Store, metadata: Mapping[Key, Mapping[str, Any]] | None = None
    ) -> None:
        super().__init__()
        self.store = store
        self._metadata = dict(metadata or {})
        self._private: dict[Key, PrivateFeature] = {}

    def __repr__(self) -> str:
        return f"StoreFeatures({[*map(self.__getitem__, self.keys())]})"

    def __len__(self) -> int:
        return len(self.keys())

    def __getitem__(self, key: Key) -> StoreFeature | PrivateFeature:
        private = self._private.get(key)
        return self._of_store(key) if private is None else private

    def __contains__(self, key: Key) -> bool:
        return key in self.keys()

    def to(self, device: Any) -> StoreFeatures:
        """Itself: a store stays where its plan says, and rows are read to the device of the ids."""
        return self

    def pin_memory_(self) -> StoreFeatures:
        """Itself: GPUs reach the store without being told."""
        return self

    def read(
        self, domain: str, type_name: str | None, feature_name: str, ids: Tensor | None = None
    ) -> Tensor:
        """See :meth:`StoreFeature.read`."""
        return self[domain, type_name, feature_name].read(ids)

    def size(self, domain: str, type_name: str | None, feature_name: str) -> torch.Size:
        """The shape of a row."""
        return self[domain, type_name, feature_name].size()

    def count(self, domain: str, type_name: str | None, feature_name: str) -> int:
        """How many rows there are."""
        return self[domain, type_name, feature_name].count()

    def metadata(self, domain: str, type_name: str | None, feature_name: str) -> dict[str, Any]:
        """What the constructor was told about a feature."""
        return self[domain, type_name, feature_name].metadata()

    def update(
        self,
        domain: str,
        type_name: str | None,
        feature_name: str,
        value: Tensor,
        ids: Tensor | None = None,
    ) -> None:
        """Writes a feature; not collective.

        Rows like those of the store's table are written to it, for all ranks: when every rank
        replaces a whole feature, barriers keep the others from reading too early. All rows of
        another width or dtype, or of a new name, become a feature of this process alone, which is
        the tensor itself without a copy and hides the store's table of that name from this object.

        Raises:
            KeyError: an unknown type; with `ids`, an unknown name.
            ValueError: another number of rows; with `ids`, rows of another shape or dtype.
        """
        key = (domain, type_name, feature_name)
        if not isinstance(value, Tensor):
            raise TypeError(f"value: expected a tensor, got {type(value).__name__}")
        value = in_memory(value)
        if ids is not None:
            self[key].update(value, ids)
            return
        rows = self._rows(domain, type_name)
        if value.dim() == 0 or value.shape[0] != rows:
            raise ValueError(f"value: expected {rows} rows, got shape {list(value.shape)}")
        if key not in self._private and key in self and self._of_store(key).takes(value):
            self._of_store(key).update(value)
        else:
            self._private[key] = PrivateFeature(value.detach(), self._metadata.get(key))

    def keys(self) -> list[Key]:
        """All of them, those of the store first."""
        store = self.store
        plain = store.is_homogeneous
        nodes: list[Key] = [
            ("node", None if plain else t, name)
            for t in store.node_types
            for name in store.node_table_names(t)
        ]
        edges: list[Key] = [
            ("edge", None if plain else gb.etype_tuple_to_str(t), name)
            for t in store.edge_types
            for name in store.edge_table_names(t)
            if name not in NAMES
        ]
        return list(dict.fromkeys([*nodes, *edges, *self._private]))

    def _of_store(self, key: Key) -> StoreFeature:
        domain, type_name, name = key
        metadata = self._metadata.get(key)
        if domain == "node":
            return StoreFeature(self.store.node_table(name, type_name or NODE), metadata)
        _check_domain(domain)
        return StoreFeature(self.store.edge_table(name, _edge_type(type_name)), metadata)

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
