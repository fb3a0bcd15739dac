"""Rows of ids in a table of DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from peergraph.store.ingest.read.optional import arrow
from peergraph.store.ingest.values.arrow_arrays import Integers, as_arrow, as_numpy
from peergraph.store.ingest.values.numbers import ValueKind
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

    def drop(self) -> None:
        """Removes the table."""
        self.select(f"DROP TABLE {self.name}")
