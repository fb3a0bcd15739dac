"""Batches of rows, the files that they come from, and the rows of several files."""

from __future__ import annotations

import bisect
import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from peergraph.store.ingest.read.optional import arrow
from peergraph.store.ingest.values.arrow_arrays import (
    Array,
    Integers,
    Mask,
    common_type,
    plain_type,
    take,
)

Block: TypeAlias = tuple[Mapping[str, Any], Mapping[str, Mask]]
_LEAST_ROWS, _MOST_ROWS = 1 << 10, 1 << 18  # of a batch
_MOST_BYTES = 4 << 20  # of a batch: caches hold it
_HELD = 8  # batches that are held at once: read ahead, converted, written


@contextmanager
def named_errors(what: str) -> Iterator[None]:
    """Returns a context whose ValueErrors begin with what is read."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


class Problems:
    """The rows of a batch that have no value: each one with the first reason that was found."""

    def __init__(self, num_rows: int, masks: Mapping[str, Mask] | None = None) -> None:
        self.bad: Mask = np.zeros(num_rows, np.bool_)
        """``[num_rows]`` which rows have a reason."""
        self.masks: dict[str, Mask] = {}
        """The rows of each reason, ``[num_rows]``."""
        self.values: dict[str, Array] = {}
        """``[num_rows]`` values that tell more than some reasons."""
        self._what = ""
        for reason, mask in (masks or {}).items():
            self.add(reason, mask)

    def add(self, reason: str, mask: Mask, values: Array | None = None) -> None:
        """Adds the rows of a mask ``[n]``, or ``[n, ...]`` of rows with such a value.

        Args:
            values: ``[n]`` values that the report shows.
        """
        if not mask.any():
            return
        rows = mask.reshape(len(mask), -1).any(axis=1) & ~self.bad
        if rows.any():
            reason = self._what + reason
            self.masks[reason] = self.masks.get(reason, np.zeros_like(rows)) | rows
            self.bad |= rows
            if values is not None:
                self.values[reason] = values

    def of(self, what: str) -> Problems:
        """Returns the same problems; reasons that are added begin with the name of a value."""
        other = copy.copy(self)
        other._what = f"{what} "
        return other


@dataclass(frozen=True)
class Batch:
    """Rows that follow each other.

    Args:
        rows: ``[n]`` int64 ascending, the numbers of the rows over all files.
        columns: arrays of Arrow by name.
        problems: the reasons why rows cannot be used: at first those of rows that cannot be read,
            whose values are missing.
    """

    rows: Integers
    columns: Mapping[str, Any]
    problems: Problems

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, mask: Mask) -> Batch:
        """Returns the rows of a mask ``[n]``."""
        at = np.flatnonzero(mask)
        masks = {reason: rows[at] for reason, rows in self.problems.masks.items()}
        columns = {name: take(values, at) for name, values in self.columns.items()}
        return Batch(self.rows[at], columns, Problems(len(at), masks))


class RowFile(ABC):
    """A file, array or object of Arrow with rows, which are read once.

    Args:
        name: names it in messages.
        columns: name and type of each column; None: text without a declared type.
        expected_rows: the number of rows, or an estimate.
        path, state: the file, and what :func:`os.stat` said before it was first read.
    """

    is_text = False
    """Whether values are text that has to be parsed."""
    dtype: torch.dtype | None = None
    """The dtype of values that Arrow has in a larger type."""

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[str, Any]],
        expected_rows: int,
        path: Path | None = None,
        state: os.stat_result | None = None,
    ) -> None:
        self.name, self.types, self.expected_rows = name, dict(columns), expected_rows
        self.num_bytes = 0 if state is None else state.st_size
        self._path, self._state = path, state
        if len(self.types) < len(columns):
            names = [column for column, _ in columns]
            repeated = next(column for column in names if names.count(column) > 1)
            shown = ", ".join(map(repr, names))
            raise ValueError(f"{name} has two columns of the name {repeated!r}: {shown}")

    def check(self) -> None:
        """Raises ValueError if the file has changed since it was first read."""
        now = None if self._path is None else self._path.stat()
        facts = ("st_mtime_ns", "st_size", "st_ino")
        if any(getattr(now, fact, 0) != getattr(self._state, fact, 0) for fact in facts):
            raise ValueError(f"{self.name} changed while it was read")

    @abstractmethod
    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns the bytes of a row of some columns in memory, or an estimate; 0: no rows."""

    @abstractmethod
    def blocks(self, columns: Sequence[str], batch_rows: int) -> Iterator[Block]:
        """Yields some columns of all rows, block by block, and which rows cannot be read, by
        reason. Where batches of `batch_rows` can be read, blocks are no larger. An error, a
        ValueError, names the file.
        """


class RowSource:
    """The rows of some files, one at least, which are read once, in order. All files of text must
    have the same columns.
    """

    def __init__(self, files: Sequence[RowFile], notes: Sequence[str] = ()) -> None:
        self._files, self._begins = files, list[int]()
        first = next((file for file in files if file.types), files[0])
        self.names = list(dict.fromkeys(name for file in files for name in file.types))
        """The names of all columns, also of those that some files lack."""
        for file in files:
            if file.is_text and file.types and file.types.keys() != first.types.keys():
                raise ValueError(
                    f"{file.name} has the columns {', '.join(file.types)}, the first file has "
                    f"{', '.join(first.types)}"
                )
        self.notes, self.is_text, self.dtype = notes, first.is_text, first.dtype
        self.num_bytes = sum(file.num_bytes for file in files)
        self.expected_rows = sum(file.expected_rows for file in files)
        self.total = 0
        """The number of rows that have been read, and of lines that could not be."""
        self.condition: Any = None
        """The condition for rows to be used (a :class:`Condition`)."""

    @property
    def names_of_files(self) -> list[str]:
        """The path of each file, in the order in which they are read."""
        return [file.name for file in self._files]

    def types(self, column: str) -> list[Any]:
        """Returns the types that a column has in all files; none for text without a declared
        type.
        """
        types = (file.types.get(column) for file in self._files)
        return [plain_type(kind) for kind in types if kind is not None]

    def type(self, column: str) -> Any:
        """Returns the type that holds the values of a column in all files, null for text without
        a declared type. Raises ValueError if there is none.
        """
        return common_type(self.types(column) or [arrow.null()], f"column {column!r}")

    def read(
        self, columns: Sequence[str], memory: int, most_rows: int = _MOST_ROWS
    ) -> Iterator[Batch]:
        """Yields some columns of the rows that satisfy the condition.

        Args:
            memory: the number of bytes to use: the batches held at once take a quarter of them, so
                that there is room for what is made of them.
            most_rows: the largest number of rows of a batch.
        """
        names = list(dict.fromkeys([*columns, *(self.condition.columns if self.condition else ())]))
        files = [file for file in self._files if file.types]
        for file in files:
            for name in names:
                if name not in file.types:
                    there = ", ".join(file.types)
                    raise ValueError(f"{file.name} has no column {name!r}; columns: {there}")
        row_bytes = next((size for file in files if (size := file.row_bytes(names))), 1)
        rows = min(_MOST_BYTES, memory // 4 // _HELD) // row_bytes
        batch_rows = max(_LEAST_ROWS, min(_MOST_ROWS, most_rows, rows))
        for file in self._files:
            self._begins.append(self.total)
            for block, faults in file.blocks(names, batch_rows) if file.types else ():
                for begin in range(0, len(block[names[0]]), batch_rows):
                    part = slice(begin, begin + batch_rows)
                    arrays = {name: values[part] for name, values in block.items()}
                    count, first = len(arrays[names[0]]), self.total
                    problems = Problems(count, {why: rows[part] for why, rows in faults.items()})
                    self.total += count
                    batch = Batch(np.arange(first, self.total), arrays, problems)
                    if self.condition is not None:
                        # Lines that cannot be read are reported whatever the condition is.
                        chosen = self.condition.rows(batch) | problems.bad
                        batch = batch if chosen.all() else batch.select(chosen)
                    if len(batch):
                        yield batch
            file.check()

    def place(self, row: int) -> tuple[str, int]:
        """Returns the file of a row that has been read, and its number in the file, from 0 on."""
        at = bisect.bisect_right(self._begins, row) - 1
        return self._files[at].name, row - self._begins[at]
