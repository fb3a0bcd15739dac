"""Makes the plan of a store on this machine: by name, from a user's plan, by budget or by links."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from peergraph.memory import Group, Tiers
from peergraph.memory.device.machine_cache import identity
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.region.free_memory import GPU_GRANULE, free_gpu_memory
from peergraph.memory.region.peer_access import PeerAccess
from peergraph.memory.table.partitions import Partitions, one_partition_per_gpu
from peergraph.memory.topology.measure import assumed_topology, cached_topology
from peergraph.memory.topology.topology import Topology
from peergraph.store.input.schema import Schema, TableSpec
from peergraph.store.input.source import EdgeType, NodeType
from peergraph.store.placement.allocation import (
    check_budget,
    check_room,
    fullest_rank,
    planned_allocations,
)
from peergraph.store.placement.items import (
    graph_items,
    id_items,
    list_order_items,
    row_item,
    table_name,
)
from peergraph.store.placement.options import PlacementOptions, disk_spill, shard_ratios
from peergraph.store.placement.partition_solver import solve
from peergraph.store.placement.plan import Item, Placement, Plan, fit_all, make_plan
from peergraph.store.placement.policies import POLICIES, plan_on
from peergraph.store.placement.ratios import ShardRatios, place_items
from peergraph.store.placement.reads import BatchReads

# A store takes this share of a GPU's free memory. The rest is for the model, activations and the
# allocator.
DEFAULT_BUDGET_SHARE = 0.6


def may_split(options: PlacementOptions, group: Group) -> bool:
    """Returns whether the plan may shard rows or use several tiers, so that their order matters.

    Args:
        options: the options, complete.
    """
    plan = options["plan"]
    if isinstance(plan, Plan):
        return splits_rows(plan)
    if options["spill"] is not None:
        return True
    if plan == "auto":
        by_links = shard_ratios(options).has_options or options["topology"] is not None
        return group.device.type == "cuda" or by_links
    return plan == "sharded" or plan in POLICIES


def choose_plan(
    options: PlacementOptions,
    schema: Schema,
    degrees: Mapping[EdgeType, Tensor],
    permuted: Mapping[EdgeType, bool],
    reads: Callable[[], BatchReads],
    ordered: tuple[bool, bool],
    group: Group,
) -> Plan:
    """Makes the plan of all items. Collective.

    Args:
        options: the options, complete.
        degrees: by relation, the in-degrees in internal order.
        permuted: by relation, whether edge ids differ from CSC positions.
        reads: returns the reads of a mini-batch, for rows in internal order.
        ordered: whether id maps must be placed, too; and whether maps to rows of structures.
    """
    plan, topology = options["plan"], options["topology"]
    ratios, spill = shard_ratios(options), disk_spill(options)
    by_links = not isinstance(plan, Plan) and plan in POLICIES
    if (ratios.has_options or topology is not None) and not by_links:
        raise ValueError(
            "topology, graph_ratio, feature_ratio and first are for plan="
            + " or ".join(map(repr, POLICIES))
        )
    if topology is not None and topology.num_gpus != group.world_size:
        raise ValueError(
            f"topology has {topology.num_gpus} GPUs, there are {group.world_size} ranks"
        )
    if topology is not None:
        topology = topology.masked(PeerAccess.of(group).refused)
    partitions = partitions_in_reach(group)
    items = graph_items(schema, degrees, permuted)
    renumbered, lists_ordered = ordered
    ids = id_items(schema) if renumbered else []
    ids += list_order_items(schema) if lists_ordered else []
    if isinstance(plan, Plan):
        chosen = _checked_plan(plan, items, partitions, group)
    elif not by_links or (plan == "auto" and not renumbered):
        # Ranks without a GPU share the machine's memory, so one copy is enough for all ranks.
        name = "host" if plan == "auto" else plan
        chosen = make_plan(name, items, group.world_size, None)
        chosen = replace(chosen, name=plan, partitions=partitions)
    else:
        if topology is None and group.device.type == "cuda":
            topology = cached_topology(group)
        return _within_budget(options, topology, partitions, items, ids, reads, group)
    chosen = _with_id_maps(chosen, ids, group)
    chosen, allocations = spill.apply(chosen, [*ids, *items], not isinstance(plan, Plan), group)
    budget = common_budget(options["memory_budget"], group)
    if budget is not None:
        chosen = replace(chosen, memory_budget=budget)
        check_budget(
            allocations, budget, budget_granule(budget, chosen, group), f"plan {chosen.name!r}"
        )
    check_room(allocations, group)
    return chosen


def _within_budget(
    options: PlacementOptions,
    topology: Topology | None,
    partitions: Partitions | None,
    items: list[Item],
    ids: list[Item],
    reads: Callable[[], BatchReads],
    group: Group,
) -> Plan:
    """Makes a plan that fits the budget of every rank. Collective.

    Args:
        topology: the links of the machine; None: they are not known.
        partitions: those of a plan without links; None: rank i stores partition i.
    """
    plan, ratios = options["plan"], shard_ratios(options)
    assert isinstance(plan, str)
    budget = left = common_budget(options["memory_budget"], group, DEFAULT_BUDGET_SHARE)
    if budget is not None:
        only_ids = _with_id_maps(Plan(plan, group.world_size, None, ()), ids, group)
        maps = planned_allocations(ids, only_ids)
        check_budget(maps, budget, 1, "renumbering nodes")
        left = budget - fullest_rank(maps, 1)[1]
    while True:
        if topology is not None:
            chosen = _plan_by_links(plan, items, left, ratios, topology, reads, group)
        elif plan == "auto":
            chosen = _plan_without_links(items, left, ratios, partitions, group)
        else:
            raise ValueError(f"plan={plan!r} needs a topology, given or measured before")
        chosen = replace(_with_id_maps(chosen, ids, group), memory_budget=budget)
        allocations = planned_allocations([*ids, *items], chosen)
        if budget is None or left is None:
            break
        # The choice of tiers ignores that shards differ in size and that memory comes in blocks.
        granule = budget_granule(budget, chosen, group)
        beyond = fullest_rank(allocations, granule)[1] - budget
        if beyond <= 0:
            break
        if left == 0:
            check_budget(allocations, budget, granule, f"plan {plan!r}")
        left = max(0, left - beyond)
    chosen, allocations = disk_spill(options).apply(chosen, [*ids, *items], True, group)
    check_room(allocations, group)
    return chosen


def _with_id_maps(plan: Plan, ids: list[Item], group: Group) -> Plan:
    tiers = Tiers.all_replicated if group.device.type == "cuda" else Tiers.all_host
    placed = tuple(Placement.of(item, tiers(item.rows)) for item in ids)
    return replace(plan, placements=(*placed, *plan.placements))


def common_budget(
    memory_budget: int | None, group: Group, default_share: float = 0.0
) -> int | None:
    """Returns the smallest budget of the ranks; None if no rank has a budget. Collective.

    Args:
        default_share: for ranks without a budget, the share of their GPU's free memory.
    """
    by_default = memory_budget is None and default_share > 0 and group.device.type == "cuda"
    free = free_gpu_memory(group.device) if by_default else 0
    everyone = group.all_gather((memory_budget, identity(group.device), free))
    # Ranks may share a GPU.
    sharers = [device for _, device, _ in everyone].count(identity(group.device))
    if by_default:
        memory_budget = int(free * default_share) // sharers
    budgets = [budget for budget in group.all_gather(memory_budget) if budget is not None]
    return min(budgets, default=None)


def budget_granule(budget: int, plan: Plan, group: Group) -> int:
    """Returns the unit of allocations: the driver's block, or a byte if the budget is small."""
    blocks = 4 * len(plan.placements)
    return GPU_GRANULE if group.device.type == "cuda" and budget > blocks * GPU_GRANULE else 1


def _plan_without_links(
    items: list[Item],
    budget: int | None,
    ratios: ShardRatios,
    partitions: Partitions | None,
    group: Group,
) -> Plan:
    """Plans by the budget: replicates items that fit, then shards. Without a GPU, items without a
    ratio are stored once in host memory.
    """
    placed = partitions or one_partition_per_gpu(group.world_size)

    def rest(others: Sequence[Item], left: int) -> list[Tiers]:
        if group.device.type == "cuda":
            # With c copies of each shard, n ranks hold as many rows as n / c ranks with one copy.
            return fit_all(others, group.world_size // placed.copies, left)
        return [Tiers.all_host(item.rows) for item in others]

    tiers = place_items(items, budget, ratios, placed, rest)
    placements = tuple(map(Placement.of, items, tiers))
    return Plan("auto", group.world_size, budget, placements, partitions)


def _plan_by_links(
    policy: str,
    items: list[Item],
    budget: int | None,
    ratios: ShardRatios,
    topology: Topology,
    reads: Callable[[], BatchReads],
    group: Group,
) -> Plan:
    """Plans by the cost model. Collective."""
    if budget is None:
        raise ValueError("a plan by topology needs a memory_budget where there is no GPU")

    def choose() -> Plan | None:
        # Curves of large graphs take time and memory, so one rank computes them for all.
        if group.rank:
            return None
        return plan_on(topology, items, reads(), max(0, budget), policy, ratios)

    return group.broadcast(collective_call(group, choose))  # type: ignore[no-any-return]


def partitions_in_reach(group: Group) -> Partitions | None:
    """Returns partitions by which each rank reads sharded rows only from GPUs that it can map;
    None if all ranks map each other's memory, so that rank i stores partition i. Collective.
    """
    if PeerAccess.of(group).is_full:
        return None
    topology = assumed_topology(group)
    return group.broadcast(solve(topology))  # type: ignore[no-any-return]


def _checked_plan(
    plan: Plan, items: list[Item], partitions: Partitions | None, group: Group
) -> Plan:
    """Checks a plan of the user, and computes its bytes for this graph and these ranks.

    Args:
        partitions: those of a plan without partitions.
    """
    if plan.partitions is not None and plan.partitions.num_gpus != group.world_size:
        raise ValueError(
            f"plan: partitions are for {plan.partitions.num_gpus} GPUs, "
            f"there are {group.world_size} ranks"
        )
    placements = []
    for item in items:
        tiers = plan.tiers(item.kind, item.name)
        if tiers.rows != item.rows:
            raise ValueError(
                f"plan: {item.kind} {item.name!r} has {item.rows} rows, the plan {tiers.rows}"
            )
        placements.append(Placement.of(item, tiers))
    partitions = plan.partitions or partitions
    return Plan(plan.name, group.world_size, None, tuple(placements), partitions)


def splits_rows(plan: Plan) -> bool:
    """Returns whether a plan shards rows or uses several tiers, so that hotness matters."""
    return any(splits(p.tiers) for p in plan.placements)


def fits_budget(plan: Plan, items: Sequence[Item]) -> bool:
    """Returns whether a plan of these items fits its budget, together with its id maps."""
    if plan.memory_budget is None:
        return True
    placed = {(item.kind, item.name) for item in items}
    maps = sum(p.bytes_replicated for p in plan.placements if (p.kind, p.name) not in placed)
    return fullest_rank(planned_allocations(items, plan), 1)[1] + maps <= plan.memory_budget


def splits(tiers: Tiers) -> bool:
    """Returns whether rows are sharded or on several tiers, so that their order matters."""
    return tiers.sharded > 0 or [tiers.replicated, tiers.host, tiers.disk].count(0) < 2


def place_table(
    of: NodeType | EdgeType,
    name: str,
    spec: TableSpec,
    plan: str,
    copies: int,
    group: Group,
) -> Tiers:
    """Chooses the tiers of the table of an embedding. Collective.

    Args:
        copies: the number of copies of each of its shards.
    """
    item = row_item("embedding", table_name(of, name), spec, of)
    # Ranks without a GPU share the machine's memory, so one copy is enough for all ranks.
    name = "host" if plan == "auto" and group.device.type == "cpu" else plan
    budget = common_budget(None, group, DEFAULT_BUDGET_SHARE)
    # With c copies of each shard, n ranks hold as many rows as n / c ranks with one copy.
    alone = make_plan(name, [item], max(1, group.world_size // copies), budget)
    return alone.placements[0].tiers
