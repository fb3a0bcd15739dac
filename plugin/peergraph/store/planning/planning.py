"""From how mini-batches read a graph to a plan, by the cost model or by ratios."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from peergraph.memory import Tiers
from peergraph.memory.table.partitions import Partitions
from peergraph.memory.topology.topology import Topology
from peergraph.store.hotness.good_turing import expected_reads
from peergraph.store.hotness.hotness import Given, Hotness
from peergraph.store.input.source import EdgeType, NodeType
from peergraph.store.planning.cost import SECTOR, Curve, Load, Work, predict
from peergraph.store.planning.plan import Item
from peergraph.store.planning.prediction import Prediction
from peergraph.store.planning.tier_choice import bytes_on_gpu, choose_tiers, tiers_of_ratio

# A mini-batch where nothing was counted: about 1024 seeds, 15-10-5 neighbours, on a large graph.
# Only the proportions matter to a choice.
_NODES, _EXPANDED, _EDGES = 660_000, 140_000, 690_000
# A list's two bounds lie together, its neighbours elsewhere.
BOUNDS, _PLACES = 2, 2
# Of a sampler's map of nodes.
_INDEX_BYTES = 4
_CPU = torch.device("cpu")
_STRUCTURE = ("structure", "edge ids")


@dataclass(frozen=True)
class Shares:
    """What users say about the plan: XGNN's ratios, and what comes first (4.3).

    Args:
        graph: of the bytes of structure and edge ids, those on GPUs; None: as the plan finds best.
        feature: the same of node and edge tables.
        first: "structure" or "features": gets memory before the other; None: whatever saves most.
    """

    graph: float | None = None
    feature: float | None = None
    first: str | None = None

    def __post_init__(self) -> None:
        for name, ratio in (("graph_ratio", self.graph), ("feature_ratio", self.feature)):
            if ratio is not None and not 0 <= ratio <= 1:
                raise ValueError(f"{name} must be in 0..1, got {ratio}")
        if self.first not in (None, "structure", "features"):
            raise ValueError(f"first must be 'structure' or 'features', got {self.first!r}")

    @property
    def given(self) -> bool:
        """Whether anything is said."""
        return self != Shares()

    def of(self, item: Item) -> float | None:
        """The ratio of an item."""
        return self.graph if item.kind in _STRUCTURE else self.feature


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
        given: Given,
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


Chooser = Callable[[Sequence[Item], int], list[Tiers]]


def by_cost(
    reads: Reads, topology: Topology, partitions: Partitions, *, replicate: bool = True
) -> Chooser:
    """Chooses tiers by :func:`choose_tiers`."""

    def choose(items: Sequence[Item], budget: int) -> list[Tiers]:
        loads = [reads.load(item) for item in items]
        return choose_tiers(loads, topology, partitions, budget, replicate=replicate)

    return choose


def share_out(
    items: Sequence[Item], budget: int | None, shares: Shares, partitions: Partitions, rest: Chooser
) -> list[Tiers]:
    """The tiers of all items: those with a ratio by it, the others by `rest` in what is left.

    Args:
        budget: bytes on each GPU; None: as many as the ratios take.

    Raises:
        ValueError: the ratios take more than the budget.
    """
    chosen: dict[int, Tiers] = {}
    for index, item in enumerate(items):
        ratio = shares.of(item)
        if ratio is not None:
            chosen[index] = tiers_of_ratio(item, ratio, partitions)

    def taken() -> int:
        return sum(bytes_on_gpu(items[i], tiers, partitions) for i, tiers in chosen.items())

    if budget is not None and taken() > budget:
        raise ValueError(
            f"graph_ratio and feature_ratio take {taken()} bytes of each rank, "
            f"the budget is {budget}"
        )
    open_items = [i for i in range(len(items)) if i not in chosen]
    for group in _in_turn(items, open_items, shares.first):
        left = 0 if budget is None else budget - taken()
        chosen.update(zip(group, rest([items[i] for i in group], left), strict=True))
    return [chosen[i] for i in range(len(items))]


def _in_turn(items: Sequence[Item], indices: list[int], first: str | None) -> list[list[int]]:
    """Which items share the memory that is left, one group after the other."""
    if first is None:
        return [indices]
    structure = [i for i in indices if items[i].kind in _STRUCTURE]
    tables = [i for i in indices if items[i].kind not in _STRUCTURE]
    return [structure, tables] if first == "structure" else [tables, structure]


def predict_all(
    items: Sequence[Item],
    tiers: Sequence[Tiers],
    reads: Reads,
    topology: Topology,
    partitions: Partitions,
) -> tuple[Prediction, ...]:
    """The cost of every item."""
    return tuple(
        predict(reads.load(item), chosen, topology, partitions)
        for item, chosen in zip(items, tiers, strict=True)
    )
