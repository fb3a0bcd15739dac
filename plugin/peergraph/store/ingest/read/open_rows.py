"""Opens the files that users name: paths, globs, folders, arrays, Arrow objects."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Collection, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from peergraph.store.ingest.graph_files import CsvFormat
from peergraph.store.ingest.read.arrays import ArrayRows, check_regular, is_array_path
from peergraph.store.ingest.read.arrow_rows import ArrowRows, ParquetRows
from peergraph.store.ingest.read.csv_rows import CsvRows
from peergraph.store.ingest.read.row_source import RowSource

_KINDS = {
    **dict.fromkeys((".parquet", ".pq", ".parq"), "Parquet"),
    **dict.fromkeys((".csv", ".tsv", ".txt"), "CSV"),
}
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")


def open_rows(
    files: Any,
    csv: CsvFormat,
    named: Collection[str] = (),
    arrays: Literal["edges", "table"] | None = None,
) -> RowSource:
    """Returns the rows of files, or of an object that gives record batches of Arrow.

    Args:
        files, csv: as in :class:`EdgeFiles`.
        named: the columns that users name.
        arrays: what arrays may be, in files or in memory: edges, or tables, whose only column has
            the name ``""``; None: there may be none.

    Raises:
        FileNotFoundError: no file of that name, or none that matches.
        ValueError: a file of an unknown kind, files of several kinds.
    """
    if isinstance(files, RowSource):
        return files
    if isinstance(files, (Tensor, np.ndarray)) and arrays:
        return RowSource([ArrayRows(files, arrays == "edges")])
    if hasattr(files, "to_batches") or hasattr(files, "__arrow_c_stream__"):
        return RowSource([ArrowRows.of(files)])
    names_of_files = [files] if isinstance(files, (str, PathLike)) else files
    if not isinstance(names_of_files, Sequence):
        raise ValueError(
            "files must be paths, a tensor or array of edges or of a table, or give Arrow record "
            f"batches, got {type(files).__name__}"
        )
    names = [fspath(name) if isinstance(name, PathLike) else name for name in names_of_files]
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"files must be paths, one at least, got {files!r}")
    of_arrays = [name for name in names if is_array_path(name)]
    if of_arrays and not arrays:
        raise ValueError(f"{of_arrays[0]}: arrays have no columns: put them into tables")
    paths, notes = _expand([name for name in names if name not in of_arrays])
    kinds = {_kind(path) for path in paths} | ({"an array"} if of_arrays else set())
    if len(kinds) > 1:
        raise ValueError(f"files of one kind at a time, got {' and '.join(sorted(kinds))}: {names}")
    if of_arrays:
        return RowSource([ArrayRows(name, arrays == "edges") for name in names])
    if kinds == {"Parquet"}:
        return RowSource([ParquetRows(path) for path in paths], notes)
    texts: list[CsvRows] = []
    for path in paths:  # the first line decides whether the files have headers
        header = next((t.has_header for t in texts if t.has_header is not None), csv.header)
        texts.append(CsvRows(path, csv, header, named))
    return RowSource(texts, notes)


def _kind(path: Path) -> str:
    """Returns ``"Parquet"`` or ``"CSV"``. Raises ValueError if the ending is another one."""
    suffixes = ["", *(suffix.lower() for suffix in path.suffixes)]
    is_compressed = suffixes[-1] in _COMPRESSED
    kind = _KINDS.get(suffixes[-2] if is_compressed else suffixes[-1])
    if kind is None or (is_compressed and kind != "CSV"):
        endings = ", ".join(sorted([*_KINDS, *_COMPRESSED, ".npy", ".npz:name"]))
        raise ValueError(f"{path}: the kind of a file is known by its ending: {endings}")
    return kind


def _expand(names: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Returns the files of paths, globs and folders, each in the order of their names; and notes
    about files that are left out or listed twice. Raises ValueError if two names have a file in
    common, or one name has a link to another of its files.
    """
    paths: list[Path] = []
    notes: list[str] = []
    owners: dict[Path, tuple[Path, str]] = {}
    for name in names:
        for path in _files_of(Path(name), notes):
            check_regular(path)
            first, owner = owners.setdefault(path.resolve(), (path, name))
            if owner != name:
                raise ValueError(f"{path} is named twice: by {owner!r} and by {name!r}")
            if first != path:
                raise ValueError(f"{name!r} has a file twice: {path} is {first}")
            paths.append(path)
    for path, count in Counter(paths).items():
        if count > 1:
            notes.append(f"{path} is listed {count} times: so are its rows")
    return paths, notes


def _files_of(name: Path, notes: list[str]) -> list[Path]:
    """Returns the files of a path, a glob, or a folder: all but hidden ones and those of writers,
    which are added to the notes.
    """
    if not name.is_dir():
        is_path = name.exists() or name.is_symlink()
        paths = [name] if is_path else [*map(Path, sorted(glob.glob(str(name), recursive=True)))]
        if not paths:
            raise FileNotFoundError(f"no file is or matches {str(name)!r}")
        return paths
    paths = []
    for path in sorted(name.iterdir()):
        if path.name.startswith((".", "_")):
            notes.append(f"{path} was left out: its name begins with {path.name[0]!r}")
        elif path.is_dir():
            raise ValueError(f"{path} is a folder within {name}: name its files by a glob")
        else:
            _kind(path)
            paths.append(path)
    if not paths:
        raise FileNotFoundError(f"{name} has no file")
    return paths
