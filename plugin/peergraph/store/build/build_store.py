"""Building a store: from what the ranks bring to structures and tables that are filled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from peergraph.memory import Group, Table
from peergraph.memory.topology.measure import cached_topology
from peergraph.memory.topology.topology import Topology
from peergraph.store.build.materialize import build_structure, build_tables
from peergraph.store.build.row_order import RowOrder
from peergraph.store.csc.tiered_csc import TieredCsc
from peergraph.store.hotness.hotness import HotnessSpec, list_hotness, node_hotness
from peergraph.store.hotness.id_map import IdMap
from peergraph.store.input import local_csc
from peergraph.store.input.schema import Schema, agree
from peergraph.store.input.source import EdgeType, GraphSource, NodeType
from peergraph.store.placement.added_tables import BuildRecord
from peergraph.store.placement.items import graph_items
from peergraph.store.placement.plan import Plan
from peergraph.store.placement.planner import choose_plan, fits_budget, may_split
from peergraph.store.placement.policies import POLICIES
from peergraph.store.placement.ratios import ShardRatios
from peergraph.store.placement.reads import Reads
from peergraph.store.placement.spill import Spill


@dataclass(frozen=True)
class Wishes:
    """What users say about where a graph is to lie; see :meth:`Store.build`."""

    plan: str | Plan
    memory_budget: int | None
    hotness: HotnessSpec
    structure_hotness: HotnessSpec | Mapping[EdgeType, Tensor] | None
    shares: ShardRatios
    topology: Topology | None
    spill: Spill


@dataclass(frozen=True)
class StoreParts:
    """What a store is made of."""

    schema: Schema
    plan: Plan
    ids: dict[NodeType, IdMap]
    structures: dict[EdgeType, TieredCsc]
    node_tables: dict[NodeType, dict[str, Table]]
    edge_tables: dict[EdgeType, dict[str, Table]]
    build_record: BuildRecord


def build_store(
    source: GraphSource | None, wishes: Wishes, group: Group, progress: bool | None
) -> StoreParts:
    """Plans, allocates and fills. Collective; raises as :meth:`Store.build`."""
    group.agree(plan=wishes.plan, shares=wishes.shares)
    schema = agree(source, group)
    local = local_csc.local_structure(source, schema, group)
    ordered = may_split(wishes.plan, wishes.shares, wishes.topology, wishes.spill, group)
    degrees = local_csc.in_degrees(local, schema, group)
    heat = node_hotness(wishes.hotness, local, degrees, schema, group, ordered)
    list_heat: dict[EdgeType, Tensor] = {}
    if wishes.structure_hotness is not None:
        given = wishes.structure_hotness
        list_heat = list_hotness(given, local, degrees, schema, group, ordered)
    orders = RowOrder.by_hotness(heat, list_heat, degrees, schema, group.device)

    @functools.cache
    def reads() -> Reads:
        found = Reads.of(wishes.hotness, heat, orders.nodes, schema.num_edges, group.device)
        return found.with_lists(list_heat, orders.lists, group.device)

    permuted = local_csc.any_permuted(local, group)
    chosen = choose_plan(
        wishes.plan,
        wishes.memory_budget,
        wishes.shares,
        wishes.topology,
        schema,
        orders.degrees(degrees),
        permuted,
        reads,
        (bool(orders.nodes), bool(orders.lists)),
        wishes.spill,
        group,
    )
    used, plan = orders.kept(group.broadcast(chosen))
    if plan.bytes_disk():
        sequential = used.by_user_on_disk(plan, schema)
        # Other rows next to each other make shards of other sizes.
        if fits_budget(plan, graph_items(schema, sequential.degrees(degrees), permuted)):
            used = sequential
    ids = used.id_maps(schema, group)
    group.barrier()
    in_order = used.degrees(degrees)
    structures = {
        t: build_structure(
            t,
            local[t],
            in_order[t],
            ids,
            schema,
            plan,
            wishes.spill,
            used.list_map(t, group),
            group,
            progress,
        )
        for t in schema.num_edges
    }
    node_tables, edge_tables = build_tables(
        source, schema, plan, ids, wishes.spill, group, progress
    )
    group.synchronize()
    group.barrier()
    record = _remembered(wishes, reads, used, schema, ordered, group)
    return StoreParts(schema, plan, ids, structures, node_tables, edge_tables, record)


def _remembered(
    wishes: Wishes,
    reads: Callable[[], Reads],
    used: RowOrder,
    schema: Schema,
    ordered: bool,
    group: Group,
) -> BuildRecord:
    """What later tables are placed by. Collective."""
    topology = wishes.topology
    by_links = not isinstance(wishes.plan, Plan) and wishes.plan in POLICIES
    if topology is None and by_links and ordered and group.device.type == "cuda":
        topology = cached_topology(group)
    if topology is None or group.rank:
        return BuildRecord(topology, None, wishes.spill)
    # Where nodes keep the users' order, the first rows are read as often as others.
    by_users = {t: n for t, n in schema.num_nodes.items() if t not in used.nodes}
    return BuildRecord(topology, reads().in_no_order(by_users), wishes.spill)
