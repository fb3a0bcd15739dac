"""Numbers of nodes that have strings or sparse integers as ids, in a table of DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from peergraph.store.ingest.read.optional import require
from peergraph.store.ingest.values.ids import IdKind
from peergraph.store.ingest.workspace import Workspace, arrow_reader

if TYPE_CHECKING:
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
        with workspace.queries(_PURPOSE) as cursor:
            cursor.execute(f"CREATE TABLE {self.name} ({kinds})")

    def append(self, *columns: Any) -> None:
        """Appends rows: arrays of NumPy or Arrow."""
        arrow = require("pyarrow", _PURPOSE)
        kinds = {"number": arrow.int64(), "text": arrow.string()}
        arrays = [
            arrow.array(column, kinds[kind])
            for column, kind in zip(columns, self._columns.values(), strict=True)
        ]
        rows = arrow.table(arrays, names=[*self._columns])
        with self._workspace.queries(_PURPOSE) as cursor:
            cursor.register("new_rows", rows)
            cursor.execute(f"INSERT INTO {self.name} SELECT * FROM new_rows")

    def drop(self) -> None:
        """Removes the table."""
        with self._workspace.queries(_PURPOSE) as cursor:
            cursor.execute(f"DROP TABLE {self.name}")


@dataclass(frozen=True)
class IdNumbers:
    """The numbers of the nodes of one type: a table ``(id, node)``.

    Args:
        workspace: the workspace with the database.
        table: the name of the table.
        kind: whether ids are int64 or strings.
        count: the number of nodes.
    """

    workspace: Workspace
    table: str
    kind: IdKind
    count: int

    @classmethod
    def of_rows(
        cls, rows: KeyTable, kind: IdKind, workspace: Workspace
    ) -> tuple[IdNumbers, list[tuple[int, int, Any]]]:
        """Numbers ids in the order of the rows.

        Args:
            rows: the columns ``node`` (ascending), ``row`` and ``id``; it is removed.
            kind: whether ids are int64 or strings.

        Returns:
            The numbers; and the rows with the id of an earlier row, as ``(node, row, id)``.
        """
        table = workspace.unique_name("ids")
        with workspace.queries(_PURPOSE) as cursor:
            cursor.execute(
                f"CREATE TABLE {table} AS SELECT id, row_number() OVER (ORDER BY first) - 1 AS "
                f"node FROM (SELECT id, min(node) AS first FROM {rows.name} GROUP BY id)"
            )
            count = cursor.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            repeated = cursor.execute(
                f"SELECT node, row, r.id FROM {rows.name} r JOIN (SELECT id, min(node) AS first "
                f"FROM {rows.name} GROUP BY id HAVING count(*) > 1) f ON r.id = f.id "
                "WHERE node > first ORDER BY node"
            ).fetchall()
        rows.drop()
        return cls(workspace, table, kind, int(count)), repeated

    @classmethod
    def of_distinct(
        cls, columns: Sequence[tuple[KeyTable, str]], kind: IdKind, workspace: Workspace
    ) -> IdNumbers:
        """Numbers the distinct ids of columns in their own order (strings by their bytes)."""
        table = workspace.unique_name("ids")
        parts = [f"SELECT {column} AS id FROM {rows.name}" for rows, column in columns]
        every = " UNION ALL ".join(parts) or f"SELECT NULL::{_SQL_TYPES[kind]} AS id WHERE false"
        with workspace.queries(_PURPOSE) as cursor:
            cursor.execute(
                f"CREATE TABLE {table} AS SELECT id, row_number() OVER (ORDER BY id) - 1 AS node "
                f"FROM (SELECT DISTINCT id FROM ({every}))"
            )
            count = cursor.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        return cls(workspace, table, kind, int(count))

    def save(self, path: Path) -> None:
        """Writes the ids in the order of the nodes, as a Parquet file with the column ``id``."""
        parquet = require("pyarrow.parquet", _PURPOSE)
        with self.workspace.queries(_PURPOSE) as cursor:
            reader = arrow_reader(cursor.sql(f"SELECT id FROM {self.table} ORDER BY node"))
            with path.open("wb") as file, parquet.ParquetWriter(file, reader.schema) as writer:
                for batch in reader:
                    writer.write_batch(batch)


@dataclass(frozen=True)
class NumberedEnds:
    """Edges whose ends were looked up, in the order of their rows.

    Args:
        rows: ``[n]`` int64.
        source, destination: ``[n]`` int64; -1: no such node.
    """

    rows: NDArray[np.int64]
    source: NDArray[np.int64]
    destination: NDArray[np.int64]


def look_up(
    edges: KeyTable,
    source: IdNumbers | None,
    destination: IdNumbers | None,
    workspace: Workspace,
    batch_rows: int,
) -> Iterator[NumberedEnds]:
    """Looks up the ends of edges.

    Args:
        edges: the columns ``row``, ``source`` and ``destination``.
        source, destination: the numbers to look up; None: the ends are node numbers.
    """
    columns, joins = ["e.row AS row"], []
    for end, numbers in (("source", source), ("destination", destination)):
        if numbers is None:
            columns.append(f"e.{end} AS {end}")
            continue
        columns.append(f"coalesce(of_{end}.node, -1) AS {end}")
        joins.append(f"LEFT JOIN {numbers.table} AS of_{end} ON e.{end} = of_{end}.id")
    query = f"SELECT {', '.join(columns)} FROM {edges.name} e {' '.join(joins)} ORDER BY e.row"
    with workspace.queries(_PURPOSE) as cursor:
        reader = arrow_reader(cursor.sql(query), batch_rows)
        for batch in reader:
            ends = (batch.column(name).to_numpy() for name in ("row", "source", "destination"))
            yield NumberedEnds(*ends)


def ids_of_rows(edges: KeyTable, end: str, rows: Sequence[int], workspace: Workspace) -> list[Any]:
    """Returns the ids of one end of a few rows."""
    with workspace.queries(_PURPOSE) as cursor:
        ids = cursor.execute(
            f"SELECT {end} FROM {edges.name} WHERE row IN "
            f"({', '.join(str(int(row)) for row in rows)}) ORDER BY row"
        ).fetchall()
    return [value for (value,) in ids]
