"""From a graph's sizes to a plan."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from peergraph.memory import Group, Tiers
from peergraph.store.ids import id_dtype
from peergraph.store.plan import Item, Placement, Plan, make_plan
from peergraph.store.schema import Schema, TableSpec
from peergraph.store.source import EdgeType, NodeType
from peergraph.store.structure import structure_bytes

# Of a GPU's free memory: the rest is the model's, its activations' and the allocator's.
_DEFAULT_BUDGET_SHARE = 0.6


def may_split(plan: str | Plan, group: Group) -> bool:
    """Whether rows may end on shards or several tiers, so that their order matters."""
    if isinstance(plan, Plan):
        return splits_rows(plan)
    return plan == "sharded" or (plan == "auto" and group.device.type == "cuda")


def choose_plan(
    plan: str | Plan,
    memory_budget: int | None,
    schema: Schema,
    degrees: Mapping[EdgeType, Tensor],
    permuted: Mapping[EdgeType, bool],
    renumbered: bool,
    group: Group,
) -> Plan:
    """Places everything. Collective.

    Args:
        degrees: in-degrees in internal order.
        permuted: relations with edge ids of their own.
        renumbered: whether id maps have to be placed, too.
    """
    if isinstance(plan, Plan):
        return _applied(plan, _items(schema, degrees, permuted), schema, renumbered, group)
    name, memory_budget = _resolve(plan, memory_budget, group)
    items = _items(schema, degrees, permuted)
    ids = _id_placements(schema, group.device.type == "cuda") if renumbered else []
    left = memory_budget
    if left is not None:
        left -= sum(p.bytes_per_rank(group.world_size) for p in ids)
    made = make_plan(name, items, group.world_size, left)
    return Plan(plan, group.world_size, memory_budget, (*ids, *made.placements))


def _applied(plan: Plan, items: list[Item], schema: Schema, renumbered: bool, group: Group) -> Plan:
    """A plan given by hand, with the bytes that it means for this graph and these ranks."""
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


def _items(
    schema: Schema, degrees: Mapping[EdgeType, Tensor], permuted: Mapping[EdgeType, bool]
) -> list[Item]:
    items = []
    for edge_type, num_edges in schema.num_edges.items():
        cumulative = structure_bytes(degrees[edge_type], id_dtype(schema.num_nodes[edge_type[0]]))
        name = type_name(edge_type)
        items.append(
            Item("structure", name, degrees[edge_type].numel(), lambda k, c=cumulative: int(c[k]))  # type: ignore[misc]
        )
        if permuted[edge_type]:
            items.append(_row_item("edge ids", name, TableSpec((num_edges,), id_dtype(num_edges))))
    items += _table_items("node table", schema.node_tables)
    items += _table_items("edge table", schema.edge_tables)
    return items


def _table_items(
    kind: str,
    tables: Mapping[NodeType, Mapping[str, TableSpec]] | Mapping[EdgeType, Mapping[str, TableSpec]],
) -> list[Item]:
    specs = [(table_name(t, n), spec) for t, named in tables.items() for n, spec in named.items()]
    # Narrow tables first: labels and masks cost little and are read for every batch.
    specs.sort(key=lambda s: s[1].row_bytes)
    return [_row_item(kind, name, spec) for name, spec in specs]


def _row_item(kind: str, name: str, spec: TableSpec) -> Item:
    return Item(kind, name, spec.shape[0], lambda k: k * spec.row_bytes)


def _id_placements(schema: Schema, on_gpu: bool) -> list[Placement]:
    near = Tiers.all_replicated if on_gpu else Tiers.all_host
    return [
        Placement.of(_row_item("ids", type_name(t), TableSpec((n, 2), id_dtype(n))), near(n))
        for t, n in schema.num_nodes.items()
    ]


def splits_rows(plan: Plan) -> bool:
    """Whether any item's rows go to shards or to several tiers, so that hotness matters."""
    return any(
        p.tiers.sharded > 0 or (p.tiers.replicated > 0 and p.tiers.host > 0)
        for p in plan.placements
    )


def place_table(
    kind: str, name: str, spec: TableSpec, plan: str, memory_budget: int | None, group: Group
) -> Tiers:
    """The tiers of one more table. Collective."""
    plan, memory_budget = _resolve(plan, memory_budget, group)
    made = make_plan(plan, [_row_item(kind, name, spec)], group.world_size, memory_budget)
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
