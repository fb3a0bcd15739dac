"""`peergraph plan --machines`: the traffic between machines, and the time that it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from peergraph.cli._split_reads import SplitReads
from peergraph.memory.topology.topology import Topology
from peergraph.number_arguments import MAX_SECONDS, check_number, check_real
from peergraph.store.placement.machine_plan import MachineMemory, MachinePlan, choose_machine_plan
from peergraph.store.placement.options import MAX_BATCHES_PER_EXCHANGE
from peergraph.store.placement.plan import Item, Plan, format_bytes
from peergraph.store.placement.reads import BatchReads

_BYTES_OF_PARAMETER = 4

_MOST_MACHINES = 4096


@dataclass(frozen=True)
class Traffic:
    """Bytes that each machine sends to other machines, or each GPU to other GPUs of its machine.

    Args:
        what: the name of the data, for the reader.
        link: the link, as in "machine to machine".
        per: "step", or "build" for traffic at the start only.
        num_bytes: bytes sent by the machine or GPU that sends most; it receives as many.
        seconds: the time at the link's bandwidth.
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
    """The machines and the network that connects them.

    Args:
        machines: the number of machines.
        bandwidth: bytes per second that a machine sends, and receives at the same time.
        parameters: the number of float32 parameters of the model.
        compute: seconds of a step without reading the store and without the network.
    """

    machines: int
    bandwidth: int
    parameters: int
    compute: float = 0.0

    @classmethod
    def of(cls, machines: int, bandwidth: int | None, parameters: int, compute: float) -> Network:
        """Checks the numbers of the options; raises ValueError for an impossible number."""
        check_number("--machines", machines, 1, _MOST_MACHINES)
        if bandwidth is None:
            raise ValueError(
                "--machines needs --network: bytes a second of each machine, such as 50G"
            )
        check_number("--network", bandwidth, 1)
        check_number("--parameters", parameters, 0)
        check_real("--compute", compute, 0, MAX_SECONDS)
        return cls(machines, bandwidth, parameters, compute)


@dataclass(frozen=True)
class Step:
    """The predicted time of a step, in seconds.

    Args:
        machine: the time of reading the store and computing, without the network.
        network: the time in which the network is busy.
    """

    machine: float
    network: float

    @property
    def seconds(self) -> float:
        """The longer of both times: the network transfers during the previous step."""
        return max(self.machine, self.network)


def replicate_traffic(num_bytes: int, network: Network) -> tuple[Traffic, ...]:
    """Returns the traffic with a replica of the store on each machine: DDP's gradients at each
    step, and the graph once, which one machine sends to the others.

    Args:
        num_bytes: the bytes of the whole graph.
        network: the machines and their network.
    """
    return (
        _gradients(network),
        Traffic("batches", "machine to machine", "step", 0, 0.0),
        _graph(num_bytes, network),
    )


def shard_traffic(
    num_bytes: int, split: SplitReads, topology: Topology, network: Network
) -> tuple[Traffic, ...]:
    """Returns the traffic with rows split over machines.

    It is the gradients and the graph as in :func:`replicate_traffic`; the rows that a machine's
    mini-batches need from other machines, each once, with their ids; and inside the machine the
    rows that one GPU receives for another.

    Args:
        num_bytes: the bytes of the whole graph.
        split: the items and reads of one machine.
        topology: the topology of each machine.
        network: the machines and their network.
    """
    ids = round(sum(r.rows * r.id_bytes for r in split.remote))
    rows = round(sum(r.rows * r.row_bytes for r in split.remote))
    gpus = topology.num_gpus
    others = (gpus - 1) / gpus
    inside = round(others * sum(r.rows_of_gpu * (r.row_bytes + r.id_bytes) for r in split.remote))
    # If GPUs cannot access each other, rows go through the host's memory.
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
    """Returns the time of a step by the plan's predictions and the traffic."""
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
    """Returns the traffic of one machine that sends the whole graph to the others in one
    broadcast.
    """
    count = num_bytes if network.machines > 1 else 0
    return Traffic("graph", "machine 0 to the others", "build", count, count / network.bandwidth)


@dataclass(frozen=True)
class PlanOfMachines:
    """The prediction for several machines.

    Args:
        network: the machines and their network.
        chosen: the plan over machines, and the reason for it.
        plan: the plan of each machine.
        traffic: the traffic between machines and inside them.
        step: the predicted time of a step.
        alone: seconds of a step on one such machine that has the whole graph.
        stored: bytes that each machine stores.
        room: bytes that each machine can store.
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
        option: str,
        items: Sequence[Item],
        reads: BatchReads,
        topology: Topology,
        network: Network,
        hot_ratio: float,
        batches_per_exchange: int,
        plan_items: Callable[[Sequence[Item], BatchReads], Plan],
    ) -> PlanOfMachines:
        """Plans each machine, and predicts the traffic.

        Args:
            option: "replicate", "shard" or "auto", which replicates if everything fits into the
                GPUs' budgets and the host's memory of such a machine.
            items: the items of the whole graph.
            reads: the reads of a mini-batch in the whole graph.
            topology: the topology of each machine.
            network: the machines and their network.
            hot_ratio, batches_per_exchange: as in :meth:`SplitReads.of`.
            plan_items: plans one machine.

        Raises:
            ValueError: `hot_ratio` is not in 0..1, or `batches_per_exchange` is less than 1.
        """
        if not 0 <= hot_ratio <= 1:
            raise ValueError(f"--hot-ratio must be in 0..1, got {hot_ratio}")
        check_number("--batches-per-exchange", batches_per_exchange, 1, MAX_BATCHES_PER_EXCHANGE)
        whole = plan_items(items, reads)
        alone = predicted_step(whole, (), network.compute).seconds
        num_bytes = sum(item.num_bytes for item in items)
        room = topology.num_gpus * (whole.memory_budget or 0) + topology.host_memory
        memory = MachineMemory("each machine", num_bytes, room)
        chosen = choose_machine_plan(option, [memory] * network.machines)
        plan, stored, traffic = whole, num_bytes, replicate_traffic(num_bytes, network)
        if chosen.name == "shard":
            split = SplitReads.of(
                items,
                reads,
                network.machines,
                topology.num_gpus,
                hot_ratio,
                batches_per_exchange,
            )
            plan = plan_items(split.items, split.reads)
            stored = sum(item.num_bytes for item in split.items)
            traffic = shard_traffic(num_bytes, split, topology, network)
        step = predicted_step(plan, traffic, network.compute)
        return cls(network, chosen, plan, traffic, step, alone, stored, room)

    def to_dict(self) -> dict[str, object]:
        """Returns the prediction as plain values for JSON."""
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
