"""What may be wrong with the files of a case."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from tests.store.ingest_fuzz.case import Case, Column, File, Rows
from tests.store.ingest_fuzz.kinds import DECIMALS, FLOATS, INTEGERS, LISTS, TEXTS

_TEXT = ["", " ", "x", "007", " 3", "3 ", "+3", "1.5", "2.0", "1e300", "1e3", "nan", "inf", "-inf",
         "NA", "null", "0x10", "1_0", "9007199254740993", "16777217", "9223372036854775808",
         "123456789012345678901234567890", "٣", "true", "1,5", "-0", "--1", "3e-400", 'a"b', "a\nb",
         "-1", "4294967297", "70000", "1e39"]  # fmt: skip
_NUMBERS = [-1, 2**31, 2**33, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 255, 70000]
_FLOATS = [
    float("nan"),
    float("inf"),
    float("-inf"),
    1e300,
    70000.0,
    1e-45,
    0.1,
    2.0**53 + 2,
    -1e39,
]


def add_fault(case: Case, pick: random.Random) -> None:
    """Changes a case at random. What comes of it is for the reading of the files to say."""
    rows = pick.choice([*case.nodes, *case.edges])
    fault = pick.choice([*[_cell] * 6, *[_line] * 2, *_FAULTS])
    fault(case, rows, pick)


def _files(rows: Rows, suffixes: tuple[str, ...] = ("",)) -> list[File]:
    own = [table.file for table in rows.tables if table.file is not None and table.form == "file"]
    return [file for file in [*rows.files, *own] if file.name.endswith(suffixes)]


def _cell(case: Case, rows: Rows, pick: random.Random) -> None:
    columns = [c for file in _files(rows) for c in file.columns if c.cells]
    if not columns:
        return
    column = pick.choice(columns)
    at = pick.randrange(len(column.cells))
    is_array = any(column in f.columns for f in _files(rows, (".npy", ".npz")))
    if column.kind == "text":
        column.cells[at] = pick.choice(_TEXT)
    elif pick.random() < 0.3 and not is_array and rows.form != "tensor":
        column.cells[at] = None
    elif column.kind in INTEGERS:
        bits, signed = int(column.kind.lstrip("uint")), column.kind[0] == "i"
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
        column.cells[at] = pick.choice([x for x in _NUMBERS if low <= x < high] or [0])
    elif column.kind in FLOATS:
        value = pick.choice(_FLOATS)
        column.cells[at] = value if column.kind != "float16" or abs(value) < 6e4 else float("inf")
    elif column.kind in DECIMALS:
        most = 10**16 if column.kind == "decimal" else 2**70
        column.cells[at] = pick.choice([Decimal(x) for x in (2**64 + 1, 2**63, -1, 2**53 + 1)
                                        if x < most] or [Decimal(5)])  # fmt: skip
    elif column.kind in TEXTS:
        column.cells[at] = pick.choice(_TEXT)
    elif column.kind in LISTS and column.kind != "fixed list":
        column.cells[at] = column.cells[at] + [0]


def _line(case: Case, rows: Rows, pick: random.Random) -> None:
    """Adds a line of another length, an empty one, or an open quotation mark to a CSV file."""
    files = _files(rows, (".csv", ".tsv", ".txt", ".gz", ".bz2", ".zst"))
    if files:
        file = pick.choice(files)
        delimiter, width = file.style.get("delimiter", ","), len(file.columns)
        line = pick.choice([delimiter.join(["1"] * (width + 1)), "1" if width > 1 else "", "",
                            delimiter.join(["1"] * (width - 1) + ['"1'])])  # fmt: skip
        file.style["lines"] = [(pick.randint(0, file.num_rows), line)]


def _two_columns_of_one_name(case: Case, rows: Rows, pick: random.Random) -> None:
    files = [file for file in _files(rows) if len(file.columns) > 1]
    if files and rows.form != "pandas":
        first, second = pick.sample(range(len(files[0].columns)), 2)
        old = files[0].columns[first].name
        for file in files:
            if len(file.columns) > max(first, second):
                file.columns[first].name = file.columns[second].name
        if rows.ends and old in rows.ends and pick.random() < 0.5:
            rows.ends = None


def _no_header(case: Case, rows: Rows, pick: random.Random) -> None:
    for file in rows.files:
        file.style["header"] = False
    if pick.random() < 0.5:
        rows.ends, rows.tables = None, []
        rows.edge_ids = True


def _file_twice(case: Case, rows: Rows, pick: random.Random) -> None:
    if rows.files and rows.form == "paths":
        rows.files.append(rows.files[0])
        for table in rows.tables:
            if table.file is not None and pick.random() < 0.7:
                count = sum(file.num_rows for file in rows.files)
                for column in table.file.columns:
                    column.cells = (column.cells * 2)[: max(count, 0)]


def _more_in_the_folder(case: Case, rows: Rows, pick: random.Random) -> None:
    if rows.files and rows.form in ("folder", "glob"):
        file = copy.deepcopy(rows.files[0])
        upper = f"z_{file.name}.GZ" if ".csv" in file.name else "z.PARQUET"
        file.name = pick.choice([f"sub/{file.name}", upper, "README.md", f"z{file.name}"])
        if pick.random() < 0.2:
            file.style["dangling"] = True
        rows.files.append(file)


def _cut(case: Case, rows: Rows, pick: random.Random) -> None:
    if (files := _files(rows)) and rows.form in ("paths", "glob", "folder"):
        pick.choice(files).style["cut"] = pick.choice([1, 3, 8, 20, 100, 10**6])


def _shape(case: Case, rows: Rows, pick: random.Random) -> None:
    for file in _files(rows, (".npy",)):
        file.style["shape"] = pick.choice([(2, -5), (2, 2**40), (2**62, 2), (True, 2), (3,), ()])


def _fifo(case: Case, rows: Rows, pick: random.Random) -> None:
    if (files := _files(rows)) and pick.random() < 0.2:
        pick.choice(files).style["fifo"] = True


def _rows_of_a_table(case: Case, rows: Rows, pick: random.Random) -> None:
    for table in rows.tables:
        if table.file is not None:
            for column in table.file.columns:
                column.cells = [*column.cells, *column.cells[:1]] or [0]


def _other_columns(case: Case, rows: Rows, pick: random.Random) -> None:
    """Lets the last file have its columns in another order, or lack one, or have one more."""
    if len(rows.files) > 1 and (rows.ends or rows.id) and rows.csv.get("header", True):
        columns = rows.files[-1].columns
        change = pick.choice(["order", "order", "lack", "more"])
        if change == "order":
            columns.reverse()
        elif change == "lack":
            columns.pop()
        else:
            kind = "text" if columns[0].kind == "text" else "int64"
            columns.insert(0, Column("more", kind, [1 for _ in columns[0].cells]))


def _where(case: Case, rows: Rows, pick: random.Random) -> None:
    if rows.files and rows.csv.get("header", True):
        kinds = ["limit", "statement", "wrong", "false"]
        if rows.id is not None or isinstance(rows.type, tuple):
            kinds.append("random")
        rows.where = (pick.choice(kinds), "")


def _numbers(case: Case, rows: Rows, pick: random.Random) -> None:
    if isinstance(rows.type, str):
        rows.num_nodes = pick.choice([0, 1, 3, 10**6])
        rows.numbering = pick.choice(["auto", "dense", "mapped"])


def _repeated_id(case: Case, rows: Rows, pick: random.Random) -> None:
    for column in [c for file in rows.files for c in file.columns if c.name == rows.id]:
        if len(column.cells) > 1:
            column.cells[-1] = column.cells[0]


def _kind(case: Case, rows: Rows, pick: random.Random) -> None:
    """Gives a column a kind that is no number, or bytes that are no text."""
    columns = [c for file in _files(rows, (".parquet", ".pq")) for c in file.columns]
    if columns:
        column = pick.choice(columns)
        column.kind = pick.choice(["binary", "not utf8", "null"])
        value: Any = None if column.kind == "null" else b"\xff\xfe" if pick.random() < 0.5 else b"1"
        column.cells = [value] * len(column.cells)


def _name(case: Case, rows: Rows, pick: random.Random) -> None:
    case.store = pick.choice(["md:out", "sqlite:out", "it's", "a b", "ü", "s.parquet", "x{}"])


_FAULTS: list[Callable[[Case, Rows, random.Random], None]] = [
    _two_columns_of_one_name, _no_header, _file_twice, _more_in_the_folder, _cut, _shape, _fifo,
    _rows_of_a_table, _other_columns, _where, _numbers, _repeated_id, _kind, _name,
]  # fmt: skip
