"""What full-graph training sends between machines, and whether fewer machines are faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from peergraph.fullgraph.exchange.mode_cost import quickest
from peergraph.fullgraph.layout.volume import Matrix, Volume
from peergraph.fullgraph.plan.layer_cost import LayerCost
from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.fullgraph.plan.network_rate import check_network
from peergraph.fullgraph.plan.resident_plan import ASSUMED_WIDTH, ResidentPlan
from peergraph.memory import Topology
from peergraph.store.placement.plan import format_bytes
from peergraph.store.placement.prediction import format_seconds

_Machines = Sequence[Sequence[int]]


@dataclass(frozen=True)
class NetworkCost:
    """What the sums of an epoch send over the network. ``print`` shows it.

    A row crosses the network once for each machine that needs it, and so does its gradient.

    Args:
        bandwidth: bytes a second that a machine sends, and as many that it receives.
        is_assumed: whether nobody has given the bandwidth.
        received, sent: bytes of each machine in an epoch; without widths, of a sum of 128 columns.
        seconds: that the busiest machine sends or receives.
        total_seconds: of the epoch or sum, the network included.
        fewer: by number of fewer machines, the expected seconds on these; only where the graph
            fits them.
    """

    bandwidth: float
    is_assumed: bool
    received: tuple[int, ...]
    sent: tuple[int, ...]
    seconds: float
    total_seconds: float
    fewer: dict[int, float]

    @property
    def pays(self) -> bool:
        """Whether no smaller number of machines is expected to be faster."""
        return all(seconds > self.total_seconds for seconds in self.fewer.values())

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {**asdict(self), "pays": self.pays}

    def describe(self, what: str) -> list[str]:
        """Returns lines of text.

        Args:
            what: was counted, as in "epoch".
        """
        rate = f"{self.bandwidth / 1e9:g} GB/s" + (" (assumed)" if self.is_assumed else "")
        most = max(self.received), max(self.sent)
        lines = [
            f"  network: the busiest of {len(self.received)} machines receives "
            f"{format_bytes(most[0])} and sends {format_bytes(most[1])} each {what}; "
            f"{format_seconds(self.seconds)} at {rate}, of {format_seconds(self.total_seconds)} in "
            "all"
        ]
        if not self.fewer:
            return [*lines, "  fewer machines do not hold the graph"]
        count, seconds = min(self.fewer.items(), key=lambda item: item[1])
        few = f"{count} machine{'s' if count > 1 else ''}"
        if self.pays:
            many, ratio = f"{len(self.received)} machines", self.total_seconds / seconds
            return [*lines, f"  {many} take {ratio:.2f} of the time of {few}"]
        return [
            *lines,
            f"  it will not pay: {few} would take {format_seconds(seconds)}, "
            f"{len(self.received)} take {format_seconds(self.total_seconds)}",
        ]


def network_cost(
    facts: GraphFacts,
    topology: Topology,
    resident: ResidentPlan,
    mode: str,
    *,
    element_bytes: int,
    modes: Sequence[str],
    memory_budget: int | None,
    bandwidth: float | None,
) -> NetworkCost | None:
    """Returns what the sums of a plan send between machines; None for one machine.

    Args:
        facts: counts of the graph.
        topology: of all ranks.
        resident: the plan for these.
        mode: of the exchange within machines.
        element_bytes: bytes of an element of the layers.
        modes: that the ranks can use.
        memory_budget: bytes of each rank; None: no limit.
        bandwidth: bytes a second of each machine; None: see :func:`check_network`.

    Raises:
        ValueError: the bandwidth is not positive.
    """
    rate = check_network(bandwidth)
    if len(facts.machines) < 2:
        return None
    received, sent = _epoch_bytes(facts, resident.layers, element_bytes)
    seconds = max((*received, *sent)) / rate
    fewer = {}
    for count in _smaller_machine_counts(facts.machines):
        few, ranks = _on_fewer(facts, count)
        plan = ResidentPlan.make(few, topology.subset(ranks), resident.widths, element_bytes, modes)
        fitting = plan.fitting_modes(memory_budget)
        if fitting:
            between = _epoch_bytes(few, plan.layers, element_bytes) if count > 1 else ((0,), (0,))
            within = plan.seconds[quickest(plan.seconds, fitting)]
            fewer[count] = within + max(map(max, between)) / rate
    total = resident.seconds[mode] + seconds
    return NetworkCost(rate, bandwidth is None, received, sent, seconds, total, fewer)


def _epoch_bytes(
    facts: GraphFacts, layers: Sequence[LayerCost], element_bytes: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes that each machine receives and sends in an epoch, or in a sum without layers."""
    columns = sum(layer.sums * layer.width for layer in layers) if layers else ASSUMED_WIDTH
    row_bytes = columns * element_bytes
    volumes = facts.volumes.values()
    received = [sum(rows) for rows in zip(*(v.network_received for v in volumes), strict=True)]
    sent = [
        sum(rows) for rows in zip(*(v.network_sent(facts.machines) for v in volumes), strict=True)
    ]
    return tuple(n * row_bytes for n in received), tuple(n * row_bytes for n in sent)


def _smaller_machine_counts(machines: _Machines) -> list[int]:
    """Returns the numbers of machines, below the given one, that a plan can be compared with.

    These are the divisors of the number of machines, so that equal numbers of machines are merged
    into one; only 1 if machines have different numbers of ranks.
    """
    count = len(machines)
    if len(set(map(len, machines))) > 1:
        return [1]
    return [n for n in range(1, count) if count % n == 0]


def _on_fewer(facts: GraphFacts, count: int) -> tuple[GraphFacts, list[int]]:
    """Estimates the counts of the graph on fewer machines, where ranks of several machines are
    merged into one. The remote rows of merged ranks are added up, although some may be the same.

    Returns:
        The counts, and the ranks whose GPUs the merged ranks use.
    """
    size = max(map(len, facts.machines))
    largest = max(range(len(facts.machines)), key=lambda m: len(facts.machines[m]))
    kept = [facts.machines[largest]] if count == 1 else list(facts.machines[:count])
    together = len(facts.machines) // count
    new_rank = [0] * facts.world_size
    for number, ranks in enumerate(facts.machines):
        for place, rank in enumerate(ranks):
            new_rank[rank] = min(number // together, count - 1) * size + place
    machines = tuple(tuple(range(size * m, size * (m + 1))) for m in range(count))
    ranks_of_machine = {rank: m for m, ranks in enumerate(machines) for rank in ranks}
    nodes = {t: _merge(counts, new_rank, size * count) for t, counts in facts.nodes.items()}
    volumes = {
        t: _merge_volume(v, facts.machines, new_rank, ranks_of_machine, nodes[t[0]])
        for t, v in facts.volumes.items()
    }
    few = GraphFacts(
        nodes,
        volumes,
        facts.row_bytes,
        facts.edge_row_bytes,
        facts.order,
        facts.reason,
        machines if count > 1 else (),
    )
    return few, [rank for ranks in kept for rank in ranks]


def _merge(values: Sequence[int], new_rank: Sequence[int], ranks: int) -> tuple[int, ...]:
    merged = [0] * ranks
    for rank, value in zip(new_rank, values, strict=True):
        merged[rank] += value
    return tuple(merged)


def _merge_volume(
    volume: Volume,
    machines: _Machines,
    new_rank: Sequence[int],
    machine_of: dict[int, int],
    nodes: Sequence[int],
) -> Volume:
    ranks = len(machine_of)

    def merge(matrix: Matrix, most: Sequence[int] | None = None) -> Matrix:
        merged = [[0] * ranks for _ in range(ranks)]
        for rank, row in enumerate(matrix):
            for other, value in enumerate(_merge(row, new_rank, ranks)):
                merged[new_rank[rank]][other] += value
        limits = [1 << 62] * ranks if most is None else most
        return tuple(tuple(map(min, row, limits)) for row in merged)

    network = [[0] * ranks for _ in range(max(machine_of.values()) + 1)]
    for number, row in enumerate(volume.network):
        here = machine_of[new_rank[machines[number][0]]]
        for rank, value in enumerate(_merge(row, new_rank, ranks)):
            if machine_of[rank] != here:
                network[here][rank] = min(network[here][rank] + value, nodes[rank])
    between: Matrix = tuple(map(tuple, network)) if len(network) > 1 else ()
    return Volume(merge(volume.rows, nodes), merge(volume.edges), between)
