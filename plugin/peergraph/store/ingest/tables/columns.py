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

from peergraph.store.ingest.graph_files import Columns, Rows
from peergraph.store.ingest.read.file_list import is_array_path
from peergraph.store.ingest.read.optional import arrow
from peergraph.store.ingest.values.arrow_arrays import common_type, value_type

_DTYPES: dict[str, torch.dtype] = {
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


def chosen_columns(table: Columns, names: Sequence[str]) -> tuple[list[str], bool]:
    """Returns the columns of a table among some names, and whether they make a matrix.

    Raises:
        ValueError: there is no such column.
    """
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


def type_of_column(kinds: Sequence[Any], column: str) -> Any:
    """Returns the type that holds the values of a column in all files: one of Arrow, NumPy or
    torch; None: they are text.

    Args:
        kinds: the types of the column in all files; none for text.
        column: the name of the column.

    Raises:
        ValueError: there is none.
    """
    if not kinds:
        return None
    if isinstance(kinds[0], (np.dtype, torch.dtype)):
        return np.result_type(*kinds) if len(set(kinds)) > 1 else kinds[0]
    kind = common_type([value_type(kind) for kind in kinds], f"column {column!r}")
    return None if "string" in str(kind) else kind


def is_time(kind: Any) -> bool:
    """Returns whether a type is one of times of Arrow."""
    if kind is None or isinstance(kind, (np.dtype, torch.dtype)):
        return False
    return bool(arrow.types.is_temporal(kind))


def common_dtype(kinds: Sequence[Any]) -> torch.dtype | None:
    """Returns the dtype that holds the values of columns; None where they are text, or all missing.

    Raises:
        ValueError: some are text, others are numbers; or a type has no numbers.
    """
    dtypes = [_dtype(kind) for kind in kinds if kind is not None and str(kind) != "null"]
    if dtypes and any(kind is None for kind in kinds):
        raise ValueError(
            "columns are text in one place and numbers in another: convert them to one type"
        )
    return reduce(_common, dtypes) if dtypes else None


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
    if first == second:
        return first
    both = (torch.empty(0, dtype=dtype, device="cpu").numpy().dtype for dtype in (first, second))
    return _DTYPES[np.result_type(*both).name]
