"""The bytes of a partitioned graph on each rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from peergraph.fullgraph.layout.volume import Volume
from peergraph.store import EdgeType, NodeType

_INT32_ROWS = (1 << 31) - 1


@dataclass(frozen=True)
class GraphFacts:
    """What a plan is made from.

    Args:
        nodes: rows of each rank, by node type.
        volumes: by relation.
        row_bytes: bytes of the tables of a node, by node type.
        edge_row_bytes: bytes of the tables of an edge, by relation.
        order: name of the order of the nodes.
        reason: why that order.
        machines: the ranks of each machine; empty: there is one.
    """

    nodes: Mapping[NodeType, tuple[int, ...]]
    volumes: Mapping[EdgeType, Volume]
    row_bytes: Mapping[NodeType, int] = field(default_factory=dict)
    edge_row_bytes: Mapping[EdgeType, int] = field(default_factory=dict)
    order: str = "random"
    reason: str = ""
    machines: tuple[tuple[int, ...], ...] = ()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(next(iter(self.nodes.values())))

    @property
    def rows(self) -> tuple[int, ...]:
        """Nodes of each rank, of all types."""
        return tuple(map(sum, zip(*self.nodes.values(), strict=True)))

    @property
    def num_edges(self) -> tuple[int, ...]:
        """For each rank, the number of edges into its nodes, over all relations."""
        counts = [volume.num_edges for volume in self.volumes.values()]
        return tuple(sum(count[rank] for count in counts) for rank in range(self.world_size))

    def table_bytes(self, rank: int) -> int:
        """Returns the bytes of a rank's tables of nodes."""
        return sum(counts[rank] * self.row_bytes.get(t, 0) for t, counts in self.nodes.items())


@dataclass(frozen=True)
class MemoryItem:
    """Bytes of each rank for one thing."""

    name: str
    what: str
    num_bytes: tuple[int, ...]

    @classmethod
    def of_each(cls, name: str, what: str, size: float, counts: Sequence[int]) -> MemoryItem:
        """Returns the item of so many bytes for each of a rank's nodes or edges."""
        return cls(name, what, tuple(math.ceil(size * count) for count in counts))


def graph_items(facts: GraphFacts) -> list[MemoryItem]:
    """Returns what the graph itself takes, before the first layer."""
    ranks = range(facts.world_size)
    structure, stages, transposes, edge_rows = ([0] * len(ranks) for _ in range(4))
    lists = [8 * rows for rows in facts.rows]
    for edge_type, volume in facts.volumes.items():
        sources, destinations = facts.nodes[edge_type[0]], facts.nodes[edge_type[2]]
        received, sent = volume.received, volume.sent
        for rank in ranks:
            edges = volume.num_edges[rank]
            extended = sources[rank] + received[rank]
            index = 4 if max(extended, destinations[rank], edges) < _INT32_ROWS else 8
            offsets = destinations[rank] + 1
            structure[rank] += (offsets + edges) * index
            # Without values of edges, edges by the rank of their source have no ids of edges.
            if len(ranks) > 1:
                stages[rank] += (len(ranks) * offsets + edges) * index
            ids = 1 if len(ranks) == 1 else 0
            transposes[rank] += (extended + 1 + (1 + ids) * edges) * index
            # The user's row of each edge, and the edges' tables.
            edge_rows[rank] += edges * (8 + facts.edge_row_bytes.get(edge_type, 0))
            lists[rank] += 8 * (received[rank] + sent[rank])
    tables = map(facts.table_bytes, ranks)
    return [
        MemoryItem("structure", "in-edges of own nodes", tuple(structure)),
        MemoryItem("stages", "in-edges by rank of the source", tuple(stages)),
        MemoryItem("transposes", "for gradients of sources", tuple(transposes)),
        MemoryItem("numbering", "user's ids; rows to exchange", tuple(lists)),
        MemoryItem("edge rows", "user's ids and tables of edges", tuple(edge_rows)),
        MemoryItem("node rows", "tables of own nodes", tuple(tables)),
    ]


def imported_rows(facts: GraphFacts) -> list[int]:
    """Returns the rows of other machines that each rank imports, in equal shares of a machine."""
    imported = [0] * facts.world_size
    for machine, ranks in enumerate(facts.machines):
        for rank in ranks:
            received = (v.network_received for v in facts.volumes.values() if v.network)
            rows = max((by_machine[machine] for by_machine in received), default=0)
            imported[rank] = -(-rows // len(ranks))
    return imported


def total_bytes(items: Sequence[MemoryItem], world_size: int) -> tuple[int, ...]:
    """Returns the bytes of each rank for all items together."""
    return tuple(sum(item.num_bytes[rank] for item in items) for rank in range(world_size))
