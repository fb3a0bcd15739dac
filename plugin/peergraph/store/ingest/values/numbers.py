"""Converts columns to numbers of a dtype, or to ids. A value that is no number, or that the
conversion would change, is a bad row.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from peergraph.store.ingest.read.optional import arrow, compute
from peergraph.store.ingest.read.row_source import Batch, Problems, RowSource
from peergraph.store.ingest.values import arrow_arrays
from peergraph.store.ingest.values.arrow_arrays import Array, Integers, Mask, as_mask, as_numpy

ValueKind = Literal["number", "text"]

MIXED_TEXT = "some values are true or false, others are numbers"
_IS_MISSING = "is missing"
_ROUNDED = "would be rounded"
_TOO_LARGE = "is too large"
_MISSING = "^(|#?N/A|NA|n/a|NULL|[Nn]ull|None|<NA>)$"
_TRUE, _FALSE = "^(true|True|TRUE)$", "^(false|False|FALSE)$"
_NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?(?i:nan|inf|infinity)$"
_WHOLE = r"^[+-]?[0-9]+(\.0*)?$"
_PLAIN_NUMBER = r"^\s*-?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]+)?\s*$"
_PLAIN_WHOLE = r"^\s*(0|-?[1-9][0-9]*)\s*$"
_EXACT_DOUBLE = 2.0**53


class Numbers(NamedTuple):
    """Values ``[n, ...]`` of a column: booleans, signed integers, uint8, or floats; and a mask of
    the missing ones, which are 0 (None: there are none). `text_kind` is NumPy's kind of the values
    of text, ``"b"``, ``"i"`` or ``"f"``, if there are any.
    """

    values: Array
    missing: Mask | None = None
    text_kind: str = ""


def to_numbers(column: Any, problems: Problems, time: Any = None, width: int = -1) -> Numbers:
    """Returns the numbers of a column. Rows whose value is none are added to the problems.

    Args:
        time: Arrow's type of times, whose unit all values get.
        width: the length of lists; -1: that of the first one.
    """
    types, kind = arrow.types, column.type
    if arrow_arrays.is_list(kind):
        return _lists(column, problems, time, width)
    if arrow_arrays.is_text(kind):
        return text_numbers(column, problems)
    if types.is_decimal(kind):
        return text_numbers(column.cast(arrow.string()), problems)._replace(text_kind="")
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
        problems.add(_TOO_LARGE, large)
        signed[large] = 0
    return signed


def _lists(column: Any, problems: Problems, time: Any, width: int) -> Numbers:
    """Returns [n, width, ...] of a column of lists of one length; a missing list is a missing
    value.
    """
    if arrow_arrays.is_list(column.type.value_type) and not arrow_arrays.row_shape(column.type):
        raise ValueError(f"expected lists of numbers, got a column of {column.type}")
    lengths, _is_missing = as_numpy(compute.list_value_length(column)), as_mask(column.is_null())
    if width < 0:
        width = getattr(column.type, "list_size", -1)
        if width < 0 and _is_missing.all():
            raise ValueError("the first rows have no list, so that the length of lists is unknown")
        width = int(lengths[~_is_missing][0]) if width < 0 else width
    usable = (lengths == width) & ~_is_missing
    problems.add("is a list of another length", ~usable & ~_is_missing)
    if not usable.all():
        column = column.filter(arrow_arrays.as_arrow(usable))
    items = arrow_arrays.plain(column.flatten())
    of_items = Problems(len(items))
    numbers = to_numbers(items, of_items, time)

    def rows(values: Array) -> Array:
        values = values.reshape(int(usable.sum()), width, *values.shape[1:])
        if usable.all():
            return values
        spread = np.zeros((len(usable), *values.shape[1:]), values.dtype)
        spread[usable] = values
        return spread

    for reason, mask in of_items.masks.items():
        problems.add(reason, rows(mask))
    values = rows(numbers.values)
    missing = None if numbers.missing is None else rows(numbers.missing)
    if _is_missing.any():
        missing = np.zeros(values.shape, np.bool_) if missing is None else missing
        missing[_is_missing] = True
    return Numbers(values, missing, numbers.text_kind)


def _times(column: Any, time: Any, problems: Problems) -> Array:
    """Returns the integers of times in the unit of a type."""
    bits = arrow.int32() if time.bit_width == 32 else arrow.int64()
    if column.type != time:
        original, column = column, column.cast(time, safe=False)
        changed = compute.not_equal(original, column.cast(original.type, safe=False))
        problems.add(_TOO_LARGE, as_mask(changed))
    return as_numpy(column.cast(bits))


def to_dtype(numbers: Numbers, dtype: torch.dtype, nan: str, problems: Problems) -> Tensor:
    """Converts numbers to a dtype. Reports a value that the dtype cannot hold exactly as a problem:
    also whole numbers among the decimals of text.

    Args:
        nan: the treatment of missing values and NaN: ``"error"``, ``"keep"`` or ``"zero"``.
    """
    values, missing = numbers.values, numbers.missing
    keeps = nan == "keep" and (dtype.is_floating_point or dtype.is_complex)
    if missing is not None and nan != "zero" and not keeps:
        problems.add(_IS_MISSING, missing)
    if values.dtype.kind == "f" and not keeps and (empty := np.isnan(values)).any():
        if nan != "zero":
            problems.add("is NaN", empty)
        values = np.where(empty, np.zeros((), values.dtype), values)
    # torch warns about arrays that are read-only.
    values = np.require(values, requirements=["C", "W"])
    with np.errstate(invalid="ignore", over="ignore"):
        if dtype.is_floating_point or dtype.is_complex:
            rows = _to_float(values, dtype, numbers.text_kind == "f", problems)
        else:
            rows = _to_integer(values, dtype, problems)
    if keeps and missing is not None:
        rows = torch.where(torch.from_numpy(missing), torch.nan, rows)
    return rows


def _to_integer(values: Array, dtype: torch.dtype, problems: Problems) -> Tensor:
    target = torch.empty(0, dtype=dtype).numpy().dtype
    if values.dtype == target:
        return torch.from_numpy(values)
    rows = values.astype(target)
    changed = (rows.astype(values.dtype) != values) | ((rows < 0) != (values < 0))
    if values.dtype.kind == "f":
        changed |= ~(np.abs(values) < 2.0**63)  # casts of larger ones differ between machines
        problems.add("is no whole number", np.isfinite(values) & (np.floor(values) != values))
    problems.add("is neither 0 nor 1" if dtype == torch.bool else _TOO_LARGE, changed)
    return torch.from_numpy(rows)


def _to_float(values: Array, dtype: torch.dtype, is_text: bool, problems: Problems) -> Tensor:
    exact = torch.from_numpy(values)
    rows = exact.to(dtype)
    if rows.dtype == exact.dtype or values.dtype.kind == "b":
        return rows
    as_float = (rows.real if dtype.is_complex else rows).double().numpy()
    if values.dtype.kind != "f":
        in_range = np.abs(as_float) < 2.0**63
        problems.add(_ROUNDED, ~in_range | (as_float.astype(np.int64) != values))
        return rows
    # Some dtypes have no infinity: torch takes NaN or their largest value then.
    half_step = 0.51 * torch.finfo(dtype).eps
    close = np.abs(as_float - values) <= np.abs(values) * half_step
    problems.add(_TOO_LARGE, np.isfinite(values) & (np.abs(values) > 1) & ~close)
    if is_text:
        whole = (np.floor(values) == values) & (np.abs(values) < _EXACT_DOUBLE)
        problems.add(_ROUNDED, whole & (as_float != values))
    return rows


def _plain_whole_numbers(column: Any) -> Integers | None:
    """Returns the numbers of strings that all are whole numbers of 64 bits as programs write them,
    without spaces, a plus sign or zeros in front. None: there are others.
    """
    if column.null_count:
        return None
    # Arrow takes zeros in front and hexadecimal numbers, too.
    zeros = column.filter(compute.starts_with(column, "0"))
    if as_numpy(compute.binary_length(zeros)).max(initial=0) > 1:
        return None
    try:
        whole = as_numpy(column.cast(arrow.int64()))
    except arrow.ArrowInvalid:
        return None
    if whole.min(initial=1) <= 0 and compute.any(compute.starts_with(column, "-0")).as_py():
        return None
    return whole


def _matches(column: Any, pattern: str) -> Mask:
    """Returns which strings match a pattern."""
    return as_mask(compute.match_substring_regex(column, pattern))


def _is_missing(column: Any) -> Mask:
    """Returns which strings are missing, empty or spaces."""
    lengths = as_numpy(compute.binary_length(compute.utf8_trim_whitespace(column)))
    return np.equal(lengths, 0)


def _column_where(mask: Mask, column: Any) -> Any:
    """Returns a column; values outside a mask are missing."""
    return compute.if_else(
        arrow_arrays.as_arrow(mask), column, arrow.nulls(len(column), column.type)
    )


def text_numbers(column: Any, problems: Problems) -> Numbers:
    """Returns booleans if values are true or false, int64 if they are whole numbers, else float64.
    Rows whose value is none of them, or none that can be held, are added to the problems. Raises
    ValueError if some are true or false, and others are numbers.
    """
    if (whole := _plain_whole_numbers(column)) is not None:
        return Numbers(whole, None, "i")
    text = compute.utf8_trim_whitespace(column)
    missing, true = _matches(text, _MISSING) | as_mask(text.is_null()), _matches(text, _TRUE)
    missing_if_any = missing if missing.any() else None
    is_number, is_truth = _matches(text, _NUMBER), true | _matches(text, _FALSE)
    if is_truth.any():
        if is_number.any():
            raise ValueError(MIXED_TEXT)
        problems.add("is neither true nor false", ~is_truth & ~missing)
        return Numbers(true, missing_if_any, "b")
    problems.add("is no number", ~is_number & ~missing)
    text = _column_where(is_number, text)
    doubles = as_numpy(text.cast(arrow.float64())).copy()
    is_whole = _matches(text, _WHOLE) | ~is_number
    large = np.isinf(doubles)
    if large.any():
        large &= ~_matches(text, "(?i)inf")
    rounded = np.zeros(len(doubles), np.bool_)
    values = doubles
    has_point = not is_whole.all() or compute.any(compute.match_substring(text, ".")).as_py()
    if not has_point:
        values = np.where(np.abs(doubles) < _EXACT_DOUBLE, doubles, 0).astype(np.int64)
    for row in np.flatnonzero(is_whole & (np.abs(doubles) >= _EXACT_DOUBLE)).tolist():
        exact = int(text[row].as_py().partition(".")[0])
        if has_point:
            rounded[row] = exact != float(doubles[row])
        elif -(2**63) <= exact < 2**63:
            values[row] = exact
        else:
            large[row] = True
    problems.add(_TOO_LARGE, large)
    problems.add(_ROUNDED, rounded)
    values[large | rounded] = 0
    return Numbers(values, missing_if_any, values.dtype.kind if is_number.any() else "")


def to_node_numbers(column: Any, problems: Problems) -> Array:
    """Returns ``[n]`` int32 or int64, contiguous; rows without a whole number are added to the
    problems.
    """
    if arrow_arrays.is_text(column.type):
        if (whole := _plain_whole_numbers(column)) is not None:
            return whole
        plain = _matches(column, _PLAIN_WHOLE)
        problems.add(_IS_MISSING, _is_missing(column))
        problems.add("is not written as a whole number", ~plain)
        column = _column_where(plain, column)
    numbers = to_numbers(column, problems)
    values = numbers.values
    if values.ndim != 1 or values.dtype.kind == "b":
        raise ValueError(f"an id must be one whole number per row, got {values.dtype}")
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            # From here on, floats are further apart than whole numbers.
            problems.add(_ROUNDED, np.abs(values) >= 2.0 ** (np.finfo(values.dtype).nmant + 1))
    dtype = torch.int32 if values.dtype == np.int32 else torch.int64
    return to_dtype(numbers, dtype, "error", problems).numpy()


def to_keys(column: Any, kind: ValueKind, problems: Problems) -> Any:
    """Converts ids for the look-up: an Arrow array of strings or of int64. Missing ones are added
    to the problems.
    """
    if kind == "number":
        return arrow_arrays.as_arrow(to_node_numbers(column, problems)).cast(arrow.int64())
    if not (arrow_arrays.is_text(column.type) or arrow.types.is_integer(column.type)):
        raise ValueError(f"ids of the nodes are text, these are {column.type}")
    text = column.cast(arrow.string())
    try:
        text.validate(full=True)
    except arrow.ArrowInvalid as error:
        raise ValueError(f"text is not UTF-8: {error}") from None
    problems.add(_IS_MISSING, _is_missing(text))
    return text


class TextKind:
    """Whether the values of a column of text without a declared type are numbers: all of them in
    all files, or none. `what` names the column in messages.
    """

    def __init__(self, source: RowSource, what: str) -> None:
        self._source, self._what = source, what
        self._kind: ValueKind | None = None
        self._first = ""

    def of(self, column: Any, batch: Batch) -> ValueKind | None:
        """Returns what the values of a column of a batch are, or None as long as all are missing.
        Raises ValueError if one value is a number, another is none.
        """
        is_number = _matches(column, _PLAIN_NUMBER)
        kinds: dict[ValueKind, Mask] = {"number": is_number}
        kinds["text"] = ~is_number & ~_is_missing(column)
        for kind, mask in kinds.items():
            if not mask.any():
                continue
            row = int(mask.argmax())
            file, number = self._source.place(int(batch.rows[row]))
            place = f"{str(column[row])!r} ({file}: row {number})"
            if self._kind is None:
                self._kind, self._first = kind, place
            elif self._kind != kind:
                raise ValueError(
                    f"{self._what} has numbers and text: {self._first} and {place}. Mend the "
                    "files, or declare the column's type by csv=CsvFormat(types=...): 'string' "
                    "takes all values as text, 'int64' as numbers"
                )
        return self._kind
