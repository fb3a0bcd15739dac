"""Training with all rows on the devices: memory and expected time of each mode of exchange."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from peergraph.fullgraph.exchange.mode_cost import ModeCost, sum_costs
from peergraph.fullgraph.plan.memory_items import (
    GraphFacts,
    MemoryItem,
    graph_items,
    imported_rows,
    total_bytes,
)
from peergraph.fullgraph.plan.schedule import RecordedModel
from peergraph.memory import Topology
from peergraph.printing import format_bytes


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


# The rows of a sum for which exchanges are compared where the model is not known: 128 floats.
ASSUMED_ROW_BYTES = 512


class NetworkBytes(NamedTuple):
    """Bytes of each machine in an epoch; without a model, of a sum of 128 columns.

    A row crosses the network once for each machine that needs it, and so does its gradient.
    """

    received: tuple[int, ...]
    sent: tuple[int, ...]


@dataclass(frozen=True)
class ResidentPlan:
    """Memory and time of training with all rows on the devices.

    Args:
        facts: counts of the graph's nodes, edges and remote rows.
        model: None: not known.
        items: memory, without buffers for the exchange and, without a model, without the model's.
        sums: of an epoch of the model; none where it is not known.
        buffers: bytes of each rank for the exchange, by mode.
        seconds: expected time by mode, of an epoch; without a model, of a sum of rows of
            `ASSUMED_ROW_BYTES`.
        usable: the modes that the ranks can use.
    """

    facts: GraphFacts
    model: RecordedModel | None
    items: tuple[MemoryItem, ...]
    sums: tuple[SumCost, ...]
    buffers: dict[str, tuple[int, ...]]
    seconds: dict[str, float]
    usable: tuple[str, ...]

    @classmethod
    def make(
        cls,
        facts: GraphFacts,
        topology: Topology,
        model: RecordedModel | None,
        modes: Sequence[str],
    ) -> ResidentPlan:
        """Returns the plan for a model; without one, for the graph alone."""
        items = graph_items(facts) + ([] if model is None else model.resident_items(facts))
        sums = () if model is None else sums_of_epoch(facts, model, topology)
        costs = mode_costs(facts, ASSUMED_ROW_BYTES, topology)
        seconds = {name: cost.seconds for name, cost in costs.items()}
        # Without a model nothing is known of the rows that layers exchange.
        buffers = dict.fromkeys(costs, (0,) * facts.world_size)
        if sums:
            seconds = {name: sum(each.seconds(name) for each in sums) for name in costs}
            # Rows of other machines, and those that travel to them.
            widest = 2 * max(each.row_bytes for each in sums)
            imported = [rows * widest for rows in imported_rows(facts)]
            for name in buffers:
                widest_buffers = map(max, zip(*(s.modes[name].buffers for s in sums), strict=True))
                buffers[name] = tuple(map(sum, zip(widest_buffers, imported, strict=True)))
        usable = tuple(name for name in seconds if name in modes)
        return cls(facts, model, tuple(items), sums, buffers, seconds, usable)

    def bytes_by_rank(self, mode: str) -> tuple[int, ...]:
        """Returns the bytes that each rank needs, with the buffers of this exchange mode."""
        of_items = total_bytes(self.items, self.facts.world_size)
        return tuple(map(sum, zip(of_items, self.buffers[mode], strict=True)))

    def peak_bytes(self, mode: str | None = None) -> int:
        """Returns the bytes on the busiest rank; None: in the mode that takes the fewest."""
        names = self.usable if mode is None else (mode,)
        return min(max(self.bytes_by_rank(name)) for name in names)

    def fitting_modes(self, budget: int | None) -> list[str]:
        """Returns the usable modes that fit into a budget of bytes; None: no limit."""
        return [n for n in self.usable if budget is None or self.peak_bytes(n) <= budget]

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
            "or True) keeps rows in host memory; more GPUs have smaller shares"
        )

    @property
    def network(self) -> NetworkBytes | None:
        """What the sums send between machines; None for one machine."""
        facts = self.facts
        if len(facts.machines) < 2:
            return None
        row_bytes = sum(s.count * s.row_bytes for s in self.sums) or ASSUMED_ROW_BYTES
        volumes = facts.volumes.values()
        received = zip(*(v.network_received for v in volumes), strict=True)
        sent = zip(*(v.network_sent(facts.machines) for v in volumes), strict=True)
        return NetworkBytes(*(tuple(row_bytes * sum(r) for r in rows) for rows in (received, sent)))
