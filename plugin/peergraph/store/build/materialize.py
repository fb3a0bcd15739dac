"""Allocates and fills the structures and tables of a plan. Each step is collective."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from peergraph.memory import Group, NarrowTable, RowCodec, Table, Tiers
from peergraph.memory.device.launching import threads_of_rank
from peergraph.memory.device.plain_tensor import plain
from peergraph.memory.distributed.distributed_table import DistributedTable
from peergraph.memory.distributed.row_set import RowSet
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.region.mapped_file import MappedFile
from peergraph.memory.region.staging import Column, Staging
from peergraph.memory.table.partitions import Partitions
from peergraph.progress import progress_bar, stage
from peergraph.store.build.machine_source import SentRows
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
    EncodedRows,
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

_PIECE_BYTES = 64 << 20
_LEAST_FILE_BYTES = 16 << 20  # of a mapped file that is read again


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

    def load() -> None:
        if isinstance(rows, RowSource):
            _load_pieces(table, what, rows, start, progress, codec)
        elif rows is not None:
            table.load(rows, start, progress=progress)

    if (
        row_set is None
        and staging is not None
        and group.broadcast(isinstance(rows, Tensor), staging.holder)
    ):
        _load_staged(table, what, spec, rows if staging.is_holder else None, staging, progress)
    else:
        # A source may fail on one rank, because of a user's function or a damaged file.
        collective_call(group, load)
    return table


def _load_staged(
    table: Table,
    what: str,
    spec: TableSpec,
    rows: Tensor | RowSource | None,
    staging: Staging,
    progress: bool | None,
) -> None:
    """Loads a table that one rank has; every rank writes a share of each piece. Collective."""
    group, columns = staging.group, [Column(spec.dtype, spec.shape[1:])]

    def describe() -> tuple[list[Tensor], MappedFile | None] | None:
        if not isinstance(rows, Tensor):
            return None
        source = plain(what, rows)
        is_large = source.nbytes >= _LEAST_FILE_BYTES
        return [source], MappedFile.of(source) if is_large and group.world_size > 1 else None

    found = collective_call(group, describe)
    file = group.broadcast(None if found is None else found[1], staging.holder)
    if file is not None and all(group.all_gather(file.is_there())):
        _load_file(table, what, spec, file, group, progress)
        return
    steps = staging.steps(spec.shape[0], columns)
    tensors = None if found is None else found[0]
    num_bytes = columns[0].row_bytes * spec.shape[0]
    with stage(f"load {what}", num_bytes, progress, group.rank) as moved:

        def load(number: int, ranges: list[list[Tensor]]) -> None:
            piece, (begin, end) = ranges[0][0], steps[number]
            first, last = (len(piece) * r // group.world_size for r in (group.rank, group.rank + 1))
            table.load(piece[first:last], begin + first, progress=False)
            moved(columns[0].row_bytes * (end - begin))

        staging.run(tensors, columns, [[step] for step in steps], load)


def _load_file(
    table: Table,
    what: str,
    spec: TableSpec,
    file: MappedFile,
    group: Group,
    progress: bool | None,
) -> None:
    """Loads a table whose rows are a file that all ranks see; each reads its share. Collective."""
    row_bytes = Column(spec.dtype, spec.shape[1:]).row_bytes
    threads, is_cuda = threads_of_rank(group.world_size), group.device.type == "cuda"

    def read(begin: int, end: int) -> Tensor:
        memory = file.read(begin * row_bytes, end * row_bytes, threads, pinned=is_cuda)
        return memory.view(spec.dtype).view(end - begin, *spec.shape[1:])

    count = spec.shape[0]
    first, last = (count * r // group.world_size for r in (group.rank, group.rank + 1))
    mine = RowSource((last - first, *spec.shape[1:]), spec.dtype, read, ahead=True)
    with stage(f"load {what}", row_bytes * count, progress, group.rank):
        collective_call(group, lambda: _load_pieces(table, what, mine, first, progress, spec.codec))


def _load_pieces(
    table: Table,
    what: str,
    source: RowSource,
    start: int,
    progress: bool | None,
    codec: RowCodec | None,
) -> None:
    step = max(1, _PIECE_BYTES // max(1, table.row_bytes if codec is None else codec.user_bytes))
    stop = start + source.shape[0]
    pieces = [(begin, min(begin + step, stop)) for begin in range(start, stop, step)]
    read, load = source.rows, _load_checked(table, what)
    if isinstance(source, SentRows) and isinstance(table, DistributedTable):
        read, load = _split_rows(source, table)
    elif (
        isinstance(table, (NarrowTable, DistributedTable))
        and isinstance(source, EncodedRows)
        and source.codec == codec
    ):
        read, load = source.encoded, _load_encoded(table)
    with progress_bar(what, table.row_bytes * source.shape[0], progress) as moved:
        for (begin, end), rows in _read_ahead(read, pieces, source.ahead):
            load(rows, begin, end)
            moved(table.row_bytes * (end - begin))


_Read = Callable[[int, int], Tensor]
_Load = Callable[[Tensor, int, int], None]


def _load_checked(table: Table, what: str) -> _Load:
    def load(rows: Tensor, begin: int, end: int) -> None:
        _check_piece(what, rows, begin, end, table)
        table.load(rows, begin, progress=False)

    return load


def _load_encoded(table: NarrowTable | DistributedTable) -> _Load:
    return lambda rows, begin, _: table.load_encoded(rows, begin)


def _split_rows(source: SentRows, table: DistributedTable) -> tuple[_Read, _Load]:
    """Rows that a machine sends, of which this one has some."""

    def load(rows: Tensor, begin: int, end: int) -> None:
        positions, local = table.row_set.kept_rows(begin, end - begin)
        table.load_local(local, rows, positions + begin)

    return lambda begin, end: source.kept(begin, end, table.row_set), load


def _read_ahead(
    read: _Read, pieces: Sequence[tuple[int, int]], ahead: bool
) -> Iterator[tuple[tuple[int, int], Tensor]]:
    """Yields each piece with its rows; another thread may read the next piece meanwhile."""
    if not ahead:
        for piece in pieces:
            yield piece, read(*piece)
        return
    with ThreadPoolExecutor(1, "peergraph_ahead") as pool:
        following = [pool.submit(read, *piece) for piece in pieces[:1]]
        for number, piece in enumerate(pieces):
            rows = following.pop().result()
            if number + 1 < len(pieces):
                following.append(pool.submit(read, *pieces[number + 1]))
            yield piece, rows


def _check_piece(what: str, rows: Tensor, begin: int, end: int, table: Table) -> None:
    """Raises an error if a source returned rows of another number, shape or dtype."""
    if not isinstance(rows, Tensor):
        raise TypeError(f"{what}: rows({begin}, {end}) must be a tensor, got {type(rows).__name__}")
    shape = (end - begin, *table.shape[1:])
    if tuple(rows.shape) != shape or rows.dtype != table.dtype:
        raise ValueError(
            f"{what}: rows({begin}, {end}) must be {list(shape)} of {table.dtype}, "
            f"got {list(rows.shape)} of {rows.dtype}"
        )


def add_table(
    contents: StoreContents,
    name: str,
    values: Tensor | None,
    kind: NodeType | EdgeType,
    plan: str,
    storage: str | torch.dtype | None,
    taken: Sequence[Allocation],
    group: Group,
) -> Table:
    """Places, allocates, fills and registers one more table. Collective; raises as
    :meth:`Store.add_node_table`.

    Args:
        taken: all allocations of the store.
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
    planned = place_added_table(plan, item, contents.plan, taken, record, group)
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
    held = any(b < e for b, e in schema.node_range[group.rank].values())
    given = source if held else None

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
        t: build("node table", t, specs, given.node_tables[t] if given else None, node_begin[t][0])
        for t, specs in schema.node_tables.items()
    }
    edge_tables = {
        t: build("edge table", t, specs, given.edge_tables[t] if given else None, edge_begin[t])
        for t, specs in schema.edge_tables.items()
    }
    return node_tables, edge_tables
