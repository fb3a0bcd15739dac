"""`peergraph plan --machines`: what the machines send each other, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from peergraph.cli._split_reads import SplitReads
from peergraph.memory.topology.topology import Topology
from peergraph.store.placement.machine_plan import MachineMemory, MachinePlan, choose_machine_plan
from peergraph.store.placement.plan import Item, Plan, format_bytes
from peergraph.store.placement.reads import BatchReads

_BYTES_OF_PARAMETER = 4


@dataclass(frozen=True)
class Traffic:
    """What each machine sends to other machines, or each GPU to others of its machine.

    Args:
        what: for the reader.
        link: from where to where.
        per: "step", or "build": once.
        num_bytes: sent by the machine or GPU that sends most; it receives as many.
        seconds: at the link's bandwidth.
        network: whether the bytes cross the network.
    """

    what: str
    link: str
    per: str
    num_bytes: int
    seconds: float
    network: bool = True


@dataclass(frozen=True)
class Network:
    """The machines and what connects them.

    Args:
        machines: how many.
        bandwidth: bytes a second that a machine sends, and receives at the same time.
        parameters: float32 parameters of the model.
        compute: seconds of a step besides reading the store and the network.
    """

    machines: int
    bandwidth: int
    parameters: int
    compute: float = 0.0

    @classmethod
    def of(cls, machines: int, bandwidth: int | None, parameters: int, compute: float) -> Network:
        """Raises ValueError for numbers that cannot be."""
        if machines < 1:
            raise ValueError(f"--machines must be at least 1, got {machines}")
        if bandwidth is None:
            raise ValueError(
                "--machines needs --network: bytes a second of each machine, such as 50G"
            )
        if bandwidth <= 0 or parameters < 0 or compute < 0:
            raise ValueError("--network, --parameters and --compute must be positive")
        return cls(machines, bandwidth, parameters, compute)


@dataclass(frozen=True)
class Step:
    """The predicted time of a step, in seconds.

    Args:
        machine: the step if the network took no time: reading the store, and computing.
        network: the time that the network is busy.
    """

    machine: float
    network: float

    @property
    def seconds(self) -> float:
        """The network works during the step before: the longer of both counts."""
        return max(self.machine, self.network)


def replicate_traffic(num_bytes: int, network: Network) -> tuple[Traffic, ...]:
    """Of a store on each machine: DDP's gradients at each step, and the graph once, where one
    machine sends it to the others.

    Args:
        num_bytes: of the whole graph.
    """
    return (
        _gradients(network),
        Traffic("batches", "machine to machine", "step", 0, 0.0),
        _graph(num_bytes, network),
    )


def shard_traffic(
    num_bytes: int, split: SplitReads, topology: Topology, network: Network
) -> tuple[Traffic, ...]:
    """Of rows split over machines: besides :func:`replicate_traffic`'s gradients and graph, the
    rows that a machine's mini-batches need of other machines, each once, and their ids; inside the
    machine, rows that came for another GPU.

    Args:
        num_bytes: of the whole graph.
        split: of the same graph.
        topology: of each machine.
    """
    ids = round(sum(r.rows * r.id_bytes for r in split.remote))
    rows = round(sum(r.rows * r.row_bytes for r in split.remote))
    gpus = topology.num_gpus
    others = (gpus - 1) / gpus
    inside = round(others * sum(r.rows_of_batch * (r.row_bytes + r.id_bytes) for r in split.remote))
    # Where GPUs do not reach each other, rows go through the host's memory.
    rate = min(topology.bulk.ingress)
    path = "GPU to GPU"
    if not rate:
        rate, path = min(topology.bulk.host), "through host memory"
    return (
        _gradients(network),
        Traffic("ids of rows", "machine to machine", "step", ids, ids / network.bandwidth),
        Traffic("rows", "machine to machine", "step", rows, rows / network.bandwidth),
        Traffic("rows and ids", path, "step", inside, inside / rate, network=False),
        _graph(num_bytes, network),
    )


def predicted_step(plan: Plan, traffic: Sequence[Traffic], compute: float) -> Step:
    """The time of a step by the plan's predictions and the traffic."""
    read = sum(p.seconds for p in plan.predictions)
    inside = sum(t.seconds for t in traffic if t.per == "step" and not t.network)
    wire = sum(t.seconds for t in traffic if t.per == "step" and t.network)
    return Step(read + inside + compute, wire)


def _gradients(network: Network) -> Traffic:
    # A ring all-reduce: each machine sends every part of the sum twice, except for its own part.
    machines = network.machines
    count = round(2 * (machines - 1) / machines * network.parameters * _BYTES_OF_PARAMETER)
    return Traffic(
        "gradients (DDP)", "machine to machine", "step", count, count / network.bandwidth
    )


def _graph(num_bytes: int, network: Network) -> Traffic:
    """One machine sends the whole graph to the others in one broadcast."""
    count = num_bytes if network.machines > 1 else 0
    return Traffic("graph", "machine 0 to the others", "build", count, count / network.bandwidth)


@dataclass(frozen=True)
class PlanOfMachines:
    """The prediction for several machines.

    Args:
        chosen: the plan over machines, and why.
        plan: of each machine.
        traffic: what the machines send each other.
        step: its time.
        alone: seconds of a step on one such machine that has the whole graph.
        stored, room: bytes that each machine stores, and that it may.
    """

    network: Network
    chosen: MachinePlan
    plan: Plan
    traffic: tuple[Traffic, ...]
    step: Step
    alone: float
    stored: int
    room: int

    @classmethod
    def make(
        cls,
        asked: str,
        items: Sequence[Item],
        reads: BatchReads,
        topology: Topology,
        network: Network,
        hot_ratio: float,
        plan_items: Callable[[Sequence[Item], BatchReads], Plan],
    ) -> PlanOfMachines:
        """Plans each machine, and predicts the traffic.

        Args:
            asked: "replicate", "shard" or "auto", which replicates if the GPUs' budgets and the
                host's memory of such a machine hold everything.
            items, reads: of the whole graph.
            topology: of each machine.
            hot_ratio: as in :class:`SplitReads`.
            plan_items: plans one machine.
        """
        whole = plan_items(items, reads)
        alone = predicted_step(whole, (), network.compute).seconds
        num_bytes = sum(item.num_bytes for item in items)
        room = topology.num_gpus * (whole.memory_budget or 0) + topology.host_memory
        memory = MachineMemory("each machine", num_bytes, room)
        chosen = choose_machine_plan(asked, [memory] * network.machines)
        plan, stored, traffic = whole, num_bytes, replicate_traffic(num_bytes, network)
        if chosen.name == "shard":
            split = SplitReads.of(items, reads, network.machines, topology.num_gpus, hot_ratio)
            plan = plan_items(split.items, split.reads)
            stored = sum(item.num_bytes for item in split.items)
            traffic = shard_traffic(num_bytes, split, topology, network)
        step = predicted_step(plan, traffic, network.compute)
        return cls(network, chosen, plan, traffic, step, alone, stored, room)

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "plan": self.chosen.name,
            "reason": self.chosen.reason,
            "machines": self.network.machines,
            "bytes": {"stored": self.stored, "room": self.room},
            "traffic": [asdict(row) for row in self.traffic],
            "step": {**asdict(self.step), "seconds": self.step.seconds, "one_machine": self.alone},
        }

    def __str__(self) -> str:
        network, step = self.network, self.step
        lines = [f"{network.machines} machines, {self.chosen}"]
        for row in self.traffic:
            lines.append(
                f"  {row.what:<16} {row.link:<24} {row.num_bytes / 1e6:>12,.1f} MB a {row.per}, "
                f"{1e3 * row.seconds:,.2f} ms"
            )
        hidden = "hidden behind it" if step.network <= step.machine else "which limits it"
        lines.append(
            f"  a step takes {1e3 * step.machine:,.2f} ms on each machine, and the network "
            f"{1e3 * step.network:,.2f} ms, {hidden}: {1e3 * step.seconds:,.2f} ms"
        )
        if self.alone:
            lines.append(
                f"  an epoch is {network.machines * self.alone / step.seconds:.2f} times as fast "
                "as on one such machine that has the whole graph "
                f"({1e3 * self.alone:,.2f} ms a step)"
            )
        if self.stored > self.room:
            lines.append(
                f"  too large: {format_bytes(self.stored)} on each machine, which may give "
                f"{format_bytes(self.room)}; more machines, a lower --hot-ratio or spill= help"
            )
        return "\n".join(lines)
