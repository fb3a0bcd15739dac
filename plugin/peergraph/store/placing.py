"""From a graph's sizes to a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from peergraph.memory import Group, Tiers
from peergraph.memory.measuring import cached_topology
from peergraph.memory.partitions import everyone_reaches_all
from peergraph.memory.together import run_everywhere
from peergraph.memory.topology import Topology
from peergraph.store.ids import id_dtype
from peergraph.store.layout import structure_bytes
from peergraph.store.plan import Item, Placement, Plan, fit_all, make_plan
from peergraph.store.planning import Reads, Shares, share_out
from peergraph.store.policies import POLICIES, plan_on
from peergraph.store.schema import Schema, TableSpec
from peergraph.store.source import EdgeType, NodeType

# Of a GPU's free memory: the rest is the model's, its activations' and the allocator's.
_DEFAULT_BUDGET_SHARE = 0.6


def may_split(plan: str | Plan, shares: Shares, topology: Topology | None, group: Group) -> bool:
    """Whether rows may end on shards or several tiers, so that their order matters."""
    if isinstance(plan, Plan):
        return splits_rows(plan)
    if plan == "auto":
        return group.device.type == "cuda" or shares.given or topology is not None
    return plan == "sharded" or plan in POLICIES


def choose_plan(
    plan: str | Plan,
    memory_budget: int | None,
    shares: Shares,
    topology: Topology | None,
    schema: Schema,
    degrees: Mapping[EdgeType, Tensor],
    permuted: Mapping[EdgeType, bool],
    reads: Callable[[], Reads],
    renumbered: bool,
    group: Group,
) -> Plan:
    """Places everything. Collective.

    Args:
        topology: the links to plan by; None: those measured.
        degrees: in-degrees in internal order.
        permuted: relations with edge ids of their own.
        reads: how mini-batches read the graph, by rows in internal order.
        renumbered: whether id maps have to be placed, too.
    """
    by_links = not isinstance(plan, Plan) and plan in POLICIES
    if (shares.given or topology is not None) and not by_links:
        raise ValueError(
            "topology, graph_ratio, feature_ratio and first are for plan="
            + " or ".join(map(repr, POLICIES))
        )
    if topology is not None and topology.num_gpus != group.world_size:
        raise ValueError(
            f"topology has {topology.num_gpus} GPUs, there are {group.world_size} ranks"
        )
    items = graph_items(schema, degrees, permuted)
    if isinstance(plan, Plan):
        return _applied(plan, items, schema, renumbered, group)
    ids = _id_placements(schema, group.device.type == "cuda") if renumbered else []
    if not by_links or (plan == "auto" and not renumbered):
        name, _ = _resolve(plan, memory_budget, group)
        made = make_plan(name, items, group.world_size, None)
        return Plan(plan, group.world_size, memory_budget, (*ids, *made.placements))
    assert isinstance(plan, str)
    if topology is None and group.device.type == "cuda":
        topology = cached_topology(group)
    budget = _common_budget(memory_budget, group)
    left = None if budget is None else budget - sum(p.bytes_per_rank(group.world_size) for p in ids)
    if topology is None:
        if plan != "auto":
            raise ValueError(f"plan={plan!r} needs a topology, given or measured before")
        made = _without_links(items, left, shares, group)
    else:
        made = _by_links(plan, items, left, shares, topology, reads, group)
    return replace(made, memory_budget=budget, placements=(*ids, *made.placements))


def _common_budget(memory_budget: int | None, group: Group) -> int | None:
    """What all ranks can keep; None for ranks without a GPU that were given none."""
    if memory_budget is None and group.device.type == "cuda":
        memory_budget = _default_budget(group.device)
    given = [budget for budget in group.all_gather(memory_budget) if budget is not None]
    return min(given, default=None)


def _without_links(items: list[Item], budget: int | None, shares: Shares, group: Group) -> Plan:
    """Near what fits; without a GPU, one copy of what no ratio puts into the ranks' memory."""

    def rest(others: Sequence[Item], left: int) -> list[Tiers]:
        if group.device.type == "cuda":
            return fit_all(others, group.world_size, left)
        return [Tiers.all_host(item.rows) for item in others]

    partitions = everyone_reaches_all(group.world_size)
    tiers = share_out(items, budget, shares, partitions, rest)
    return Plan("auto", group.world_size, budget, tuple(map(Placement.of, items, tiers)))


def _by_links(
    policy: str,
    items: list[Item],
    budget: int | None,
    shares: Shares,
    topology: Topology,
    reads: Callable[[], Reads],
    group: Group,
) -> Plan:
    """By the cost model. Collective."""
    if budget is None:
        raise ValueError("a plan by topology needs a memory_budget where there is no GPU")

    def choose() -> Plan | None:
        # Curves of large graphs take time and memory: one rank is enough.
        if group.rank:
            return None
        return plan_on(topology, items, reads(), max(0, budget), policy, shares)

    return group.broadcast(run_everywhere(group, choose))  # type: ignore[no-any-return]


def _applied(plan: Plan, items: list[Item], schema: Schema, renumbered: bool, group: Group) -> Plan:
    """A plan given by hand, with the bytes that it means for this graph and these ranks."""
    if plan.partitions is not None and plan.partitions.num_gpus != group.world_size:
        raise ValueError(
            f"plan: partitions are for {plan.partitions.num_gpus} GPUs, "
            f"there are {group.world_size} ranks"
        )
    ids = _id_placements(schema, group.device.type == "cuda") if renumbered else []
    placements = []
    for item in items:
        tiers = plan.tiers(item.kind, item.name)
        if tiers.rows != item.rows:
            raise ValueError(
                f"plan: {item.kind} {item.name!r} has {item.rows} rows, the plan {tiers.rows}"
            )
        placements.append(Placement.of(item, tiers))
    placed = (*ids, *placements)
    return Plan(plan.name, group.world_size, plan.memory_budget, placed, plan.partitions)


def _default_budget(device: torch.device) -> int:
    free, _ = torch.cuda.mem_get_info(device)
    return int(free * _DEFAULT_BUDGET_SHARE)


def graph_items(
    schema: Schema, degrees: Mapping[EdgeType, Tensor], permuted: Mapping[EdgeType, bool]
) -> list[Item]:
    """What there is to place, structure first (XGNN 4.3).

    Args:
        degrees: in-degrees by relation, in the order of the rows.
        permuted: relations with edge ids of their own.
    """
    items = []
    for edge_type, num_edges in schema.num_edges.items():
        cumulative = structure_bytes(degrees[edge_type], id_dtype(schema.num_nodes[edge_type[0]]))
        name = type_name(edge_type)
        rows = degrees[edge_type].numel()
        items.append(
            Item("structure", name, rows, lambda k, c=cumulative: int(c[k]), edge_type)  # type: ignore[misc]
        )
        if permuted[edge_type]:
            spec = TableSpec((num_edges,), id_dtype(num_edges))
            items.append(_row_item("edge ids", name, spec, edge_type))
    items += _table_items("node table", schema.node_tables)
    items += _table_items("edge table", schema.edge_tables)
    return items


def _table_items(
    kind: str,
    tables: Mapping[NodeType, Mapping[str, TableSpec]] | Mapping[EdgeType, Mapping[str, TableSpec]],
) -> list[Item]:
    specs = [(t, n, spec) for t, named in tables.items() for n, spec in named.items()]
    # Narrow tables first: labels and masks cost little and are read for every batch.
    specs.sort(key=lambda s: s[2].row_bytes)
    return [_row_item(kind, table_name(t, n), spec, t) for t, n, spec in specs]


def _row_item(kind: str, name: str, spec: TableSpec, of: NodeType | EdgeType) -> Item:
    return Item(kind, name, spec.shape[0], lambda k: k * spec.row_bytes, of)


def _id_placements(schema: Schema, on_gpu: bool) -> list[Placement]:
    near = Tiers.all_replicated if on_gpu else Tiers.all_host
    return [
        Placement.of(_row_item("ids", type_name(t), TableSpec((n, 2), id_dtype(n)), t), near(n))
        for t, n in schema.num_nodes.items()
    ]


def splits_rows(plan: Plan) -> bool:
    """Whether any item's rows go to shards or to several tiers, so that hotness matters."""
    return any(
        p.tiers.sharded > 0 or (p.tiers.replicated > 0 and p.tiers.host > 0)
        for p in plan.placements
    )


def place_table(
    kind: str,
    of: NodeType | EdgeType,
    name: str,
    spec: TableSpec,
    plan: str,
    copies: int,
    group: Group,
) -> Tiers:
    """The tiers of one more table. Collective.

    Args:
        copies: of its shards on each rank.
    """
    plan, memory_budget = _resolve(plan, None, group)
    item = _row_item(kind, table_name(of, name), spec, of)
    # With copies of shards, the ranks hold as much as so many fewer of them.
    made = make_plan(plan, [item], max(1, group.world_size // copies), memory_budget)
    return made.placements[0].tiers


def _resolve(plan: str, memory_budget: int | None, group: Group) -> tuple[str, int | None]:
    """The plan's name and the budget all ranks can keep."""
    if plan != "auto":
        return plan, memory_budget
    if group.device.type == "cpu":
        # Ranks without a GPU share the machine's memory: one copy serves all.
        return "host", None
    return plan, min(group.all_gather(memory_budget or _default_budget(group.device)))


def type_name(kind: NodeType | EdgeType) -> str:
    """A type for people: ``user`` or ``user-rates-item``."""
    return kind if isinstance(kind, str) else "-".join(kind)


def table_name(kind: NodeType | EdgeType, name: str) -> str:
    """A table for people: its type and its name."""
    return f"{type_name(kind)}.{name}"
