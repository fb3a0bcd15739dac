"""Allocates and fills the structures and tables of a plan. Each step is collective."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from peergraph.memory import Group, NarrowTable, Table, Tiers
from peergraph.memory.distributed.distributed_table import DistributedTable
from peergraph.memory.distributed.row_set import RowSet
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.region.staging import Staging
from peergraph.memory.table.partitions import Partitions
from peergraph.progress import progress_bar, stage
from peergraph.store.build.load_rows import load_rows
from peergraph.store.build.machine_split import is_split
from peergraph.store.contents import StoreContents
from peergraph.store.csc.neighbor_lists import write_lists
from peergraph.store.csc.staged_lists import write_staged_lists
from peergraph.store.csc.tiered_csc import TieredCsc
from peergraph.store.hotness.id_map import IdMap, id_dtype
from peergraph.store.input.graph_edges import RelationEdges
from peergraph.store.input.schema import Schema, TableSpec
from peergraph.store.input.source import (
    EdgeType,
    GraphSource,
    NodeType,
    RowSource,
)
from peergraph.store.input.staged_edges import StagedEdges
from peergraph.store.input.storage import checked_name, stored_as
from peergraph.store.placement.added_tables import place_added_table
from peergraph.store.placement.allocation import Allocation
from peergraph.store.placement.items import row_item, table_name, type_name
from peergraph.store.placement.plan import Plan
from peergraph.store.placement.spill import Spill


def build_structure(
    edge_type: EdgeType,
    edges: RelationEdges,
    degrees: Tensor,
    ids: Mapping[NodeType, IdMap],
    schema: Schema,
    plan: Plan,
    spill: Spill,
    order: Table | None,
    group: Group,
    progress: bool | None,
) -> TieredCsc:
    """Allocates and fills one relation. Collective.

    Args:
        degrees: the in-degree of each row.
        order: the row of each internal id; None: they are equal.
    """
    name = type_name(edge_type)
    num_edges = schema.num_edges[edge_type]
    with stage(f"allocate {name}", 0, progress, group.rank):
        structure = TieredCsc.create(
            degrees,
            schema.num_nodes[edge_type[0]],
            plan.tiers("structure", name),
            group,
            plan.partitions,
            spill.folder,
            order,
        )
        edge_ids = _create_edge_ids(name, num_edges, plan, spill, group)
    to, from_ = ids[edge_type[2]], ids[edge_type[0]]
    if isinstance(edges, StagedEdges):
        with stage(f"sort edges of {name}", num_edges, progress, group.rank, " edges") as moved:
            write_staged_lists(
                structure, edge_ids, edges, to, from_, lambda n: moved(n * group.world_size)
            )
    else:
        begin, first = schema.node_range[group.rank][edge_type[2]][0], schema.edge_begin[group.rank]
        steps = write_lists(
            structure, begin, edges.indptr, edges.indices, first[edge_type], to, from_
        )
        index_bytes = edges.indices.element_size()
        with progress_bar(name, index_bytes * edges.indices.numel(), progress) as moved:
            for written in steps:
                moved(index_bytes * written)
        if edge_ids is not None and edges.edge_ids is not None:
            values = edges.edge_ids.to(edge_ids.dtype)
            edge_ids.load(values, first[edge_type], progress=progress)
    if edge_ids is not None:
        structure.set_edge_ids(edge_ids)
    return structure


def _create_edge_ids(
    name: str, num_edges: int, plan: Plan, spill: Spill, group: Group
) -> Table | None:
    """Allocates the table of a relation's edge ids; None if they are CSC positions. Collective."""
    try:
        tiers = plan.tiers("edge ids", name)
    except KeyError:
        return None
    return Table.create(
        (num_edges,),
        id_dtype(num_edges),
        tiers,
        group,
        partitions=plan.partitions,
        spill=spill.folder,
    )


def build_table(
    what: str,
    spec: TableSpec,
    tiers: Tiers,
    rows: Tensor | RowSource | None,
    start: int,
    group: Group,
    order: Table | None,
    progress: bool | None,
    partitions: Partitions | None,
    spill: Spill,
    row_set: RowSet | None = None,
    staging: Staging | None = None,
) -> Table:
    """Allocates a table and writes the rows of this rank's source. Collective; if a source raises
    an error, every rank raises it.

    Args:
        spec: the spec of the table, with the rows of all machines.
        rows: this rank's rows; None: it has no rows.
        start: the position of the first of these rows in the table.
        row_set: the rows of this machine, if the table is split over machines.
        staging: if one rank has all rows: the memory through which every rank reads a share.
    """
    codec = spec.codec
    shape = spec.shape if row_set is None else (row_set.split.local_rows, *spec.shape[1:])
    own_order = order if row_set is None else None
    # IdMap has checked the order.
    with stage(f"allocate {what}", 0, progress, group.rank):
        if codec is None:
            table = Table.create(
                shape,
                spec.dtype,
                tiers,
                group,
                order=own_order,
                partitions=partitions,
                spill=spill.folder,
                check=False,
            )
        else:
            table = NarrowTable.create_narrow(
                shape[0],
                codec,
                tiers,
                group,
                what,
                order=own_order,
                partitions=partitions,
                spill=spill.folder,
                check=False,
            )
    if row_set is not None:
        table = DistributedTable(spec.shape, table, row_set, what)

    by_staging = None if row_set is not None else staging
    load_rows(table, what, spec, rows, start, by_staging, group, progress)
    if row_set is None and spec.dtype in (torch.int32, torch.int64) and math.prod(shape[1:]) == 1:
        table.mark_writes()  # samplers bisect by times as long as these are not written
    return table


def add_table(
    contents: StoreContents,
    name: str,
    values: Tensor | None,
    kind: NodeType | EdgeType,
    plan: str,
    storage: str | torch.dtype | None,
    allocations: Sequence[Allocation],
    group: Group,
) -> Table:
    """Places, allocates, fills and registers one more table. Collective; raises as
    :meth:`Store.add_node_table`.

    Args:
        allocations: all allocations of the store.
    """
    stored = None if storage is None else checked_name(name, storage)
    group.agree(name=name, type=kind, plan=plan, storage=stored)
    if isinstance(kind, str):
        what, rows = "node table", contents.schema.num_nodes[kind]
        tables = contents.node_tables.setdefault(kind, {})
        order = contents.id_maps[kind].to_internal
    else:
        what, rows = "edge table", contents.schema.num_edges[kind]
        tables, order = contents.edge_tables.setdefault(kind, {}), None

    def describe() -> TableSpec | None:
        if name in tables:
            raise ValueError(f"a table {name!r} exists")
        if values is None:
            return None
        if values.dim() == 0 or values.size(0) != rows:
            raise ValueError(f"{name!r} must have {rows} rows, got {list(values.shape)}")
        return stored_as(stored, kind, name, TableSpec(tuple(values.shape), values.dtype))

    specs = group.all_gather(collective_call(group, describe))
    holder = next((r for r, spec in enumerate(specs) if spec is not None), None)
    if holder is None:
        raise ValueError(f"no rank brings values for {name!r}")
    spec, record = specs[holder], contents.build_record
    item = row_item(what, table_name(kind, name), spec, kind)
    planned = place_added_table(plan, item, contents.plan, allocations, record, group)
    table = build_table(
        item.name,
        spec,
        planned.tiers(what, item.name),
        values if group.rank == holder else None,
        0,
        group,
        order,
        None,
        planned.partitions,
        record.spill,
    )
    contents.plan, tables[name] = planned, table
    contents.report_storage(group)
    group.barrier()
    return table


def build_tables(
    source: GraphSource | None,
    schema: Schema,
    row_sets: Mapping[NodeType | EdgeType, RowSet],
    plan: Plan,
    ids: Mapping[NodeType, IdMap],
    spill: Spill,
    group: Group,
    progress: bool | None,
    staging: Staging | None,
) -> tuple[dict[NodeType, dict[str, Table]], dict[EdgeType, dict[str, Table]]]:
    """Builds all node and edge tables. Collective.

    Args:
        schema: the schema, with the rows of all machines.
        row_sets: the row sets of types with tables that are split over machines.
        staging: if one rank has the graph: the memory through which all ranks read it.
    """
    has_rows = any(b < e for b, e in schema.node_range[group.rank].values())
    own_source = source if has_rows else None

    def build(
        what: str,
        kind: NodeType | EdgeType,
        specs: Mapping[str, TableSpec],
        rows: Mapping[str, Tensor | RowSource] | None,
        start: int,
    ) -> dict[str, Table]:
        return {
            name: build_table(
                table_name(kind, name),
                spec,
                plan.tiers(what, table_name(kind, name)),
                None if rows is None else rows[name],
                start,
                group,
                ids[kind].to_internal if isinstance(kind, str) else None,
                progress,
                plan.partitions,
                spill,
                row_sets[kind] if kind in row_sets and is_split(spec) else None,
                staging,
            )
            for name, spec in specs.items()
        }

    node_begin, edge_begin = schema.node_range[group.rank], schema.edge_begin[group.rank]
    node_tables = {
        t: build(
            "node table",
            t,
            specs,
            own_source.node_tables[t] if own_source else None,
            node_begin[t][0],
        )
        for t, specs in schema.node_tables.items()
    }
    edge_tables = {
        t: build(
            "edge table", t, specs, own_source.edge_tables[t] if own_source else None, edge_begin[t]
        )
        for t, specs in schema.edge_tables.items()
    }
    return node_tables, edge_tables
