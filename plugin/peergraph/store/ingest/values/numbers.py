"""Converts columns of NumPy or Arrow to numbers, and finds the rows without a number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from peergraph.store.ingest.read.optional import require

if TYPE_CHECKING:
    from numpy.typing import NDArray

Mask: TypeAlias = "NDArray[np.bool_]"

MISSING = "is missing"
NO_NUMBER = "is no number"
NOT_WHOLE = "is no whole number"
TOO_LARGE = "is too large"
NAN = "is NaN"


@dataclass
class Problems:
    """The reasons why rows have no value: a mask ``[n]`` for each reason."""

    masks: dict[str, Mask] = field(default_factory=dict)

    def add(self, reason: str, mask: Mask) -> None:
        """Adds rows."""
        if mask.any():
            known = self.masks.get(reason)
            self.masks[reason] = mask if known is None else known | mask

    def add_all(self, others: Problems, what: str) -> None:
        """Adds rows with the problems of one value.

        Args:
            what: names the value, before each reason.
        """
        for reason, mask in others.masks.items():
            self.add(f"{what} {reason}", mask)

    def any(self, num_rows: int) -> Mask:
        """Returns which rows have a problem."""
        found = np.zeros(num_rows, np.bool_)
        for mask in self.masks.values():
            found |= mask
        return found


def to_numbers(column: Any, problems: Problems, missing_is_nan: bool = False) -> NDArray[Any]:
    """Returns the numbers of a column ``[n]`` or ``[n, width]``: integers, floats or booleans in
    the machine's byte order. Rows without one are added to the problems, and have 0.

    Args:
        column: an array of NumPy or Arrow.
        missing_is_nan: a missing value of a column of floats is NaN, and no problem here.

    Raises:
        TypeError: a column of a type that stands for no numbers.
    """
    if isinstance(column, np.ndarray):
        if column.dtype.kind not in "biuf":
            raise TypeError(f"expected numbers, got {column.dtype}")
        return column if column.dtype.isnative else column.astype(column.dtype.newbyteorder("="))
    arrow = require("pyarrow", "Arrow arrays")
    types = arrow.types
    if isinstance(column, arrow.ChunkedArray):
        column = column.combine_chunks()
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(column, problems, missing_is_nan)
    if types.is_timestamp(kind) or types.is_date64(kind) or types.is_time64(kind):
        column = column.cast(arrow.int64(), safe=False)
    elif types.is_date32(kind) or types.is_time32(kind):
        column = column.cast(arrow.int32())
    elif types.is_string(kind) or types.is_large_string(kind):
        column = _parsed(column, problems)
    elif types.is_decimal(kind):
        column = column.cast(arrow.float64() if kind.scale > 0 else arrow.int64(), safe=False)
    elif types.is_null(kind):
        column = column.cast(arrow.float64() if missing_is_nan else arrow.int64())
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise TypeError(f"expected numbers, got a column of {kind}")
    if column.null_count:
        is_float = types.is_floating(column.type)
        if not (is_float and missing_is_nan):
            missing = column.is_null().to_numpy(zero_copy_only=False)
            problems.add(MISSING, missing & ~problems.any(len(missing)))
        empty = float("nan") if is_float and missing_is_nan else 0
        column = column.fill_null(arrow.scalar(empty).cast(column.type))
    if types.is_boolean(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.from_dlpack(column)  # to_numpy imports pandas, which takes a second


def to_whole_numbers(values: NDArray[Any], problems: Problems) -> NDArray[Any]:
    """Returns int32 or int64. Floats and unsigned integers that do not fit become 0, and are added
    to the problems.
    """
    kind, size = values.dtype.kind, values.dtype.itemsize
    if kind == "b" or (kind == "i" and size < 4) or (kind == "u" and size < 4):
        return values.astype(np.int32)
    if kind == "i":
        return values
    if kind == "u":
        if size == 8:
            problems.add(TOO_LARGE, _per_row(values > np.uint64(np.iinfo(np.int64).max)))
        return values.astype(np.int64)
    with np.errstate(invalid="ignore"):
        whole = np.isfinite(values) & (np.abs(values) < 2.0**63) & (np.floor(values) == values)
    problems.add(NOT_WHOLE, _per_row(~whole) & ~problems.any(len(values)))
    return np.where(whole, values, 0).astype(np.int64)


def _per_row(mask: Any) -> Mask:
    return np.asarray(mask if mask.ndim == 1 else mask.any(axis=1))


def _lists(column: Any, problems: Problems, missing_is_nan: bool) -> NDArray[Any]:
    """Returns [n, width] of a column of lists of one length."""
    arrow = require("pyarrow", "Arrow arrays")
    if column.null_count:
        raise TypeError(f"{column.null_count} lists are missing; fill them with a WHERE or a query")
    if arrow.types.is_fixed_size_list(column.type):
        width = column.type.list_size
    else:
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        width = int(lengths[0]) if len(lengths) else 0
        if (lengths != width).any():
            at = int((lengths != width).argmax())
            raise TypeError(f"lists must have one length, have {width} and {int(lengths[at])}")
    inner = Problems()
    values = to_numbers(column.flatten(), inner, missing_is_nan).reshape(len(column), width)
    for reason, mask in inner.masks.items():
        problems.add(reason, _per_row(mask.reshape(len(column), width)))
    return values


def _parsed(column: Any, problems: Problems) -> Any:
    """Converts strings to int64 if all are whole numbers, else to float64."""
    arrow = require("pyarrow", "Arrow arrays")
    compute = require("pyarrow.compute", "Arrow arrays")
    text = compute.utf8_trim_whitespace(column)
    text = compute.if_else(compute.equal(text, ""), arrow.scalar(None, text.type), text)
    try:
        return text.cast(arrow.int64())
    except arrow.ArrowInvalid:
        pass
    pattern = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?(?i:nan|inf|infinity)$"
    is_number = compute.match_substring_regex(text, pattern)
    bad = compute.invert(compute.fill_null(is_number, True)).to_numpy(zero_copy_only=False)
    problems.add(NO_NUMBER, bad)
    text = compute.if_else(arrow.array(bad), arrow.scalar("0", text.type), text)
    try:
        return text.cast(arrow.int64())
    except arrow.ArrowInvalid:
        return text.cast(arrow.float64())
