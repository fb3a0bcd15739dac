"""Rows in a table of DuckDB: ids, and the numbers of nodes that have strings or sparse integers as
ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from peergraph.store.ingest.read.optional import arrow
from peergraph.store.ingest.values.arrow_arrays import Integers, as_arrow, as_numpy
from peergraph.store.ingest.values.text import ValueKind
from peergraph.store.ingest.workspace import Workspace, arrow_reader

PURPOSE = "looking up string or sparse ids"


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
        arrays = [as_arrow(c) if isinstance(c, np.ndarray) else c for c in columns]
        with self._workspace.queries(PURPOSE) as cursor:
            cursor.register("new_rows", arrow.table(arrays, self._schema.names).cast(self._schema))
            cursor.execute(f"INSERT INTO {self.name} SELECT * FROM new_rows")

    def select(self, query: str) -> list[Any]:
        """Returns the few rows of a query."""
        with self._workspace.queries(PURPOSE) as cursor:
            return list(cursor.execute(query).fetchall())

    def batches(self, query: str, batch_rows: int = 1 << 18) -> Iterator[list[Integers]]:
        """Yields the columns of the many rows of a query, all of int64."""
        with self._workspace.queries(PURPOSE) as cursor:
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

    def looked_up(self, tables: Sequence[str | None], batch_rows: int) -> Iterator[list[Integers]]:
        """Yields ``place``, ``row``, and the nodes of ``source`` and ``destination`` in order of
        the places; -1: there is no such node.

        Args:
            tables: the table ``(id, node)`` of sources, and that of destinations; None: they are
                nodes.
            batch_rows: the largest number of rows of a batch.
        """
        columns, joins = ["e.place", "e.row"], []
        for end, table in zip(("source", "destination"), tables, strict=True):
            columns.append(f"e.{end}" if table is None else f"coalesce(of_{end}.node, -1)")
            if table is not None:
                joins.append(f"LEFT JOIN {table} AS of_{end} ON e.{end} = of_{end}.id")
        query = f"SELECT {', '.join(columns)} FROM {self.name} e {' '.join(joins)} ORDER BY e.place"
        return self.batches(query, batch_rows)

    def drop(self) -> None:
        """Removes the table."""
        self.select(f"DROP TABLE {self.name}")
