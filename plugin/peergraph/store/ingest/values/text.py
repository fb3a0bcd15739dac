"""Text as numbers: every value is the number that it is written as, or a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from peergraph.store.ingest.read.optional import arrow, compute
from peergraph.store.ingest.values.arrow_arrays import (
    Array,
    Integers,
    Mask,
    as_arrow,
    as_mask,
    as_numpy,
)
from peergraph.store.ingest.values.problems import NO_NUMBER, ROUNDED, TOO_LARGE, Problems

if TYPE_CHECKING:
    from peergraph.store.ingest.read.row_source import Batch, RowSource

ValueKind = Literal["number", "text"]

_MISSING = "^(|#?N/A|NA|n/a|NULL|[Nn]ull|None|<NA>)$"
_TRUE, _FALSE = "^(true|True|TRUE)$", "^(false|False|FALSE)$"
_NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?(?i:nan|inf|infinity)$"
_WHOLE = r"^[+-]?[0-9]+(\.0*)?$"
_PLAIN_NUMBER = r"^\s*-?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]+)?\s*$"
PLAIN_WHOLE = r"^\s*(0|-?[1-9][0-9]*)\s*$"
_EXACT_DOUBLE = 2.0**53


def plain_whole_numbers(column: Any) -> Integers | None:
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


def matches(column: Any, pattern: str) -> Mask:
    """Returns which strings match a pattern."""
    return as_mask(compute.match_substring_regex(column, pattern))


def is_missing(column: Any) -> Mask:
    """Returns which strings are missing, empty or spaces."""
    lengths = as_numpy(compute.binary_length(compute.utf8_trim_whitespace(column)))
    return np.equal(lengths, 0)


def column_where(mask: Mask, column: Any) -> Any:
    """Returns a column; values outside a mask are missing."""
    return compute.if_else(as_arrow(mask), column, arrow.nulls(len(column), column.type))


def text_numbers(column: Any, problems: Problems) -> tuple[Array, Mask | None]:
    """Returns booleans if all values are true or false, int64 if all are whole numbers, else
    float64; and a mask of the missing values, if there are any.

    Args:
        column: an array of strings of Arrow.
        problems: gets the rows whose value is no number, or none that can be held.
    """
    if (whole := plain_whole_numbers(column)) is not None:
        return whole, None
    text = compute.utf8_trim_whitespace(column)
    missing, true = matches(text, _MISSING) | as_mask(text.is_null()), matches(text, _TRUE)
    missing_if_any = missing if missing.any() else None
    if (missing | true | matches(text, _FALSE)).all() and not missing.all():
        return true, missing_if_any
    is_number = matches(text, _NUMBER)
    problems.add(NO_NUMBER, ~is_number & ~missing)
    text = column_where(is_number, text)
    doubles = as_numpy(text.cast(arrow.float64())).copy()
    is_whole = matches(text, _WHOLE) | ~is_number
    large = np.isinf(doubles)
    if large.any():
        large &= ~matches(text, "(?i)inf")
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
    problems.add(TOO_LARGE, large)
    problems.add(ROUNDED, rounded)
    values[large | rounded] = 0
    return values, missing_if_any


class TextKind:
    """Whether the values of a column of text without a declared type are numbers: all of them in
    all files, or none.

    Args:
        source: the rows.
        what: names the column in messages.
    """

    def __init__(self, source: RowSource, what: str) -> None:
        self._source, self._what = source, what
        self._kind: ValueKind | None = None
        self._first = ""

    def of(self, column: Any, batch: Batch) -> ValueKind | None:
        """Returns what the values of a column of a batch are, or None as long as all are missing.

        Raises:
            ValueError: one value is a number, another is none.
        """
        is_number = matches(column, _PLAIN_NUMBER)
        kinds: dict[ValueKind, Mask] = {"number": is_number}
        kinds["text"] = ~is_number & ~is_missing(column)
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
