"""Creates a folder atomically: with all of its files, or not at all."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty folder next to `folder`, which is renamed to `folder` at the end of the block
    and synchronised with the disk; after an error it is removed.

    Folders of earlier saves to the same `folder` that were killed are removed first. A process
    locks (``flock``) the folder that it writes, and the system releases the lock when the process
    ends.

    Raises:
        FileExistsError: `folder` exists, at the beginning or at the end.
        OSError: the folder cannot be created.
    """
    if os.path.lexists(folder):
        raise FileExistsError(errno.EEXIST, "the folder to save into exists", str(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    part, lock = _make_part(folder)
    try:
        yield part
        os.fsync(lock)
        _rename_new(part, folder)
        _sync(folder.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _make_part(folder: Path) -> tuple[Path, int]:
    """Creates the folder to write into. Returns it, and the descriptor that keeps it locked."""
    while True:
        part = folder.with_name(f"{folder.name}.part-{os.getpid()}-{secrets.token_hex(4)}")
        part.mkdir()
        lock = _lock(part)
        # Before it was locked, another save may have removed it as abandoned.
        if lock is not None and os.path.exists(part):
            return part, lock
        if lock is not None:
            os.close(lock)


def _remove_abandoned(folder: Path) -> None:
    name = re.compile(re.escape(folder.name) + r"\.part-\d+(-[0-9a-f]+)?")
    for part in folder.parent.iterdir():
        if not name.fullmatch(part.name) or part.is_symlink() or not part.is_dir():
            continue
        lock = _lock(part)
        if lock is not None:
            shutil.rmtree(part, ignore_errors=True)
            os.close(lock)


def _lock(part: Path) -> int | None:
    """Locks a folder. Returns the descriptor that holds the lock; None if another process holds
    it.
    """
    fd = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _rename_new(part: Path, folder: Path) -> None:
    """Renames if nothing of the new name exists; ``rename`` would replace an empty folder."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None:
        names = os.fsencode(part), os.fsencode(folder)
        if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE) == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(number, os.strerror(number), str(folder))
    # The system or the file system has no such call.
    if os.path.lexists(folder):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
    part.rename(folder)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
