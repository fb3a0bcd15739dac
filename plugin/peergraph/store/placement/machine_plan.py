"""Chooses whether each machine stores the whole graph, or rows are split over the machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peergraph.memory import Group
from peergraph.printing import format_bytes
from peergraph.store.placement.options import MACHINE_PLANS, PlacementOptions, disk_spill
from peergraph.store.placement.plan import Item
from peergraph.store.placement.planner import DEFAULT_BUDGET_SHARE, common_budget


@dataclass(frozen=True)
class MachineMemory:
    """The memory that a whole store takes of a machine, and the memory that it may take.

    Args:
        name: the name of the machine, as in "machine 1 (node-b)".
        whole: the bytes of a store of the whole graph.
        room: the bytes that the store may take on all GPUs together, and in host memory.
    """

    name: str
    whole: int
    room: int


@dataclass(frozen=True)
class MachinePlan:
    """The plan over machines, the same on all of them. ``print(plan)`` gives the reason.

    Args:
        name: ``"replicate"`` or ``"shard"``.
        reason: the reason for the choice, for the user.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        return f"machines={self.name!r}: {self.reason}"


def choose_machine_plan(asked: str, machines: Sequence[MachineMemory]) -> MachinePlan:
    """Chooses to replicate the graph if it fits the memory of each machine, otherwise to shard it.

    Disk space does not count as memory: a store that fits only with ``spill=`` is sharded.

    Args:
        asked: the user's option: ``"replicate"``, ``"shard"``, or ``"auto"`` for this choice.
        machines: all machines, in order.

    Raises:
        ValueError: the option is unknown, or there are no machines.
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
    """Calls :func:`choose_machine_plan` with the bytes of the graph and the memory of all machines.
    Collective over the ranks of all machines; returns the same plan on all of them.

    Args:
        options: the options, complete.
        items: structure and tables, as :func:`peergraph.store.placement.items.graph_items` lists
            them.
        ids: the id maps.
    """
    asked, machines = options["machines"], group.machines
    if asked != "auto" or machines.count == 1:
        return choose_machine_plan(asked, [MachineMemory("", 0, 0)] * machines.count)
    everyone = group.all_gather_machines(_whole_and_room(options, items, ids, group))
    memories = [
        MachineMemory(machines.name(index), whole, room)
        for index, (whole, room) in enumerate(everyone)
    ]
    return choose_machine_plan(asked, memories)


def _whole_and_room(
    options: PlacementOptions, items: Sequence[Item], ids: Sequence[Item], group: Group
) -> tuple[int, int]:
    """Returns the bytes of a whole store on this machine, and the bytes that it may take, in the
    kinds of memory that the plan uses. Collective over the node group.
    """
    on_gpus, plan, ranks = group.device.type == "cuda", options["plan"], group.world_size
    budget = common_budget(options["memory_budget"], group, DEFAULT_BUDGET_SHARE) or 0
    gpus, host = ranks * budget if on_gpus else 0, disk_spill(options).room(group)
    rows, maps = (sum(item.num_bytes for item in some) for some in (items, ids))
    if plan == "replicated":
        return ranks * (rows + maps), gpus if on_gpus else host
    # Each GPU stores the id maps.
    whole = rows + (ranks * maps if on_gpus else maps)
    room = {"sharded": gpus if on_gpus else host, "host": host}
    return whole, room.get(plan, gpus + host) if isinstance(plan, str) else gpus + host
