"""Text as numbers: every value is the number that it is written as, or a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from peergraph.store.ingest.read.optional import require

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from peergraph.store.ingest.values.numbers import Mask, Problems

NO_NUMBER = "is no number"
_NULLS = ["", "NA", "N/A", "n/a", "#N/A", "NULL", "Null", "null", "None", "<NA>"]
_FLAGS = ["true", "false", "True", "False", "TRUE", "FALSE"]
WHOLE = r"^[+-]?[0-9]+$"
PLAIN_WHOLE = r"^(-?[1-9][0-9]*|0)$"
NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?(?i:nan|inf|infinity)$"


def text_numbers(column: Any, problems: Problems) -> tuple[NDArray[Any], Mask | None]:
    """Returns booleans if all values are true or false, int64 if all are whole numbers, else
    float64; and a mask of the missing values, if there are any.

    Args:
        column: an array of strings of Arrow.
        problems: gets the rows whose value is no number, or none that can be held.
    """
    arrow = require("pyarrow", "Arrow arrays")
    compute = require("pyarrow.compute", "Arrow arrays")
    whole = whole_numbers(column)
    if whole is not None:
        return whole, None
    text = compute.utf8_trim_whitespace(column)
    empty = compute.is_in(text, value_set=arrow.array(_NULLS)).fill_null(True)
    empty = compute.or_(empty, text.is_null())
    missing = empty.to_numpy(zero_copy_only=False)
    missing_or_none = missing if missing.any() else None
    filled = compute.if_else(empty, arrow.scalar("0"), text)
    whole = whole_numbers(filled)
    if whole is not None:
        return whole, missing_or_none
    flags = compute.is_in(text, value_set=arrow.array(_FLAGS))
    if compute.all(compute.or_(flags, empty)).as_py():
        first = compute.utf8_lower(filled)
        return compute.equal(first, "true").to_numpy(zero_copy_only=False), missing_or_none
    is_number = compute.match_substring_regex(filled, NUMBER)
    problems.add(NO_NUMBER, ~is_number.to_numpy(zero_copy_only=False))
    filled = compute.if_else(is_number, filled, arrow.scalar("0"))
    is_whole = compute.match_substring_regex(filled, WHOLE).to_numpy(zero_copy_only=False)
    doubles = np.from_dlpack(filled.cast(arrow.float64())).copy()
    if is_whole.all():
        return _large_whole(filled, doubles, problems), missing_or_none
    large = np.isinf(doubles) & ~_starts_with_letter(filled)
    for row in np.flatnonzero(is_whole & (np.abs(doubles) >= 2.0**53) & ~large).tolist():
        large[row] = int(filled[row].as_py()) != int(doubles[row])
    problems.add("is too large", large)
    doubles[large] = 0
    return doubles, missing_or_none


def whole_numbers(column: Any) -> NDArray[np.int64] | None:
    """Returns the numbers of strings that all are whole numbers of 64 bits, of digits only."""
    arrow = require("pyarrow", "Arrow arrays")
    if column.null_count:
        return None
    characters, _ = _buffers(column)
    # Arrow takes hexadecimal numbers, too.
    if len(characters) and int(characters.max()) > ord("9"):
        return None
    try:
        return np.asarray(np.from_dlpack(column.cast(arrow.int64())), np.int64)
    except arrow.ArrowInvalid:
        return None


def has_leading_zeros(column: Any) -> Mask:
    """Returns which strings, of one character at least, are whole numbers with zeros before the
    first digit, or minus zero.
    """
    characters, begins = _buffers(column)
    bad = np.zeros(len(column), np.bool_)
    first = characters[begins[:-1]]
    rows = np.flatnonzero((first == ord("0")) | (first == ord("-")))
    begin, end = begins[rows], begins[rows + 1]
    minus = first[rows] == ord("-")
    digit = characters[np.minimum(begin + minus, len(characters) - 1)]
    bad[rows] = (digit == ord("0")) & ((end - begin > 1 + minus) | minus)
    return bad


def _buffers(column: Any) -> tuple[NDArray[np.uint8], NDArray[np.integer[Any]]]:
    """Returns the characters of strings, and where each one begins; the end of the last."""
    _, offsets, characters = column.buffers()
    if len(column) == 0 or characters is None:
        return np.empty(0, np.uint8), np.zeros(len(column) + 1, np.int64)
    begins = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    held = np.frombuffer(characters, np.uint8)[begins[0] : begins[-1]]
    return held, begins - begins[0]


def _starts_with_letter(column: Any) -> Mask:
    """Returns which strings are written as infinity or NaN."""
    compute = require("pyarrow.compute", "Arrow arrays")
    found = compute.match_substring_regex(column, r"^[+-]?[a-zA-Z]")
    return np.asarray(found.to_numpy(zero_copy_only=False))


def _large_whole(text: Any, doubles: NDArray[Any], problems: Problems) -> NDArray[np.int64]:
    """Returns whole numbers that Arrow does not take: with plus signs, or beyond int64."""
    limits = np.iinfo(np.int64)
    values = np.where(np.abs(doubles) < 2.0**53, doubles, 0).astype(np.int64)
    large = np.zeros(len(values), np.bool_)
    for row in np.flatnonzero(np.abs(doubles) >= 2.0**53).tolist():
        value = int(text[row].as_py())
        large[row] = not limits.min <= value <= limits.max
        values[row] = 0 if large[row] else value
    problems.add("is too large", large)
    return values
