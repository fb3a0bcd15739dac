"""Rows of arrays: tensors, arrays of NumPy, and ``.npy`` files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from peergraph.store.ingest.read.npy_file import NpyFile
from peergraph.store.ingest.read.row_source import Batch, RowSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

Array: TypeAlias = "Tensor | NDArray[Any] | NpyFile"


@dataclass(frozen=True)
class ArrayPart:
    """An array as columns of rows.

    Args:
        name: the name of the array in messages.
        num_rows: the number of rows.
        names: the names of the columns.
        row_bytes: the bytes of a row.
        dtype: NumPy's dtype; torch's where NumPy does not know it.
        read: called with ``(begin, end)``; returns the rows of each column.
    """

    name: str
    num_rows: int
    names: Sequence[str]
    row_bytes: int
    dtype: np.dtype[Any] | torch.dtype
    read: Callable[[int, int], Sequence[Any]]


class ArrayRows(RowSource):
    """Columns of arrays, read like files: one array after the other.

    Args:
        parts: the arrays; they have the same columns.
    """

    def __init__(self, parts: Sequence[ArrayPart]) -> None:
        super().__init__(parts[0].names, parts[0].name)
        self._parts = parts
        for part in parts[1:]:
            if part.names != parts[0].names:
                raise ValueError(
                    f"{part.name} has {len(part.names)} columns, {parts[0].name} has "
                    f"{len(parts[0].names)}"
                )
        self.num_bytes = sum(part.num_rows * part.row_bytes for part in parts)
        self.expected_rows = sum(part.num_rows for part in parts)

    def types(self, column: str) -> list[Any]:
        """Returns the dtypes of a column."""
        return [part.dtype for part in self._parts]

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns the bytes of a row."""
        return self._parts[0].row_bytes

    def batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[Batch]:
        """Yields all rows, as :class:`RowSource` says."""
        for part in self._parts:
            self._begin_file(part.name)
            for begin in range(0, part.num_rows, batch_rows):
                end = min(begin + batch_rows, part.num_rows)
                arrays = dict(zip(part.names, part.read(begin, end), strict=True))
                num_bytes = part.row_bytes * (end - begin)
                yield Batch(self._next_rows(end - begin), arrays, num_bytes)


def table_part(name: str, values: Array) -> ArrayPart:
    """Returns the rows of an array as one column without a name."""
    if isinstance(values, NpyFile):
        read = values.read
        return ArrayPart(
            name,
            values.shape[0],
            [""],
            values.row_bytes,
            values.dtype,
            lambda begin, end: [read(begin, end)],
        )
    return ArrayPart(
        name,
        len(values),
        [""],
        _row_bytes(values),
        _dtype(values),
        lambda begin, end: [_copy(values[begin:end])],
    )


def edges_part(name: str, edges: Array) -> ArrayPart:
    """Returns sources and destinations of an array ``[2, E]`` or ``[E, 2]``, as columns ``"0"`` and
    ``"1"``. An array ``[E, k]`` has further columns.

    Raises:
        ValueError: another shape.
    """
    shape = tuple(edges.shape)
    if len(shape) != 2 or (2 not in shape and shape[1] < 2):
        raise ValueError(f"{name}: edges must be [2, E] or [E, 2], are {list(shape)}")
    if isinstance(edges, NpyFile):
        file = edges.transposed() if shape[0] == 2 else edges
        count, width = file.shape
        names = [str(i) for i in range(width)]
        return ArrayPart(name, count, names, file.row_bytes, file.dtype, file.columns)
    rows = edges.T if shape[0] == 2 else edges
    count, width = rows.shape
    return ArrayPart(
        name,
        count,
        [str(i) for i in range(width)],
        _row_bytes(rows),
        _dtype(rows),
        lambda begin, end: [_copy(rows[begin:end, i]) for i in range(width)],
    )


def _row_bytes(values: Tensor | NDArray[Any]) -> int:
    return int(values.nbytes) // max(1, len(values))


def _dtype(values: Tensor | NDArray[Any]) -> np.dtype[Any] | torch.dtype:
    if isinstance(values, Tensor):
        with suppress(TypeError):
            return values.new_empty(0, device="cpu").numpy().dtype
    return values.dtype


def _copy(rows: Tensor | NDArray[Any]) -> NDArray[Any]:
    """Returns rows side by side in NumPy, in the machine's byte order."""
    if isinstance(rows, Tensor):
        rows = rows.detach().cpu().contiguous()
        # NumPy does not know some dtypes, whose values float32 holds.
        rows = rows.numpy() if isinstance(_dtype(rows), np.dtype) else rows.float().numpy()
    rows = np.ascontiguousarray(rows, rows.dtype.newbyteorder("="))
    return rows if rows.flags.writeable else rows.copy()  # torch warns about others
