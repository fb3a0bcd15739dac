"""Rows of tables, from columns of batches or from arrays."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from peergraph.store.disk.manifest import DTYPE_NAMES
from peergraph.store.disk.saved_array import stored_dtype
from peergraph.store.ingest.graph_files import Columns, Rows
from peergraph.store.ingest.read.array_rows import ArrayColumn, tensor_column
from peergraph.store.ingest.read.batch import Batch, RowIndices
from peergraph.store.ingest.read.csv_rows import CsvFormat
from peergraph.store.ingest.read.file_rows import FileRows
from peergraph.store.ingest.read.open_rows import is_array_path, open_array, open_file
from peergraph.store.ingest.values.numbers import (
    MISSING,
    NAN,
    TOO_LARGE,
    Mask,
    Problems,
    to_numbers,
    to_whole_numbers,
)
from peergraph.store.ingest.values.read_only import as_tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNSIGNED = {1: torch.uint8, 2: torch.int32, 4: torch.int64, 8: torch.int64}
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class TableRows:
    """One table: the rows that belong to a batch.

    Args:
        name: the name of the table.
        given: the table as users describe it.
        column_names: the columns of the files of its type; empty without files.
        memory: the number of bytes that a separate file may use.
        is_text: whether the values come from text: numbers with decimals are then float32 by
            default.

    Raises:
        ValueError: the description names a column or a dtype that does not exist.
        FileNotFoundError: there is no such file.
    """

    def __init__(
        self,
        name: str,
        given: Any,
        column_names: Sequence[str],
        memory: int,
        is_text: bool = False,
    ) -> None:
        self.name = name
        self._memory = memory
        described = _described(given)
        self._csv = described.csv if isinstance(described, Rows) else CsvFormat()
        self.dtype = _dtype(name, described.dtype)
        """The dtype of the table; None until the first rows are read."""
        self._nan, self._is_text = described.nan, is_text
        self.row_shape: tuple[int, ...] | None = None
        """The shape of a row; None until the first rows are read."""
        self.array: ArrayColumn | None = None
        """The rows, if the table has a separate file."""
        self.array_row_bytes = 0
        """The bytes of a row of that file in memory."""
        self._file: FileRows | None = None
        self.columns: list[str] = []
        """Columns that a batch must have."""
        self._is_matrix = False
        self._holds_bits = False  # integers with the bits of a dtype unknown to NumPy
        if isinstance(described, Rows):
            self._set_array(described.values)
        else:
            self._set_columns(described.columns, column_names)

    def read(self, batch: Batch, rows: RowIndices, problems: Problems) -> Tensor:
        """Returns the table's rows of a batch, ``[n, ...]``; rows with problems are 0.

        Args:
            rows: numbers of the batch's rows over all files.
        """
        found = Problems()
        if self.array is not None:
            values = to_numbers(_take(self.array, rows), found)
        else:
            values = self._from_columns(batch.columns, found)
        table_rows = self._converted(values, found)
        for reason, mask in found.masks.items():
            problems.add(f"table {self.name!r}: a value {reason}", mask)
        return table_rows

    def close(self) -> None:
        """Ends the threads that read a separate file."""
        if self._file is not None:
            self._file.close()

    def finish_without_rows(self) -> None:
        """Decides shape and dtype where no rows have come."""
        self.dtype = self.dtype or torch.float32
        if self.row_shape is None:
            self.row_shape = (len(self.columns),) if self._is_matrix else ()

    def _set_array(self, values: Any) -> None:
        if isinstance(values, (str, PathLike)) and not is_array_path(values):
            self._set_file(values)
        elif is_array_path(values):
            file = open_array(values)
            self.array = ArrayColumn(file.shape[0], file.row_bytes, file.read)
            self.row_shape = tuple(file.shape[1:])
        elif isinstance(values, Tensor) and self._holds_exactly(values):
            self.dtype, self._holds_bits = values.dtype, True
            bits = values.view(stored_dtype(values.dtype))
            self.array, self.row_shape = tensor_column(bits), tuple(values.shape[1:])
        elif isinstance(values, (Tensor, np.ndarray)):
            self.array, self.row_shape = tensor_column(values), tuple(values.shape[1:])
        else:
            raise ValueError(
                f"table {self.name!r}: expected a file, a tensor or an array, got {values!r}"
            )
        if self.array is not None and self._file is None:
            self.array_row_bytes = self.array.row_bytes

    def _set_file(self, path: str | PathLike[str]) -> None:
        """Takes all columns of a Parquet or CSV file as the rows."""
        reader = open_file(path, self._csv)
        names = reader.column_names
        batch_rows = reader.batch_rows(names, self._memory)
        file = FileRows(reader, fspath(path), self._file_matrix, batch_rows)
        known = reader.num_rows
        rows = -1 if known is None else known
        row_bytes = reader.num_bytes // max(1, reader.expected_rows)  # in the file
        self.array = ArrayColumn(rows, row_bytes, file.read, file.count if known is None else None)
        self.array_row_bytes = reader.row_bytes(names)
        self._file, self._is_text = file, reader.is_text

    def _file_matrix(self, batch: Batch) -> NDArray[Any]:
        """Returns ``[n, width]`` of all columns; NaN where a value is missing."""
        parts = []
        for name, column in batch.columns.items():
            problems = Problems()
            values = to_numbers(column, problems, missing_is_nan=True)
            if set(problems.masks) - {MISSING}:
                raise ValueError(f"{batch.file}: column {name!r} has values that are no numbers")
            if problems.masks:
                values = np.where(problems.any(len(values)), np.nan, values)
            parts.append(values if values.ndim == 2 else values[:, None])
        return np.concatenate(parts, axis=1)

    def _holds_exactly(self, values: Tensor) -> bool:
        """Returns whether the values have a dtype that NumPy does not know, which stays."""
        unknown = stored_dtype(values.dtype) != values.dtype
        if unknown and self.dtype not in (None, values.dtype):
            raise NotImplementedError(
                f"table {self.name!r}: {values.dtype} as {self.dtype}: convert the tensor before"
            )
        return unknown

    def _set_columns(self, columns: str | Sequence[str], names: Sequence[str]) -> None:
        if isinstance(columns, str) and not any(c in columns for c in "*?["):
            self.columns = [columns]
        else:
            self._is_matrix = True
            if isinstance(columns, str):
                self.columns = fnmatch.filter(names, columns)
            else:
                self.columns = [*columns]
        missing = [name for name in self.columns if name not in names]
        if missing or not self.columns:
            wanted = repr(missing[0]) if missing else f"that matches {columns!r}"
            there = ", ".join(names) if names else "none: there are no files"
            raise ValueError(f"table {self.name!r}: no column {wanted}; columns: {there}")

    def _from_columns(self, columns: Mapping[str, Any], problems: Problems) -> NDArray[Any]:
        keeps = self._nan != "error"
        parts = [to_numbers(columns[name], problems, keeps) for name in self.columns]
        if not self._is_matrix:
            return parts[0]
        if any(part.ndim != 1 for part in parts):
            raise ValueError(f"table {self.name!r}: a column of lists makes a table alone")
        matrix = np.empty((len(parts[0]), len(parts)), np.result_type(*parts))
        for number, part in enumerate(parts):
            matrix[:, number] = part
        return matrix

    def _converted(self, values: NDArray[Any], problems: Problems) -> Tensor:
        if self.dtype is None:
            self.dtype = self._default_dtype(values.dtype)
        if self.row_shape is None:
            self.row_shape = values.shape[1:]
        if values.shape[1:] != self.row_shape:
            raise ValueError(
                f"table {self.name!r}: a row has shape {list(values.shape[1:])}, the first one "
                f"{list(self.row_shape)}"
            )
        if self._holds_bits:
            return self._from_bits(values, problems)
        if values.dtype.kind == "f":
            values = self._without_nan(values, problems)
        if self.dtype in _INTEGERS:
            values = to_whole_numbers(values, problems)
            limits = torch.iinfo(self.dtype)
            problems.add(TOO_LARGE, _any((values < limits.min) | (values > limits.max)))
        return as_tensor(np.ascontiguousarray(values)).to(self.dtype)

    def _from_bits(self, bits: NDArray[Any], problems: Problems) -> Tensor:
        assert self.dtype is not None
        rows = as_tensor(bits).view(self.dtype)
        if self._nan != "keep" and self.dtype.is_floating_point:
            is_nan = rows.float().isnan()
            if self._nan == "error":
                problems.add(NAN, _any(is_nan.numpy()))
            rows = rows.masked_fill(is_nan, 0)  # the given tensor keeps its NaN
        return rows

    def _without_nan(self, values: NDArray[Any], problems: Problems) -> NDArray[Any]:
        if self._nan == "keep" and self.dtype not in _INTEGERS:
            return values
        is_nan = np.isnan(values)
        if not is_nan.any():
            return values
        if self._nan != "zero":
            problems.add(NAN, _any(is_nan))
        return np.where(is_nan, np.zeros((), values.dtype), values)

    def _default_dtype(self, found: np.dtype[Any]) -> torch.dtype:
        if found.kind == "u":
            return _UNSIGNED[found.itemsize]
        if found.kind == "f" and self._is_text:
            return torch.float32
        return torch.from_numpy(np.empty(0, found)).dtype


def _described(given: Any) -> Columns | Rows:
    if isinstance(given, (Columns, Rows)):
        return given
    if is_array_path(given) or isinstance(given, (PathLike, Tensor, np.ndarray)):
        return Rows(given)
    return Columns(given)


def _dtype(name: str, given: torch.dtype | str | None) -> torch.dtype | None:
    if given is None or isinstance(given, torch.dtype):
        return given
    if given not in DTYPE_NAMES:
        known = ", ".join(sorted(DTYPE_NAMES))
        raise ValueError(f"table {name!r}: dtype must be one of {known}, got {given!r}")
    return DTYPE_NAMES[given]


def _take(array: ArrayColumn, rows: RowIndices) -> NDArray[Any]:
    """Returns rows by ascending number."""
    if len(rows) == 0:
        return array.read(0, 0)
    first, last = int(rows[0]), int(rows[-1])
    if 0 <= array.num_rows <= last:
        raise ValueError(f"row {last} is asked for, the array has {array.num_rows}")
    values = array.read(first, last + 1)
    return values if len(rows) == last + 1 - first else values[np.asarray(rows) - first]


def _any(mask: Mask) -> Mask:
    return mask if mask.ndim == 1 else np.asarray(mask.reshape(len(mask), -1).any(axis=1))
