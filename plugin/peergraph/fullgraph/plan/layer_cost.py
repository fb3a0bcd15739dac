"""What a layer of a GCN exchanges in each mode, and how long that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from peergraph.fullgraph.exchange.mode_cost import ModeCost, sum_costs
from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.memory import Topology


@dataclass(frozen=True)
class LayerCost:
    """The sums of one layer in an epoch.

    Args:
        width: columns that are summed: those of the order that sums fewer (MG-GCN 4.4).
        before: whether the sum comes before the product.
        sums: sums of an epoch: one forward and one backward; none for the first layer, which sums
            the input: that does not change and takes no gradient.
        modes: the cost of one sum by mode, over all relations.
    """

    width: int
    before: bool
    sums: int
    modes: dict[str, ModeCost]

    def seconds(self, mode: str) -> float:
        """Of an epoch."""
        return self.sums * self.modes[mode].seconds

    def received(self, mode: str) -> int:
        """Bytes that the busiest rank receives in an epoch."""
        return self.sums * max(self.modes[mode].received)


def layer_costs(
    facts: GraphFacts, widths: Sequence[int], element_bytes: int, topology: Topology
) -> list[LayerCost]:
    """Returns the cost of each layer.

    Args:
        widths: columns of the input and of each layer's output.
        element_bytes: bytes of an element.
    """
    layers = []
    for number, (width, sums_first) in enumerate(summed_widths(widths)):
        modes = mode_costs(facts, width * element_bytes, topology)
        sums = 0 if number == 0 else 2
        layers.append(LayerCost(width, sums_first, sums, modes))
    return layers


def summed_widths(widths: Sequence[int]) -> list[tuple[int, bool]]:
    """Returns the columns that each layer sums, and whether it sums before its product.

    Args:
        widths: columns of the input and of each layer's output.
    """
    layers = []
    for number, (before, after) in enumerate(pairwise(widths)):
        # The sum of the input does not change, and is kept.
        sums_first = number == 0 or before < after
        layers.append((before if sums_first else after, sums_first))
    return layers


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
