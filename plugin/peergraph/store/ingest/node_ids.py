"""What is known about the ids of a node type, and columns that have them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from peergraph.store.ingest.graph_files import NodeFiles
from peergraph.store.ingest.key_table import PURPOSE, KeyTable
from peergraph.store.ingest.read.optional import parquet
from peergraph.store.ingest.read.row_source import Batch, RowSource
from peergraph.store.ingest.values.arrow_arrays import Array, Integers
from peergraph.store.ingest.values.ids import kind_of_types, to_keys, to_node_numbers
from peergraph.store.ingest.values.text import TextKind, ValueKind
from peergraph.store.ingest.workspace import Workspace, arrow_reader

_PLAUSIBLE_NODES = 1 << 20
_PLAUSIBLE_RATIO = 1000  # of nodes to ends of edges
_SHOWN: dict[ValueKind, str] = {"number": "whole numbers", "text": "text"}


@dataclass
class NodeIds:
    """The ids of one node type.

    Args:
        node_type: the node type.
        stem: the stem of the names of its files.
        files: the files of the type.
        count: the number of nodes; None: the edges determine it.
        kind: whether ids are whole numbers or text; None: the first values of edges decide.
        table: the table ``(id, node)`` of ids that are looked up.
    """

    node_type: str
    stem: str
    files: NodeFiles
    count: int | None = None
    kind: ValueKind | None = None
    table: str | None = None
    # Of types that only edges name: the largest id and its place, ends, columns of keys.
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
            self.largest = int(ids[at])
            self.largest_place = source.place(int(rows[at]))

    def number_named(self, work: Workspace) -> None:
        """Numbers the nodes of a type that only edges name: by the largest id, or the ids that are
        looked up in their own order (strings by their bytes).

        Raises:
            ValueError: the number of nodes that the largest id implies is not plausible.
        """
        if self.is_looked_up:
            parts = [f"SELECT {column} AS id FROM {keys.name}" for keys, column in self.keys]
            kind = "VARCHAR" if self.kind == "text" else "BIGINT"
            every = " UNION ALL ".join(parts) or f"SELECT NULL::{kind} AS id WHERE false"
            self.number(f"SELECT DISTINCT id, id AS place FROM ({every})", work)
            return
        count = self.largest + 1
        if count > _PLAUSIBLE_NODES and count > _PLAUSIBLE_RATIO * self.num_ends:
            file, row = self.largest_place
            raise ValueError(
                f"nodes {self.node_type!r}: the id {self.largest} ({file}: row {row}) implies "
                f"{count:,} nodes, for {self.num_ends:,} ends of edges: give num_nodes if that is "
                "right, or numbering='mapped' if ids are not the numbers of the nodes"
            )
        self.count = count

    def number(self, ids: str, work: Workspace) -> None:
        """Numbers ids that are looked up, and writes them in the order of the nodes, as a Parquet
        file with the column ``id``.

        Args:
            ids: a query for distinct ``id``, with the ``place`` that determines their order.
            work: the workspace with the database.
        """
        self.kind = self.kind or "number"
        self.table = work.unique_name("ids")
        path = work.folder / f"{self.stem}.ids.parquet"
        with work.queries(PURPOSE) as cursor:
            cursor.execute(
                f"CREATE TABLE {self.table} AS SELECT id, row_number() OVER (ORDER BY place) - 1 "
                f"AS node FROM ({ids})"
            )
            ((count,),) = cursor.execute(f"SELECT count(*) FROM {self.table}").fetchall()
            reader = arrow_reader(cursor.sql(f"SELECT id FROM {self.table} ORDER BY node"))
            with path.open("wb") as file, parquet.ParquetWriter(file, reader.schema) as writer:
                for batch in reader:
                    writer.write_batch(batch)
        self.count = int(count)
        work.notes.append(f"nodes {self.node_type}: ids are {_SHOWN[self.kind]}, in {path.name}")


class IdColumn:
    """A column of ids of one node type.

    Args:
        source: the rows.
        column: the name of the column.
        what: names it in messages, such as ``"the source"``.
        ids: the ids of the node type.

    Raises:
        ValueError: the column has a type that no id has, or of another kind than the nodes' ids.
    """

    def __init__(self, source: RowSource, column: str, what: str, ids: NodeIds) -> None:
        self._column, self._what, self._ids = column, what, ids
        self._where = f"{what} (column {column!r})"
        self._text_kind: TextKind | None = None
        types = source.types(column) if column in source.names else []
        kind = kind_of_types(types, self._where)
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

        Raises:
            ValueError: text of several kinds.
        """
        values, ids = batch.columns[self._column], self._ids
        problems = batch.problems.of(self._what)
        if ids.kind != "number":
            self._decide(values, batch)
        try:
            if ids.is_looked_up:
                keys = to_keys(values, ids.kind or "number", problems)
            else:
                keys = to_node_numbers(values, problems)
        except ValueError as error:
            raise ValueError(f"{self._where}: {error}") from None
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
        if other is not None and other != kind:
            raise ValueError(
                f"{self._where}: ids are {_SHOWN[kind]}, ids of the same node type are "
                f"{_SHOWN[other]} in another column. Mend the files, or declare the column's type: "
                f"csv=CsvFormat(types={{{self._column!r}: 'string'}})"
            )
        self._ids.kind = kind
