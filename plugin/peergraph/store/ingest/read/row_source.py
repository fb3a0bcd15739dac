"""Batches of rows, and the base class of what yields them."""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from peergraph.store.ingest.values.problems import Mask, Problems

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from peergraph.store.ingest.conditions import Condition

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
        faults: the rows that cannot be read, whose values are missing: a mask ``[n]`` by reason.
    """

    rows: NDArray[np.int64]
    columns: Mapping[str, Any]
    num_bytes: int
    faults: Mapping[str, Mask] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def problems(self) -> Problems:
        """Returns the problems of the rows: those that cannot be read."""
        problems = Problems(len(self))
        for reason, mask in self.faults.items():
            problems.add(reason, mask)
        return problems

    def select(self, mask: Mask) -> Batch:
        """Returns the rows of a mask ``[n]``."""
        at = np.flatnonzero(mask)
        columns = {name: values.take(at) for name, values in self.columns.items()}
        faults = {reason: rows[at] for reason, rows in self.faults.items()}
        return Batch(self.rows[at], columns, self.num_bytes, faults)


class RowSource(ABC):
    """The rows of some files, which are read once, in order."""

    is_text = False
    """Whether values are text that has to be parsed."""
    num_bytes: int
    """The largest sum of :attr:`Batch.num_bytes`."""
    expected_rows: int
    """The number of rows, or an estimate."""

    def __init__(self, names: Sequence[str], what: str) -> None:
        check_names(names, what)
        self.names = list(names)
        """The names of all columns."""
        self.notes: list[str] = []
        """What the report should say about the files."""
        self._files: list[str] = []
        self._begins: list[int] = []
        self.total = 0
        """The number of rows that have been read, and of lines that could not be."""
        self.condition: Condition | None = None
        """The condition for rows to be used."""

    @abstractmethod
    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns the bytes of a row of some columns in memory, or an estimate."""

    def types(self, column: str) -> list[Any]:
        """Returns the types that a column has in all files: Arrow's, NumPy's or torch's. There are
        none for text without a declared type.
        """
        return []

    @abstractmethod
    def batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[Batch]:
        """Yields all rows.

        Args:
            columns: the names of the columns to read.
            batch_rows: the largest number of rows of a batch.

        Raises:
            ValueError: a file cannot be read; the error names the file.
        """

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
            ValueError: there is no such column; as :meth:`batches`.
        """
        names = list(dict.fromkeys([*columns, *(self.condition.columns if self.condition else ())]))
        missing = [name for name in names if self.names and name not in self.names]
        if missing:
            raise ValueError(f"no column {missing[0]!r}; columns: {', '.join(self.names)}")
        num_bytes = min(_MOST_BYTES, memory // 4 // _HELD)
        rows = num_bytes // max(1, self.row_bytes(names))
        for batch in self.batches(names, max(_LEAST_ROWS, min(_MOST_ROWS, most_rows, rows))):
            if self.condition is None or not len(batch):
                yield batch
                continue
            # Lines that cannot be read are reported whatever the condition is.
            chosen = self.condition.rows(batch) | batch.problems().bad
            yield batch if chosen.all() else batch.select(chosen)

    def place(self, row: int) -> tuple[str, int]:
        """Returns the file of a row that has been read, and its number in the file, from 0 on."""
        at = bisect.bisect_right(self._begins, row) - 1
        return self._files[at], row - self._begins[at]

    def _begin_file(self, name: str) -> None:
        """Says that the next rows are those of a file."""
        self._files.append(name)
        self._begins.append(self.total)

    def _next_rows(self, count: int) -> NDArray[np.int64]:
        """Numbers the next rows."""
        self.total += count
        return np.arange(self.total - count, self.total)


def check_names(names: Sequence[str], what: str) -> None:
    """Raises ValueError if two columns have one name."""
    repeated = [name for number, name in enumerate(names) if name in names[:number]]
    if repeated:
        raise ValueError(
            f"{what} has two columns of the name {repeated[0]!r}: {', '.join(map(repr, names))}"
        )
