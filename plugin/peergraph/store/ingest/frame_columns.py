"""Columns of a table by their semantic types: encoded as PyTorch Frame does, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from peergraph.store.disk.npy_writer import NpyWriter
from peergraph.store.ingest.graph_files import Columns
from peergraph.store.ingest.read.optional import arrow, compute
from peergraph.store.ingest.read.row_source import Problems
from peergraph.store.ingest.values.arrow_arrays import (
    Array,
    as_mask,
    as_numpy,
    is_list,
    is_text,
    plain,
)
from peergraph.store.ingest.values.numbers import to_numbers
from peergraph.store.input.frame_spec import FrameField

_LISTS = {"multicategorical", "text_tokenized", "sequence_numerical"}
_PARTS_OF_A_TIME = ("year", "month", "day", "day_of_week", "hour", "minute", "second")


def stype_of(kind: Any) -> str:
    """Returns the semantic type of columns of a type of Arrow. Raises ValueError if there is none.

    Text and truth values are categories, lists of them several categories; lists of integers are
    tokens, lists of floats embeddings.
    """
    types = arrow.types
    if types.is_dictionary(kind):
        return stype_of(kind.value_type)
    if is_list(kind):
        of_values = stype_of(kind.value_type)
        if of_values == "categorical":
            return "multicategorical"
        if of_values == "numerical":
            return "text_tokenized" if types.is_integer(kind.value_type) else "embedding"
    elif is_text(kind) or types.is_boolean(kind):
        return "categorical"
    elif types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "numerical"
    elif types.is_timestamp(kind) or types.is_date(kind):
        return "timestamp"
    raise ValueError(f"a column of {kind} has no semantic type: name one in stypes, or None")


@dataclass
class FrameColumns:
    """The columns of one semantic type of a table.

    Args:
        stype: the semantic type.
        columns: their names.
        values: of categories, the values of each column, in the order of their numbers.
        widths: of embeddings, the length of the lists of each column.
        writer: of lists, writes the file of their elements.
    """

    stype: str
    columns: Sequence[str]
    values: Mapping[str, Any] = field(default_factory=dict)
    widths: Sequence[int] = ()
    writer: NpyWriter | None = None
    _elements: int = 0

    @property
    def field(self) -> FrameField:
        """The field of the frame."""
        ends = (0, *np.cumsum(self.widths).tolist()) if self.stype == "embedding" else ()
        if self.stype in _LISTS:
            key = "input_ids" if self.stype == "text_tokenized" else None
            return FrameField(self.stype, key, "lists")
        return FrameField(self.stype, None, "joined" if ends else "dense", ends)

    @property
    def table(self) -> Columns:
        """The table of the encoded column, which has the name of the semantic type."""
        if self.stype in ("numerical", "embedding"):
            return Columns(self.stype, torch.float32, "keep")
        return Columns(self.stype)

    def encoded(self, arrays: Mapping[str, Any]) -> Array:
        """Returns the encoded column of some rows; appends the elements of lists to their file."""
        columns = [(name, plain(arrays[name])) for name in self.columns]
        if self.stype in _LISTS:
            return self._bounds(columns)
        if self.stype == "numerical":
            return np.stack([_floats(column) for _, column in columns], axis=1)
        if self.stype == "categorical":
            return np.stack([_codes(*each, self.values[each[0]]) for each in columns], axis=1)
        if self.stype == "timestamp":
            return np.stack([parts_of_times(column) for _, column in columns], axis=1)
        pairs = zip(columns, self.widths, strict=True)
        return np.concatenate([_rows_of_lists(*each, width) for each, width in pairs], axis=1)

    def _bounds(self, columns: Sequence[tuple[str, Any]]) -> Array:
        """Returns ``[rows, columns + 1]`` where the lists of each row begin, and the last end."""
        count = len(columns)
        pairs = [self._elements_of(*each) for each in columns]
        lengths = np.stack([length for _, length in pairs], axis=1)
        ends = np.zeros(lengths.size + 1, np.int64)
        np.cumsum(lengths.reshape(-1), out=ends[1:])
        elements = np.empty(ends[-1], pairs[0][0].dtype)
        for at, (values, length) in enumerate(pairs):
            begins = ends[:-1].reshape(-1, count)[:, at]
            before = np.cumsum(length) - length
            elements[np.repeat(begins - before, length) + np.arange(len(values))] = values
        assert self.writer is not None
        if len(elements):
            self.writer.write(torch.from_numpy(elements))
        first = self._elements
        self._elements += len(elements)
        rows = np.empty((len(lengths), count + 1), np.int64)
        rows[:, :-1] = ends[:-1].reshape(-1, count)
        rows[:, -1] = ends[count::count]
        return rows + first

    def _elements_of(self, name: str, column: Any) -> tuple[Array, Array]:
        """Returns the elements of a column's lists, and the length of each list."""
        lengths = as_numpy(compute.list_value_length(column)).astype(np.int64)
        missing, items = as_mask(column.is_null()), plain(column.flatten())
        if self.stype == "sequence_numerical":
            return _single_floats(name, items), lengths
        if self.stype == "multicategorical":
            items = _codes(name, items, self.values[name])
            # A missing value is one category, -1.
            at = (np.cumsum(lengths) - lengths)[missing]
            return np.insert(items, at, -1), np.where(missing, 1, lengths)
        values = as_numpy(items.cast(arrow.int64()))
        return np.where(as_mask(items.is_valid()), values, -1), lengths


def _floats(column: Any) -> Array:
    """Returns the numbers of a column, float64, NaN where one is missing."""
    values = as_numpy(column.cast(arrow.float64(), safe=False))
    return np.where(as_mask(column.is_valid()), values, np.nan)


def _single_floats(name: str, column: Any) -> Array:
    """Returns the numbers of a column, float32, NaN where one is missing."""
    numbers = _floats(column)
    with np.errstate(over="ignore"):
        values = numbers.astype(np.float32)
    if (infinite := np.isinf(values) & np.isfinite(numbers)).any():
        number = float(numbers[infinite][0])
        raise ValueError(
            f"column {name!r}: {number!r} is infinite in float32, which sequences of numbers have"
        )
    return values


def _codes(name: str, column: Any, values: Any) -> Array:
    """Returns the position of each value among all of a column, or -1 where it is missing."""
    # DuckDB's values have the type that holds those of all files, and one zero.
    if arrow.types.is_floating(values.type):
        column, values = (compute.add(of.cast(values.type), 0.0) for of in (column, values))
    codes = compute.index_in(column.cast(values.type), value_set=values)
    has_code, missing = as_mask(codes.is_valid()), as_mask(column.is_null(nan_is_null=True))
    if (unknown := ~missing & ~has_code).any():
        value = column[int(unknown.argmax())].as_py()
        raise ValueError(f"column {name!r} changed while it was read: {value!r} is a new value")
    return np.where(has_code, as_numpy(codes), -1).astype(np.int64)


def parts_of_times(column: Any) -> Array:
    """Returns year, month, day, day of the week, hour, minute and second, [n, 7], all but years
    from 0 on; -1 where a time is missing.
    """
    column = _in_utc(column)
    parts = [getattr(compute, part)(column).cast(arrow.int64()) for part in _PARTS_OF_A_TIME]
    rows = np.stack([as_numpy(part) for part in parts], axis=1)
    rows[:, 1:3] -= 1
    rows[as_mask(column.is_null())] = -1
    return rows


def seconds_of_times(column: Any) -> Any:
    """Returns whole seconds since 1970, int64: parts of a second are left out, as in RelBench."""
    seconds = compute.floor_temporal(_in_utc(column), unit="second")
    return seconds.cast(arrow.timestamp("s")).cast(arrow.int64())


def _in_utc(column: Any) -> Any:
    """Returns times without a zone; those of a zone are those of UTC."""
    unit = "s" if arrow.types.is_date(column.type) else column.type.unit
    return column.cast(arrow.timestamp(unit))


def _rows_of_lists(name: str, column: Any, width: int) -> Array:
    """Returns lists of one length as rows; NaN where one is missing."""
    problems = Problems(len(column))
    numbers = to_numbers(column, problems, None, width)
    if problems.bad.any():
        reason = next(iter(problems.masks))
        row = int(problems.bad.argmax())
        raise ValueError(
            f"column {name!r}: a value {reason}: {column[row].as_py()!r:.60}; embeddings have one "
            f"length, here {width}: name another type in stypes"
        )
    values = numbers.values.astype(np.float64)
    return values if numbers.missing is None else np.where(numbers.missing, np.nan, values)
