"""Places tables that are added to a store, by the same costs, in the rest of its budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from peergraph.memory import Group, Tiers
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.region.free_memory import granted_bytes
from peergraph.memory.topology.topology import Topology
from peergraph.store.placement.allocation import (
    Allocation,
    check_budget,
    check_room,
    fullest_rank,
    planned_allocations,
)
from peergraph.store.placement.cost_model import predict
from peergraph.store.placement.plan import Item, Placement, Plan, fit, make_plan
from peergraph.store.placement.planner import DEFAULT_BUDGET_SHARE, budget_granule, common_budget
from peergraph.store.placement.policies import POLICIES
from peergraph.store.placement.reads import BatchReads
from peergraph.store.placement.spill import Spill
from peergraph.store.placement.tier_choice import choose_tiers


@dataclass(frozen=True)
class BuildRecord:
    """The inputs of a store's plan, kept for tables that are added later.

    Args:
        topology: the links of the plan, if they were known.
        reads: the reads of a mini-batch, on rank 0 if there is a topology; else None.
        spill: the options for rows that do not fit into host memory.
    """

    topology: Topology | None
    reads: BatchReads | None
    spill: Spill


def place_added_table(
    plan: str,
    item: Item,
    built: Plan,
    allocated: Sequence[Allocation],
    record: BuildRecord,
    group: Group,
) -> Plan:
    """Returns the plan of a store with one more table. Collective.

    Args:
        plan: the plan of the table: "auto" or a tier.
        item: the table.
        built: the plan of the store.
        allocated: the allocations of the store.
        record: the inputs of the store's plan.

    Raises:
        ValueError: the plan is unknown, or needs more memory than the store's budget has left.
        MemoryError: a GPU or the host has less memory left than the table needs.
    """
    granule = budget_granule(built.memory_budget or 0, built, group)
    used = fullest_rank(allocated, granule)[1]
    if plan != "auto":
        tiers = make_plan(plan, [item], built.world_size, None).placements[0].tiers
    elif group.device.type == "cpu" and record.topology is None:
        # Ranks without a GPU share the machine's memory, so one copy is enough for all ranks.
        tiers = Tiers.all_host(item.rows)
    else:
        left = common_budget(None, group, DEFAULT_BUDGET_SHARE)
        if built.memory_budget is not None:
            left = max(0, built.memory_budget - used)
        tiers = _fitting(item, left or 0, granule, built, record, group)
    added = _with_item(replace(built, placements=(), predictions=()), item, tiers)
    added, allocations = remaining_host(record.spill, allocated, group).apply(
        added, [item], plan == "auto", group
    )
    if built.memory_budget is not None:
        check_budget(
            [*allocated, *allocations], built.memory_budget, granule, f"table {item.name!r}"
        )
    check_room(allocations, group)
    predicted = _predicted(item, added, record, group)
    return replace(
        built,
        placements=(*built.placements, *added.placements),
        predictions=(*built.predictions, *predicted.predictions),
    )


def _fitting(
    item: Item, left: int, granule: int, built: Plan, record: BuildRecord, group: Group
) -> Tiers:
    """Chooses tiers that take at most `left` bytes on each rank, in blocks. Collective."""
    room = left
    while True:
        tiers = _chosen(item, room, built, record, group)
        one = _with_item(replace(built, placements=()), item, tiers)
        beyond = fullest_rank(planned_allocations([item], one), granule)[1] - left
        if beyond <= 0:
            return tiers
        room = max(0, room - beyond)


def _chosen(item: Item, room: int, built: Plan, record: BuildRecord, group: Group) -> Tiers:
    partitions = built.partitions_in_use
    if record.topology is None:
        # With c copies of each shard, n ranks hold as many rows as n / c ranks with one copy.
        return fit(item, max(1, built.world_size // built.copies), room)

    def choose() -> Tiers | None:
        if record.reads is None:
            return None
        replicate = POLICIES.get(built.name, POLICIES["auto"]).replicate
        assert record.topology is not None
        loads = [record.reads.access_pattern(item)]
        return choose_tiers(loads, record.topology, partitions, room, replicate=replicate)[0]

    tiers: Tiers | None = group.broadcast(collective_call(group, choose))
    assert tiers is not None
    return tiers


def _with_item(plan: Plan, item: Item, tiers: Tiers) -> Plan:
    return replace(plan, placements=(*plan.placements, Placement.of(item, tiers)))


def remaining_budget(plan: Plan, allocations: Sequence[Allocation], group: Group) -> int | None:
    """Returns the unused bytes of a store's budget on the fullest rank; None without a budget."""
    if plan.memory_budget is None:
        return None
    granule = budget_granule(plan.memory_budget, plan, group)
    return max(0, plan.memory_budget - fullest_rank(allocations, granule)[1])


def remaining_host(spill: Spill, allocations: Sequence[Allocation], group: Group) -> Spill:
    """Returns the spill with the unused bytes of its host budget as the budget.

    Without a budget it returns the spill: the host's free memory shows what is left.
    """
    if spill.host_budget is None:
        return spill
    sizes = [e.host for e in allocations]
    if group.device.type == "cpu":
        sizes += [n for e in allocations for r in range(group.world_size) for n in e.of_rank(r)]
    return replace(spill, host_budget=max(0, spill.host_budget - granted_bytes(sizes, "cpu")))


def _predicted(item: Item, plan: Plan, record: BuildRecord, group: Group) -> Plan:
    """Returns the plan with the expected reads of the item, if the links are known. Collective."""

    def count() -> Plan:
        tiers = plan.tiers(item.kind, item.name)
        if record.reads is None or record.topology is None or tiers.disk:
            return plan
        load = record.reads.access_pattern(item)
        return replace(plan, predictions=(predict(load, tiers, plan.partitions_in_use),))

    return group.broadcast(collective_call(group, count))  # type: ignore[no-any-return]
