"""Converts columns of ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from peergraph.store.ingest.read.optional import require
from peergraph.store.ingest.values.numbers import (
    MISSING,
    NOT_WHOLE,
    Problems,
    to_numbers,
    to_whole_numbers,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


def to_dense_ids(column: Any, problems: Problems) -> NDArray[Any]:
    """Returns ``[n]`` int32 or int64, contiguous; rows without an integer are added to the
    problems.

    Raises:
        TypeError: the column has no numbers, and no strings of numbers.
    """
    values = to_numbers(column, problems, missing_is_nan=False)
    if values.ndim != 1:
        raise TypeError(f"an id must be one number per row, got {list(values.shape[1:])}")
    return np.ascontiguousarray(to_whole_numbers(values, problems))


def is_integer_column(column: Any) -> bool:
    """Returns whether a column has integers, and not strings or numbers with decimals."""
    if isinstance(column, np.ndarray):
        return column.dtype.kind in "iu"
    arrow = require("pyarrow", "Arrow arrays")
    kind = column.type.value_type if arrow.types.is_dictionary(column.type) else column.type
    return bool(arrow.types.is_integer(kind) or arrow.types.is_null(kind))


def to_keys(column: Any, as_text: bool, problems: Problems) -> Any:
    """Converts ids for the look-up: an Arrow array of strings or of int64. Missing ones are
    added to the problems, and are null.
    """
    arrow = require("pyarrow", "Arrow arrays")
    if not as_text:
        return arrow.array(to_dense_ids(column, problems), arrow.int64())
    compute = require("pyarrow.compute", "Arrow arrays")
    if isinstance(column, np.ndarray):
        column = arrow.array(column)
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if arrow.types.is_floating(column.type):
        raise TypeError(f"an id {NOT_WHOLE}: give the column's type (CsvFormat.types)")
    if arrow.types.is_binary(column.type) or arrow.types.is_fixed_size_binary(column.type):
        raise TypeError(f"ids of type {column.type}: cast them to VARCHAR in a query")
    text = column.cast(arrow.string())
    text = compute.if_else(compute.equal(text, ""), arrow.scalar(None, arrow.string()), text)
    problems.add(MISSING, text.is_null().to_numpy(zero_copy_only=False))
    return text
