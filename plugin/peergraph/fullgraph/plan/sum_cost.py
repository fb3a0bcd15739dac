"""What the sums of an epoch exchange in each mode, and how long that takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from peergraph.fullgraph.exchange.mode_cost import ModeCost, sum_costs
from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.fullgraph.plan.recorded_model import RecordedModel
from peergraph.memory import Topology


@dataclass(frozen=True)
class SumCost:
    """Equal sums of an epoch.

    Args:
        row_bytes: of the rows that are summed: those of the order of product and sum that sums
            fewer columns (MG-GCN 4.4).
        count: of the sums in an epoch, forward and backward.
        modes: the cost of one sum by mode, over all relations.
    """

    row_bytes: int
    count: int
    modes: dict[str, ModeCost]

    def seconds(self, mode: str) -> float:
        """Of an epoch."""
        return self.count * self.modes[mode].seconds

    def received(self, mode: str) -> int:
        """Bytes that the busiest rank receives in an epoch."""
        return self.count * max(self.modes[mode].received)


def sums_of_epoch(
    facts: GraphFacts, model: RecordedModel, topology: Topology
) -> tuple[SumCost, ...]:
    """Returns the cost of the sums of a model, the first of the forward pass first."""
    counts = Counter(
        model.schedule.row_bytes(name)
        for step in model.schedule.passes
        # Sums whose gradients are added to the sources are computed again, with rows that resident
        # training still has.
        for name in step.adds or step.sources
    )
    return tuple(
        SumCost(row_bytes, count, mode_costs(facts, row_bytes, topology))
        for row_bytes, count in counts.items()
    )


def mode_costs(facts: GraphFacts, row_bytes: int, topology: Topology) -> dict[str, ModeCost]:
    """Returns the cost by mode of a sum in every relation, one after the other."""
    total: dict[str, ModeCost] = {}
    for edge_type, volume in facts.volumes.items():
        sources, destinations = facts.nodes[edge_type[0]], facts.nodes[edge_type[2]]
        for mode, cost in sum_costs(volume, sources, destinations, row_bytes, topology).items():
            total[mode] = cost if mode not in total else _both(total[mode], cost)
    return total


def _both(first: ModeCost, second: ModeCost) -> ModeCost:
    received = zip(first.received, second.received, strict=True)
    buffers = zip(first.buffers, second.buffers, strict=True)
    return ModeCost(
        first.mode,
        first.seconds + second.seconds,
        tuple(a + b for a, b in received),
        tuple(map(max, buffers)),  # buffers of one relation serve the next
    )
