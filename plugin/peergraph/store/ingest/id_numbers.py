"""Numbers of nodes that have strings or sparse integers as ids, in a table of DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from peergraph.store.ingest.read.optional import arrow, parquet
from peergraph.store.ingest.values.arrow_arrays import as_numpy
from peergraph.store.ingest.values.ids import IdKind
from peergraph.store.ingest.workspace import Workspace, arrow_reader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PURPOSE = "looking up string or sparse ids"
_SQL_TYPES = {"number": "BIGINT", "text": "VARCHAR"}


class KeyTable:
    """Rows of a table of DuckDB, which is filled batch by batch: int64, or ids.

    Args:
        columns: the kind of each column by name.
        workspace: the workspace with the database.
    """

    def __init__(self, columns: dict[str, IdKind], workspace: Workspace) -> None:
        self._workspace, self._columns = workspace, columns
        self.name = workspace.unique_name("rows")
        kinds = ", ".join(f"{name} {_SQL_TYPES[kind]}" for name, kind in columns.items())
        self.select(f"CREATE TABLE {self.name} ({kinds})")

    def append(self, *columns: Any) -> None:
        """Appends rows: arrays of NumPy or Arrow."""
        kinds = {"number": arrow.int64(), "text": arrow.string()}
        arrays = [
            arrow.array(column, kinds[kind])
            for column, kind in zip(columns, self._columns.values(), strict=True)
        ]
        with self._workspace.queries(_PURPOSE) as cursor:
            cursor.register("new_rows", arrow.table(arrays, names=[*self._columns]))
            cursor.execute(f"INSERT INTO {self.name} SELECT * FROM new_rows")

    def select(self, query: str) -> list[Any]:
        """Returns the few rows of a query."""
        with self._workspace.queries(_PURPOSE) as cursor:
            return list(cursor.execute(query).fetchall())

    def batches(self, query: str, batch_rows: int = 1 << 18) -> Iterator[list[NDArray[np.int64]]]:
        """Yields the columns of the many rows of a query, all of int64."""
        with self._workspace.queries(_PURPOSE) as cursor:
            for batch in arrow_reader(cursor.sql(query), batch_rows):
                yield [as_numpy(column) for column in batch.columns]

    def repeated(self) -> list[tuple[int, int, Any]]:
        """Returns ``(node, row, id)`` of the rows with the id of an earlier row, of a table with
        these columns.
        """
        return self.select(
            f"SELECT node, row, r.id FROM {self.name} r JOIN (SELECT id, min(node) AS first "
            f"FROM {self.name} GROUP BY id HAVING count(*) > 1) f ON r.id = f.id "
            "WHERE node > first ORDER BY node"
        )

    def drop(self) -> None:
        """Removes the table."""
        self.select(f"DROP TABLE {self.name}")


@dataclass(frozen=True)
class IdNumbers:
    """The numbers of the nodes of one type: a table ``(id, node)``.

    Args:
        workspace: the workspace with the database.
        table: the name of the table.
        count: the number of nodes.
    """

    workspace: Workspace
    table: str
    count: int

    @classmethod
    def of_rows(cls, rows: KeyTable, workspace: Workspace) -> IdNumbers:
        """Numbers the different ids in the order of the rows, which have `node` and `id`."""
        first = f"SELECT id, min(node) AS place FROM {rows.name} GROUP BY id"
        return cls._numbered(first, workspace)

    @classmethod
    def of_distinct(
        cls, columns: Sequence[tuple[KeyTable, str]], kind: IdKind, workspace: Workspace
    ) -> IdNumbers:
        """Numbers the distinct ids of columns in their own order (strings by their bytes)."""
        parts = [f"SELECT {column} AS id FROM {rows.name}" for rows, column in columns]
        every = " UNION ALL ".join(parts) or f"SELECT NULL::{_SQL_TYPES[kind]} AS id WHERE false"
        return cls._numbered(f"SELECT DISTINCT id, id AS place FROM ({every})", workspace)

    @classmethod
    def _numbered(cls, ids: str, workspace: Workspace) -> IdNumbers:
        table = workspace.unique_name("ids")
        with workspace.queries(_PURPOSE) as cursor:
            cursor.execute(
                f"CREATE TABLE {table} AS SELECT id, row_number() OVER (ORDER BY place) - 1 AS "
                f"node FROM ({ids})"
            )
            ((count,),) = cursor.execute(f"SELECT count(*) FROM {table}").fetchall()
        return cls(workspace, table, int(count))

    def save(self, node_type: str, stem: str, kind: IdKind) -> None:
        """Writes the ids in the order of the nodes, as a Parquet file with the column ``id``.

        Args:
            node_type: the node type.
            stem: the stem of the file's name.
            kind: whether ids are int64 or strings.
        """
        work = self.workspace
        path = work.folder / f"{stem}.ids.parquet"
        with work.queries(_PURPOSE) as cursor:
            reader = arrow_reader(cursor.sql(f"SELECT id FROM {self.table} ORDER BY node"))
            with path.open("wb") as file, parquet.ParquetWriter(file, reader.schema) as writer:
                for batch in reader:
                    writer.write_batch(batch)
        shown = "whole numbers" if kind == "number" else "text"
        work.notes.append(f"nodes {node_type}: ids are {shown}, in {path.name}")


def look_up(
    edges: KeyTable, numbers: Sequence[IdNumbers | None], batch_rows: int
) -> Iterator[list[NDArray[np.int64]]]:
    """Looks up the ends of edges; yields places ``[n]``, rows, sources and destinations in order
    of the places; -1: there is no such node.

    Args:
        edges: the columns ``place``, ``row``, ``source`` and ``destination``.
        numbers: the numbers of sources and of destinations; None: the ends are node numbers.
    """
    columns, joins = ["e.place", "e.row"], []
    for end, known in zip(("source", "destination"), numbers, strict=True):
        if known is None:
            columns.append(f"e.{end}")
            continue
        columns.append(f"coalesce(of_{end}.node, -1)")
        joins.append(f"LEFT JOIN {known.table} AS of_{end} ON e.{end} = of_{end}.id")
    query = f"SELECT {', '.join(columns)} FROM {edges.name} e {' '.join(joins)} ORDER BY e.place"
    return edges.batches(query, batch_rows)


def ids_of_rows(edges: KeyTable, end: str, rows: Sequence[int]) -> list[Any]:
    """Returns the ids of one end of a few rows."""
    numbers = ", ".join(map(str, rows))
    query = f"SELECT {end} FROM {edges.name} WHERE row IN ({numbers}) ORDER BY row"
    return [value for (value,) in edges.select(query)]
