"""Columns of NumPy, Arrow or torch as numbers; rows without a number are found."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from peergraph.store.ingest.read.optional import require
from peergraph.store.ingest.values.text import text_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

Mask: TypeAlias = "NDArray[np.bool_]"

MISSING = "is missing"
NOT_WHOLE = "is no whole number"
TOO_LARGE = "is too large"
ROUNDED = "would be rounded"
OTHER_LENGTH = "is a list of another length"
NAN = "is NaN"

_INT64 = np.iinfo(np.int64)
_EXACT_DOUBLE = 2**53


@dataclass
class Problems:
    """The reasons why rows have no value: a mask ``[n]`` for each reason."""

    masks: dict[str, Mask] = field(default_factory=dict)

    def add(self, reason: str, mask: Mask) -> None:
        """Adds rows: those of a mask ``[n]``, or those with a value of a mask ``[n, ...]``."""
        if mask.any():
            rows = np.asarray(mask.reshape(len(mask), -1).any(axis=1))
            known = self.masks.get(reason)
            self.masks[reason] = rows if known is None else known | rows

    def add_all(self, others: Problems, what: str) -> None:
        """Adds rows with the problems of one value.

        Args:
            what: names the value, before each reason.
        """
        for reason, mask in others.masks.items():
            self.add(f"{what} {reason}", mask)

    def any(self, num_rows: int) -> Mask:
        """Returns which rows have a problem."""
        rows = np.zeros(num_rows, np.bool_)
        for mask in self.masks.values():
            rows |= mask
        return rows


@dataclass(frozen=True)
class Numbers:
    """Values of a column.

    Args:
        values: ``[n, ...]`` booleans, signed or small unsigned integers, or floats.
        missing: a mask of the missing values, which are 0; None: there are none.
    """

    values: NDArray[Any]
    missing: Mask | None = None


def to_numbers(column: Any, problems: Problems, time: Any = None, width: int = -1) -> Numbers:
    """Returns the numbers of a column. Rows whose value is none are added to the problems.

    Args:
        column: an array of NumPy or Arrow, or a tensor.
        time: Arrow's type of times, whose unit all values get.
        width: the length of lists; -1: that of the first one.

    Raises:
        ValueError: a column of a type that stands for no numbers.
    """
    if isinstance(column, Tensor):
        column = column.detach().cpu()
        try:
            column = column.numpy()
        except TypeError:  # of a dtype that NumPy does not know, and that float32 holds
            column = column.float().numpy()
    if isinstance(column, np.ndarray):
        if column.dtype.kind not in "biuf" or column.dtype.itemsize > 8:
            raise ValueError(f"expected numbers, got {column.dtype}")
        if not column.dtype.isnative:
            column = column.astype(column.dtype.newbyteorder("="))
        return Numbers(_signed(column, problems))
    arrow = require("pyarrow", "Arrow arrays")
    types = arrow.types
    if isinstance(column, arrow.ChunkedArray):
        column = column.combine_chunks()
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if is_list(kind):
        return _lists(column, problems, time, width)
    if types.is_string(kind) or types.is_large_string(kind) or "string_view" in str(kind):
        return Numbers(*text_numbers(column.cast(arrow.string()), problems))
    missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    if types.is_null(kind):
        return Numbers(np.zeros(len(column), np.int64), missing)
    if types.is_decimal(kind):
        return Numbers(_decimals(column, problems), missing)
    if time is not None:
        return Numbers(_times(column, time, problems), missing)
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise ValueError(f"expected numbers, got a column of {kind}")
    if missing is not None:
        column = column.fill_null(arrow.scalar(0).cast(kind))
    return Numbers(_signed(_as_numpy(column), problems), missing)


def to_whole_numbers(values: NDArray[Any], problems: Problems) -> NDArray[Any]:
    """Returns int32 or int64. Floats that are no whole numbers become 0, and are added to the
    problems.
    """
    if values.dtype.kind != "f":
        return (
            values
            if values.dtype.itemsize >= 4 and values.dtype.kind == "i"
            else (values.astype(np.int64 if values.dtype.itemsize >= 4 else np.int32))
        )
    with np.errstate(invalid="ignore"):
        whole = np.isfinite(values) & (np.abs(values) < 2.0**63) & (np.floor(values) == values)
    problems.add(NOT_WHOLE, ~whole)
    return np.where(whole, values, 0).astype(np.int64)


def to_dtype(
    numbers: Numbers, dtype: torch.dtype, nan: str, is_text: bool, problems: Problems
) -> Tensor:
    """Converts numbers to a dtype. A value that would change is a problem, and 0.

    Args:
        nan: the treatment of missing values and NaN: ``"error"``, ``"keep"`` or ``"zero"``.
        is_text: whether the values come from text: then whole numbers must not be rounded, also
            where they are floats.
    """
    values, is_float = numbers.values, dtype.is_floating_point or dtype.is_complex
    empty = numbers.missing
    keeps = nan == "keep" and is_float
    if empty is not None and nan != "zero" and not keeps:
        problems.add(MISSING, empty)
    if values.dtype.kind == "f":
        is_nan = np.isnan(values)
        if is_nan.any() and not keeps:
            if nan != "zero":
                problems.add(NAN, is_nan if empty is None else is_nan & ~empty)
            values = np.where(is_nan, np.zeros((), values.dtype), values)
    if not is_float:
        if values.dtype != np.bool_:
            values = to_whole_numbers(values, problems)
            least, most = (0, 1) if dtype == torch.bool else _limits(dtype)
            if values.size and (int(values.min()) < least or int(values.max()) > most):
                outside = (values < least) | (values > most)
                problems.add(TOO_LARGE if most > 1 else "is neither 0 nor 1", outside)
                values = np.where(outside, 0, values)
        return as_tensor(np.ascontiguousarray(values)).to(dtype)
    given = as_tensor(np.ascontiguousarray(values))
    rows = given.to(dtype)
    held = (rows.real if dtype.is_complex else rows).double()
    if values.dtype.kind == "f":
        # Some dtypes have no infinity: torch takes their largest value then.
        large = given.isfinite() & ((given.abs() > _most(dtype)) | ~held.isfinite())
        problems.add(TOO_LARGE, large.numpy())
        if is_text and rows.dtype.itemsize < values.dtype.itemsize:
            whole = (given == given.floor()) & (given.abs() < _EXACT_DOUBLE)
            problems.add(ROUNDED, (whole & (held != given)).numpy())
    elif values.dtype.kind in "iu" and values.size and _largest(values) > 2 ** _precision(dtype):
        whole = given.long()
        in_range = held.abs() < 2.0**63
        same = in_range & (torch.where(in_range, held, 0).long() == whole)
        problems.add(ROUNDED, (~same).numpy())
    if keeps and empty is not None:
        rows = torch.where(torch.from_numpy(empty), torch.nan, rows)
    return rows


def as_tensor(values: NDArray[Any]) -> Tensor:
    """Returns a tensor on the same memory. Do not write to it if the array is read-only, as Arrow's
    arrays are; torch would warn about it.
    """
    if values.flags.writeable:
        return torch.from_numpy(values)
    if values.size == 0:
        return torch.from_numpy(values.copy())
    values = values.view()
    address = values.__array_interface__
    owner = _Writable({**address, "data": (address["data"][0], False)}, values)
    return torch.from_numpy(np.asarray(owner))


class _Writable:
    """Memory that NumPy takes for writable."""

    def __init__(self, interface: dict[str, Any], owner: NDArray[Any]) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def is_list(kind: Any) -> bool:
    """Returns whether a type of Arrow is one of lists."""
    types = require("pyarrow", "Arrow arrays").types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _largest(values: NDArray[Any]) -> int:
    return max(-int(values.min()), int(values.max()))


def _limits(dtype: torch.dtype) -> tuple[int, int]:
    limits = torch.iinfo(dtype)
    return limits.min, limits.max


def _most(dtype: torch.dtype) -> float:
    """Returns a value that is larger than all that are rounded to the largest of a dtype."""
    limits = torch.finfo(_real(dtype))
    return min(limits.max * (1 + limits.eps / 2), float(np.finfo(np.float64).max))


def _precision(dtype: torch.dtype) -> int:
    """Returns the bits up to which a dtype holds all whole numbers."""
    return 1 - round(math.log2(torch.finfo(_real(dtype)).eps))


def _real(dtype: torch.dtype) -> torch.dtype:
    return torch.empty(0, dtype=dtype).real.dtype if dtype.is_complex else dtype


def _signed(values: NDArray[Any], problems: Problems) -> NDArray[Any]:
    """Converts unsigned integers that torch cannot compute with."""
    if values.dtype.kind != "u" or values.dtype.itemsize == 1:
        return values
    if values.dtype.itemsize == 8:
        large = values > np.uint64(_INT64.max)
        problems.add(TOO_LARGE, large)
        values = np.where(large, np.uint64(0), values) if large.any() else values
    return values.astype(np.int32 if values.dtype.itemsize == 2 else np.int64)


def _as_numpy(column: Any) -> NDArray[Any]:
    if "bool" in str(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.from_dlpack(column)  # to_numpy imports pandas, which takes a second


def _lists(column: Any, problems: Problems, time: Any, width: int) -> Numbers:
    """Returns [n, width] of a column of lists of one length; a missing list is a missing value."""
    compute = require("pyarrow.compute", "Arrow arrays")
    lengths = compute.list_value_length(column).fill_null(-1).to_numpy(zero_copy_only=False)
    if width < 0:
        width = int(lengths[lengths >= 0][0]) if (lengths >= 0).any() else 0
    problems.add(OTHER_LENGTH, (lengths != width) & (lengths >= 0))
    usable = lengths == width
    if not usable.all():
        column = column.filter(require("pyarrow", "Arrow arrays").array(usable))
    inner = Problems()
    numbers = to_numbers(column.flatten(), inner, time)
    shape = (int(usable.sum()), width)

    def spread(values: NDArray[Any], rest: Any) -> NDArray[Any]:
        rows = np.full((len(usable), width), rest, values.dtype)
        rows[usable] = values.reshape(shape)
        return rows

    for reason, mask in inner.masks.items():
        problems.add(reason, spread(mask, False))
    missing = numbers.missing
    if missing is not None or (lengths < 0).any():
        missing = spread(np.zeros(shape, np.bool_) if missing is None else missing, False)
        missing[lengths < 0] = True
    values = numbers.values.reshape(shape) if usable.all() else spread(numbers.values, 0)
    return Numbers(values, missing)


def _decimals(column: Any, problems: Problems) -> NDArray[Any]:
    """Returns int64 of decimals without a fraction, else float64."""
    arrow = require("pyarrow", "Arrow arrays")
    is_whole = column.type.scale <= 0
    if is_whole:
        try:
            return _as_numpy(column.cast(arrow.int64()).fill_null(0))
        except arrow.ArrowInvalid:
            pass
    doubles = _as_numpy(column.cast(arrow.float64(), safe=False).fill_null(0.0)).copy()
    large = np.flatnonzero(np.abs(doubles) >= _EXACT_DOUBLE)
    bad = np.zeros(len(column), np.bool_)
    whole = np.where(np.abs(doubles) < _EXACT_DOUBLE, doubles, 0).astype(np.int64)
    for row in large.tolist():
        value = column[row].as_py()
        if is_whole:
            bad[row] = not _INT64.min <= value <= _INT64.max
            whole[row] = 0 if bad[row] else int(value)
        else:
            bad[row] = value != type(value)(float(doubles[row]))
    problems.add(TOO_LARGE if is_whole else ROUNDED, bad)
    return whole if is_whole else doubles


def _times(column: Any, time: Any, problems: Problems) -> NDArray[Any]:
    """Returns the integers of times in the unit of a type."""
    arrow = require("pyarrow", "Arrow arrays")
    bits = arrow.int32() if time.bit_width == 32 else arrow.int64()
    if column.type != time:
        try:
            column = column.cast(time)
        except arrow.ArrowInvalid:
            usable = [_fits(value, time) for value in column]
            problems.add(TOO_LARGE, ~np.array(usable, np.bool_))
            column = arrow.array(
                [value.value if fits else None for value, fits in zip(column, usable, strict=True)],
                column.type,
            ).cast(time)
    return _as_numpy(column.cast(bits).fill_null(0))


def _fits(value: Any, time: Any) -> bool:
    try:
        value.cast(time)
        return True
    except Exception:
        return False
