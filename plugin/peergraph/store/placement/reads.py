"""What a mini-batch reads of a graph, counted or estimated: what the cost model goes by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from peergraph.store.hotness.good_turing import expected_reads
from peergraph.store.hotness.hotness import Hotness, HotnessSpec
from peergraph.store.input.source import EdgeType, NodeType
from peergraph.store.placement.cost_model import SECTOR, Curve, Load, Work
from peergraph.store.placement.plan import Item

# A mini-batch where nothing was counted: about 1024 seeds, 15-10-5 neighbours, on a large graph.
# Only the proportions matter to a choice.
_NODES, _EXPANDED, _EDGES = 660_000, 140_000, 690_000
# A list's two bounds lie together, its neighbours elsewhere.
BOUNDS, _PLACES = 2, 2
# Of a sampler's map of nodes.
_INDEX_BYTES = 4
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Reads:
    """What a mini-batch reads.

    Args:
        nodes: by node type, which rows, in their order, and how many.
        expanded: by edge type, the same of destinations whose in-neighbours are sampled.
        edges: by edge type, how many.
        hops: that it is sampled in.
    """

    nodes: Mapping[NodeType, tuple[Curve, float]]
    expanded: Mapping[EdgeType, tuple[Curve, float]]
    edges: Mapping[EdgeType, float]
    hops: int = 3

    @classmethod
    def of(
        cls,
        given: HotnessSpec,
        heat: Mapping[NodeType, Tensor],
        orders: Mapping[NodeType, Tensor],
        num_edges: Mapping[EdgeType, int],
        device: torch.device = _CPU,
    ) -> Reads:
        """By counts where there are some, else by how hot the nodes are.

        Args:
            heat: by node type, by user id.
            orders: by node type, the users' ids of the rows.
            device: where to add up the reads of large graphs.
        """
        if isinstance(given, Hotness):
            return cls.by_counts(given, orders, device)
        ordered = {t: h.to(device)[orders[t].to(device)] for t, h in heat.items()}
        return cls.by_nodes(ordered, num_edges)

    @classmethod
    def by_nodes(
        cls, hotness: Mapping[NodeType, Tensor], num_edges: Mapping[EdgeType, int]
    ) -> Reads:
        """As hot nodes are read more, with a mini-batch of usual size.

        Args:
            hotness: by node type, in the order of the rows.
            num_edges: of each relation.
        """
        curves = {t: Curve.of(h) for t, h in hotness.items()}
        rows = {t: h.numel() for t, h in hotness.items()}
        nodes = {t: (curve, float(min(rows[t], _NODES))) for t, curve in curves.items()}
        expanded = {t: (curves[t[2]], float(min(rows[t[2]], _EXPANDED))) for t in num_edges}
        return cls(nodes, expanded, {t: float(min(n, _EDGES)) for t, n in num_edges.items()})

    @classmethod
    def by_counts(
        cls, counts: Hotness, orders: Mapping[NodeType, Tensor], device: torch.device = _CPU
    ) -> Reads:
        """As :func:`peergraph.sampling.presample` counted, in an epoch that was not counted.

        Args:
            orders: by node type, the users' ids of the rows.
            device: where to add up the reads of large graphs.
        """
        batches = max(1, counts.batches)

        def of(values: Tensor, node_type: NodeType) -> tuple[Curve, float]:
            near = values.to(device)
            curve = Curve.of(expected_reads(near)[orders[node_type].to(device)])
            return curve, float(near.sum()) / batches

        return cls(
            {t: of(values, t) for t, values in counts.features.items()},
            {t: of(values, t[2]) for t, values in counts.structure.items()},
            {t: n / batches for t, n in counts.edges.items()},
            counts.hops,
        )

    def with_lists(
        self,
        heat: Mapping[EdgeType, Tensor],
        orders: Mapping[EdgeType, Tensor],
        device: torch.device = _CPU,
    ) -> Reads:
        """The same reads of lists that lie in orders of their own.

        Args:
            heat: by edge type, how often each list is read, by user id.
            orders: by edge type, the users' ids of the rows.
            device: where to add up the reads of large graphs.
        """
        expanded = {
            t: (Curve.of(heat[t].to(device)[orders[t].to(device)]) if t in orders else curve, count)
            for t, (curve, count) in self.expanded.items()
        }
        return replace(self, expanded=expanded)

    def in_no_order(self, rows: Mapping[NodeType, int]) -> Reads:
        """The same reads of nodes of some types that do not lie by hotness.

        Args:
            rows: by node type, how many there are.
        """
        changed = {t: (Curve.uniform(n), self.nodes[t][1]) for t, n in rows.items()}
        return replace(self, nodes={**self.nodes, **changed})

    def load(self, item: Item) -> Load:
        """How an item is read."""
        row_bytes = max(1, item.bytes_of(1)) if item.rows else 1
        if isinstance(item.of, str):
            return Load(item, *self.nodes[item.of], row_bytes, row_bytes)
        edges = self.edges[item.of]
        if item.kind != "structure":
            return Load(item, Curve.uniform(item.rows), edges, row_bytes, row_bytes)
        curve, reads = self.expanded[item.of]
        read_bytes = SECTOR * (BOUNDS + edges / max(1.0, reads))
        sources = int(self.nodes[item.of[0]][0].rows[-1])
        work = Work(self.hops, edges, _INDEX_BYTES * sources)
        return Load(item, curve, reads, read_bytes, SECTOR, _PLACES, False, work)
