"""Training with all rows on the devices: memory and expected time of each mode of exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peergraph.fullgraph.plan.layer_cost import LayerCost, layer_costs, mode_costs
from peergraph.fullgraph.plan.memory_items import (
    GraphFacts,
    MemoryItem,
    graph_items,
    imported_rows,
    total_bytes,
    training_items,
)
from peergraph.memory import Topology
from peergraph.store.placement.plan import format_bytes

# The width of a sum for which exchanges are compared where the model's widths are not known.
ASSUMED_WIDTH = 128
_MOST_GPUS = 4096


@dataclass(frozen=True)
class ResidentPlan:
    """Memory and time of training with all rows on the devices.

    Args:
        facts: counts of the graph's nodes, edges and remote rows.
        widths: columns of the input and of each layer's output; None: not known.
        items: memory, without buffers for the exchange and, without widths, without the model's.
        layers: of the model; none where the widths are not known.
        buffers: bytes of each rank for the exchange, by mode.
        seconds: expected time by mode, of an epoch; without widths, of a sum of `ASSUMED_WIDTH`
            columns.
        usable: the modes that the ranks can use.
    """

    facts: GraphFacts
    widths: tuple[int, ...] | None
    items: tuple[MemoryItem, ...]
    layers: tuple[LayerCost, ...]
    buffers: dict[str, tuple[int, ...]]
    seconds: dict[str, float]
    usable: tuple[str, ...]

    @classmethod
    def make(
        cls,
        facts: GraphFacts,
        topology: Topology,
        widths: tuple[int, ...] | None,
        element_bytes: int,
        modes: Sequence[str],
    ) -> ResidentPlan:
        """Returns the plan for a model with these widths; without widths, for the graph alone."""
        items, layers = graph_items(facts), list[LayerCost]()
        if widths is None:
            costs = mode_costs(facts, ASSUMED_WIDTH * element_bytes, topology)
            seconds = {name: cost.seconds for name, cost in costs.items()}
            # Without widths nothing is known of the rows that layers exchange.
            buffers = dict.fromkeys(costs, (0,) * facts.world_size)
        else:
            items += training_items(facts, widths, element_bytes)
            layers = layer_costs(facts, widths, element_bytes, topology)
            names = list(layers[0].modes)
            seconds = {name: sum(layer.seconds(name) for layer in layers) for name in names}
            buffers = {name: _widest_buffers(layers, name) for name in names}
            # Rows of other machines, and those that travel to them.
            columns = max(layer.width * (2 if layer.sums else 1) for layer in layers)
            imported = [rows * columns * element_bytes for rows in imported_rows(facts)]
            for name, num_bytes in buffers.items():
                buffers[name] = tuple(map(sum, zip(num_bytes, imported, strict=True)))
        usable = tuple(name for name in seconds if name in modes)
        return cls(facts, widths, tuple(items), tuple(layers), buffers, seconds, usable)

    def peak_bytes(self, mode: str | None = None) -> int:
        """Returns the bytes on the busiest rank; None: in the mode that takes the fewest."""
        held = total_bytes(self.items, self.facts.world_size)
        names = self.usable if mode is None else (mode,)
        return min(max(map(sum, zip(held, self.buffers[n], strict=True))) for n in names)

    def fitting_modes(self, budget: int | None) -> list[str]:
        """Returns the usable modes that fit into a budget of bytes; None: no limit."""
        return [n for n in self.usable if budget is None or self.peak_bytes(n) <= budget]

    def needed_bytes(self, mode: str | None, model: Sequence[int], element_bytes: int) -> int:
        """Returns the bytes on the busiest rank, those of the model included.

        Args:
            mode: of the exchange; None: the one that takes the fewest.
            model: widths that are assumed where the model's are not known.
            element_bytes: bytes of an element of the layers.
        """
        needed = self.peak_bytes(mode)
        if self.widths is None:
            assumed = training_items(self.facts, model, element_bytes)
            needed += max(total_bytes(assumed, self.facts.world_size))
        return needed

    def describe_excess(self, mode: str | None, budget: int) -> str:
        """Returns what is needed and for what, where it is more than a budget of bytes."""
        ranks, least = self.facts.world_size, self.peak_bytes(mode)
        parts = ", ".join(
            f"{i.name} {format_bytes(max(i.num_bytes))}" for i in self.items if any(i.num_bytes)
        )
        return (
            f"full-graph training takes {format_bytes(least)} ({least} bytes) on the busiest of "
            f"{ranks} rank{'s' if ranks > 1 else ''}, more than memory_budget "
            f"{format_bytes(budget)} ({budget} bytes): {parts}. Offloaded training (offload=None "
            f"or True) keeps rows in host memory; {self.advise_gpus(budget)}"
        )

    def advise_gpus(self, budget: int) -> str:
        """Returns in words how many GPUs with a budget of bytes would hold the graph."""
        return f"{self._enough_gpus(budget) or 'no number of'} GPUs with this budget would do"

    def _enough_gpus(self, budget: int) -> int | None:
        """The fewest GPUs that hold the graph, in equal shares with two buffers of a block."""
        ranks, items = self.facts.world_size, self.items
        held = sum(total_bytes(items, ranks))
        # Two buffers of n/P rows; on one rank the plan has none, so count a layer's widest rows.
        staged = max(self.buffers["blocks"]) * ranks
        if ranks == 1:
            outputs = (sum(i.num_bytes) for i in items if i.name == "layer outputs")
            staged = 2 * max(outputs, default=0)
        for count in range(ranks + 1, _MOST_GPUS + 1):
            if (held + staged) / count <= budget:
                return count
        return None


def _widest_buffers(layers: Sequence[LayerCost], mode: str) -> tuple[int, ...]:
    return tuple(map(max, zip(*(layer.modes[mode].buffers for layer in layers), strict=True)))
