"""Rows of one table, from the columns of batches."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from functools import reduce
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
from peergraph.store.ingest.values.arrow_arrays import common_type, value_type
from peergraph.store.ingest.values.cast import to_dtype
from peergraph.store.ingest.values.numbers import Numbers, to_numbers
from peergraph.store.ingest.values.problems import Problems

_DTYPES: dict[str, torch.dtype] = {
    **{f"{sign}int8": getattr(torch, f"{sign}int8") for sign in ("", "u")},
    **{"int16": torch.int16, "int32": torch.int32, "int64": torch.int64, "bool": torch.bool},
    **{"uint16": torch.int32, "uint32": torch.int64, "uint64": torch.int64},
    **{"float16": torch.float16, "float32": torch.float32, "float64": torch.float64},
    **{"halffloat": torch.float16, "float": torch.float32, "double": torch.float64},
}
"""The dtypes that hold the values of types of NumPy and Arrow."""
_TEXT_DTYPES = {"b": torch.bool, "i": torch.int64, "f": torch.float32}
"""The dtypes of text, by the kinds of its values: later ones hold the values of earlier ones."""


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

    Raises:
        ValueError: the description names a column or a dtype that does not exist, or columns have
            types that do not go together.
    """

    def __init__(self, name: str, given: Columns | Rows, source: RowSource) -> None:
        self.name, self._nan, self._is_text = name, given.nan, source.is_text
        self._source = source
        self.row_shape: tuple[int, ...] | None = None
        """The shape of a row; None until the first rows are read."""
        if isinstance(given, Columns):
            self.columns, self._is_matrix = self._chosen(given.columns)
        else:
            self.columns, self._is_matrix = [*source.names], [*source.names] != [""]
        self._times: dict[str, Any] = {}
        self.dtype = self._dtype_of_columns()
        """The dtype of the table; None where the values of text decide, until :meth:`finish`."""
        if isinstance(given.dtype, str) and given.dtype not in DTYPE_NAMES:
            known = ", ".join(sorted(DTYPE_NAMES))
            raise ValueError(f"table {name!r}: dtype must be one of {known}, got {given.dtype!r}")
        if given.dtype is not None:
            declared = given.dtype
            self.dtype = DTYPE_NAMES[declared] if isinstance(declared, str) else declared
        self._kinds: set[str] = set()  # of the values of text, as NumPy names them

    def read(self, columns: Mapping[str, Any], problems: Problems) -> Tensor:
        """Returns the table's rows ``[n, ...]`` of a batch's columns.

        Args:
            columns: the columns.
            problems: gets the rows without a value.
        """
        num_rows = len(problems.bad)
        found = Problems(num_rows)
        width = self.row_shape[0] if self.row_shape and not self._is_matrix else -1
        try:
            parts = [
                to_numbers(columns[column], found, self._times.get(column), width)
                for column in self.columns
            ]
        except ValueError as error:
            raise ValueError(f"table {self.name!r}: {error}") from None
        dtype = self.dtype or self._dtype_of_text(parts)
        values = [to_dtype(part, dtype, self._nan, self._is_text, found) for part in parts]
        problems.add_all(found, f"table {self.name!r}: a value")
        if not self._is_matrix or (len(values) == 1 and values[0].dim() > 1):
            rows = values[0]
        elif any(part.dim() > 1 for part in values):
            raise ValueError(f"table {self.name!r}: a column of lists makes a table alone")
        else:
            rows = torch.stack(values, dim=1) if values else torch.empty(num_rows, 0)
        shape = tuple(rows.shape[1:])
        if num_rows and self.row_shape is None:
            self.row_shape = shape
        if num_rows and shape != self.row_shape:
            raise ValueError(
                f"table {self.name!r}: a row has shape {list(shape)}, the first one "
                f"{list(self.row_shape or ())}"
            )
        return rows

    def finish(self) -> None:
        """Decides dtype and shape when all rows have been read."""
        if self.dtype is None:
            self.dtype = self._dtype_of_text(()) if self._kinds else torch.float32
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

    def _chosen(self, columns: str | Sequence[str]) -> tuple[list[str], bool]:
        """Returns the columns of a name, pattern or list, and whether they make a matrix."""
        names, is_one = self._source.names, isinstance(columns, str)
        if isinstance(columns, str):
            is_one = not any(character in columns for character in "*?[")
            chosen = [columns] if is_one else fnmatch.filter(names, columns)
        elif isinstance(columns, Sequence) and all(isinstance(name, str) for name in columns):
            chosen = [*columns]
        else:
            raise ValueError(f"table {self.name!r}: columns must be names, got {columns!r}")
        missing = [name for name in chosen if name not in names]
        if missing or not chosen:
            what = repr(missing[0]) if missing else f"that matches {columns!r}"
            there = ", ".join(names) if names else "none: there are no files"
            raise ValueError(f"table {self.name!r}: no column {what}; columns: {there}")
        return chosen, not is_one

    def _dtype_of_columns(self) -> torch.dtype | None:
        """Returns the dtype that holds the values of all columns in all files; None where they are
        text.
        """
        dtypes: list[torch.dtype] = []
        texts = 0
        for column in self.columns:
            kinds = self._source.types(column)
            if kinds and not isinstance(kinds[0], (np.dtype, torch.dtype)):
                what = f"table {self.name!r}: column {column!r}"
                kinds = [common_type([value_type(kind) for kind in kinds], what)]
                if require("pyarrow", "types").types.is_temporal(kinds[0]):
                    self._times[column] = kinds[0]
            texts += not kinds or "string" in str(kinds[0])
            dtypes += [
                self._dtype_of(kind)
                for kind in kinds
                if "string" not in str(kind) and str(kind) != "null"
            ]
        if texts and dtypes and not self._is_text:
            raise ValueError(
                f"table {self.name!r}: columns are text in one place and numbers in another: "
                "convert them to one type"
            )
        self._is_text |= texts > 0
        if texts or not dtypes:
            return None
        return reduce(_common, dtypes)

    def _dtype_of(self, kind: Any) -> torch.dtype:
        """Returns the dtype that holds the values of a type of Arrow, NumPy or torch."""
        if isinstance(kind, torch.dtype):
            return kind
        if not isinstance(kind, np.dtype):
            types = require("pyarrow", "types").types
            if types.is_decimal(kind):
                return torch.float64 if kind.scale > 0 else torch.int64
            if types.is_temporal(kind):
                return torch.int32 if kind.bit_width == 32 else torch.int64
        dtype = _DTYPES.get(kind.name if isinstance(kind, np.dtype) else str(kind))
        if dtype is None:
            raise ValueError(f"table {self.name!r}: expected numbers, got {kind}")
        return dtype

    def _dtype_of_text(self, parts: Sequence[Numbers]) -> torch.dtype:
        """Returns the dtype of the values of text that have been read, with those of a batch."""
        for part in parts:
            kind, missing = part.values.dtype.kind, part.missing
            if missing is None or not missing.all():
                needs_nan = missing is not None and self._nan == "keep" and kind != "b"
                self._kinds.add("f" if needs_nan else kind)
        if "b" in self._kinds and len(self._kinds) > 1:
            raise ValueError(
                f"table {self.name!r}: some values are true or false, others are numbers"
            )
        known = [dtype for kind, dtype in _TEXT_DTYPES.items() if kind in self._kinds]
        return known[-1] if known else torch.int64


def _common(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    """Returns the dtype that holds the values of two dtypes."""
    if first == second:
        return first
    both = (torch.empty(0, dtype=dtype, device="cpu").numpy().dtype for dtype in (first, second))
    return _DTYPES[np.result_type(*both).name]
