"""Reads rows of arrays: tensors, arrays of NumPy, and parts of ``.npy`` files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from peergraph.store.ingest.read.batch import Batch, Batches, RowRange, RowReader
from peergraph.store.ingest.read.npy_file import NpyFile

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class ArrayColumn:
    """Rows that a function reads.

    Args:
        num_rows: the number of rows; -1: it is not known before they are read.
        row_bytes: the bytes of a row.
        read: called with ``(begin, end)``; returns the rows as an array.
        count: reads all remaining rows and returns the number of rows; None if it is known before.
    """

    num_rows: int
    row_bytes: int
    read: Callable[[int, int], NDArray[Any]]
    count: Callable[[], int] | None = None


@dataclass(frozen=True)
class ArrayRows(RowReader):
    """Columns of equal length, read like a file.

    Args:
        name: the name of the columns in messages.
        columns: the columns by name.
    """

    name: str
    columns: Mapping[str, ArrayColumn]

    @property
    def column_names(self) -> list[str]:
        """The names of all columns."""
        return list(self.columns)

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return next(iter(self.columns.values())).num_rows

    @property
    def num_bytes(self) -> int:
        """The bytes of all columns."""
        return sum(column.num_rows * column.row_bytes for column in self.columns.values())

    def batches(self, columns: Sequence[str], batch_rows: int) -> Batches:
        """Yields all rows, as :class:`RowReader` says."""
        wanted = {name: self.columns[name] for name in columns}
        row_bytes = self.row_bytes(columns)
        for begin in range(0, self.num_rows, batch_rows):
            end = min(begin + batch_rows, self.num_rows)
            arrays = {name: column.read(begin, end) for name, column in wanted.items()}
            yield Batch(self.name, RowRange(begin, end), arrays, row_bytes * (end - begin))

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns the bytes of a row of some columns."""
        return sum(self.columns[name].row_bytes for name in columns)


def tensor_column(values: Tensor | NDArray[Any]) -> ArrayColumn:
    """Returns a column of values in memory, or mapped."""
    if isinstance(values, Tensor):
        tensor = values.detach()
        row_bytes = tensor.element_size() * (tensor[0].numel() if len(tensor) else 0)

        def read(begin: int, end: int) -> NDArray[Any]:
            return np.asarray(tensor[begin:end].cpu().contiguous().numpy())

        return ArrayColumn(len(tensor), row_bytes, read)
    array = values
    return ArrayColumn(
        len(array),
        array.nbytes // max(1, len(array)),
        lambda begin, end: np.ascontiguousarray(array[begin:end]),
    )


def edge_columns(name: str, edges: Tensor | NDArray[Any] | NpyFile) -> ArrayRows:
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
        columns = [tensor_column(edges[0]), tensor_column(edges[1])]
    else:
        columns = [tensor_column(edges[:, i]) for i in range(shape[1])]
    return ArrayRows(name, {str(i): column for i, column in enumerate(columns)})


def _file_columns(file: NpyFile) -> list[ArrayColumn]:
    rows, width = file.shape
    size = file.dtype.itemsize
    if rows == 2:
        # Two descriptors, each of which reads from front to back.
        sections = [NpyFile(file.path, file.member) for _ in range(2)]

        def section(number: int) -> ArrayColumn:
            def read(begin: int, end: int) -> NDArray[Any]:
                return sections[number].read_elements(
                    (number * width + begin) * size, (end - begin,)
                )

            return ArrayColumn(width, size, read)

        return [section(0), section(1)]
    shared = _LastRows(file)

    def column(number: int) -> ArrayColumn:
        return ArrayColumn(
            rows,
            size,
            lambda begin, end: np.ascontiguousarray(shared.read(begin, end)[:, number]),
        )

    return [column(i) for i in range(width)]


@dataclass
class _LastRows:
    """Reads rows of a file once for all of their columns."""

    file: NpyFile
    key: tuple[int, int] = (-1, -1)
    rows: NDArray[Any] | None = None

    def read(self, begin: int, end: int) -> NDArray[Any]:
        if self.rows is None or self.key != (begin, end):
            self.rows = self.file.read(begin, end)
            self.key = begin, end
        return self.rows
