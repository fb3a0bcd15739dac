"""All columns of a file as the rows of one table, read from front to back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from peergraph.store.ingest.read.batch import Batch, Batches, RowReader

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FileRows:
    """Rows of a reader as a matrix.

    Args:
        reader: the reader of the file.
        name: the name of the file in messages.
        to_matrix: converts a batch to a matrix ``[n, width]``.
        batch_rows: the number of rows to read at once.
    """

    def __init__(
        self,
        reader: RowReader,
        name: str,
        to_matrix: Callable[[Batch], NDArray[Any]],
        batch_rows: int,
    ) -> None:
        self._reader, self._name, self._to_matrix = reader, name, to_matrix
        self._batch_rows = batch_rows
        self._batches: Batches | None = None  # of a pass that has begun
        self._begin = 0  # the row of the first one held
        self._held: NDArray[Any] | None = None

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """Returns rows begin..end.

        Raises:
            ValueError: there are fewer rows.
        """
        if begin == end and self._held is not None:
            return self._held[:0]
        if begin < self._begin:
            self.close()
        batches = self._current_batches()
        while self._held is None or end > self._begin + len(self._held):
            batch = next(batches, None)
            if batch is None:
                if begin == end:
                    return np.empty((0, len(self._reader.column_names)), np.float32)
                rows = self._begin + (0 if self._held is None else len(self._held))
                raise ValueError(f"{self._name} has {rows} rows, row {end - 1} is needed")
            self._append(batch, begin)
        if end == self._reader.num_rows:
            batches.close()  # nobody may ask for the end of the batches, which ends the threads
        return self._held[begin - self._begin : end - self._begin]

    def count(self) -> int:
        """Reads the rest of the file, and returns the number of all rows."""
        batches = self._current_batches()
        held = 0 if self._held is None else len(self._held)
        total = self._begin + held + sum(map(len, batches))
        self.close()
        return total

    def close(self) -> None:
        """Ends the pass, and the threads of the reader."""
        if self._batches is not None:
            self._batches.close()
        self._batches, self._begin, self._held = None, 0, None

    def _current_batches(self) -> Batches:
        """Returns the batches of the current pass; begins a pass if there is none."""
        if self._batches is None:
            self._batches = self._reader.batches(self._reader.column_names, self._batch_rows)
        return self._batches

    def _append(self, batch: Batch, needed_from: int) -> None:
        """Appends the rows of a batch to the held rows, and frees those before `needed_from`."""
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
