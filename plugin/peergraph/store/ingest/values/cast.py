"""Numbers in a dtype: a value that the dtype does not hold is a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from peergraph.store.ingest.values.numbers import Numbers
from peergraph.store.ingest.values.problems import (
    MISSING,
    NAN,
    NOT_WHOLE,
    ROUNDED,
    TOO_LARGE,
    Problems,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EXACT_DOUBLE = 2.0**53


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


def _to_integer(values: NDArray[Any], dtype: torch.dtype, problems: Problems) -> Tensor:
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


def _to_float(
    values: NDArray[Any], dtype: torch.dtype, is_text: bool, problems: Problems
) -> Tensor:
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
