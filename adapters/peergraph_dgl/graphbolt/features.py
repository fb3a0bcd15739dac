"""Tables of a store as GraphBolt's features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from dgl import graphbolt as gb
from torch import Tensor

from peergraph.memory import Table
from peergraph.store import EDGE, NODE, Store

from ..storages import Reading, start_reading

Key = tuple[str, str | None, str]


class StoreFeature(gb.Feature):  # type: ignore[misc]
    """One table as a feature; reads and writes are one-sided.

    Args:
        table: of nodes or edges, whose ids are the user's.
    """

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.table = table

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
        """Writes rows `ids`, or all rows, for all ranks."""
        if ids is not None:
            self.table.scatter(ids, value)
        elif value.shape[0] != self.table.rows:
            raise ValueError(f"value: expected {self.table.rows} rows, got {value.shape[0]}")
        else:
            self.table.load(value)

    def metadata(self) -> dict[str, Any]:
        """Nothing is known of a table but its values."""
        return {}


class StoreFeatures(gb.FeatureStore):  # type: ignore[misc]
    """All tables of a store as a GraphBolt feature store.

    Keys are ``("node", type, name)`` and ``("edge", "source:type:destination", name)``; the type is
    ``None`` in a homogeneous store.

    Args:
        store: as ``store_of(g)`` gives it.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    def __getitem__(self, key: Key) -> StoreFeature:
        return self._feature(*key)

    def __contains__(self, key: Key) -> bool:
        return key in self.keys()

    def read(
        self, domain: str, type_name: str | None, feature_name: str, ids: Tensor | None = None
    ) -> Tensor:
        """See :meth:`StoreFeature.read`."""
        return self._feature(domain, type_name, feature_name).read(ids)

    def size(self, domain: str, type_name: str | None, feature_name: str) -> torch.Size:
        """The shape of a row."""
        return self._feature(domain, type_name, feature_name).size()

    def count(self, domain: str, type_name: str | None, feature_name: str) -> int:
        """How many rows there are."""
        return self._feature(domain, type_name, feature_name).count()

    def metadata(self, domain: str, type_name: str | None, feature_name: str) -> dict[str, Any]:
        """Nothing is known of a table but its values."""
        return self._feature(domain, type_name, feature_name).metadata()

    def update(
        self,
        domain: str,
        type_name: str | None,
        feature_name: str,
        value: Tensor,
        ids: Tensor | None = None,
    ) -> None:
        """Writes rows for all ranks."""
        self._feature(domain, type_name, feature_name).update(value, ids)

    def keys(self) -> list[Key]:
        """All of them."""
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
        ]
        return nodes + edges

    def _feature(self, domain: str, type_name: str | None, name: str) -> StoreFeature:
        if domain == "node":
            return StoreFeature(self.store.node_table(name, type_name or NODE))
        if domain == "edge":
            edge_type = EDGE if type_name is None else gb.etype_str_to_tuple(type_name)
            return StoreFeature(self.store.edge_table(name, edge_type))
        raise KeyError(f"domain: expected 'node' or 'edge', got {domain!r}")
