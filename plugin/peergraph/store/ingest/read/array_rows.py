"""Rows of arrays: tensors, arrays of NumPy, and ``.npy`` files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
class ArrayColumn:
    """Rows that a function reads.

    Args:
        num_rows: the number of rows.
        row_bytes: the bytes of a row.
        dtype: NumPy's dtype; torch's where NumPy does not know it.
        read: called with ``(begin, end)``; returns the rows as an array or a tensor.
    """

    num_rows: int
    row_bytes: int
    dtype: np.dtype[Any] | torch.dtype
    read: Callable[[int, int], Any]


class ArrayRows(RowSource):
    """Columns of arrays, read like files: one array after the other.

    Args:
        parts: the name of each array in messages, and its columns by name, of equal length.
    """

    def __init__(self, parts: Sequence[tuple[str, Mapping[str, ArrayColumn]]]) -> None:
        super().__init__(list(parts[0][1]), parts[0][0])
        self._parts = parts
        for name, columns in parts[1:]:
            if len(columns) != len(self.names):
                raise ValueError(
                    f"{name} has {len(columns)} columns, {parts[0][0]} has {len(self.names)}"
                )

    @property
    def num_bytes(self) -> int:
        """The bytes of all columns."""
        every = [column for _, columns in self._parts for column in columns.values()]
        return sum(column.num_rows * column.row_bytes for column in every)

    @property
    def expected_rows(self) -> int:
        """The number of rows."""
        return sum(_num_rows(columns) for _, columns in self._parts)

    def types(self, column: str) -> list[Any]:
        """Returns the dtypes of a column."""
        return [columns[column].dtype for _, columns in self._parts]

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns the bytes of a row of some columns."""
        return sum(self._parts[0][1][name].row_bytes for name in columns)

    def batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[Batch]:
        """Yields all rows, as :class:`RowSource` says."""
        for name, every in self._parts:
            self._begin_file(name)
            chosen = {column: every[column] for column in columns}
            row_bytes = sum(column.row_bytes for column in chosen.values())
            num_rows = _num_rows(every)
            for begin in range(0, num_rows, batch_rows):
                end = min(begin + batch_rows, num_rows)
                arrays = {name: column.read(begin, end) for name, column in chosen.items()}
                yield Batch(self._next_rows(end - begin), arrays, row_bytes * (end - begin))


def array_column(values: Array) -> ArrayColumn:
    """Returns a column of the rows of an array."""
    if isinstance(values, NpyFile):
        return ArrayColumn(values.shape[0], values.row_bytes, values.dtype, values.read)
    if isinstance(values, Tensor):
        tensor = values.detach()
        row_bytes = tensor.element_size() * (tensor[0].numel() if len(tensor) else 0)
        dtype: np.dtype[Any] | torch.dtype = tensor.dtype
        with suppress(TypeError):
            dtype = tensor.new_empty(0, device="cpu").numpy().dtype
        return ArrayColumn(
            len(tensor), row_bytes, dtype, lambda begin, end: tensor[begin:end].cpu().contiguous()
        )
    array = values
    return ArrayColumn(
        len(array),
        array.nbytes // max(1, len(array)),
        array.dtype,
        lambda begin, end: np.ascontiguousarray(array[begin:end]),
    )


def edge_columns(name: str, edges: Array) -> dict[str, ArrayColumn]:
    """Returns sources and destinations of an array ``[2, E]`` or ``[E, 2]``, as columns ``"0"`` and
    ``"1"``. An array ``[E, k]`` has further columns.

    Raises:
        ValueError: another shape.
    """
    shape = tuple(edges.shape)
    if len(shape) != 2 or (2 not in shape and shape[1] < 2):
        raise ValueError(f"{name}: edges must be [2, E] or [E, 2], are {list(shape)}")
    if isinstance(edges, NpyFile):
        columns = _file_columns(edges)
    elif shape[0] == 2:
        columns = [array_column(edges[0]), array_column(edges[1])]
    else:
        columns = [array_column(edges[:, i]) for i in range(shape[1])]
    return {str(i): column for i, column in enumerate(columns)}


def _num_rows(columns: Mapping[str, ArrayColumn]) -> int:
    return next(iter(columns.values())).num_rows


def _file_columns(file: NpyFile) -> list[ArrayColumn]:
    rows, width = file.shape
    count, number_of_columns = (width, 2) if rows == 2 else (rows, width)
    size = file.dtype.itemsize
    if (rows == 2) != file.is_fortran:

        def section(number: int) -> ArrayColumn:
            # A descriptor of its own, which reads from front to back.
            own = NpyFile(file.path, file.member)

            def read(begin: int, end: int) -> NDArray[Any]:
                return own.read_elements((number * count + begin) * size, (end - begin,))

            return ArrayColumn(count, size, file.dtype, read)

        return [section(number) for number in range(number_of_columns)]
    shared = _LastRows(file, number_of_columns)

    def column(number: int) -> ArrayColumn:
        def read(begin: int, end: int) -> NDArray[Any]:
            return np.ascontiguousarray(shared.read(begin, end)[:, number])

        return ArrayColumn(count, size, file.dtype, read)

    return [column(number) for number in range(number_of_columns)]


@dataclass
class _LastRows:
    """Reads elements that lie side by side in a file once for all of their columns."""

    file: NpyFile
    width: int
    key: tuple[int, int] = (-1, -1)
    rows: NDArray[Any] | None = None

    def read(self, begin: int, end: int) -> NDArray[Any]:
        if self.rows is None or self.key != (begin, end):
            offset = begin * self.width * self.file.dtype.itemsize
            self.rows = self.file.read_elements(offset, (end - begin, self.width))
            self.key = begin, end
        return self.rows
