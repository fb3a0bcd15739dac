"""The columns of a table, and the dtype that holds their values."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from functools import reduce
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergraph.store.disk.manifest import DTYPE_NAMES
from peergraph.store.ingest.graph_files import Columns, Rows
from peergraph.store.ingest.read.file_list import is_array_path
from peergraph.store.ingest.read.optional import arrow
from peergraph.store.ingest.read.row_source import RowSource
from peergraph.store.ingest.values.arrow_arrays import common_type, is_text, value_type

_DTYPES = {
    **{"bool": torch.bool, "int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16},
    **{"int32": torch.int32, "int64": torch.int64},
    **{"uint16": torch.int32, "uint32": torch.int64, "uint64": torch.int64},
    **{"float16": torch.float16, "float32": torch.float32, "float64": torch.float64},
    **{"halffloat": torch.float16, "float": torch.float32, "double": torch.float64},
}
"""The dtypes that hold the values of types of NumPy and Arrow."""


def described(table: Any) -> Columns | Rows:
    """Returns the full form of a table that users describe."""
    if isinstance(table, (Columns, Rows)):
        return table
    if is_array_path(table) or isinstance(table, (PathLike, Tensor, np.ndarray)):
        return Rows(table)
    return Columns(table)


def chosen_columns(table: Columns | Rows, names: Sequence[str]) -> tuple[list[str], bool]:
    """Returns the columns of a table among those of its file, and whether they make a matrix.

    Raises:
        ValueError: there is no such column.
    """
    if isinstance(table, Rows):
        return [*names], [*names] != [""]
    columns, is_one = table.columns, False
    if isinstance(columns, str):
        is_one = not any(character in columns for character in "*?[")
        chosen = [columns] if is_one else fnmatch.filter(names, columns)
    elif isinstance(columns, Sequence) and all(isinstance(name, str) for name in columns):
        chosen = [*columns]
    else:
        raise ValueError(f"columns must be names, got {columns!r}")
    missing = [name for name in chosen if name not in names]
    if missing or not chosen:
        what = repr(missing[0]) if missing else f"that matches {columns!r}"
        there = ", ".join(names) if names else "none: there are no files"
        raise ValueError(f"no column {what}; columns: {there}")
    return chosen, not is_one


def declared_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """Returns the dtype that users name. Raises ValueError if there is none of that name."""
    if isinstance(dtype, str) and dtype not in DTYPE_NAMES:
        raise ValueError(f"dtype must be one of {', '.join(sorted(DTYPE_NAMES))}, got {dtype!r}")
    return DTYPE_NAMES[dtype] if isinstance(dtype, str) else dtype


def common_dtype(source: RowSource, columns: Sequence[str]) -> torch.dtype | None:
    """Returns the dtype that holds the values of columns in all files; None: they are text, or all
    missing.

    Raises:
        ValueError: some are text, others are numbers; or a type has no numbers.
    """
    kinds = [kind for column in columns for kind in types_of_column(source, column)]
    dtypes = dict.fromkeys(_dtype(kind) for kind in kinds if not is_text(kind))
    if source.is_text and len(kinds) < len(columns):
        return None
    if any(map(is_text, kinds)):
        if dtypes and not source.is_text:
            raise ValueError(
                "columns are text in one place and numbers in another: convert them to one type"
            )
        return None
    return reduce(_common, dtypes) if dtypes else None


def types_of_column(source: RowSource, column: str) -> list[Any]:
    """Returns the types of a column that has values: Arrow's type that holds those of all files, or
    the dtypes of arrays; none for text without a declared type.

    Raises:
        ValueError: no type holds the values of all files.
    """
    kinds = source.types(column)
    if not kinds or isinstance(kinds[0], (np.dtype, torch.dtype)):
        return kinds
    kind = common_type([value_type(kind) for kind in kinds], f"column {column!r}")
    return [] if arrow.types.is_null(kind) else [kind]


def is_time(kind: Any) -> bool:
    """Returns whether a type is one of times of Arrow."""
    is_dtype = isinstance(kind, (np.dtype, torch.dtype))
    return not is_dtype and bool(arrow.types.is_temporal(kind))


def _dtype(kind: Any) -> torch.dtype:
    """Returns the dtype that holds the values of a type of Arrow, NumPy or torch."""
    if isinstance(kind, torch.dtype):
        return kind
    if not isinstance(kind, np.dtype):
        if arrow.types.is_decimal(kind):
            return torch.float64 if kind.scale > 0 else torch.int64
        if is_time(kind):
            return torch.int32 if kind.bit_width == 32 else torch.int64
    dtype = _DTYPES.get(kind.name if isinstance(kind, np.dtype) else str(kind))
    if dtype is None:
        raise ValueError(f"expected numbers, got {kind}")
    return dtype


def _common(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    both = (torch.empty(0, dtype=dtype, device="cpu").numpy().dtype for dtype in (first, second))
    return _DTYPES[np.result_type(*both).name]
