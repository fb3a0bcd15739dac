"""Numbers rows over all files of a reader, and finds their places in the files."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

import numpy as np

from peergraph.store.ingest.read.batch import Batch, RowIndices, RowRange

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_GAPS = 1000  # between the rows of a batch that is remembered row by row


class RowNumbers:
    """Numbers the rows of batches over all files, in the order in which they are read. Lines that
    could not be read have numbers too.
    """

    def __init__(self) -> None:
        self._file: str | None = None
        self._first = 0  # of the file
        self._next = 0

    def of(self, batch: Batch) -> RowIndices:
        """Returns ``[n]`` the numbers of a batch that follows the batches before."""
        if batch.file != self._file:
            self._file, self._first = batch.file, self._next
        known = [batch.rows[-1]] if len(batch) else []
        last = max([*known, *(row for row, _ in batch.skipped)], default=-1)
        self._next = max(self._next, self._first + int(last) + 1)
        return batch.rows + self._first

    @property
    def total(self) -> int:
        """The number of rows until now."""
        return self._next


class RowPlaces:
    """Numbers the rows of batches from 0 on, without rows that could not be read or that do not
    satisfy a condition, and remembers their positions in the files.
    """

    def __init__(self) -> None:
        self.total = 0
        """The number of rows until now."""
        self._starts: list[int] = []
        self._batches: list[tuple[str, int, NDArray[np.int64] | None]] = []
        self._file_starts: dict[str, int] = {}

    def of(self, batch: Batch) -> NDArray[np.int64]:
        """Returns ``[n]`` the numbers of a batch that follows the batches before."""
        count = len(batch)
        numbers = np.arange(self.total, self.total + count, dtype=np.int64)
        self._file_starts.setdefault(batch.file, self.total)
        if count:
            first = int(batch.rows[0])
            rows = None if isinstance(batch.rows, RowRange) else batch.rows
            gaps = 0 if rows is None else int(np.count_nonzero(np.diff(rows) != 1))
            known = rows if 0 < gaps <= _MOST_GAPS else None
            self._starts.append(self.total)
            self._batches.append((batch.file, first if gaps <= _MOST_GAPS else -1, known))
        self.total += count
        return numbers

    def place(self, number: int) -> tuple[str, int]:
        """Returns the file of a number, and the row in the file. If a condition leaves out many
        rows, only the rows that satisfy it are counted.
        """
        at = bisect.bisect_right(self._starts, number) - 1
        file, first, rows = self._batches[at]
        within = number - self._starts[at]
        if rows is not None:
            return file, int(rows[within])
        if first >= 0:
            return file, first + within
        return f"{file} (rows that satisfy the condition)", number - self._file_starts[file]


def is_among(numbers: NDArray[np.int64], ascending: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns whether each number is among some ascending ones."""
    if len(ascending) == 0:
        return np.zeros(len(numbers), np.bool_)
    at = np.minimum(np.searchsorted(ascending, numbers), len(ascending) - 1)
    return np.asarray(ascending[at] == numbers)
