"""The kinds of values that columns have: their types in Arrow, and how they are read as numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import torch

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "float32", "float64"]
TEXTS = ["string", "large_string", "string_view", "dictionary string"]
DECIMALS = {"decimal whole": pa.decimal128(38, 0), "decimal": pa.decimal128(20, 3),
            "decimal256": pa.decimal256(60, 0)}  # fmt: skip
TIMES = {
    "date32": pa.date32(), "date64": pa.date64(), "time32": pa.time32("s"),
    "time64": pa.time64("us"), "timestamp s": pa.timestamp("s"), "timestamp ms": pa.timestamp("ms"),
    "timestamp us": pa.timestamp("us", "UTC"), "timestamp ns": pa.timestamp("ns", "Europe/Paris"),
    "duration": pa.duration("ms"),
}  # fmt: skip
LISTS = {"fixed list": pa.list_(pa.float32(), 3), "list": pa.list_(pa.int32()),
         "large list": pa.large_list(pa.float64())}  # fmt: skip
_PLAIN = {"float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64(),
          "bool": pa.bool_(), "string": pa.string(), "large_string": pa.large_string(),
          "string_view": pa.string_view(), "binary": pa.binary(), "null": pa.null()}  # fmt: skip
_DAY = 86400 * 10**9
_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_NULL_WORDS = {"na", "n/a", "#n/a", "null", "none", "nan", "-nan", "#na", "<na>"}
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)


def to_arrow(kind: str, cells: list[Any]) -> pa.Array:
    """Returns the cells as Arrow's array. Cells of times are integers of their unit."""
    if kind in TIMES:
        bits = pa.int32() if kind in ("date32", "time32") else pa.int64()
        return pa.array(cells, bits).cast(TIMES[kind])
    if kind.startswith("dictionary "):
        return to_arrow(kind.removeprefix("dictionary "), cells).dictionary_encode()
    if kind == "not utf8":
        return pa.array(cells, pa.binary()).view(pa.string())
    if kind in INTEGERS:
        return pa.array(cells, getattr(pa, kind)())
    kinds = {**_PLAIN, **DECIMALS, **LISTS}
    return pa.array(cells, kinds[kind])


@dataclass(frozen=True)
class Cell:
    """What a value may be read as.

    Args:
        values: numbers (a fraction, ``"nan"``, ``"inf"``, ``"-inf"``) that are all right: the
            first one for all cells of a column, or the second one for all, and so on. Empty: it is
            no number.
        may_fail: whether it may be a bad row, too.
        missing: whether there is no value.
        is_integer: whether it is written as an integer.
        is_text: whether it is written as text.
    """

    values: tuple[Any, ...]
    may_fail: bool = False
    missing: bool = False
    is_integer: bool = False
    is_text: bool = False


def cells_of(column: pa.ChunkedArray, units: set[int]) -> list[Any]:
    """Returns a cell, or a list of cells, for each value of a column.

    Args:
        column: the column.
        units: the nanoseconds of the units that the column has in all files, if it has times.
    """
    kind = column.type
    if unit := unit_of(kind):
        numbers = pa.chunked_array([c.view(pa.int64() if kind.bit_width == 64 else pa.int32())
                                    for c in column.chunks], pa.int64() if kind.bit_width == 64
                                   else pa.int32()).to_pylist()  # fmt: skip
        return [
            Cell((), missing=True, may_fail=True)
            if number is None
            else Cell(tuple(Fraction(number * unit, u) for u in sorted(units - {0})), may_fail=True)
            for number in numbers
        ]
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        return [Cell(())] * len(column)
    if pa.types.is_decimal(kind):
        return [to_cell(None if v is None else Decimal(v)) for v in values]
    return [[to_cell(x) for x in v] if isinstance(v, list) else to_cell(v) for v in values]


def unit_of(kind: pa.DataType) -> int:
    """Returns the nanoseconds of the unit of a type of times; 0 for others."""
    if pa.types.is_date32(kind):
        return _DAY
    if pa.types.is_date64(kind):
        return _UNITS["ms"]
    return _UNITS[kind.unit] if pa.types.is_temporal(kind) else 0


def to_cell(value: Any) -> Cell:
    """Returns what a value of Python may be read as."""
    if value is None:
        return Cell((), missing=True)
    if isinstance(value, (bool, np.bool_)):
        return Cell((Fraction(int(value)),), is_integer=True)
    if isinstance(value, (int, np.integer)):
        return Cell((Fraction(int(value)),), is_integer=True)
    if isinstance(value, (float, np.floating)):
        return Cell((_special(float(value)),))
    if isinstance(value, Decimal):
        whole = value == value.to_integral_value()
        return Cell((Fraction(value),), is_integer=whole, is_text=not whole)
    return _text_cell(value) if isinstance(value, str) else Cell(())


def _special(value: float) -> Any:
    return Fraction(value) if np.isfinite(value) else str(value)


def _text_cell(value: str) -> Cell:
    text = value.strip()
    odd = text != value or text.startswith("+")
    if not text:
        return Cell((), missing=True)
    if _INTEGER.fullmatch(text):
        return Cell((Fraction(int(text)),), odd, is_integer=True, is_text=True)
    if _DECIMAL.fullmatch(text):
        return Cell((Fraction(Decimal(text)),), odd, is_text=True)
    if text.lower().lstrip("+-") in ("inf", "infinity", "nan"):
        return Cell((str(float(text)),), True, is_text=True)
    if text.lower() in _NULL_WORDS:
        return Cell((), True, missing=True, is_text=True)
    if text.lower() in ("true", "false"):
        return Cell((Fraction(int(text.lower() == "true")),), True, is_text=True)
    return Cell((), is_text=True)


def right_values(cell: Cell, dtype: torch.dtype, declared: bool, nan: str) -> list[Any]:
    """Returns the values that a table may have for a cell: one for each of ``cell.values``; None:
    none. An empty list: it must be a bad row.

    Args:
        cell: the cell.
        dtype: the dtype of the table.
        declared: whether the user gave the dtype.
        nan: the rule for missing values.
    """
    is_float = dtype.is_floating_point
    keep = [float("nan")] if is_float else []
    empty: list[Any] = [] if nan == "error" else keep if nan == "keep" else [0]
    if cell.missing:
        return empty
    values: list[Any] = []
    for number in cell.values:
        if number == "nan":
            values += empty or [None]
        elif isinstance(number, str):
            values.append(float(number) if is_float else None)
        else:
            values.append(_rounded(number, cell, dtype, declared))
    return values if any(value is not None for value in values) else []


def _rounded(number: Fraction, cell: Cell, dtype: torch.dtype, declared: bool) -> Any:
    if not dtype.is_floating_point:
        limits = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        return int(number) if number.denominator == 1 and limits[0] <= number <= limits[1] else None
    try:
        value = float(torch.tensor(float(number), dtype=torch.float64).to(dtype))
    except OverflowError:
        return None
    if not np.isfinite(value):
        return None
    rounds = declared or (cell.is_text and not (cell.is_integer and abs(number) > 2**53))
    return value if rounds or Fraction(value) == number else None
