"""Builds the contents of a store from the ranks' sources: plans, allocates, fills."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from peergraph.memory import Group
from peergraph.memory.group.collective_call import collective_call_machines
from peergraph.memory.region.staging import Staging
from peergraph.memory.topology.measure import cached_topology
from peergraph.progress import stage
from peergraph.store.build.machine_source import graph_of_machine
from peergraph.store.build.machine_split import (
    check_same_splits,
    machine_splits,
    row_sets,
    schema_of_machine,
)
from peergraph.store.build.materialize import build_structure, build_tables
from peergraph.store.build.row_order import RowOrder
from peergraph.store.contents import StoreContents
from peergraph.store.hotness.hotness import list_hotness, node_hotness
from peergraph.store.input.frame_spec import list_owners
from peergraph.store.input.graph_edges import graph_edges, in_degrees, relations_with_edge_ids
from peergraph.store.input.schema import Schema, agree_on_schema
from peergraph.store.input.source import EdgeType, GraphSource
from peergraph.store.input.storage import checked_storage, with_storage
from peergraph.store.placement.added_tables import BuildRecord
from peergraph.store.placement.items import graph_items, id_items
from peergraph.store.placement.machine_plan import agree_on_machine_plan
from peergraph.store.placement.options import PlacementOptions, disk_spill, shard_ratios
from peergraph.store.placement.plan import Plan
from peergraph.store.placement.planner import choose_plan, fits_budget, may_split
from peergraph.store.placement.policies import POLICIES
from peergraph.store.placement.reads import BatchReads

_logger = logging.getLogger(__name__)


def build_on_machines(
    source: GraphSource | None,
    options: PlacementOptions,
    group: Group,
    progress: bool | None,
) -> StoreContents:
    """Builds a store on each machine. Collective over all machines; raises as
    :meth:`Store.build`.

    Args:
        options: the options, complete.
    """

    def work() -> StoreContents:
        with graph_of_machine(source, group) as mine:
            return build_store(mine, options, group, progress)

    return collective_call_machines(group, work)


def build_store(
    source: GraphSource | None,
    options: PlacementOptions,
    group: Group,
    progress: bool | None,
) -> StoreContents:
    """Plans, allocates and fills the store of one machine. Collective over its node group.

    Args:
        options: the options, complete.
    """
    storage = checked_storage(options["storage"])
    group.agree(plan=options["plan"], ratios=shard_ratios(options), storage=storage)
    schema = with_storage(agree_on_schema(source, group), storage)
    hotness = options["hotness"]
    by_out_degree = isinstance(hotness, str) and hotness == "out_degree"
    counts_sources = by_out_degree and (group.machines.count > 1 or may_split(options, group))
    staging = None if schema.holder is None else Staging(group, schema.holder)
    show = functools.partial(stage, progress=progress, rank=group.rank)
    with show("count edges", sum(schema.num_edges.values()), unit=" edges") as moved:
        edges = graph_edges(source, schema, staging, group, counts_sources, moved)
    degrees = in_degrees(edges, schema, group)
    permuted = relations_with_edge_ids(edges, group)
    over_machines = agree_on_machine_plan(
        options, graph_items(schema, degrees, permuted), id_items(schema), group
    )
    is_chosen, options = options["machines"] == "auto", {**options, "machines": over_machines.name}
    splits = machine_splits(schema, options, group.machines)
    own_schema = schema_of_machine(schema, splits)
    by_machine = any(split.hot for split in splits.values())
    ordered = by_machine or may_split(options, group)
    node_reads = node_hotness(hotness, edges, degrees, schema, group, ordered)
    list_reads: dict[EdgeType, Tensor] = {}
    if (structure_hotness := options["structure_hotness"]) is not None:
        list_reads = list_hotness(structure_hotness, edges, degrees, schema, group, ordered)
    with show("order the nodes", 0):
        order = RowOrder.by_hotness(node_reads, list_reads, degrees, schema, group.device)
    if options["machines"] == "shard":
        check_same_splits(schema, splits, order.nodes, options, group)

    @functools.cache
    def reads() -> BatchReads:
        batch_reads = BatchReads.of(
            hotness, node_reads, order.nodes, schema.num_edges, group.device
        )
        batch_reads = batch_reads.with_lists(list_reads, order.lists, group.device)
        return batch_reads.with_elements(list_owners(schema.frames), schema)

    maps = bool(order.nodes), bool(order.lists)
    with show("choose the plan", 0):
        chosen = choose_plan(
            options, own_schema, order.degrees(degrees), permuted, reads, maps, group
        )
    order, plan = order.used_by(group.broadcast(chosen), keep_nodes=by_machine)
    if is_chosen:
        plan = replace(plan, over_machines=str(over_machines))
    if group.rank == 0:
        _logger.info("store over %d ranks on %s: %s", group.world_size, group.device, plan)
    if plan.bytes_disk() and not splits:
        sequential = order.with_user_order_on_disk(plan, schema)
        # The sizes of shards depend on the order.
        if fits_budget(plan, graph_items(schema, sequential.degrees(degrees), permuted)):
            order = sequential
    with show("number the nodes", 0):
        id_maps = order.id_maps(schema, group)
        group.barrier()
    spill = disk_spill(options)
    row_degrees = order.degrees(degrees)
    structures = {
        t: build_structure(
            t,
            edges[t],
            row_degrees[t],
            id_maps,
            schema,
            plan,
            spill,
            order.row_map(t, group),
            group,
            progress,
        )
        for t in schema.num_edges
    }
    node_tables, edge_tables = build_tables(
        source, schema, row_sets(splits, id_maps), plan, id_maps, spill, group, progress, staging
    )
    if staging is not None:
        staging.close()
    group.synchronize()
    group.barrier()
    record = _build_record(options, reads, order, schema, ordered, group)
    contents = StoreContents(schema, plan, id_maps, structures, node_tables, edge_tables, record)
    contents.report_storage(group)
    return contents


def _build_record(
    options: PlacementOptions,
    reads: Callable[[], BatchReads],
    order: RowOrder,
    schema: Schema,
    ordered: bool,
    group: Group,
) -> BuildRecord:
    """Returns the inputs of the plan, for tables that are added later. Collective."""
    plan, topology, spill = options["plan"], options["topology"], disk_spill(options)
    by_links = not isinstance(plan, Plan) and plan in POLICIES
    if topology is None and by_links and ordered and group.device.type == "cuda":
        topology = cached_topology(group)
    if topology is None or group.rank:
        return BuildRecord(topology, None, spill)
    # In the users' order, the first rows are read as often as others.
    unordered = {t: n for t, n in schema.num_nodes.items() if t not in order.nodes}
    return BuildRecord(topology, reads().in_no_order(unordered), spill)
