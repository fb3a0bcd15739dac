"""Counts or estimates the reads of a mini-batch, for the cost model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from peergraph.store.hotness.good_turing import expected_reads
from peergraph.store.hotness.hotness import Hotness, HotnessSpec
from peergraph.store.input.schema import Schema
from peergraph.store.input.source import EdgeType, NodeType
from peergraph.store.placement.cost_model import SECTOR, AccessPattern, HitRateCurve
from peergraph.store.placement.plan import Item

# The mini-batch that is assumed without counts: about 1024 seeds, 15-10-5 neighbours, on a large
# graph. Only the proportions matter.
_NODES, _EXPANDED, _EDGES = 660_000, 140_000, 690_000
# The two bounds of a list are contiguous; its neighbours are at another address.
BOUNDS, _PLACES = 2, 2
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class BatchReads:
    """The reads of a mini-batch.

    Args:
        nodes: by node type, the distribution of reads over the rows, and the number of reads.
        expanded: by edge type, the same for the destinations whose neighbours are sampled.
        edges: by edge type, the number of sampled edges.
    """

    nodes: Mapping[NodeType, tuple[HitRateCurve, float]]
    expanded: Mapping[EdgeType, tuple[HitRateCurve, float]]
    edges: Mapping[EdgeType, float]

    @classmethod
    def of(
        cls,
        hotness: HotnessSpec,
        heat: Mapping[NodeType, Tensor],
        orders: Mapping[NodeType, Tensor],
        num_edges: Mapping[EdgeType, int],
        device: torch.device = _CPU,
    ) -> BatchReads:
        """Makes the reads from counts if `hotness` contains counts, else from the nodes' hotness.

        Args:
            hotness: the user's option `hotness`.
            heat: by node type, the hotness of each node, by user id.
            orders: by node type, the user id of each row.
            num_edges: the number of edges of each relation.
            device: the device that adds up reads.
        """
        if isinstance(hotness, Hotness):
            return cls.by_counts(hotness, orders, device)
        ordered = {t: h.to(device)[orders[t].to(device)] for t, h in heat.items()}
        return cls.by_nodes(ordered, num_edges)

    @classmethod
    def by_nodes(
        cls, hotness: Mapping[NodeType, Tensor], num_edges: Mapping[EdgeType, int]
    ) -> BatchReads:
        """Estimates the reads from the nodes' hotness, for a mini-batch of an assumed size.

        Args:
            hotness: by node type, the hotness of each row.
            num_edges: the number of edges of each relation.
        """
        curves = {t: HitRateCurve.of(h) for t, h in hotness.items()}
        rows = {t: h.numel() for t, h in hotness.items()}
        nodes = {t: (curve, float(min(rows[t], _NODES))) for t, curve in curves.items()}
        expanded = {t: (curves[t[2]], float(min(rows[t[2]], _EXPANDED))) for t in num_edges}
        return cls(nodes, expanded, {t: float(min(n, _EDGES)) for t, n in num_edges.items()})

    @classmethod
    def by_counts(
        cls, counts: Hotness, orders: Mapping[NodeType, Tensor], device: torch.device = _CPU
    ) -> BatchReads:
        """Estimates the reads of another epoch from counts of :func:`peergraph.sampling.presample`.

        Args:
            counts: the counts.
            orders: by node type, the user id of each row.
            device: the device that adds up reads.
        """
        batches = max(1, counts.batches)

        def of(values: Tensor, node_type: NodeType) -> tuple[HitRateCurve, float]:
            counted = values.to(device)
            curve = HitRateCurve.of(expected_reads(counted)[orders[node_type].to(device)])
            return curve, float(counted.sum()) / batches

        return cls(
            {t: of(values, t) for t, values in counts.features.items()},
            {t: of(values, t[2]) for t, values in counts.structure.items()},
            {t: n / batches for t, n in counts.edges.items()},
        )

    def with_lists(
        self,
        heat: Mapping[EdgeType, Tensor],
        orders: Mapping[EdgeType, Tensor],
        device: torch.device = _CPU,
    ) -> BatchReads:
        """Returns the same reads for structures whose rows have a separate order.

        Args:
            heat: by edge type, how often each neighbour list is read, by user id.
            orders: by edge type, the user id of each row of these structures.
            device: the device that adds up reads.
        """
        expanded = {
            t: (
                HitRateCurve.of(heat[t].to(device)[orders[t].to(device)]) if t in orders else curve,
                count,
            )
            for t, (curve, count) in self.expanded.items()
        }
        return replace(self, expanded=expanded)

    def with_elements(
        self, owners: Mapping[NodeType, NodeType | EdgeType], schema: Schema
    ) -> BatchReads:
        """Returns the same reads with those of elements of lists, which are read with their rows.

        Args:
            owners: by type of elements, the type whose rows have the lists.
        """
        nodes = dict(self.nodes)
        for elements, owner in owners.items():
            if isinstance(owner, str):
                rows, reads = schema.num_nodes[owner], self.nodes[owner][1]
            else:
                rows, reads = schema.num_edges[owner], self.edges[owner]
            count = schema.num_nodes[elements]
            nodes[elements] = HitRateCurve.uniform(count), reads * count / max(1, rows)
        return replace(self, nodes=nodes)

    def in_no_order(self, rows: Mapping[NodeType, int]) -> BatchReads:
        """Returns the same reads for node types whose rows are not ordered by hotness.

        Args:
            rows: the number of rows of these node types.
        """
        changed = {t: (HitRateCurve.uniform(n), self.nodes[t][1]) for t, n in rows.items()}
        return replace(self, nodes={**self.nodes, **changed})

    def access_pattern(self, item: Item) -> AccessPattern:
        """Returns how often mini-batches read the rows of a structure or a table."""
        row_bytes = max(1, item.bytes_of(1)) if item.rows else 1
        if isinstance(item.of, str):
            return AccessPattern(item, *self.nodes[item.of], row_bytes, row_bytes)
        edges = self.edges[item.of]
        if item.kind != "structure":
            return AccessPattern(item, HitRateCurve.uniform(item.rows), edges, row_bytes, row_bytes)
        curve, reads = self.expanded[item.of]
        read_bytes = SECTOR * (BOUNDS + edges / max(1.0, reads))
        return AccessPattern(item, curve, reads, read_bytes, SECTOR, _PLACES, is_table=False)
