"""Tables of a database: keys become edges, other columns become frames, with statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from peergraph.store.disk.manifest import Manifest, NodeEntry, TableEntry
from peergraph.store.disk.npy_writer import NpyWriter
from peergraph.store.ingest.frame_columns import (
    FrameColumns,
    parts_of_times,
    seconds_of_times,
    stype_of,
)
from peergraph.store.ingest.graph_files import (
    STYPES,
    Columns,
    CsvFormat,
    EdgeFiles,
    GraphFiles,
    NodeFiles,
    TableFiles,
)
from peergraph.store.ingest.read.arrow_rows import ArrowRows, arrow_reader
from peergraph.store.ingest.read.open_rows import open_rows
from peergraph.store.ingest.read.optional import arrow, compute
from peergraph.store.ingest.read.row_source import Batch, Problems, RowSource, named_errors
from peergraph.store.ingest.values.arrow_arrays import as_mask, plain, take
from peergraph.store.ingest.workspace import Workspace, sql_list
from peergraph.store.input.frame_spec import VALUES, FrameSpec, list_type
from peergraph.store.input.source import EdgeType, NodeType

FRAME = "tf"
"""The name of the frame of each table, as in RelBench."""
_ROW, _TIME = "row", "unix time"
_SOURCE, _DESTINATION = "source", "destination"


@dataclass
class _Table:
    """One table: its files, and its columns by semantic type."""

    name: NodeType
    files: TableFiles
    columns: list[FrameColumns]
    statistics: Mapping[str, Mapping[str, Any]]


class Database:
    """The tables of a database as the files of a graph. Each row is read once for its node, and
    once for each foreign key and direction; statistics are queries before. `writers` takes those
    of the elements of lists.
    """

    def __init__(
        self, tables: Mapping[NodeType, TableFiles], workspace: Workspace, writers: ExitStack
    ) -> None:
        self._workspace, self._writers = workspace, writers
        for name, files in tables.items():
            for column, target in files.foreign_keys.items():
                if target not in tables:
                    raise ValueError(
                        f"table {name!r}: {column!r} is the key of no table {target!r}"
                    )
                if tables[target].key is None:
                    raise ValueError(f"table {name!r}: {column!r}: table {target!r} has no key")
        self._tables = [self._read(*table, number) for number, table in enumerate(tables.items())]

    def graph_files(self) -> GraphFiles:
        """Returns the nodes and edges. An edge leads from each row to that of its foreign key, and
        one back, as in RelBench.
        """
        nodes, edges = {}, {}
        for table in self._tables:
            nodes[table.name] = self._node_files(table)
            for column, target in table.files.foreign_keys.items():
                forth: EdgeType = (table.name, f"f2p_{column}", target)
                back: EdgeType = (target, f"rev_f2p_{column}", table.name)
                edges[forth] = self._edge_files(table, column, _SOURCE, _DESTINATION)
                edges[back] = self._edge_files(table, column, _DESTINATION, _SOURCE)
        return GraphFiles(nodes, edges)

    def finish(self, manifest: Manifest) -> Manifest:
        """Completes the files of elements of lists. Returns the manifest with the frames, and with
        these elements.
        """
        self._writers.close()
        tables = {table.name: table for table in self._tables if table.columns}
        nodes, lists = [], []
        for entry in manifest.nodes:
            if (table := tables.get(entry.type)) is not None:
                columns = {of.stype: tuple(of.columns) for of in table.columns}
                spec = FrameSpec(columns, tuple(of.field for of in table.columns), table.statistics)
                entry = replace(entry, frames={FRAME: spec})
                for of in table.columns:
                    if of.writer is not None:
                        kind = list_type(entry.type, of.field.table(FRAME))
                        array = of.writer.entry
                        values = TableEntry(VALUES, array)
                        lists.append(NodeEntry(kind, array.shape[0], (values,)))
            nodes.append(entry)
        return replace(manifest, nodes=(*nodes, *lists))

    def _read(self, name: NodeType, files: TableFiles, number: int) -> _Table:
        """Finds the semantic types, and the statistics, of a table."""
        source = self._source(name, files)
        keys = [*([] if files.key is None else [files.key]), *files.foreign_keys]
        times = [] if files.time is None else [files.time]
        for column in (*keys, *times, *files.stypes):
            if column not in source.names:
                there = ", ".join(source.names)
                raise ValueError(f"table {name!r} has no column {column!r}; columns: {there}")
        stypes: dict[str, list[str]] = {}
        for column in source.names:
            if column not in keys and (stype := _stype(name, files, source, column)) is not None:
                stypes.setdefault(stype, []).append(column)
        columns, statistics = [], {}
        paths, what = source.names_of_files, f"statistics of table {name!r}"
        rows = f"read_parquet({sql_list(paths)}, union_by_name = true)"
        with closing(self._workspace.new_database(paths)) as database:

            def select(query: str) -> Any:
                with self._workspace.queries(what, database) as cursor:
                    return arrow_reader(cursor.sql(query)).read_all()

            for stype in filter(stypes.get, STYPES):
                of = FrameColumns(stype, stypes[stype])
                answers = {
                    column: _statistics(column, stype, rows, select) for column in of.columns
                }
                statistics.update({column: facts for column, (facts, _) in answers.items()})
                if stype in ("categorical", "multicategorical"):
                    of.values = {column: values for column, (_, values) in answers.items()}
                if stype == "embedding":
                    of.widths = [facts["EMB_DIM"] for facts, _ in answers.values()]
                    for column in (
                        c for c, (facts, _) in answers.items() if None in facts.values()
                    ):
                        raise ValueError(
                            f"{what}: column {column!r} has no list: its length is open"
                        )
                if of.field.layout == "lists":
                    path = self._workspace.folder / f"lists{number}.{stype}.npy"
                    dtype = torch.float32 if stype == "sequence_numerical" else torch.int64
                    of.writer = self._writers.enter_context(NpyWriter(path, (None,), dtype))
                columns.append(of)
        return _Table(name, files, columns, statistics)

    def _source(self, name: NodeType, files: TableFiles) -> RowSource:
        with named_errors(f"table {name!r}"):
            source = open_rows(files.files, CsvFormat())
        if source.is_text:
            raise ValueError(f"table {name!r}: tables are Parquet files, which say their types")
        return source

    def _node_files(self, table: _Table) -> NodeFiles:
        source, files = self._source(table.name, table.files), table.files
        tables: dict[str, Any] = {of.field.table(FRAME): of.table for of in table.columns}
        named = [name for name in (files.key, files.time) if name is not None]
        named += [column for of in table.columns for column in of.columns]
        key = f"key {files.key}"
        kind = None if files.key is None else source.type(files.key)
        if files.time is not None:
            _check_times(source, files.time)
            tables["time"] = Columns(_TIME)

        def encoded(batch: Batch) -> dict[str, Any]:
            arrays: dict[str, Any] = {of.stype: of.encoded(batch.columns) for of in table.columns}
            if files.key is not None:
                arrays[key] = batch.columns[files.key].cast(kind)
            if files.time is not None:
                arrays[_TIME] = seconds_of_times(batch.columns[files.time])
            return arrays | {_ROW: batch.rows}

        rows = self._encoded(f"table {table.name!r}", source, named, encoded)
        return NodeFiles(rows, None if files.key is None else key, tables=tables)

    def _edge_files(self, table: _Table, column: str, source: str, destination: str) -> EdgeFiles:
        """Returns the edges between the rows of a table and those of a foreign key, whose column
        has no value where a row has no edge.
        """
        rows_of, key = self._source(table.name, table.files), table.files.key
        kind = None if key is None else rows_of.type(key)
        kind_of_keys = rows_of.type(column)

        def encoded(batch: Batch) -> dict[str, Any]:
            keys = batch.columns[column].cast(kind_of_keys)
            rows = batch.rows if key is None else batch.columns[key].cast(kind)
            at = np.flatnonzero(~as_mask(keys.is_null(nan_is_null=True)))
            return {_SOURCE: take(rows, at), _DESTINATION: take(keys, at)}

        name, named = f"table {table.name!r}, key {column!r}", [column, *filter(None, [key])]
        rows = self._encoded(name, rows_of, named, encoded)
        return EdgeFiles(rows, source, destination)

    def _encoded(
        self,
        name: str,
        source: RowSource,
        columns: Sequence[str],
        encode: Callable[[Batch], Mapping[str, Any]],
    ) -> RowSource:
        # A table whose columns are all left out still has rows.
        columns = columns or source.names[:1]
        batches = source.read(columns, self._workspace.memory)
        none = {column: arrow.nulls(0, source.types(column)[0]) for column in columns}
        encoded = encode(Batch(np.empty(0, np.int64), none, Problems(0)))
        types = [(column, plain(values).type) for column, values in encoded.items()]
        of = ArrowRows(name, types, source.expected_rows, lambda *_: map(encode, batches))
        of.num_bytes = source.num_bytes
        return RowSource([of])


def _stype(name: NodeType, files: TableFiles, source: RowSource, column: str) -> str | None:
    """Returns the semantic type of a column; None: it is left out."""
    if column in files.stypes:
        return files.stypes[column]
    with named_errors(f"table {name!r}: column {column!r}"):
        kinds = {stype_of(kind) for kind in source.types(column)}
    if len(kinds) > 1:
        several = " and ".join(sorted(kinds))
        raise ValueError(f"table {name!r}: column {column!r} is {several}: name one in stypes")
    return kinds.pop()


def _check_times(source: RowSource, column: str) -> None:
    """Raises ValueError for a column without times."""
    for kind in source.types(column):
        if not arrow.types.is_timestamp(kind) and not arrow.types.is_date(kind):
            raise ValueError(f"time: column {column!r} is {kind}, expected timestamps or dates")


def _statistics(
    column: str, stype: str, rows: str, select: Callable[[str], Any]
) -> tuple[dict[str, Any], Any]:
    """Returns the statistics of a column, with the names and meanings of PyTorch Frame's, and the
    values of categories as an array of Arrow, the most frequent first.

    Args:
        rows: the rows of the table, in a query.
        select: returns the rows of a query.
    """
    name = '"' + column.replace('"', '""') + '"'
    if stype in ("categorical", "multicategorical"):
        value = f"unnest({name})" if stype == "multicategorical" else name
        counts = select(
            f"SELECT v, count(*) AS n FROM (SELECT {value} AS v FROM {rows}) WHERE v IS NOT NULL "
            "GROUP BY v ORDER BY n DESC, v"
        )
        kind = "COUNT" if stype == "categorical" else "MULTI_COUNT"
        # NaN is a missing value.
        counts = counts.filter(compute.invert(counts.column("v").is_null(nan_is_null=True)))
        values, numbers = counts.column("v"), counts.column("n").to_pylist()
        names = [_plain(value, column) for value in values.to_pylist()]
        return {kind: [names, numbers]}, values.combine_chunks()
    facts: dict[str, Any] = {}
    if stype in ("numerical", "sequence_numerical"):
        value = f"unnest({name})" if stype == "sequence_numerical" else name
        (facts,) = select(
            'SELECT avg(v) AS "MEAN", stddev_pop(v) AS "STD", '
            'quantile_cont(v, [0, 0.25, 0.5, 0.75, 1]) AS "QUANTILES" FROM (SELECT CAST(v AS '
            f"DOUBLE) AS v FROM (SELECT {value} AS v FROM {rows})) WHERE isfinite(v)"
        ).to_pylist()
        facts["QUANTILES"] = facts["QUANTILES"] or [None] * 5
    if stype == "timestamp":
        times = f"SELECT {name} AS t FROM {rows} WHERE {name} NOTNULL"
        chosen = select(
            f"WITH times AS MATERIALIZED ({times}), picked AS (SELECT t, "
            "row_number() OVER (ORDER BY t) - 1 AS place, (SELECT count(*) FROM times) AS n "
            "FROM times) SELECT t FROM picked WHERE place IN (0, n // 2, n - 1) ORDER BY place"
        )
        picked = parts_of_times(chosen.column("t").combine_chunks()).tolist() or [[-1] * 7]
        # Of one or two rows, the median is that of the first or the last one.
        oldest, newest = picked[0], picked[-1]
        median = picked[len(picked) // 2] if len(picked) == 3 else newest
        facts = {
            "YEAR_RANGE": [oldest[0], newest[0]],
            "NEWEST_TIME": newest,
            "OLDEST_TIME": oldest,
            "MEDIAN_TIME": median,
        }
    if stype == "embedding":
        (facts,) = select(f'SELECT max(len({name})) AS "EMB_DIM" FROM {rows}').to_pylist()
    return facts, None


def _plain(value: Any, column: str) -> Any:
    if not isinstance(value, (str, int, float, bool)):
        raise ValueError(
            f"column {column!r}: categories are texts, numbers or truth values, got {value!r}"
        )
    return value
