"""The files of a path, glob or folder."""

from __future__ import annotations

import glob
import stat
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

_PARQUET = {".parquet", ".pq", ".parq"}
_CSV = {".csv", ".tsv", ".txt"}
_COMPRESSED = {".gz", ".bz2", ".zst", ".lz4"}


def is_array_path(value: object) -> bool:
    """Returns whether a name is that of a ``.npy`` file or of an array in a ``.npz`` file."""
    return isinstance(value, (str, PathLike)) and (
        str(fspath(value)).endswith(".npy") or ".npz:" in str(fspath(value))
    )


def kind_of_file(path: Path) -> str:
    """Returns ``"Parquet"`` or ``"CSV"``. Raises ValueError if the ending is another one."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes = suffixes[:-1]
        is_compressed = True
    else:
        is_compressed = False
    last = suffixes[-1] if suffixes else ""
    if last in _CSV:
        return "CSV"
    if last in _PARQUET and not is_compressed:
        return "Parquet"
    known = ", ".join(sorted(_PARQUET | _CSV | _COMPRESSED | {".npy", ".npz:name"}))
    raise ValueError(f"{path}: the kind of a file is known by its ending: {known}")


def expand(names: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Returns the files of paths, globs and folders, each in the order of their names; and notes
    about files that are left out or listed twice.

    Raises:
        FileNotFoundError: nothing has a name, or matches it.
        ValueError: a folder has files of another kind or folders, two names have a file in common,
            or a file is none that can be read from front to back again, such as a pipe.
    """
    paths: list[Path] = []
    notes: list[str] = []
    owners: dict[Path, str] = {}
    for name in names:
        found, more = _expand(name)
        notes += more
        for path in found:
            check_regular(path)
            owner = owners.setdefault(path.resolve(), name)
            if owner != name:
                raise ValueError(f"{path} is named twice: by {owner!r} and by {name!r}")
        paths += found
    for path in dict.fromkeys(paths):
        if paths.count(path) > 1:
            notes.append(f"{path} is listed {paths.count(path)} times: so are its rows")
    return paths, notes


def check_regular(path: Path) -> None:
    """Raises FileNotFoundError if there is no such file, and ValueError if it is a folder, a pipe,
    a device or a socket.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        linked = path.is_symlink()
        what = f"{path} is a link to a file that does not exist" if linked else f"no file is {path}"
        raise FileNotFoundError(what) from None
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} must be a regular file")


def _expand(name: str) -> tuple[list[Path], list[str]]:
    path = Path(name)
    if path.is_dir():
        return _files_of_folder(path)
    if path.exists() or path.is_symlink():
        return [path], []
    found = [Path(match) for match in sorted(glob.glob(name, recursive=True))]
    if not found:
        raise FileNotFoundError(f"no file is or matches {name!r}")
    return found, []


def _files_of_folder(folder: Path) -> tuple[list[Path], list[str]]:
    """Returns the files of a folder: all of them but hidden ones and those of writers."""
    found, notes = [], []
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")):
            notes.append(f"{path} was left out: its name begins with {path.name[0]!r}")
            continue
        if path.is_dir():
            raise ValueError(f"{path} is a folder within {folder}: name its files by a glob")
        kind_of_file(path)
        found.append(path)
    if not found:
        raise FileNotFoundError(f"{folder} has no file")
    return found, notes
