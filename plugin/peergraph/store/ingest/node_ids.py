"""The ids of a node type, columns that have them, and tables of DuckDB for look-ups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from peergraph.store.ingest.graph_files import NodeFiles
from peergraph.store.ingest.read.arrow_rows import arrow_reader
from peergraph.store.ingest.read.optional import arrow, parquet
from peergraph.store.ingest.read.row_source import Batch, RowSource, named_errors
from peergraph.store.ingest.values import arrow_arrays
from peergraph.store.ingest.values.arrow_arrays import Array, Integers, is_text
from peergraph.store.ingest.values.numbers import TextKind, ValueKind, to_keys, to_node_numbers
from peergraph.store.ingest.workspace import Workspace

_PURPOSE = "looking up string or sparse ids"
_PLAUSIBLE_NODES = 1 << 20
_PLAUSIBLE_RATIO = 1000  # of nodes to ends of edges
_SHOWN: dict[ValueKind, str] = {"number": "whole numbers", "text": "text"}


class KeyTable:
    """A table of DuckDB, which is filled batch by batch: columns of int64 or of ids by name."""

    def __init__(self, columns: dict[str, ValueKind], workspace: Workspace) -> None:
        self._workspace = workspace
        kinds = {"number": (arrow.int64(), "BIGINT"), "text": (arrow.string(), "VARCHAR")}
        self._schema = arrow.schema([(name, kinds[kind][0]) for name, kind in columns.items()])
        self.name = workspace.unique_name("rows")
        declared = ", ".join(f"{name} {kinds[kind][1]}" for name, kind in columns.items())
        self.select(f"CREATE TABLE {self.name} ({declared})")

    def append(self, *columns: Any) -> None:
        """Appends rows: arrays of NumPy or Arrow."""
        arrays = [arrow_arrays.as_arrow(c) if isinstance(c, np.ndarray) else c for c in columns]
        with self._workspace.queries(_PURPOSE) as cursor:
            cursor.register("new_rows", arrow.table(arrays, self._schema.names).cast(self._schema))
            cursor.execute(f"INSERT INTO {self.name} SELECT * FROM new_rows")

    def select(self, query: str) -> list[Any]:
        """Returns the few rows of a query."""
        with self._workspace.queries(_PURPOSE) as cursor:
            return list(cursor.execute(query).fetchall())

    def batches(self, query: str, batch_rows: int = 1 << 18) -> Iterator[list[Integers]]:
        """Yields the columns of the many rows of a query, all of int64."""
        with self._workspace.queries(_PURPOSE) as cursor:
            for batch in arrow_reader(cursor.sql(query), batch_rows):
                yield [arrow_arrays.as_numpy(column) for column in batch.columns]

    def drop(self) -> None:
        """Removes the table."""
        self.select(f"DROP TABLE {self.name}")


@dataclass
class NodeIds:
    """The ids of one node type.

    Args:
        stem: the stem of the names of its files.
        count: the number of nodes; None: the edges determine it.
        kind: whether ids are whole numbers or text; None: the first values of edges decide.
        table: the table ``(id, node)`` of ids that are looked up.
        largest, largest_place, num_ends, keys: of types that only edges name: the largest id, its
            file and row, the number of ids, and the tables and columns with ids to look up.
    """

    node_type: str
    stem: str
    files: NodeFiles
    count: int | None = None
    kind: ValueKind | None = None
    table: str | None = None
    largest: int = -1
    largest_place: tuple[str, int] = ("", 0)
    num_ends: int = 0
    keys: list[tuple[KeyTable, str]] = field(default_factory=list)

    @property
    def is_looked_up(self) -> bool:
        """Whether ids are looked up; otherwise they are the numbers of the nodes."""
        if self.count is not None:
            return self.table is not None
        return self.kind == "text" or self.files.numbering == "mapped"

    def add_numbers(self, ids: Array, rows: Integers, source: RowSource) -> None:
        """Notes ids of a type that only edges name, which are the numbers of its nodes."""
        self.num_ends += len(ids)
        if len(ids) and int(ids.max()) > self.largest:
            at = int(ids.argmax())
            self.largest, self.largest_place = int(ids[at]), source.place(int(rows[at]))

    def number_named(self, work: Workspace) -> None:
        """Numbers the nodes of a type that only edges name: by the largest id, if it is plausible,
        or the ids that are looked up in their own order (strings by their bytes).
        """
        if self.is_looked_up:
            parts = [f"SELECT {column} AS id FROM {keys.name}" for keys, column in self.keys]
            kind = "VARCHAR" if self.kind == "text" else "BIGINT"
            every = " UNION ALL ".join(parts) or f"SELECT NULL::{kind} AS id WHERE false"
            self.number(f"SELECT DISTINCT id, id AS place FROM ({every})", work)
            return
        self.count = self.largest + 1
        if self.count > max(_PLAUSIBLE_NODES, _PLAUSIBLE_RATIO * self.num_ends):
            file, row = self.largest_place
            raise ValueError(
                f"nodes {self.node_type!r}: the id {self.largest} ({file}: row {row}) implies "
                f"{self.count:,} nodes, for {self.num_ends:,} ends of edges: give num_nodes if "
                "that is right, or numbering='mapped' if ids are not the numbers of the nodes"
            )

    def number(self, ids: str, work: Workspace) -> None:
        """Numbers ids that are looked up, and writes them in the order of the nodes, as a Parquet
        file with the column ``id``.

        Args:
            ids: a query for distinct ``id``, with the ``place`` that determines their order.
        """
        self.kind = self.kind or "number"
        self.table = work.unique_name("ids")
        path = work.folder / f"{self.stem}.ids.parquet"
        with work.queries(_PURPOSE) as cursor:
            cursor.execute(
                f"CREATE TABLE {self.table} AS SELECT id, row_number() OVER (ORDER BY place) - 1 "
                f"AS node FROM ({ids})"
            )
            ((self.count,),) = cursor.execute(f"SELECT count(*) FROM {self.table}").fetchall()
            reader = arrow_reader(cursor.sql(f"SELECT id FROM {self.table} ORDER BY node"))
            with path.open("wb") as file, parquet.ParquetWriter(file, reader.schema) as writer:
                for batch in reader:
                    writer.write_batch(batch)
        work.notes.append(f"nodes {self.node_type}: ids are {_SHOWN[self.kind]}, in {path.name}")


class IdColumn:
    """A column of ids of one node type. `what` names it in messages, such as ``"the source"``."""

    def __init__(self, source: RowSource, column: str, what: str, ids: NodeIds) -> None:
        self._column, self._what, self._ids = column, what, ids
        self._where = f"{what} (column {column!r})"
        self._text_kind: TextKind | None = None
        with named_errors(self._where):
            kind = _kind_of(source.type(column))
        if ids.count is not None:
            return
        if ids.files.numbering == "dense":
            ids.kind = "number"
        elif kind is not None:
            self._agree(kind)
        elif source.is_text:
            self._text_kind = TextKind(source, self._where)

    def read(self, batch: Batch) -> Any:
        """Returns the ids of a batch: numbers of nodes ``[n]`` (int32 or int64 of NumPy), or keys
        (an array of Arrow). Rows without an id get a problem.
        """
        values, ids = batch.columns[self._column], self._ids
        problems = batch.problems.of(self._what)
        if ids.kind != "number":
            self._decide(values, batch)
        with named_errors(self._where):
            if ids.is_looked_up:
                keys = to_keys(values, ids.kind or "number", problems)
            else:
                keys = to_node_numbers(values, problems)
        if problems.bad.any():
            self._decide(values, batch)
        return keys

    def _decide(self, values: Any, batch: Batch) -> None:
        """Finds whether text without a declared type is numbers."""
        kind = None if self._text_kind is None else self._text_kind.of(values, batch)
        if kind is not None:
            self._agree(kind)

    def _agree(self, kind: ValueKind) -> None:
        other = self._ids.kind
        if other not in (None, kind):
            raise ValueError(
                f"{self._where}: ids are {_SHOWN[kind]}, ids of the same node type are "
                f"{_SHOWN[other]} in another column. Mend the files, or declare the column's type: "
                f"csv=CsvFormat(types={{{self._column!r}: 'string'}})"
            )
        self._ids.kind = kind


def _kind_of(kind: Any) -> ValueKind | None:
    """Returns whether the ids of a type are whole numbers or text; None: the values decide. Raises
    ValueError for other types.
    """
    types = arrow.types
    if is_text(kind):
        return "text"
    if types.is_integer(kind) or types.is_decimal(kind) or types.is_floating(kind):
        return "number"
    if types.is_null(kind):
        return None
    raise ValueError(f"ids must be whole numbers or text, are {kind}")
