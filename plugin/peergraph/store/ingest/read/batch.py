"""Batches of rows, and the base class of the readers that yield them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_THREADS = 16  # decode more than disks deliver
_LEAST_ROWS, _MOST_ROWS = 1 << 10, 1 << 18  # of a batch
_MOST_BYTES = 4 << 20  # of a batch: caches hold it


def read_threads() -> int:
    """Returns the number of threads that read, and of batches that a reader holds at once."""
    return min(_MOST_THREADS, torch.get_num_threads())


class RowRange:
    """Numbers of rows that follow each other. They take no memory until they are selected from.

    Args:
        begin, end: the first number, and the one after the last.
    """

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end

    def __len__(self) -> int:
        return self.end - self.begin

    def __add__(self, number: int) -> RowRange:
        return RowRange(self.begin + number, self.end + number)

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, int):
            return range(self.begin, self.end)[rows]
        return self.__array__()[rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.int64]:
        return np.arange(self.begin, self.end, dtype=dtype or np.int64)


RowIndices: TypeAlias = "NDArray[np.int64] | RowRange"


@dataclass(frozen=True)
class Batch:
    """Rows that follow each other in one file.

    Args:
        file: the name of the file in messages.
        rows: ``[n]`` int64, the number of each row in the file, from 0 on, headers not counted.
        columns: arrays of NumPy or Arrow by name, ``[n]`` or ``[n, width]``.
        num_bytes: the bytes that were read for the rows, for progress bars.
        skipped: rows of the file that could not be read, with the reason.
    """

    file: str
    rows: RowIndices
    columns: Mapping[str, Any]
    num_bytes: int
    skipped: Sequence[tuple[int, str]] = ()

    def __len__(self) -> int:
        return len(self.rows)


Batches: TypeAlias = "Generator[Batch, None, None]"
"""Batches of a reader. Their close ends the threads that read ahead."""


class RowReader(ABC):
    """Reads the rows of some files; every pass yields them in the same order."""

    is_text = False
    """Whether the types of columns were guessed from text."""

    @property
    @abstractmethod
    def column_names(self) -> list[str]:
        """The names of all columns."""

    @property
    @abstractmethod
    def num_rows(self) -> int | None:
        """The number of rows; None if it is not known without reading them."""

    @property
    def expected_rows(self) -> int:
        """The number of rows, or an estimate if it is not known."""
        assert self.num_rows is not None
        return self.num_rows

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """The largest sum of :attr:`Batch.num_bytes`, which is reached if all columns are read."""

    @abstractmethod
    def batches(self, columns: Sequence[str], batch_rows: int) -> Batches:
        """Yields all rows.

        Args:
            columns: the names of the columns to read.
            batch_rows: the largest number of rows of a batch.

        Raises:
            ValueError: a file cannot be read; the error names the file.
        """

    def batch_rows(
        self,
        columns: Sequence[str],
        memory: int,
        other_bytes: int = 0,
        most_rows: int = _MOST_ROWS,
        most_bytes: int = _MOST_BYTES,
    ) -> int:
        """Returns the number of rows of a batch: the batches held at once take a quarter of the
        memory, so that there is room for what is made of them.

        Args:
            columns: the names of the columns to read.
            memory: the number of bytes to use.
            other_bytes: the bytes of rows of other files that belong to a row.
            most_rows: the largest result.
            most_bytes: the largest number of bytes of a batch.
        """
        held = read_threads() + 2  # those of the reader, and those that are read ahead
        row_bytes = max(1, self.row_bytes(columns) + other_bytes)
        num_bytes = min(most_bytes, memory // 4 // held)
        return max(_LEAST_ROWS, min(most_rows, num_bytes // row_bytes))

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns the bytes of a row of some columns in memory, by the first rows."""
        with closing(self.batches(columns, _LEAST_ROWS)) as batches:
            first = next((batch for batch in batches if len(batch)), None)
        if first is None:
            return 0
        return -(-sum(map(_num_bytes, first.columns.values())) // len(first))

    def largest(self, column: str) -> int | None:
        """Returns the largest number of a column; None if it is not known without reading it."""
        return None


def column_batches(reader: RowReader, column: str, memory: int) -> closing[Batches]:
    """Returns a context with all batches of one column."""
    return closing(reader.batches([column], reader.batch_rows([column], memory)))


def _num_bytes(column: Any) -> int:
    # The dictionary of a batch may have all values of a file.
    decoded = column.dictionary_decode() if hasattr(column, "dictionary_decode") else column
    return int(decoded.nbytes)
