"""Columns of NumPy or Arrow as numbers of a dtype: a value that is none, or that the dtype does not
hold, is a problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergraph.store.ingest.read.optional import arrow, compute
from peergraph.store.ingest.values.arrow_arrays import (
    Array,
    Mask,
    as_arrow,
    as_mask,
    as_numpy,
    is_list,
    is_text,
    plain,
)
from peergraph.store.ingest.values.problems import (
    MISSING,
    NAN,
    NOT_WHOLE,
    OTHER_LENGTH,
    ROUNDED,
    TOO_LARGE,
    Problems,
)
from peergraph.store.ingest.values.text import text_numbers

_EXACT_DOUBLE = 2.0**53


@dataclass(frozen=True)
class Numbers:
    """Values ``[n, ...]`` of a column: booleans, signed integers, uint8, or floats; and a mask of
    the missing ones, which are 0 (None: there are none).
    """

    values: Array
    missing: Mask | None = None


def to_numbers(column: Any, problems: Problems, time: Any = None, width: int = -1) -> Numbers:
    """Returns the numbers of a column. Rows whose value is none are added to the problems.

    Args:
        column: an array of NumPy or Arrow.
        time: Arrow's type of times, whose unit all values get.
        width: the length of lists; -1: that of the first one.

    Raises:
        ValueError: a column of a type that stands for no numbers.
    """
    if isinstance(column, np.ndarray):
        if column.dtype.kind not in "biuf" or column.dtype.itemsize > 8:
            raise ValueError(f"expected numbers, got {column.dtype}")
        return Numbers(_signed(column, problems))
    types, kind = arrow.types, column.type
    if is_list(kind):
        return _lists(column, problems, time, width)
    if is_text(kind) or types.is_decimal(kind):
        return Numbers(*text_numbers(column.cast(arrow.string()), problems))
    missing = as_mask(column.is_null()) if column.null_count else None
    if types.is_null(kind):
        return Numbers(np.zeros(len(column), np.int64), missing)
    if time is not None:
        return Numbers(_times(column, time, problems), missing)
    if types.is_boolean(kind):
        return Numbers(as_mask(column), missing)
    if not (types.is_integer(kind) or types.is_floating(kind)):
        raise ValueError(f"expected numbers, got a column of {kind}")
    return Numbers(_signed(as_numpy(column), problems), missing)


def _signed(values: Array, problems: Problems) -> Array:
    """Converts unsigned integers that torch cannot compute with."""
    if values.dtype.kind != "u" or values.dtype.itemsize == 1:
        return values
    signed = values.astype(np.int64)
    if values.dtype.itemsize == 8 and (large := signed < 0).any():
        problems.add(TOO_LARGE, large)
        signed[large] = 0
    return signed


def _lists(column: Any, problems: Problems, time: Any, width: int) -> Numbers:
    """Returns [n, width] of a column of lists of one length; a missing list is a missing value."""
    lengths, is_missing = as_numpy(compute.list_value_length(column)), as_mask(column.is_null())
    if width < 0:
        width = int(lengths[~is_missing][0]) if not is_missing.all() else 0
    usable = (lengths == width) & ~is_missing
    problems.add(OTHER_LENGTH, ~usable & ~is_missing)
    if not usable.all():
        column = column.filter(as_arrow(usable))
    items = plain(column.flatten())
    of_items = Problems(len(items))
    numbers = to_numbers(items, of_items, time)

    def rows(values: Array) -> Array:
        if usable.all():
            return values.reshape(-1, width)
        spread = np.zeros((len(usable), width), values.dtype)
        spread[usable] = values.reshape(-1, width)
        return spread

    for reason, mask in of_items.masks.items():
        problems.add(reason, rows(mask))
    missing = None if numbers.missing is None else rows(numbers.missing)
    if is_missing.any():
        missing = np.zeros((len(usable), width), np.bool_) if missing is None else missing
        missing[is_missing] = True
    return Numbers(rows(numbers.values), missing)


def _times(column: Any, time: Any, problems: Problems) -> Array:
    """Returns the integers of times in the unit of a type."""
    bits = arrow.int32() if time.bit_width == 32 else arrow.int64()
    if column.type != time:
        original, column = column, column.cast(time, safe=False)
        changed = compute.not_equal(original, column.cast(original.type, safe=False))
        problems.add(TOO_LARGE, as_mask(changed))
    return as_numpy(column.cast(bits))


def to_dtype(
    numbers: Numbers, dtype: torch.dtype, nan: str, is_text: bool, problems: Problems
) -> Tensor:
    """Converts numbers to a dtype. Reports a value that the dtype cannot hold exactly as a problem.

    Args:
        nan: the treatment of missing values and NaN: ``"error"``, ``"keep"`` or ``"zero"``.
        is_text: whether the values come from text: then whole numbers must not be rounded, also
            where they are floats.
    """
    values, missing = numbers.values, numbers.missing
    keeps = nan == "keep" and (dtype.is_floating_point or dtype.is_complex)
    if missing is not None and nan != "zero" and not keeps:
        problems.add(MISSING, missing)
    if values.dtype.kind == "f" and not keeps and (empty := np.isnan(values)).any():
        if nan != "zero":
            problems.add(NAN, empty)
        values = np.where(empty, np.zeros((), values.dtype), values)
    values = np.ascontiguousarray(values)
    if not values.flags.writeable:
        values = values.copy()  # torch warns about others
    if dtype.is_complex:
        rows = _to_float(values, dtype.to_real(), is_text, problems).to(dtype)
    elif dtype.is_floating_point:
        rows = _to_float(values, dtype, is_text, problems)
    else:
        rows = _to_integer(values, dtype, problems)
    if keeps and missing is not None:
        rows = torch.where(torch.from_numpy(missing), torch.nan, rows)
    return rows


def _to_integer(values: Array, dtype: torch.dtype, problems: Problems) -> Tensor:
    target = torch.empty(0, dtype=dtype).numpy().dtype
    if values.dtype == target:
        return torch.from_numpy(values)
    with np.errstate(invalid="ignore"):
        rows = values.astype(target)
        changed = (rows.astype(values.dtype) != values) | ((rows < 0) != (values < 0))
    if values.dtype.kind == "f":
        changed |= ~(np.abs(values) < 2.0**63)  # casts of larger ones differ between machines
        problems.add(NOT_WHOLE, np.isfinite(values) & (np.floor(values) != values))
    problems.add("is neither 0 nor 1" if dtype == torch.bool else TOO_LARGE, changed)
    return torch.from_numpy(rows)


def _to_float(values: Array, dtype: torch.dtype, is_text: bool, problems: Problems) -> Tensor:
    exact = torch.from_numpy(values)
    rows = exact.to(dtype)
    if rows.dtype == exact.dtype or values.dtype.kind == "b":
        return rows
    held = rows.double().numpy()
    with np.errstate(invalid="ignore", over="ignore"):
        if values.dtype.kind == "f":
            # Some dtypes have no infinity: torch takes NaN or their largest value then.
            half_step = 0.51 * torch.finfo(dtype).eps
            close = np.abs(held - values) <= np.abs(values) * half_step
            problems.add(TOO_LARGE, np.isfinite(values) & (np.abs(values) > 1) & ~close)
            if is_text:
                whole = (np.floor(values) == values) & (np.abs(values) < _EXACT_DOUBLE)
                problems.add(ROUNDED, whole & (held != values))
        else:
            in_range = np.abs(held) < 2.0**63
            problems.add(ROUNDED, ~in_range | (held.astype(np.int64) != values))
    return rows
