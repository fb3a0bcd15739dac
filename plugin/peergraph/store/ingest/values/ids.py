"""Columns of ids: numbers of nodes, or keys that are looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from peergraph.store.ingest.read.optional import require
from peergraph.store.ingest.values.numbers import (
    MISSING,
    NOT_WHOLE,
    ROUNDED,
    TOO_LARGE,
    Problems,
    to_numbers,
    to_whole_numbers,
)
from peergraph.store.ingest.values.text import (
    NO_NUMBER,
    NUMBER,
    PLAIN_WHOLE,
    WHOLE,
    has_leading_zeros,
    whole_numbers,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEADING_ZEROS = "has leading zeros or a plus sign"

IdKind = Literal["number", "text"]


def kind_of_types(types: list[Any], what: str) -> IdKind | None:
    """Returns whether the ids of some types of Arrow or NumPy are whole numbers or text; None: the
    values decide.

    Raises:
        ValueError: types of another kind, or of both kinds.
    """
    kinds = {kind for kind in (_kind_of_type(given, what) for given in types) if kind is not None}
    if len(kinds) > 1:
        shown = " and ".join(sorted(set(map(str, types))))
        raise ValueError(f"{what}: ids are {shown} in different files: convert them to one type")
    return kinds.pop() if kinds else None


def kind_of_text(column: Any, what: str) -> tuple[IdKind | None, int]:
    """Returns whether the ids of a batch of text are whole numbers or text, and the first row that
    has one; None if all are missing.

    Raises:
        MixedIds: some are numbers and others are not, or some are numbers of another form.
    """
    compute = require("pyarrow.compute", "Arrow arrays")
    if whole_numbers(column) is not None and not has_leading_zeros(column).any():
        return ("number", 0) if len(column) else (None, 0)
    text = compute.utf8_trim_whitespace(column)
    masks = [
        compute.fill_null(compute.match_substring_regex(text, pattern), False).to_numpy(
            zero_copy_only=False
        )
        for pattern in (PLAIN_WHOLE, WHOLE, NUMBER)
    ]
    missing = compute.fill_null(compute.equal(text, ""), True).to_numpy(zero_copy_only=False)
    plain, decimal = masks[0], masks[2] & ~masks[1]
    other = ~plain & ~decimal & ~missing
    rows = [int(mask.argmax()) if mask.any() else -1 for mask in (plain, decimal, other)]
    if rows[1] >= 0:
        raise MixedIds(rows[1], rows[0] if rows[0] >= 0 else rows[2])
    if rows[0] >= 0 and rows[2] >= 0:
        raise MixedIds(rows[2], rows[0])
    if rows[0] >= 0:
        return "number", rows[0]
    return ("text", rows[2]) if rows[2] >= 0 else (None, 0)


class MixedIds(ValueError):
    """Ids of a batch are of different kinds.

    Args:
        row: the row of an id in the batch.
        other: the row of an id of another kind; -1: there is none.
    """

    def __init__(self, row: int, other: int) -> None:
        super().__init__("ids of different kinds")
        self.row, self.other = row, other


def to_node_numbers(column: Any, problems: Problems) -> NDArray[Any]:
    """Returns ``[n]`` int32 or int64, contiguous; rows without a whole number are added to the
    problems.

    Raises:
        ValueError: the column has no numbers.
    """
    if _is_text(column):
        return _parsed(column, problems)
    numbers = to_numbers(column, problems)
    values = numbers.values
    if values.ndim != 1 or values.dtype.kind == "b":
        raise ValueError(f"an id must be one whole number per row, got {_shown(column)}")
    if numbers.missing is not None:
        problems.add(MISSING, numbers.missing)
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            # From here on, floats are further apart than whole numbers.
            problems.add(ROUNDED, np.abs(values) >= 2.0 ** (np.finfo(values.dtype).nmant + 1))
        given = Problems()
        values = to_whole_numbers(values, given)
        for reason, mask in given.masks.items():
            problems.add(reason, mask & ~problems.any(len(mask)))
        return values
    return np.ascontiguousarray(to_whole_numbers(values, problems))


def to_keys(column: Any, kind: IdKind, problems: Problems) -> Any:
    """Converts ids for the look-up: an Arrow array of strings or of int64. Missing ones are
    added to the problems.
    """
    arrow = require("pyarrow", "Arrow arrays")
    if kind == "number":
        return arrow.array(to_node_numbers(column, problems), arrow.int64())
    compute = require("pyarrow.compute", "Arrow arrays")
    if isinstance(column, Tensor):
        column = column.cpu().numpy()
    if isinstance(column, np.ndarray):
        column = arrow.array(column)
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    text = column.cast(arrow.string())
    try:
        text.validate(full=True)
    except arrow.ArrowInvalid:
        bad = np.array([_is_not_utf_8(value) for value in text.cast(arrow.binary())], np.bool_)
        problems.add("is not UTF-8", bad)
        text = compute.if_else(arrow.array(bad), arrow.scalar("?"), text)
    missing = compute.fill_null(compute.equal(text, ""), True).to_numpy(zero_copy_only=False)
    problems.add(MISSING, missing)
    return text


def _is_not_utf_8(value: Any) -> bool:
    try:
        (value.as_py() or b"").decode()
        return False
    except UnicodeDecodeError:
        return True


def _is_text(column: Any) -> bool:
    return "string" in str(getattr(column, "type", "")) and not isinstance(column, Tensor)


def _shown(column: Any) -> str:
    return str(getattr(column, "type", None) or column.dtype)


def _kind_of_type(given: Any, what: str) -> IdKind | None:
    if isinstance(given, (np.dtype, torch.dtype)):
        if isinstance(given, np.dtype) and given.kind in "iuf":
            return "number"
        raise ValueError(f"{what}: ids must be whole numbers or text, are {given}")
    types = require("pyarrow", "Arrow arrays").types
    kind = given.value_type if types.is_dictionary(given) else given
    if types.is_null(kind):
        return None
    if "string" in str(kind):
        return "text"
    if types.is_integer(kind) or types.is_decimal(kind) or types.is_floating(kind):
        return "number"
    raise ValueError(f"{what}: ids must be whole numbers or text, are {given}")


def _parsed(column: Any, problems: Problems) -> NDArray[np.int64]:
    """Returns the whole numbers of text."""
    arrow = require("pyarrow", "Arrow arrays")
    compute = require("pyarrow.compute", "Arrow arrays")
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    text = column.cast(arrow.string())
    whole = whole_numbers(text)
    if whole is None:
        text = compute.fill_null(compute.utf8_trim_whitespace(text), "")
        whole = _checked(text, problems)
        plain = compute.match_substring_regex(text, WHOLE)
        text = compute.if_else(plain, text, arrow.scalar("1"))
        zeros = has_leading_zeros(text) | compute.starts_with(text, "+").to_numpy(
            zero_copy_only=False
        )
    else:
        zeros = has_leading_zeros(text)
    if zeros.any():
        problems.add(LEADING_ZEROS, zeros)
    return whole


def _checked(text: Any, problems: Problems) -> NDArray[np.int64]:
    compute = require("pyarrow.compute", "Arrow arrays")
    rows = text.to_pylist()
    values = np.zeros(len(rows), np.int64)
    whole = compute.match_substring_regex(text, WHOLE).to_pylist()
    number = compute.match_substring_regex(text, NUMBER).to_pylist()
    masks = {reason: np.zeros(len(rows), np.bool_) for reason in _REASONS}
    for row, value in enumerate(rows):
        if whole[row]:
            parsed = int(value)
        elif not number[row]:
            masks[MISSING if value == "" else NO_NUMBER][row] = True
            continue
        else:
            double = float(value)
            if double != double or abs(double) >= 2.0**53 or double != int(double):
                masks[ROUNDED if abs(double) >= 2.0**53 else NOT_WHOLE][row] = True
                continue
            parsed = int(double)
        if -(2**63) <= parsed < 2**63:
            values[row] = parsed
        else:
            masks[TOO_LARGE][row] = True
    for reason, mask in masks.items():
        problems.add(reason, mask)
    return values


_REASONS = (MISSING, NO_NUMBER, NOT_WHOLE, ROUNDED, TOO_LARGE)
