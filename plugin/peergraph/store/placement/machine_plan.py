"""Chooses how a graph lies on several machines: a whole store on each, or rows split over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peergraph.memory import Group
from peergraph.store.placement.options import MACHINE_PLANS, PlacementOptions, disk_spill
from peergraph.store.placement.plan import Item, format_bytes
from peergraph.store.placement.planner import DEFAULT_BUDGET_SHARE, common_budget


@dataclass(frozen=True)
class MachineMemory:
    """The memory that a whole store takes of a machine, and the memory that it may take.

    Args:
        name: of the machine, as in "machine 1 (node-b)".
        whole: bytes of a store of the whole graph.
        room: bytes that the store may take: of the GPUs together, and of the host.
    """

    name: str
    whole: int
    room: int


@dataclass(frozen=True)
class MachinePlan:
    """The plan over machines, the same on all of them. ``print(plan)`` gives the reason.

    Args:
        name: ``"replicate"`` or ``"shard"``.
        reason: why, for the user.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        return f"machines={self.name!r}: {self.reason}"


def choose_machine_plan(asked: str, machines: Sequence[MachineMemory]) -> MachinePlan:
    """Replicates what fits the memory of each machine, and else shards.

    Rows on disk do not count as memory: a store that fits only with ``spill=`` is sharded.

    Args:
        asked: ``"replicate"``, ``"shard"``, or ``"auto"`` for this choice.
        machines: all machines, in order.

    Raises:
        ValueError: an unknown plan, or no machine.
    """
    if asked not in MACHINE_PLANS:
        raise ValueError(f"machines must be one of {MACHINE_PLANS}, got {asked!r}")
    if not machines:
        raise ValueError("machines must name at least one machine")
    if asked != "auto":
        return MachinePlan(asked, "as asked for")
    if len(machines) == 1:
        return MachinePlan("replicate", "there is one machine")
    fullest = min(machines, key=lambda m: m.room - m.whole)
    facts = (
        f"a whole store takes {format_bytes(fullest.whole)} of {fullest.name}, "
        f"which may give {format_bytes(fullest.room)}"
    )
    return MachinePlan("replicate" if fullest.whole <= fullest.room else "shard", facts)


def agree_on_machine_plan(
    options: PlacementOptions, items: Sequence[Item], ids: Sequence[Item], group: Group
) -> MachinePlan:
    """:func:`choose_machine_plan` by the counted bytes of the graph and the memory of all machines.
    Collective over the ranks of all machines, which get the same plan.

    Args:
        options: complete.
        items: structure and tables, as :func:`peergraph.store.placement.items.graph_items` lists.
        ids: id maps.
    """
    asked, machines = options["machines"], group.machines
    if asked != "auto" or machines.count == 1:
        return choose_machine_plan(asked, [MachineMemory("", 0, 0)] * machines.count)
    found = group.all_gather_machines(_whole_and_room(options, items, ids, group))
    memories = [
        MachineMemory(machines.name(index), whole, room)
        for index, (whole, room) in enumerate(found)
    ]
    return choose_machine_plan(asked, memories)


def _whole_and_room(
    options: PlacementOptions, items: Sequence[Item], ids: Sequence[Item], group: Group
) -> tuple[int, int]:
    """Bytes of a whole store on this machine, and the bytes that it may take, in the kinds of
    memory that the plan uses. Collective over the node group."""
    on_gpus, plan, ranks = group.device.type == "cuda", options["plan"], group.world_size
    budget = common_budget(options["memory_budget"], group, DEFAULT_BUDGET_SHARE) or 0
    gpus, host = ranks * budget if on_gpus else 0, disk_spill(options).room(group)
    rows, maps = (sum(item.num_bytes for item in some) for some in (items, ids))
    if plan == "replicated":
        return ranks * (rows + maps), gpus if on_gpus else host
    # Each GPU keeps id maps of its own.
    whole = rows + (ranks * maps if on_gpus else maps)
    room = {"sharded": gpus if on_gpus else host, "host": host}
    return whole, room.get(plan, gpus + host) if isinstance(plan, str) else gpus + host
