"""Rows of one table, from the columns of batches."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergraph.store.disk.manifest import DTYPE_NAMES
from peergraph.store.ingest.graph_files import Columns, Rows
from peergraph.store.ingest.read.file_list import is_array_path
from peergraph.store.ingest.read.optional import require
from peergraph.store.ingest.read.row_source import RowSource
from peergraph.store.ingest.values.numbers import Problems, is_list, to_dtype, to_numbers

_UNSIGNED = {2: torch.int32, 4: torch.int64, 8: torch.int64}
_UNITS = ("s", "ms", "us", "ns")
_EXACT_FLOAT = 2**24


def described(given: Any) -> Columns | Rows:
    """Returns the full form of a table that users describe."""
    if isinstance(given, (Columns, Rows)):
        return given
    if is_array_path(given) or isinstance(given, (PathLike, Tensor, np.ndarray)):
        return Rows(given)
    return Columns(given)


class TableRows:
    """One table: its columns, dtype and shape.

    Args:
        name: the name of the table.
        given: the table as users describe it.
        source: the rows of its columns.
        types: users' names of types of Arrow by column.

    Raises:
        ValueError: the description names a column or a dtype that does not exist, or columns have
            types that do not go together.
    """

    def __init__(
        self, name: str, given: Columns | Rows, source: RowSource, types: Mapping[str, str]
    ) -> None:
        self.name, self._nan, self._is_text = name, given.nan, source.is_text
        self._source = source
        self.row_shape: tuple[int, ...] | None = None
        """The shape of a row; None until the first rows are read."""
        self._is_matrix = True
        if isinstance(given, Columns):
            self._set_columns(given.columns)
        else:
            self.columns = [*source.names]
            self._is_matrix = self.columns != [""]
        self._times: dict[str, Any] = {}
        self.dtype = self._declared(given.dtype, types)
        """The dtype of the table; None where the values of text decide, until :meth:`finish`."""
        self._found: torch.dtype | None = None  # the dtype of the text that was read
        self._large: tuple[int, Any] | None = None  # a whole number that float32 rounds, its row
        if self.dtype is None and not self._is_text:
            self.dtype = self._common_dtype()

    @property
    def is_open(self) -> bool:
        """Whether later values may change the dtype of :meth:`read`'s rows."""
        return self.dtype is None

    def read(self, columns: Mapping[str, Any], rows: Any, problems: Problems) -> Tensor:
        """Returns the table's rows ``[n, ...]``; rows with problems are 0.

        Args:
            columns: a batch's columns.
            rows: ``[n]`` the numbers of the rows in the source.
            problems: gets the rows without a value.
        """
        found = Problems()
        width = self.row_shape[0] if self.row_shape and not self._is_matrix else -1
        parts = []
        for column in self.columns:
            try:
                time = self._times.get(column)
                parts.append(to_numbers(columns[column], found, time, width))
            except ValueError as error:
                raise ValueError(f"table {self.name!r}: {error}") from None
        dtype = self.dtype or self._dtype_of_text(parts, rows)
        values = [to_dtype(part, dtype, self._nan, self._is_text, found) for part in parts]
        if self._is_matrix and self.columns and any(part.dim() != 1 for part in values):
            if len(values) > 1:
                raise ValueError(f"table {self.name!r}: a column of lists makes a table alone")
            table_rows = values[0]
        elif self._is_matrix:
            table_rows = torch.stack(values, dim=1) if values else torch.empty(len(rows), 0)
        else:
            table_rows = values[0]
        shape = tuple(table_rows.shape[1:])
        if self.row_shape is None and len(table_rows):
            self.row_shape = shape
        for reason, mask in found.masks.items():
            problems.add(f"table {self.name!r}: a value {reason}", mask)
        if len(table_rows) and shape != self.row_shape:
            raise ValueError(
                f"table {self.name!r}: a row has shape {list(shape)}, the first one "
                f"{list(self.row_shape or ())}"
            )
        return table_rows

    def finish(self) -> None:
        """Decides dtype and shape when all rows have been read.

        Raises:
            ValueError: no dtype holds all values.
        """
        if self.dtype is None:
            self.dtype = self._found or torch.float32
            if self.dtype == torch.float32 and self._large is not None:
                row, value = self._large
                file, number = self._source.place(row)
                raise ValueError(
                    f"table {self.name!r}: {file}: row {number} has {value}, which float32 would "
                    "round, and other rows have decimals: declare a dtype (Columns or Rows)"
                )
        if self.row_shape is None:
            self.row_shape = (len(self.columns),) if self._is_matrix else ()

    def describe(self) -> str:
        """Returns dtype, shape and columns for the report."""
        dtype = str(self.dtype).removeprefix("torch.")
        names = [repr(name) for name in self.columns if name]
        shown = ", ".join(names[:4]) + (f", ... ({len(names)} columns)" if len(names) > 4 else "")
        times = sorted({str(time) for time in self._times.values()})
        of = f" of {shown}" if names else ""
        return f"{dtype} {[*(self.row_shape or ())]}{of}{': ' if times else ''}{', '.join(times)}"

    def _set_columns(self, columns: str | Sequence[str]) -> None:
        names = self._source.names
        if isinstance(columns, str) and not any(c in columns for c in "*?["):
            self.columns, self._is_matrix = [columns], False
        elif isinstance(columns, str):
            self.columns = fnmatch.filter(names, columns)
        elif isinstance(columns, Sequence) and all(isinstance(name, str) for name in columns):
            self.columns = [*columns]
        else:
            raise ValueError(f"table {self.name!r}: columns must be names, got {columns!r}")
        missing = [name for name in self.columns if name not in names]
        if missing or not self.columns:
            wanted = repr(missing[0]) if missing else f"that matches {columns!r}"
            there = ", ".join(names) if names else "none: there are no files"
            raise ValueError(f"table {self.name!r}: no column {wanted}; columns: {there}")

    def _declared(
        self, given: torch.dtype | str | None, types: Mapping[str, str]
    ) -> torch.dtype | None:
        if given is None:
            arrow_types = {types[name] for name in self.columns if name in types}
            if len(arrow_types) == 1 and len(self.columns) == 1:
                arrow = require("pyarrow", "types of columns")
                (name,) = arrow_types
                try:
                    declared = arrow.type_for_alias(name)
                except ValueError:
                    raise ValueError(f"types: {name!r} is no type of Arrow") from None
                return None if "string" in str(declared) else _torch_dtype(declared)
            return None
        if isinstance(given, torch.dtype):
            return given
        if given not in DTYPE_NAMES:
            known = ", ".join(sorted(DTYPE_NAMES))
            raise ValueError(f"table {self.name!r}: dtype must be one of {known}, got {given!r}")
        return DTYPE_NAMES[given]

    def _common_dtype(self) -> torch.dtype | None:
        """Returns the dtype that holds the values of all columns in all files; None where they are
        text.
        """
        dtypes: set[torch.dtype] = set()
        texts = 0
        for column in self.columns:
            types = [_value_type(given) for given in self._source.types(column)]
            time = _common_time(types, f"table {self.name!r}: column {column!r}")
            if time is not None:
                self._times[column] = time
            for given in types:
                is_text = "string" in str(given)
                texts += is_text
                if not is_text and str(given) != "null":
                    dtypes.add(_torch_dtype(given, self.name))
        if texts and dtypes:
            raise ValueError(
                f"table {self.name!r}: columns are text in one place and numbers in another: "
                "convert them to one type"
            )
        if texts:
            self._is_text = True
        if not dtypes:
            return None
        common, *others = sorted(dtypes, key=str)
        for dtype in others:
            both = np.result_type(_numpy(common), _numpy(dtype))
            common = torch.from_numpy(np.empty(0, both)).dtype
        return common

    def _dtype_of_text(self, parts: Sequence[Any], rows: Any) -> torch.dtype:
        """Returns the dtype of a batch of text, and notes what it says about the table's."""
        kinds = set()
        for part in parts:
            values, missing = part.values, part.missing
            if missing is not None and missing.all():
                continue
            needs_nan = missing is not None and self._nan == "keep" and values.dtype.kind != "b"
            kinds.add("f" if needs_nan else values.dtype.kind)
            if values.dtype.kind == "i" and self._large is None and values.size:
                large = np.abs(values) > _EXACT_FLOAT
                large &= values.astype(np.float32).astype(np.float64) != values
                if large.any():
                    at = np.argwhere(large)[0]
                    self._large = int(rows[at[0]]), int(values[tuple(at)])
        if "b" in kinds and (len(kinds) > 1 or self._found not in (None, torch.bool)):
            raise self._mixed()
        if not kinds:
            return self._found or torch.int64
        if "b" not in kinds and self._found == torch.bool:
            raise self._mixed()
        order = [torch.bool, torch.int64, torch.float32]
        dtype = {"b": torch.bool, "i": torch.int64, "u": torch.int64, "f": torch.float32}
        found = max((dtype[kind] for kind in kinds), key=order.index)
        self._found = max((found, self._found or found), key=order.index)
        return self._found

    def _mixed(self) -> ValueError:
        return ValueError(f"table {self.name!r}: some values are true or false, others are numbers")


def _value_type(given: Any) -> Any:
    """Returns the type of the numbers of a type."""
    while not isinstance(given, (np.dtype, torch.dtype)) and (
        is_list(given) or require("pyarrow", "types").types.is_dictionary(given)
    ):
        given = given.value_type
    return given


def _torch_dtype(given: Any, table: str = "") -> torch.dtype:
    """Returns the dtype that holds the values of a type of Arrow, NumPy or torch."""
    if isinstance(given, torch.dtype):
        return given
    if not isinstance(given, np.dtype):
        types = require("pyarrow", "types").types
        if types.is_decimal(given):
            return torch.float64 if given.scale > 0 else torch.int64
        if types.is_temporal(given):
            return torch.int32 if given.bit_width == 32 else torch.int64
        if not (types.is_integer(given) or types.is_floating(given) or types.is_boolean(given)):
            raise ValueError(f"table {table!r}: expected numbers, got {given}")
        given = np.dtype(given.to_pandas_dtype())
    if given.kind not in "biuf" or given.itemsize > 8:
        raise ValueError(f"table {table!r}: expected numbers, got {given}")
    if given.kind == "u" and given.itemsize > 1:
        return _UNSIGNED[given.itemsize]
    return torch.from_numpy(np.empty(0, given.newbyteorder("="))).dtype


def _numpy(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype


def _common_time(types: Sequence[Any], what: str) -> Any:
    """Returns the type of times with the finest unit; None if the types are no times.

    Raises:
        ValueError: times of several kinds, or times and numbers.
    """
    arrow_types = [given for given in types if not isinstance(given, (np.dtype, torch.dtype))]
    temporal = [g for g in arrow_types if require("pyarrow", "types").types.is_temporal(g)]
    if not temporal:
        return None
    others = [given for given in types if given not in temporal and str(given) != "null"]
    kinds = {(str(given).split("[")[0], getattr(given, "tz", None) is None) for given in temporal}
    if others or len(kinds) > 1:
        shown = " and ".join(sorted({str(given) for given in [*temporal, *others]}))
        raise ValueError(f"{what} is {shown} in different files: convert it to one type")
    return max(temporal, key=lambda given: _UNITS.index(getattr(given, "unit", "s")))
