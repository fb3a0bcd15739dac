"""Reads the files of a case by pyarrow, NumPy and the ``csv`` module: what an ingest must read."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.store.ingest_fuzz.case import File, Rows
from tests.store.ingest_fuzz.kinds import cells_of, to_cell, unit_of
from tests.store.ingest_fuzz.write_files import array, frame, table, type_folder

_KNOWN = (".parquet", ".pq", ".csv", ".tsv", ".txt", ".npy", ".npz", ".gz", ".bz2", ".zst")
_INFLATE: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress, ".bz2": bz2.decompress,
    ".zst": lambda data: pa.CompressedInputStream(io.BytesIO(data), "zstd").read(),
}  # fmt: skip


@dataclass(slots=True)
class Row:
    """A row of a file.

    Args:
        file: the file's path; "": it has none.
        numbers: the numbers that messages may give it.
        values: the values as pyarrow or ``csv`` reads them, by column.
        cells: what they may be read as, by column.
        malformed: whether it has too many or too few values.
        optional: whether it may be left out without a message (an empty line), or read otherwise.
    """

    file: str
    numbers: tuple[int, ...]
    values: dict[str, Any]
    cells: dict[str, Any]
    malformed: bool = False
    optional: bool = False


@dataclass
class RowSet:
    """The rows of all files of a type, and what is wrong with the files as a whole.

    Args:
        rows: the rows in order.
        names: the columns of the first file.
        must: reasons why the ingest must fail.
        may: reasons why it may fail.
        is_csv: whether values are text.
    """

    rows: list[Row] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    must: list[str] = field(default_factory=list)
    may: list[str] = field(default_factory=list)
    is_csv: bool = False


def read_rows(spec: Rows, folder: Path, used: list[str]) -> RowSet:
    """Reads the files of a type.

    Args:
        spec: the type.
        folder: the folder of the case.
        used: the columns that the ingest uses; empty: the first two.
    """
    if spec.form not in ("paths", "glob", "folder"):
        row_set = RowSet()
        file = spec.files[0]
        if spec.form == "tensor":
            return _read_array("", array(file), row_set)
        values = table(file)
        if spec.form == "pandas":
            values = pa.Table.from_pandas(frame(values), preserve_index=False)
        return _row_set_of_tables([("", values)], used, row_set)
    names = [file.name for file in spec.files]
    if spec.form != "paths":
        names = sorted(dict.fromkeys(names), key=lambda name: Path(name).parts)
    styles = {file.name: file for file in spec.files}
    return read_files([(Path(type_folder(spec)) / n, styles[n]) for n in names], folder,
                      used, spec.csv, spec.form != "paths")  # fmt: skip


def read_files(
    files: list[tuple[Path, File]],
    folder: Path,
    used: list[str],
    csv_format: dict[str, Any],
    listed: bool = False,
) -> RowSet:
    """Reads files, as :func:`read_rows`."""
    row_set, tables = RowSet(), []
    for path, file in files:
        style = file.style
        suffix = path.suffix.lower()
        if listed and suffix not in _KNOWN:
            row_set.may.append(f"{path} has another ending")
            continue
        if listed and len(path.parts) > 2:
            row_set.may.append(f"{path} is in a folder within the folder")
        if style.get("fifo") or style.get("dangling"):
            row_set.must.append(f"{path} is no regular file")
            continue
        try:
            if suffix in (".npy", ".npz"):
                if style.get("shape"):
                    raise ValueError("its header has another shape")
                values = np.load(folder / path)
                if suffix == ".npz":
                    _read_array(f"{path}:a", values["a"], row_set)
                else:
                    _read_array(str(path), values, row_set)
            elif suffix in (".parquet", ".pq"):
                tables.append((str(path), pq.ParquetFile(folder / path).read()))
            else:
                row_set.is_csv = True
                _read_csv(path, folder, used, csv_format, row_set)
        except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
            row_set.must.append(f"{path} cannot be read: {error}")
    return _row_set_of_tables(tables, used, row_set) if tables else row_set


def _row_set_of_tables(
    tables: list[tuple[str, pa.Table]], used: list[str], row_set: RowSet
) -> RowSet:
    row_set.names = list(tables[0][1].schema.names)
    used = used or row_set.names[:2]
    for name, values in tables:
        _check_names(name, values.schema.names, used, row_set)
    if row_set.must:
        return row_set
    kinds = {n: {str(t.schema.field(n).type) for _, t in tables} for n in used}
    units = {n: {unit_of(t.schema.field(n).type) for _, t in tables} for n in used}
    row_set.may += [f"{n} has several types" for n in used if len(kinds[n]) > 1]
    row_set.may += [f"{n} has times" for n in used if units[n] != {0}]
    for name, values in tables:
        columns = {n: cells_of(values.column(n), units[n]) for n in used}
        plain = {n: _plain(values.column(n)) for n in used}
        for row in range(len(values)):
            row_set.rows.append(Row(name, (row,), {n: plain[n][row] for n in used},
                                  {n: columns[n][row] for n in used}))  # fmt: skip
    return row_set


def _plain(column: pa.ChunkedArray) -> list[Any]:
    if unit_of(column.type):
        return [None if value is None else 0 for value in column.is_valid().to_pylist()]
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return list(column.cast(pa.binary()).to_pylist())


def _check_names(file: str, names: list[str], used: list[str], row_set: RowSet) -> None:
    """Notes columns that a file lacks, and those that it has twice."""
    for name in used:
        if name not in names:
            row_set.must.append(f"{file} has no column {name!r}")
        elif names.count(name) > 1:
            row_set.must.append(f"{file} has two columns {name!r}")
    if len(set(names)) < len(names):
        row_set.may.append(f"{file} has two columns of one name")


def _read_array(file: str, values: np.ndarray[Any, Any], row_set: RowSet) -> RowSet:
    if values.dtype.kind not in "biuf" or values.ndim != 2:
        row_set.must.append(f"{file} is {values.dtype} {list(values.shape)}")
        return row_set
    columns = values if values.shape[0] == 2 else values.T
    if len(columns) < 2:
        row_set.must.append(f"{file} has one column")
        return row_set
    row_set.names = [str(i) for i in range(len(columns))]
    arrow = [pa.chunked_array([pa.array(c.astype(c.dtype.newbyteorder("=")))]) for c in columns]
    return _row_set_of_tables([(file, pa.Table.from_arrays(arrow, row_set.names))], [], row_set)


def _read_csv(
    path: Path, folder: Path, used: list[str], csv_format: dict[str, Any], row_set: RowSet
) -> None:
    data = (folder / path).read_bytes()
    if inflate := _INFLATE.get(path.suffix.lower()):
        data = inflate(data)
    text = data.decode("utf-8-sig")
    delimiter = csv_format.get("delimiter") or ("\t" if ".tsv" in path.suffixes else ",")
    records, broken = _records(text, delimiter)
    if records and any("\n" in value or "\r" in value for value in records[0]):
        row_set.may.append(f"{path} has a first line of several lines")
    if csv_format.get("header", True):
        if "header" not in csv_format:
            row_set.may.append(f"{path} may have a header or not")
        names = records.pop(0) if records else []
        if names and all(n.lstrip("-").isdigit() for n in names):
            row_set.may.append(f"{path} has numbers for names of columns")
    else:
        names = [f"f{i}" for i in range(len(records[0]))] if records else []
    if not names:
        row_set.may.append(f"{path} is empty")
        return
    row_set.names = row_set.names or names
    if set(names) != set(row_set.names):
        row_set.may.append(f"{path} has other columns than the first file")
    used = used or row_set.names[:2]
    _check_names(str(path), names, used, row_set)
    if any(n not in names for n in used):
        return
    last = max((i for i, record in enumerate(records) if record), default=-1)
    without_blanks = 0
    for number, record in enumerate(records):
        is_blank = not record
        if is_blank and len(names) == 1:
            record = [""]
        optional = (is_blank and (len(names) > 1 or number > last)) or (
            broken is not None and number > broken
        )
        row = Row(str(path), (number, without_blanks), {}, {}, len(record) != len(names)
                  or number == broken, optional)  # fmt: skip
        if not row.malformed:
            row.values = dict(zip(names, record, strict=True))
            row.cells = {n: _cell(row.values[n]) for n in used}
        row_set.rows.append(row)
        without_blanks += not is_blank


_cell = lru_cache(100_000)(to_cell)


def _records(text: str, delimiter: str) -> tuple[list[list[str]], int | None]:
    """Returns the records, and the number of the one whose quotation mark is never closed."""
    csv.field_size_limit(1 << 30)
    records: list[list[str]] = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    begin = 0
    try:
        for record in reader:
            records.append(record)
            begin = reader.line_num
    except csv.Error:
        # The lines behind it may be read one by one, or as its rest.
        rest = io.StringIO(text, newline="").readlines()[begin:]
        broken = len(records)
        records += [next(csv.reader([line], delimiter=delimiter), []) for line in rest]
        return records, broken
    return records, None
