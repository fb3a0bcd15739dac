"""Reads the rows that satisfy a condition of SQL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np

from peergraph.store.ingest.read.batch import Batch, Batches, RowReader
from peergraph.store.ingest.read.optional import require

_ROW = "_peergraph_row"


class FilteredRows(RowReader):
    """The rows of a reader that satisfy a condition. The other rows do not count as bad rows.

    Args:
        reader: the reader of all rows.
        where: the condition, in DuckDB's SQL.
        database: a connection of DuckDB.
    """

    def __init__(self, reader: RowReader, where: str, database: Any) -> None:
        self._reader = reader
        self.is_text = reader.is_text
        self._where = where
        self._database = database

    @property
    def column_names(self) -> list[str]:
        """The names of all columns."""
        return self._reader.column_names

    @property
    def num_rows(self) -> None:
        """None: the number is not known without reading the rows."""
        return None

    @property
    def expected_rows(self) -> int:
        """The number of rows before the condition is applied, which is an upper bound."""
        return self._reader.expected_rows

    @property
    def num_bytes(self) -> int:
        """The bytes of all rows."""
        return self._reader.num_bytes

    def batches(self, columns: Sequence[str], batch_rows: int) -> Batches:
        """Yields the rows, as :class:`RowReader` says.

        Raises:
            ValueError: DuckDB does not take the condition.
        """
        arrow = require("pyarrow", "conditions")
        errors = require("duckdb", "conditions").Error
        used = self._columns_of_condition()
        cursor = self._database.cursor()
        with closing(self._reader.batches(self._columns_to_read(columns), batch_rows)) as batches:
            for batch in batches:
                columns_used = {name: arrow.array(batch.columns[name]) for name in used}
                columns_used[_ROW] = arrow.array(np.arange(len(batch)))
                cursor.register("batch", arrow.table(columns_used))
                try:
                    found = cursor.execute(f"SELECT {_ROW} FROM batch WHERE {self._where}")
                    rows = np.sort(found.fetchnumpy()[_ROW])
                except errors as error:
                    raise ValueError(f"where={self._where!r} is not valid: {error}") from error
                arrays = {name: batch.columns[name].take(rows) for name in columns}
                yield Batch(batch.file, batch.rows[rows], arrays, batch.num_bytes, batch.skipped)

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns the bytes of a row before the condition is applied."""
        return self._reader.row_bytes(self._columns_to_read(columns))

    def _columns_of_condition(self) -> list[str]:
        """Returns the columns that the condition may name."""
        lower = self._where.lower()
        return [name for name in self.column_names if name.lower() in lower]

    def _columns_to_read(self, columns: Sequence[str]) -> list[str]:
        """Returns the given columns and those that the condition may name, without duplicates."""
        return list(dict.fromkeys([*columns, *self._columns_of_condition()]))
