"""Opens the files that users name: paths, globs, folders, arrays, Arrow objects, queries."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

import numpy as np
from torch import Tensor

from peergraph.store.ingest.graph_files import EdgeFiles, NodeFiles
from peergraph.store.ingest.read.array_rows import edge_columns
from peergraph.store.ingest.read.batch import Batches, RowReader
from peergraph.store.ingest.read.csv_rows import CsvFormat, CsvRows
from peergraph.store.ingest.read.filtered_rows import FilteredRows
from peergraph.store.ingest.read.npy_file import NpyFile
from peergraph.store.ingest.read.optional import require
from peergraph.store.ingest.read.parquet_rows import ParquetRows
from peergraph.store.ingest.read.stream_rows import DatasetRows, spool_to_parquet
from peergraph.store.ingest.workspace import Workspace, quoted

_PARQUET = {".parquet", ".pq", ".parq"}
_CSV = {".csv", ".tsv", ".txt"}
_COMPRESSED = {".gz", ".bz2", ".zst", ".lz4"}


def open_rows(given: NodeFiles | EdgeFiles, workspace: Workspace) -> RowReader:
    """Returns the rows of a node or edge type.

    Raises:
        FileNotFoundError: no file of that name, or none that matches.
        ValueError: a file of an unknown kind, files of several kinds, or a query that is not valid.
        ImportError: a package that reads it is not installed.
    """
    if given.query is not None:
        return _query(given.query, workspace)
    reader = _open(given, workspace)
    if given.where is not None:
        reader = FilteredRows(reader, given.where, workspace.database)
    return reader


def open_array(path: str | PathLike[str]) -> NpyFile:
    """Opens a ``.npy`` file, or ``archive.npz:name``."""
    text = fspath(path)
    if ".npz:" in text:
        archive, _, member = text.rpartition(":")
        return NpyFile(Path(archive), member)
    return NpyFile(Path(text))


def open_file(path: str | PathLike[str], csv: CsvFormat) -> RowReader:
    """Returns the rows of one Parquet or CSV file.

    Raises:
        FileNotFoundError, ValueError, ImportError: as :func:`open_rows`.
    """
    paths = _expand(fspath(path))
    return CsvRows(paths, csv) if _kind(paths[0]) == "CSV" else ParquetRows(paths)


def is_array_path(value: object) -> bool:
    """Returns whether a name is one that :func:`open_array` opens."""
    return isinstance(value, (str, PathLike)) and (
        fspath(value).endswith(".npy") or ".npz:" in fspath(value)
    )


def _open(given: NodeFiles | EdgeFiles, workspace: Workspace) -> RowReader:
    files = given.files
    if isinstance(files, (Tensor, np.ndarray)):
        return edge_columns("the array of edges", files)
    if isinstance(files, (str, PathLike)):
        files = [files]
    if isinstance(files, Sequence):
        return _open_paths([fspath(path) for path in files], given)
    if hasattr(files, "scanner") or (hasattr(files, "schema") and hasattr(files, "to_batches")):
        return DatasetRows(type(files).__name__, files)
    if hasattr(files, "__arrow_c_stream__"):
        path = workspace.temporary / f"{workspace.unique_name('stream')}.parquet"
        return spool_to_parquet(type(files).__name__, files, path)
    raise TypeError(
        "files must be paths, a tensor or array of edges, or give Arrow record batches, got "
        f"{type(files).__name__}"
    )


def _open_paths(names: Sequence[str], given: NodeFiles | EdgeFiles) -> RowReader:
    if all(map(is_array_path, names)):
        if isinstance(given, NodeFiles):
            raise ValueError(f"{names[0]}: arrays have no columns: put them into tables")
        readers = [edge_columns(name, open_array(name)) for name in names]
        return readers[0] if len(readers) == 1 else _JoinedRows(readers)
    paths = [path for name in names for path in _expand(name)]
    kinds = {_kind(path) for path in paths}
    if len(kinds) > 1:
        raise ValueError(f"files of one kind at a time, got {' and '.join(sorted(kinds))}: {names}")
    return CsvRows(paths, given.csv) if kinds == {"CSV"} else ParquetRows(paths)


def _expand(name: str) -> list[Path]:
    """Returns the files of a path, glob or folder, in the order of their names."""
    path = Path(name)
    if path.is_dir():
        found = [p for p in sorted(path.iterdir()) if p.is_file() and _known_kind(p) is not None]
    elif path.exists():
        found = [path]
    else:
        found = [Path(match) for match in sorted(glob.glob(name, recursive=True))]
    if not found:
        raise FileNotFoundError(f"no file is or matches {name!r}")
    return found


def _known_kind(path: Path) -> str | None:
    suffixes = path.suffixes
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes = suffixes[:-1]
    last = suffixes[-1].lower() if suffixes else ""
    return "Parquet" if last in _PARQUET else "CSV" if last in _CSV else None


def _kind(path: Path) -> str:
    kind = _known_kind(path)
    if kind is None:
        known = ", ".join(sorted(_PARQUET | _CSV | {".npy", ".npz:name"}))
        raise ValueError(f"{path}: the kind of a file is known by its ending: {known}")
    return kind


def _query(query: str, workspace: Workspace) -> RowReader:
    """Returns the result of a query, which is stored so that it can be read several times."""
    path = workspace.temporary / f"{workspace.unique_name('query')}.parquet"
    errors = require("duckdb", "queries").Error
    try:
        workspace.database.execute("SET preserve_insertion_order = true")
        workspace.database.execute(
            f"COPY ({query.rstrip().rstrip(';')}) TO {quoted(str(path))} (FORMAT parquet)"
        )
    except errors as error:
        raise ValueError(f"query={query!r} is not valid: {error}") from error
    return ParquetRows([path], "the query's result")


@dataclass(frozen=True)
class _JoinedRows(RowReader):
    """Readers with the same columns, one after the other."""

    readers: Sequence[RowReader]

    @property
    def column_names(self) -> list[str]:
        return self.readers[0].column_names

    @property
    def num_rows(self) -> int | None:
        counts = [reader.num_rows for reader in self.readers]
        return sum(n for n in counts if n is not None) if None not in counts else None

    @property
    def expected_rows(self) -> int:
        return sum(reader.expected_rows for reader in self.readers)

    @property
    def num_bytes(self) -> int:
        return sum(reader.num_bytes for reader in self.readers)

    def batches(self, columns: Sequence[str], batch_rows: int) -> Batches:
        for reader in self.readers:
            yield from reader.batches(columns, batch_rows)

    def largest(self, column: str) -> int | None:
        found = [reader.largest(column) for reader in self.readers]
        return max(n for n in found if n is not None) if None not in found else None
