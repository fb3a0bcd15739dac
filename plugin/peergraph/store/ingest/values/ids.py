"""Columns of ids: numbers of nodes, or keys that are looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from peergraph.store.ingest.read.optional import arrow
from peergraph.store.ingest.values.arrow_arrays import Array, as_arrow, is_list, is_text, value_type
from peergraph.store.ingest.values.numbers import to_dtype, to_numbers
from peergraph.store.ingest.values.problems import MISSING, ROUNDED, Problems
from peergraph.store.ingest.values.text import (
    PLAIN_WHOLE,
    ValueKind,
    column_where,
    is_missing,
    matches,
    plain_whole_numbers,
)


def kind_of_types(kinds: Sequence[Any], what: str) -> ValueKind | None:
    """Returns whether the ids of some types of Arrow, NumPy or torch are whole numbers or text;
    None: the values decide.

    Raises:
        ValueError: types of another kind, or of both kinds.
    """
    id_kinds = {kind for kind in (_kind_of_type(each, what) for each in kinds) if kind is not None}
    if len(id_kinds) > 1:
        shown = " and ".join(sorted(set(map(str, kinds))))
        raise ValueError(f"{what}: ids are {shown} in different files: convert them to one type")
    return id_kinds.pop() if id_kinds else None


def _kind_of_type(dtype: Any, what: str) -> ValueKind | None:
    if isinstance(dtype, (np.dtype, torch.dtype)):
        if isinstance(dtype, np.dtype) and dtype.kind in "iuf":
            return "number"
    else:
        types = arrow.types
        kind = dtype if is_list(dtype) else value_type(dtype)
        if types.is_null(kind):
            return None
        if is_text(kind) and not is_list(kind):
            return "text"
        if types.is_integer(kind) or types.is_decimal(kind) or types.is_floating(kind):
            return "number"
    raise ValueError(f"{what}: ids must be whole numbers or text, are {dtype}")


def to_node_numbers(column: Any, problems: Problems) -> Array:
    """Returns ``[n]`` int32 or int64, contiguous; rows without a whole number are added to the
    problems.

    Raises:
        ValueError: the column has no numbers.
    """
    if not isinstance(column, np.ndarray) and is_text(column.type):
        if (whole := plain_whole_numbers(column)) is not None:
            return whole
        plain = matches(column, PLAIN_WHOLE)
        problems.add(MISSING, is_missing(column))
        problems.add("is not written as a whole number", ~plain)
        column = column_where(plain, column)
    numbers = to_numbers(column, problems)
    values = numbers.values
    if values.ndim != 1 or values.dtype.kind == "b":
        raise ValueError(f"an id must be one whole number per row, got {values.dtype}")
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            # From here on, floats are further apart than whole numbers.
            problems.add(ROUNDED, np.abs(values) >= 2.0 ** (np.finfo(values.dtype).nmant + 1))
    dtype = torch.int32 if values.dtype == np.int32 else torch.int64
    return to_dtype(numbers, dtype, "error", False, problems).numpy()


def to_keys(column: Any, kind: ValueKind, problems: Problems) -> Any:
    """Converts ids for the look-up: an Arrow array of strings or of int64. Missing ones are
    added to the problems.

    Raises:
        ValueError: text is not UTF-8.
    """
    if kind == "number":
        return as_arrow(to_node_numbers(column, problems)).cast(arrow.int64())
    text = as_arrow(column) if isinstance(column, np.ndarray) else column
    text = text.cast(arrow.string())
    try:
        text.validate(full=True)
    except arrow.ArrowInvalid as error:
        raise ValueError(f"text is not UTF-8: {error}") from None
    problems.add(MISSING, is_missing(text))
    return text
