"""The plan of full-graph training: memory, exchange, expected time, and the chosen mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from peergraph.fullgraph.exchange.mode_cost import MODES
from peergraph.fullgraph.plan.layer_cost import LayerCost, layer_costs, mode_costs
from peergraph.fullgraph.plan.memory_items import (
    GraphFacts,
    MemoryItem,
    graph_items,
    total_bytes,
    training_items,
)
from peergraph.memory import Topology
from peergraph.store.placement.plan import format_bytes

# The width of a sum for which modes are compared where the model's widths are not known.
_ASSUMED_WIDTH = 128
_MOST_GPUS = 4096


@dataclass(frozen=True)
class FullGraphPlan:
    """What lies where, what is exchanged, and in which mode. ``print(plan)`` shows it.

    Args:
        facts: the counted graph.
        topology: whose links the times are predicted for.
        widths: columns of the input and of each layer's output; None: not known.
        element_bytes: bytes of an element of the layers.
        memory_budget: bytes of each rank; None: no limit.
        mode: how rows are exchanged: "halo", "blocks" or "in_kernel".
        reason: why that mode, in words.
        items: memory, without buffers for the exchange.
        layers: of the model; none where the widths are not known.
        buffers: bytes of each rank for the exchange, by mode.
        modes: that the ranks can use.
    """

    facts: GraphFacts
    topology: Topology
    widths: tuple[int, ...] | None
    element_bytes: int
    memory_budget: int | None
    mode: str
    reason: str
    items: tuple[MemoryItem, ...]
    layers: tuple[LayerCost, ...]
    buffers: dict[str, tuple[int, ...]]
    modes: tuple[str, ...] = MODES

    @classmethod
    def make(
        cls,
        facts: GraphFacts,
        topology: Topology,
        *,
        widths: Sequence[int] | None = None,
        element_bytes: int = 4,
        memory_budget: int | None = None,
        mode: str | None = None,
        modes: Sequence[str] = MODES,
    ) -> FullGraphPlan:
        """Plans for a graph that has been counted.

        Args:
            facts, topology, widths, element_bytes, memory_budget: see the class.
            mode: to be used; None: the quickest that fits into the budget.
            modes: that the ranks can use.

        Raises:
            ValueError: an unknown mode, or widths that are not positive.
            NotImplementedError: the graph does not fit into the budget: training with rows in host
                memory is not implemented. The message has the counted bytes, and how many GPUs
                would do.
        """
        widths = _check_widths(widths)
        items, layers = graph_items(facts), list[LayerCost]()
        if widths is None:
            costs = mode_costs(facts, _ASSUMED_WIDTH * element_bytes, topology)
            seconds = {name: cost.seconds for name, cost in costs.items()}
            # Without widths nothing is known of the rows that layers exchange.
            buffers = dict.fromkeys(costs, (0,) * facts.world_size)
        else:
            items += training_items(facts, widths, element_bytes)
            layers = layer_costs(facts, widths, element_bytes, topology)
            names = list(layers[0].modes)
            seconds = {name: sum(layer.seconds(name) for layer in layers) for name in names}
            buffers = {name: _widest_buffers(layers, name) for name in names}
        usable = [name for name in seconds if name in modes]
        if mode is not None and mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        if mode is not None and mode not in usable:
            raise ValueError(f"mode {mode!r} is not for these ranks, expected one of {usable}")
        held = total_bytes(items, facts.world_size)
        peak = {name: _peak(held, buffers[name]) for name in usable}
        fitting = [n for n in usable if memory_budget is None or peak[n] <= memory_budget]
        wanted = fitting if mode is None else [n for n in fitting if n == mode]
        if not wanted:
            least = min(peak.values()) if mode is None else peak[mode]
            assert memory_budget is not None
            raise NotImplementedError(_too_large(facts, items, buffers, least, memory_budget))
        chosen = min(wanted, key=seconds.__getitem__)
        reason = _reason(facts, chosen, mode, seconds, usable, fitting, widths)
        return cls(
            facts,
            topology,
            widths,
            element_bytes,
            memory_budget,
            chosen,
            reason,
            tuple(items),
            tuple(layers),
            buffers,
            tuple(modes),
        )

    def with_widths(self, widths: Sequence[int], element_bytes: int = 4) -> FullGraphPlan:
        """Returns the plan of a model: `widths` has the input's columns and each layer's output's.

        Raises:
            ValueError, NotImplementedError: as :meth:`make`.
        """
        return FullGraphPlan.make(
            self.facts,
            self.topology,
            widths=widths,
            element_bytes=element_bytes,
            memory_budget=self.memory_budget,
            modes=self.modes,
        )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.facts.world_size

    @property
    def bytes_by_rank(self) -> tuple[int, ...]:
        """Bytes of each rank, with the buffers of the exchange."""
        held = total_bytes(self.items, self.world_size)
        return tuple(a + b for a, b in zip(held, self.buffers[self.mode], strict=True))

    @property
    def seconds(self) -> float:
        """Predicted time of all sums of an epoch, without products; 0 without widths."""
        return sum(layer.seconds(self.mode) for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, for JSON."""
        return {
            "world_size": self.world_size,
            "order": self.facts.order,
            "nodes": {t: list(counts) for t, counts in self.facts.nodes.items()},
            "relations": [
                {"type": list(t), "rows": v.rows, "edges": v.edges}
                for t, v in self.facts.volumes.items()
            ],
            "widths": self.widths,
            "memory_budget": self.memory_budget,
            "mode": self.mode,
            "reason": self.reason,
            "bytes": {item.name: list(item.num_bytes) for item in self.items},
            "buffers": {mode: list(taken) for mode, taken in self.buffers.items()},
            "layers": [
                {
                    "width": layer.width,
                    "sums": layer.sums,
                    "modes": {
                        m: {"received": layer.received(m), "seconds": layer.seconds(m)}
                        for m in layer.modes
                    },
                }
                for layer in self.layers
            ],
        }

    def __str__(self) -> str:
        from peergraph.fullgraph.plan.format_plan import format_plan

        return format_plan(self)


def _check_widths(widths: Sequence[int] | None) -> tuple[int, ...] | None:
    if widths is None:
        return None
    if len(widths) < 2 or min(widths) < 1:
        raise ValueError(
            "widths must have the columns of the input and of each layer's output, all positive, "
            f"got {list(widths)}"
        )
    return tuple(widths)


def _widest_buffers(layers: Sequence[LayerCost], mode: str) -> tuple[int, ...]:
    return tuple(map(max, zip(*(layer.modes[mode].buffers for layer in layers), strict=True)))


def _peak(held: Sequence[int], buffers: Sequence[int]) -> int:
    return max(a + b for a, b in zip(held, buffers, strict=True))


def _reason(
    facts: GraphFacts,
    chosen: str,
    asked: str | None,
    seconds: dict[str, float],
    usable: Sequence[str],
    fitting: Sequence[str],
    widths: Sequence[int] | None,
) -> str:
    if asked is not None:
        return "asked for"
    if facts.world_size == 1:
        return "one rank has all rows, nothing is exchanged"
    per = "an epoch" if widths is not None else f"a sum of {_ASSUMED_WIDTH} columns"
    times = ", ".join(f"{name} {1e3 * seconds[name]:.3g} ms" for name in usable)
    volume = sum(sum(v.received) for v in facts.volumes.values())
    whole = sum((facts.world_size - 1) * sum(facts.nodes[t[0]]) for t in facts.volumes)
    share = f"{100 * volume / max(1, whole):.0f} % of remote rows are needed"
    left_out = [name for name in usable if name not in fitting]
    without = f"; no room for {', '.join(left_out)}" if left_out else ""
    return f"predicted for {per}: {times}; {share}{without}"


def _too_large(
    facts: GraphFacts,
    items: Sequence[MemoryItem],
    buffers: dict[str, tuple[int, ...]],
    least: int,
    budget: int,
) -> str:
    ranks = facts.world_size
    parts = ", ".join(
        f"{i.name} {format_bytes(max(i.num_bytes))}" for i in items if any(i.num_bytes)
    )
    enough = _enough_gpus(facts, items, buffers, budget)
    advice = (
        f"{enough} GPUs with this budget would do"
        if enough is not None
        else "no number of GPUs with this budget would do"
    )
    return (
        f"full-graph training takes {format_bytes(least)} ({least} bytes) on the busiest of "
        f"{ranks} rank{'s' if ranks > 1 else ''}, more than memory_budget "
        f"{format_bytes(budget)} ({budget} bytes): {parts}. Offloaded training, with rows in host "
        f"memory, is not implemented yet; {advice}"
    )


def _enough_gpus(
    facts: GraphFacts,
    items: Sequence[MemoryItem],
    buffers: dict[str, tuple[int, ...]],
    budget: int,
) -> int | None:
    """How many GPUs hold the graph with even shares and whole blocks in two buffers."""
    ranks = facts.world_size
    held = sum(total_bytes(items, ranks))
    # Two buffers of n/P rows; on one rank the plan has none, so count a layer's widest rows.
    staged = max(buffers["blocks"]) * ranks
    if ranks == 1:
        staged = 2 * max((sum(i.num_bytes) for i in items if i.name == "layer outputs"), default=0)
    for count in range(ranks + 1, _MOST_GPUS + 1):
        if (held + staged) / count <= budget:
            return count
    return None
