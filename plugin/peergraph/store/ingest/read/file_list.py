"""The files of a path, glob or folder."""

from __future__ import annotations

import glob
import stat
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

_KINDS = {
    **dict.fromkeys((".parquet", ".pq", ".parq"), "Parquet"),
    **dict.fromkeys((".csv", ".tsv", ".txt"), "CSV"),
}
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")


def is_array_path(value: object) -> bool:
    """Returns whether a name is that of a ``.npy`` file or of an array in a ``.npz`` file."""
    return isinstance(value, (str, PathLike)) and (
        str(fspath(value)).endswith(".npy") or ".npz:" in str(fspath(value))
    )


def kind_of_file(path: Path) -> str:
    """Returns ``"Parquet"`` or ``"CSV"``. Raises ValueError if the ending is another one."""
    suffixes = ["", *(suffix.lower() for suffix in path.suffixes)]
    is_compressed = suffixes[-1] in _COMPRESSED
    kind = _KINDS.get(suffixes[-2] if is_compressed else suffixes[-1])
    if kind is None or (is_compressed and kind != "CSV"):
        endings = ", ".join(sorted([*_KINDS, *_COMPRESSED, ".npy", ".npz:name"]))
        raise ValueError(f"{path}: the kind of a file is known by its ending: {endings}")
    return kind


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
        for path in _files_of(Path(name), notes):
            check_regular(path)
            owner = owners.setdefault(path.resolve(), name)
            if owner != name:
                raise ValueError(f"{path} is named twice: by {owner!r} and by {name!r}")
            paths.append(path)
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
            kind_of_file(path)
            paths.append(path)
    if not paths:
        raise FileNotFoundError(f"{name} has no file")
    return paths
