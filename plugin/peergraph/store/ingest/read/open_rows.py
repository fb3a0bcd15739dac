"""Opens the files that users name: paths, globs, folders, arrays, Arrow objects."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from os import PathLike, fspath
from typing import Any

import numpy as np
from torch import Tensor

from peergraph.store.ingest.graph_files import CsvFormat
from peergraph.store.ingest.read.arrays import ArrayRows
from peergraph.store.ingest.read.arrow_rows import ParquetRows, StreamRows
from peergraph.store.ingest.read.csv_rows import CsvRows
from peergraph.store.ingest.read.file_list import expand, is_array_path, kind_of_file
from peergraph.store.ingest.read.row_source import RowSource


def open_rows(
    files: Any, csv: CsvFormat, named: Collection[str] = (), are_edges: bool = False
) -> RowSource:
    """Returns the rows of files, or of an object that gives record batches of Arrow.

    Args:
        files: as in :class:`NodeFiles` and :class:`EdgeFiles`.
        csv: the format of CSV files.
        named: the columns that users name.
        are_edges: whether the files may be arrays of edges.

    Raises:
        FileNotFoundError: no file of that name, or none that matches.
        ValueError: a file of an unknown kind, files of several kinds.
        ImportError: a package that reads it is not installed.
    """
    if isinstance(files, (Tensor, np.ndarray)) and are_edges:
        return RowSource([ArrayRows(files, are_edges)])
    if hasattr(files, "to_batches") or hasattr(files, "__arrow_c_stream__"):
        return RowSource([StreamRows.of(files)])
    names_of_files = [files] if isinstance(files, (str, PathLike)) else files
    if not isinstance(names_of_files, Sequence):
        raise ValueError(
            "files must be paths, a tensor or array of edges, or give Arrow record batches, got "
            f"{type(files).__name__}"
        )
    names = [fspath(name) if isinstance(name, PathLike) else name for name in names_of_files]
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"files must be paths, one at least, got {files!r}")
    arrays = [name for name in names if is_array_path(name)]
    if arrays and not are_edges:
        raise ValueError(f"{arrays[0]}: arrays have no columns: put them into tables")
    paths, notes = expand([name for name in names if name not in arrays])
    kinds = {kind_of_file(path) for path in paths} | ({"an array"} if arrays else set())
    if len(kinds) > 1:
        raise ValueError(f"files of one kind at a time, got {' and '.join(sorted(kinds))}: {names}")
    if arrays:
        return RowSource([ArrayRows(name, are_edges) for name in names])
    if kinds == {"Parquet"}:
        return RowSource([ParquetRows(path) for path in paths], notes)
    texts: list[CsvRows] = []
    for path in paths:  # the first line decides whether the files have headers
        header = next((t.has_header for t in texts if t.has_header is not None), csv.header)
        texts.append(CsvRows(path, csv, header, named))
    return RowSource(texts, notes)


def open_table(values: Any, csv: CsvFormat) -> RowSource:
    """Returns the rows of one table: of an array, whose only column has the name ``""``, or of
    Parquet or CSV files.
    """
    if isinstance(values, (Tensor, np.ndarray)) or is_array_path(values):
        return RowSource([ArrayRows(values, are_edges=False)])
    if isinstance(values, (str, PathLike)):
        return open_rows(values, csv)
    raise ValueError(f"expected a file, a tensor or an array, got {values!r}")
