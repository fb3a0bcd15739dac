"""The meaning of a case's files (docs/guides/ingest.md): rows that are left, ids, tables."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.store.ingest_fuzz.case import Case, Rows, Table
from tests.store.ingest_fuzz.kinds import Cell, right_values, to_cell
from tests.store.ingest_fuzz.read_files import Row, RowSet, read_files, read_rows
from tests.store.ingest_fuzz.write_files import array, table_stem

ABSURD = 1 << 22
"""An id from which on a graph of a few rows is not plausible."""

_CANONICAL = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)
_PLAIN_NUMBER = re.compile(r"\s*-?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]+)?\s*", re.ASCII)
_WHOLE = re.compile(r"\s*[+-]?(0|[1-9][0-9]*)(\.0*)?([eE][0-9]+)?\s*", re.ASCII)


@dataclass(frozen=True)
class Key:
    """An id: as an integer and as text (None: it is none), and whether it may be a bad row."""

    number: int | None
    text: str | None
    may_fail: bool = False


def key_of(value: Any) -> Key:
    """Returns the id that a value is."""
    number: Any
    if isinstance(value, bool):
        return Key(int(value), str(value).lower(), True)
    if isinstance(value, int):
        return Key(value, str(value), abs(value) >= 2**63)
    if isinstance(value, (float, Decimal)):
        number = value
        whole = bool(number == number and abs(number) < 2**63 and number == int(number))
        return Key(int(value) if whole else None, str(int(value)) if whole else None, True)
    if not isinstance(value, str) or not value:
        return Key(None, None)
    if _CANONICAL.fullmatch(value) and value != "-0":
        return Key(int(value), value, abs(int(value)) >= 2**63)
    number = int(Decimal(value.strip())) if _WHOLE.fullmatch(value) else None
    return Key(number, value, number is not None or value != value.strip())


@dataclass
class TypeRows:
    """The rows of a type, with the cells of its tables.

    Args:
        spec: the type of the case.
        files: the rows of its files that satisfy its condition.
        tables: for each table, the cells of each of these rows (a list per row).
        num_rows: the number of rows of separate files, if there are no others.
    """

    spec: Rows
    files: RowSet
    tables: list[list[list[Cell]]]
    num_rows: int = 0


def read_type(spec: Rows, folder: Path) -> TypeRows:
    """Reads the files of a type, and those of its tables."""
    for table in spec.tables:
        if table.form == "pattern":  # in the order of the first file
            table.columns = fnmatch.filter(read_rows(spec, folder, []).names, "f*")
    columns = [name for table in spec.tables if table.file is None for name in table.columns]
    ends = [*spec.ends] if spec.ends else []
    if not ends and not isinstance(spec.type, str):  # the first two columns
        names = read_rows(spec, folder, []).names if spec.files else []
        ends = names[:2]
    used = list(dict.fromkeys([*ends, *([spec.id] if spec.id else []), *columns]))
    if spec.where and spec.where[1]:
        used.append(spec.where[1])
    files = read_rows(spec, folder, used) if spec.files else RowSet()
    if not isinstance(spec.type, str) and files.rows and len(ends) < 2:
        files.must.append("edges need two columns")
    for name in [*ends, *([spec.id] if spec.id else [])]:
        keys = [key_of(row.values[name]) for row in files.rows if name in row.values]
        kinds = {key.number is None or key.may_fail for key in keys if key.text is not None}
        if len(kinds) > 1 and files.is_csv:
            files.may.append(f"column {name!r} has numbers and words")
    if not files.rows:
        files.may.append("without rows, columns may have any type")
    separate = [_separate(spec, number, table, folder, files)
                for number, table in enumerate(spec.tables)]  # fmt: skip
    if spec.where is not None:
        if any(rows is not None for rows in separate):
            files.may.append("where goes without tables of separate files")
        if spec.where[0] in ("limit", "statement", "wrong"):
            files.must.append("where is no condition")
        values = [str(row.values.get(spec.where[1]) or 0) for row in files.rows]
        if not all(_PLAIN_NUMBER.fullmatch(x) and abs(float(x)) < 2**53 for x in values):
            files.may.append("where compares text, or numbers that are not exact")
        if spec.where[0] == "random":
            files.may.append("where is no condition of the row")
    rest = [n for n, row in enumerate(files.rows) if _satisfies(row, spec.where)]
    lines = [n for n, row in enumerate(files.rows) if not row.optional]
    num_rows = 0
    for table, rows in zip(spec.tables, separate, strict=True):
        if rows is None:
            continue
        num_rows = len(rows)
        if files.rows and len(rows) not in (len(files.rows), len(lines)):
            files.must.append(f"table {table.name!r} has {len(rows)} rows")
    places = {line: n for n, line in enumerate(lines)} if len(lines) < len(files.rows) else None
    tables = []
    for table, rows in zip(spec.tables, separate, strict=True):
        sources = spec.files if table.file is None else [table.file]
        kinds = {"string" in column.kind for file in sources for column in file.columns
                 if table.file is not None or column.name in table.columns}  # fmt: skip
        if len(kinds) > 1:
            files.may.append(f"table {table.name!r} has columns of text and of numbers")
        if rows is None:
            tables.append(_with_whole_lists([_cells(files.rows[n], table) for n in rest], table))
        elif spec.files:
            at = [n if places is None or len(rows) != len(lines) else places.get(n, -1)
                  for n in rest]  # fmt: skip
            tables.append([rows[i] if 0 <= i < len(rows) else [] for i in at])
        else:
            tables.append(rows)
    files.rows = [files.rows[n] for n in rest]
    return TypeRows(spec, files, tables, num_rows)


def _separate(
    spec: Rows, number: int, table: Table, folder: Path, files: RowSet
) -> list[list[Cell]] | None:
    """Returns the rows of a table's own file."""
    if table.file is None:
        return None
    stem = table_stem(spec, number)
    path = stem.with_name(stem.name + table.file.name)
    if table.file.name.endswith((".npy", ".npz")):
        damaged = any(table.file.style.get(key) for key in ("cut", "shape", "fifo"))
        if damaged and table.form != "tensor":
            files.must.append(f"{path} is damaged")
            return None
        values = array(table.file)
        return [[to_cell(x) for x in row.reshape(-1)] for row in values]
    names = [column.name for column in table.file.columns]
    header = {"header": table.file.style.get("header", True)}
    rows = read_files([(path, table.file)], folder, names, header)
    files.must += rows.must
    files.may += rows.may
    files.may += [f"{path} has lines of another length" for row in rows.rows
                  if row.malformed or row.optional]  # fmt: skip
    # An error of such a file names no row; it is enough that there is one.
    return [[row.cells[n] for n in names] if row.cells else [] for row in rows.rows]


def kinds_of_ids(rows: TypeRows, name: str) -> set[bool]:
    """Returns whether the ids of a column are text: by its type, or by the values of CSV files."""
    if not rows.files.is_csv:
        columns = [c for file in rows.spec.files for c in file.columns if c.name == name]
        return {"string" in c.kind or c.kind == "not utf8" for c in columns}
    values = [row.values.get(name) for row in rows.files.rows]
    return {_PLAIN_NUMBER.fullmatch(value) is None for value in values if value and value.strip()}


def _with_whole_lists(rows: list[list[Cell]], table: Table) -> list[list[Cell]]:
    """Returns the cells of a table's rows; a missing list has as many as the others."""
    width = next((len(cells) for cells in rows if len(cells) > 1), 1)
    is_list = table.form == "column" and width > 1
    return [
        cells * width if is_list and len(cells) == 1 and cells[0].missing else cells
        for cells in rows
    ]


def _cells(row: Row, table: Table) -> list[Cell]:
    if row.malformed:
        return []
    if table.form == "column":
        cell = row.cells[table.columns[0]]
        return cell if isinstance(cell, list) else [cell]
    return [row.cells[name] for name in table.columns]


def _satisfies(row: Row, where: tuple[Any, ...] | None) -> bool:
    """Returns whether a row is left; rows that cannot be read are, as they are bad."""
    if where is None or where[0] in ("limit", "statement", "wrong"):
        return True
    if row.malformed:
        return not row.optional  # the values of an empty line are missing
    if where[0] == "random":
        row.optional = True
        return True
    if where[0] == "false":
        return False
    value = row.values[where[1]]
    number: Any = key_of(value).number
    if number is None and isinstance(value, str) and _PLAIN_NUMBER.fullmatch(value):
        number = float(value)
    if number is None:
        return False
    tests = {"some": True, "above": number > (where[2] if len(where) > 2 else 0),
             "even": number % 2 == 0 or number < 0}  # fmt: skip
    return bool(tests[where[0]])


def is_doubtful(cells: list[Cell], table: Table, column: list[list[Cell]]) -> bool:
    """Returns whether a row of a table may be a bad one, whatever the table's dtype becomes."""
    if not cells or len(cells) != len(next(filter(None, column))):
        return True
    if table.dtype is not None:
        dtype = getattr(torch, table.dtype)
        return any(
            cell.may_fail or None in (values := right_values(cell, dtype, True, table.nan))
            or not values or (cell.missing and not dtype.is_floating_point)
            or ((cell.is_integer or cell.is_text) and _is_rounded(values[0], cell.values[0]))
            for cell in cells
        )  # fmt: skip
    return any(_is_doubtful_cell(cell, table, column) for cell in cells)


def _is_rounded(value: Any, number: Any) -> bool:
    """Returns whether a value is not the whole number that is written."""
    return isinstance(number, Fraction) and number.denominator == 1 and value != number


def _is_doubtful_cell(cell: Cell, table: Table, column: list[list[Cell]]) -> bool:
    if cell.missing or cell.values == ("nan",):
        floats = all(not c.is_integer and not c.is_text for row in column for c in row)
        floats &= any(not c.missing for row in column for c in row)  # or the type decides
        return table.nan == "error" or not floats or cell.may_fail
    if cell.may_fail or not cell.values:
        return True
    number = cell.values[0]
    if isinstance(number, str):
        return any(c.is_integer for row in column for c in row)
    if cell.is_integer:
        return bool(abs(number) > (2**24 if cell.is_text else 2**53))
    return cell.is_text and bool(
        abs(number) > Fraction(3.4e38) or _is_rounded(float(np.float32(float(number))), number)
    )


def ends_of(rows: TypeRows) -> Iterator[tuple[Key, Key] | None]:
    """Yields the ids of source and destination of each row; None for malformed ones."""
    names = rows.spec.ends or tuple(rows.files.names[:2])
    for row in rows.files.rows:
        yield (
            None if row.malformed else (key_of(row.values[names[0]]), key_of(row.values[names[1]]))
        )


def node_types(case: Case) -> list[str]:
    """Returns the node types in the order of the store."""
    named = [name for edges in case.edges for name in (edges.type[0], edges.type[2])]
    return list(dict.fromkeys([*(nodes.type for nodes in case.nodes), *named]))
