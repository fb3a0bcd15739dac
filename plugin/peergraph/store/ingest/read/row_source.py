"""Batches of rows, the files that they come from, and the rows of several files."""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from peergraph.store.ingest.values.arrow_arrays import Integers, Mask, taken
from peergraph.store.ingest.values.problems import Problems

_LEAST_ROWS, _MOST_ROWS = 1 << 10, 1 << 18  # of a batch
_MOST_BYTES = 4 << 20  # of a batch: caches hold it
_HELD = 8  # batches that are held at once: read ahead, converted, written


@dataclass(frozen=True)
class Batch:
    """Rows that follow each other.

    Args:
        rows: ``[n]`` int64 ascending, the numbers of the rows over all files.
        columns: arrays of NumPy or Arrow by name: ``[n]``, of tables ``[n, ...]``.
        num_bytes: the bytes that were read for the rows, for progress bars.
        problems: the reasons why rows cannot be used: at first those of rows that cannot be read,
            whose values are missing.
    """

    rows: Integers
    columns: Mapping[str, Any]
    num_bytes: int
    problems: Problems

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, mask: Mask) -> Batch:
        """Returns the rows of a mask ``[n]``."""
        at = np.flatnonzero(mask)
        columns = {name: taken(values, at) for name, values in self.columns.items()}
        problems = Problems(len(at))
        for reason, rows in self.problems.masks.items():
            problems.add(reason, rows[at])
        return Batch(self.rows[at], columns, self.num_bytes, problems)


class RowFile(ABC):
    """A file, array or object of Arrow with rows, which are read once.

    Args:
        name: names it in messages.
        columns: name and type of each column: Arrow's, NumPy's or torch's; None: text without a
            declared type.
        expected_rows: the number of rows, or an estimate.
        num_bytes: the bytes that are read for all of them.

    Raises:
        ValueError: two columns have one name.
    """

    is_text = False
    """Whether values are text that has to be parsed."""

    def __init__(
        self, name: str, columns: Sequence[tuple[str, Any]], expected_rows: int, num_bytes: int
    ) -> None:
        self.name, self.types = name, dict(columns)
        self.expected_rows, self.num_bytes = expected_rows, num_bytes
        if len(self.types) < len(columns):
            names = [column for column, _ in columns]
            repeated = next(column for column in names if names.count(column) > 1)
            shown = ", ".join(map(repr, names))
            raise ValueError(f"{name} has two columns of the name {repeated!r}: {shown}")

    @abstractmethod
    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns the bytes of a row of some columns in memory, or an estimate; 0: no rows."""

    @abstractmethod
    def batches(self, columns: Sequence[str], batch_rows: int, first: int) -> Iterator[Batch]:
        """Yields all rows.

        Args:
            columns: the names of the columns to read.
            batch_rows: the largest number of rows of a batch.
            first: the number of the first row.

        Raises:
            ValueError: it cannot be read; the error names it.
        """


class RowSource:
    """The rows of some files, which are read once, in order.

    Args:
        files: one at least, all of one kind.
        notes: what the report should say about the files.

    Raises:
        ValueError: files of text have other columns than the first one.
    """

    def __init__(self, files: Sequence[RowFile], notes: Sequence[str] = ()) -> None:
        self._files, self._begins = files, list[int]()
        first = next((file for file in files if file.types), files[0])
        self.names = [*first.types]
        """The names of all columns."""
        for file in files:
            if file.is_text and file.types and file.types.keys() != first.types.keys():
                raise ValueError(
                    f"{file.name} has the columns {', '.join(file.types)}, the first file has "
                    f"{', '.join(self.names)}"
                )
        self.notes, self.is_text = notes, first.is_text
        self.num_bytes = sum(file.num_bytes for file in files)
        self.expected_rows = sum(file.expected_rows for file in files)
        self.total = 0
        """The number of rows that have been read, and of lines that could not be."""
        self.condition: Any = None
        """The condition for rows to be used (a :class:`Condition`)."""

    def types(self, column: str) -> list[Any]:
        """Returns the types that a column has in all files: Arrow's, NumPy's or torch's. There are
        none for text without a declared type.
        """
        types = (file.types.get(column) for file in self._files)
        return [kind for kind in types if kind is not None]

    def read(
        self, columns: Sequence[str], memory: int, most_rows: int = _MOST_ROWS
    ) -> Iterator[Batch]:
        """Yields the rows that satisfy the condition.

        Args:
            columns: the names of the columns to read.
            memory: the number of bytes to use: the batches held at once take a quarter of them, so
                that there is room for what is made of them.
            most_rows: the largest number of rows of a batch.

        Raises:
            ValueError: there is no such column, or a file cannot be read; the error names the file.
        """
        names = list(dict.fromkeys([*columns, *(self.condition.columns if self.condition else ())]))
        missing = [name for name in names if self.names and name not in self.names]
        if missing:
            raise ValueError(f"no column {missing[0]!r}; columns: {', '.join(self.names)}")
        files = [file for file in self._files if file.types]
        for file in files:
            missing = [name for name in names if name not in file.types]
            if missing:
                raise ValueError(f"{file.name} has no column {missing[0]!r}, the first file has")
        row_bytes = next((size for file in files if (size := file.row_bytes(names))), 1)
        rows = min(_MOST_BYTES, memory // 4 // _HELD) // row_bytes
        batch_rows = max(_LEAST_ROWS, min(_MOST_ROWS, most_rows, rows))
        for file in self._files:
            self._begins.append(self.total)
            if not file.types:
                continue
            for batch in file.batches(names, batch_rows, self.total):
                self.total += len(batch)
                if self.condition is None or not len(batch):
                    yield batch
                    continue
                # Lines that cannot be read are reported whatever the condition is.
                chosen = self.condition.rows(batch) | batch.problems.bad
                yield batch if chosen.all() else batch.select(chosen)

    def place(self, row: int) -> tuple[str, int]:
        """Returns the file of a row that has been read, and its number in the file, from 0 on."""
        at = bisect.bisect_right(self._begins, row) - 1
        return self._files[at].name, row - self._begins[at]
