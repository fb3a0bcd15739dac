"""`peergraph plan --machines`: what the machines send each other, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from peergraph.store.placement.plan import Plan

_BYTES_OF_PARAMETER = 4


@dataclass(frozen=True)
class Traffic:
    """What each machine sends over the network.

    Args:
        what: for the reader.
        link: from where to where.
        per: "step", or "build": once.
        num_bytes: sent by the machine that sends most; it receives as many.
        seconds: at the network's bandwidth.
    """

    what: str
    link: str
    per: str
    num_bytes: int
    seconds: float


def replicate_traffic(
    plan: Plan, machines: int, network: float, parameters: int
) -> tuple[Traffic, ...]:
    """Of a store on each machine: DDP's gradients at each step, and the graph once, where one
    machine sends it to the others.

    Args:
        plan: of each machine.
        network: bytes a second that a machine sends and receives.
        parameters: float32 parameters of the model.
    """
    # Each machine sends each part of the sum twice, except for its own, as in a ring of machines.
    gradients = round(2 * (machines - 1) / machines * parameters * _BYTES_OF_PARAMETER)
    placed = [p for p in plan.placements if machines > 1]
    graph = sum(p.bytes_replicated + p.bytes_sharded + p.bytes_host + p.bytes_disk for p in placed)
    return (
        Traffic("gradients (DDP)", "machine to machine", "step", gradients, gradients / network),
        Traffic("batches", "machine to machine", "step", 0, 0.0),
        Traffic("graph", "machine 0 to the others", "build", graph, graph / network),
    )


def check_machines(machines: int, network: int | None, parameters: int) -> None:
    """Raises ValueError for numbers that cannot be."""
    if machines < 1:
        raise ValueError(f"--machines must be at least 1, got {machines}")
    if network is None:
        raise ValueError("--machines needs --network: bytes a second of each machine, such as 50G")
    if network <= 0 or parameters < 0:
        raise ValueError("--network and --parameters must be positive")


def format_traffic(traffic: Sequence[Traffic], machines: int, seconds: float) -> str:
    """A table, and a sentence about the step.

    Args:
        seconds: that each machine reads its own memory at a step.
    """
    lines = [f'over the network, machines="replicate", {machines} machines:']
    for row in traffic:
        lines.append(
            f"  {row.what:<16} {row.link:<24} {row.num_bytes / 1e6:>12,.1f} MB a {row.per}, "
            f"{1e3 * row.seconds:,.2f} ms"
        )
    step = sum(row.seconds for row in traffic if row.per == "step")
    lines.append(
        f"  a step reads its own machine's memory for {1e3 * seconds:,.2f} ms; the network adds "
        f"{1e3 * step:,.2f} ms at most, most of it during the backward pass"
    )
    return "\n".join(lines)


def traffic_facts(traffic: Sequence[Traffic], machines: int) -> dict[str, object]:
    """For JSON."""
    return {"plan": "replicate", "machines": machines, "traffic": [asdict(row) for row in traffic]}
