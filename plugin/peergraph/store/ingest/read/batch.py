"""Batches of rows, and the base class of the readers that yield them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Batch:
    """Rows that follow each other in one file.

    Args:
        file: names it in messages.
        rows: ``[n]`` int64, the number of each row in the file, from 0 on, headers not counted.
        columns: arrays of NumPy or Arrow by name, ``[n]`` or ``[n, width]``.
        num_bytes: what was read for them, for progress bars.
        skipped: rows of the file that could not be read, with the reason.
    """

    file: str
    rows: NDArray[np.int64]
    columns: Mapping[str, Any]
    num_bytes: int
    skipped: Sequence[tuple[int, str]] = ()

    def __len__(self) -> int:
        return len(self.rows)


class RowReader(ABC):
    """Reads rows of some files, as often as it is asked to, in the same order."""

    is_text = False
    """Whether types of columns were guessed from text."""

    @property
    @abstractmethod
    def column_names(self) -> list[str]:
        """Names of all columns."""

    @property
    @abstractmethod
    def num_rows(self) -> int | None:
        """Number of rows, where it is known without reading them."""

    @property
    def expected_rows(self) -> int:
        """An estimate of the number of rows where that is not known."""
        assert self.num_rows is not None
        return self.num_rows

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """The sum of :attr:`Batch.num_bytes`, at most, where all columns are read."""

    @abstractmethod
    def batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[Batch]:
        """Yields all rows.

        Args:
            columns: to be read.
            batch_rows: most rows of a batch.

        Raises:
            ValueError: a file cannot be read: it names the file.
        """

    def largest(self, column: str) -> int | None:
        """Returns the largest number of a column, where it is known without reading it."""
        return None


def row_range(begin: int, end: int) -> NDArray[np.int64]:
    """Returns the numbers of rows that follow each other."""
    return np.arange(begin, end, dtype=np.int64)
