"""All columns of a file as the rows of one table, read from front to back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from peergraph.store.ingest.read.batch import Batch, RowReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BATCH_ROWS = 1 << 18


class FileRows:
    """Rows of a reader as a matrix.

    Args:
        reader: the reader of the file.
        name: the name of the file in messages.
        to_matrix: converts a batch to a matrix ``[n, width]``.
    """

    def __init__(
        self, reader: RowReader, name: str, to_matrix: Callable[[Batch], NDArray[Any]]
    ) -> None:
        self._reader, self._name, self._to_matrix = reader, name, to_matrix
        self._batches: Iterator[Batch] | None = None
        self._begin = 0  # the row of the first one held
        self._held: NDArray[Any] | None = None

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """Returns rows begin..end.

        Raises:
            ValueError: there are fewer rows.
        """
        if self._batches is None or begin < self._begin:
            self._batches = self._reader.batches(self._reader.column_names, _BATCH_ROWS)
            self._begin, self._held = 0, None
        while True:
            held = 0 if self._held is None else len(self._held)
            if end <= self._begin + held and self._held is not None:
                return self._held[begin - self._begin : end - self._begin]
            batch = next(self._batches, None)
            if batch is None:
                if begin == end:
                    return np.empty((0, len(self._reader.column_names)), np.float32)
                raise ValueError(
                    f"{self._name} has {self._begin + held} rows, row {end - 1} is needed"
                )
            self._append(batch, begin)

    def count(self) -> int:
        """Returns all rows; reads those that are left."""
        if self._batches is None:
            self._batches = self._reader.batches(self._reader.column_names, _BATCH_ROWS)
        held = 0 if self._held is None else len(self._held)
        total = self._begin + held + sum(map(len, self._batches))
        self._batches = None
        return total

    def _append(self, batch: Batch, needed_from: int) -> None:
        """Holds a batch, and no longer what stands before `needed_from`."""
        if batch.skipped:
            row, found = batch.skipped[0]
            raise ValueError(f"{self._name}: row {row} has {found}")
        rows = self._to_matrix(batch)
        if self._held is None:
            self._held = rows
            return
        drop = min(max(0, needed_from - self._begin), len(self._held))
        self._held = np.concatenate([self._held[drop:], rows])
        self._begin += drop
