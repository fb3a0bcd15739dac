"""From a graph's sizes to a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from peergraph.memory import Group, Tiers
from peergraph.memory.measuring import cached_topology
from peergraph.memory.partitions import everyone_reaches_all
from peergraph.memory.together import run_everywhere
from peergraph.memory.topology import Topology
from peergraph.store.ids import id_dtype
from peergraph.store.plan import Item, Placement, Plan, fit_all, make_plan
from peergraph.store.planning import Chooser, Reads, Shares, by_cost, predict_all, share_out
from peergraph.store.prediction import Prediction
from peergraph.store.schema import Schema, TableSpec
from peergraph.store.source import EdgeType, NodeType
from peergraph.store.structure import structure_bytes

# Of a GPU's free memory: the rest is the model's, its activations' and the allocator's.
_DEFAULT_BUDGET_SHARE = 0.6


def may_split(plan: str | Plan, shares: Shares, group: Group) -> bool:
    """Whether rows may end on shards or several tiers, so that their order matters."""
    if isinstance(plan, Plan):
        return splits_rows(plan)
    return plan == "sharded" or (plan == "auto" and (group.device.type == "cuda" or shares.given))


def choose_plan(
    plan: str | Plan,
    memory_budget: int | None,
    shares: Shares,
    schema: Schema,
    degrees: Mapping[EdgeType, Tensor],
    permuted: Mapping[EdgeType, bool],
    reads: Callable[[], Reads],
    renumbered: bool,
    group: Group,
) -> Plan:
    """Places everything. Collective.

    Args:
        degrees: in-degrees in internal order.
        permuted: relations with edge ids of their own.
        reads: how mini-batches read the graph, by rows in internal order.
        renumbered: whether id maps have to be placed, too.
    """
    if shares.given and plan != "auto":
        raise ValueError("graph_ratio, feature_ratio and first are for plan='auto'")
    items = graph_items(schema, degrees, permuted)
    if isinstance(plan, Plan):
        return _applied(plan, items, schema, renumbered, group)
    ids = _id_placements(schema, group.device.type == "cuda") if renumbered else []
    if plan != "auto" or not may_split(plan, shares, group):
        name, _ = _resolve(plan, memory_budget, group)
        made = make_plan(name, items, group.world_size, None)
        return Plan(plan, group.world_size, memory_budget, (*ids, *made.placements))
    return _auto(items, ids, memory_budget, shares, reads, group)


def _auto(
    items: list[Item],
    ids: list[Placement],
    memory_budget: int | None,
    shares: Shares,
    reads: Callable[[], Reads],
    group: Group,
) -> Plan:
    """By the cost model where the links have been measured, else near what fits."""
    partitions = everyone_reaches_all(group.world_size)
    predictions: tuple[Prediction, ...] = ()
    if group.device.type == "cpu":
        # What no ratio puts into the ranks' memory is there for all of them as one copy.
        given = [budget for budget in group.all_gather(memory_budget) if budget is not None]
        left = min(given, default=None)
        tiers = share_out(items, left, shares, partitions, lambda rest, _: _all_host(rest))
    else:
        _, memory_budget = _resolve("auto", memory_budget, group)
        assert memory_budget is not None
        left = memory_budget - sum(p.bytes_per_rank(group.world_size) for p in ids)
        topology = cached_topology(group)
        if topology is None:
            tiers = share_out(items, left, shares, partitions, _fit(group.world_size))
        else:
            tiers, predictions = _by_links(items, left, shares, reads, topology, group)
    placements = (*ids, *map(Placement.of, items, tiers))
    return Plan("auto", group.world_size, memory_budget, placements, predictions=predictions)


def _by_links(
    items: list[Item],
    budget: int,
    shares: Shares,
    reads: Callable[[], Reads],
    topology: Topology,
    group: Group,
) -> tuple[list[Tiers], tuple[Prediction, ...]]:
    """Tiers by the cost model, and their cost. Collective."""

    def choose() -> tuple[list[Tiers], tuple[Prediction, ...]] | None:
        # Curves of large graphs take time and memory: one rank is enough.
        if group.rank:
            return None
        partitions = everyone_reaches_all(group.world_size)
        model = reads()
        rest = by_cost(model, topology, partitions)
        tiers = share_out(items, budget, shares, partitions, rest)
        return tiers, predict_all(items, tiers, model, topology, partitions)

    return group.broadcast(run_everywhere(group, choose))  # type: ignore[no-any-return]


def _fit(world_size: int) -> Chooser:
    return lambda items, budget: fit_all(items, world_size, budget)


def _all_host(items: Sequence[Item]) -> list[Tiers]:
    return [Tiers.all_host(item.rows) for item in items]


def _applied(plan: Plan, items: list[Item], schema: Schema, renumbered: bool, group: Group) -> Plan:
    """A plan given by hand, with the bytes that it means for this graph and these ranks."""
    if plan.copies > 1:
        raise NotImplementedError(
            f"plan: {plan.copies} partitions on each GPU, for GPUs that do not all reach each other"
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
    return Plan(plan.name, group.world_size, plan.memory_budget, (*ids, *placements))


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
    memory_budget: int | None,
    group: Group,
) -> Tiers:
    """The tiers of one more table. Collective."""
    plan, memory_budget = _resolve(plan, memory_budget, group)
    item = _row_item(kind, table_name(of, name), spec, of)
    made = make_plan(plan, [item], group.world_size, memory_budget)
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
