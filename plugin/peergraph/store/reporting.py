"""What a store says of itself: the memory it takes."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch

from peergraph.memory import Table
from peergraph.memory.partitions import Partitions
from peergraph.store.footprint import Extent
from peergraph.store.ids import IdMap
from peergraph.store.items import table_name, type_name
from peergraph.store.memory_use import MemoryUse
from peergraph.store.plan import Plan
from peergraph.store.source import EdgeType, NodeType
from peergraph.store.structure import Structure


class Scratch(Protocol):
    """Memory that something keeps beside a store."""

    @property
    def num_bytes(self) -> int:
        """How much, at the moment."""


class Reporting:
    """The part of a store that reports."""

    device: torch.device
    plan: Plan
    _rank: int
    _ids: dict[NodeType, IdMap]
    _structures: dict[EdgeType, Structure]
    _node_tables: dict[NodeType, dict[str, Table]]
    _edge_tables: dict[EdgeType, dict[str, Table]]

    def __init__(self) -> None:
        self._scratch: list[tuple[str, weakref.ref[Scratch]]] = []

    def memory(self) -> MemoryUse:
        """Bytes by rank, tier, relation and table: as they were asked for, and as the driver hands
        them out. Not collective, does not synchronise.

        Samplers' node maps are in it for this rank; what a mini-batch needs for itself is not, nor
        are the tables of page addresses that the driver keeps for mapped memory.
        """
        self._scratch = [(name, ref) for name, ref in self._scratch if ref() is not None]
        kept = [(name, held) for name, ref in self._scratch if (held := ref()) is not None]
        return MemoryUse(
            tuple(self._extents()),
            self.device.type,
            self._rank,
            tuple((name, held.num_bytes) for name, held in kept),
        )

    def keeps(self, name: str, scratch: Scratch) -> None:
        """From now on :meth:`memory` names `scratch`, as long as it is there."""
        self._scratch.append((name, weakref.ref(scratch)))

    def _extents(self) -> Iterator[Extent]:
        parts = self.plan.partitions_in_use
        for node_type, ids in self._ids.items():
            for table in (ids.to_internal, ids.to_user):
                if table is not None:
                    yield _extent("ids", type_name(node_type), table.allocated, parts)
        for edge_type, structure in self._structures.items():
            name = type_name(edge_type)
            sizes = {tier: region.sizes for tier, region in structure.regions.items()}
            yield _extent("structure", name, sizes, parts)
            if structure.edge_ids is not None:
                yield _extent("edge ids", name, structure.edge_ids.allocated, parts)
        for of_node, tables in self._node_tables.items():
            for name, table in tables.items():
                yield _extent("node table", table_name(of_node, name), table.allocated, parts)
        for of_edge, tables in self._edge_tables.items():
            for name, table in tables.items():
                yield _extent("edge table", table_name(of_edge, name), table.allocated, parts)


def _extent(
    kind: str, name: str, sizes: Mapping[str, Sequence[int]], partitions: Partitions
) -> Extent:
    nothing = (0,) * partitions.num_gpus
    replicated, sharded = (tuple(sizes.get(tier, nothing)) for tier in ("replicated", "sharded"))
    host, disk = (sum(sizes.get(tier, ())) for tier in ("host", "disk"))
    return Extent(kind, name, replicated, sharded, host, disk=disk)
