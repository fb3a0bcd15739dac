"""Reads files that may have been damaged or replaced."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peergraph.file_reads import read_into


@contextmanager
def open_regular(path: Path) -> Iterator[int]:
    """Yields the descriptor of a regular file, for reading. A FIFO does not block.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: the file is a symbolic link, or not a regular file.
        OSError: the file cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(
                f"{path} must be a regular file, got a symbolic link: a saved store is read from "
                "its own folder only"
            ) from None
        if error.errno == errno.ENXIO:
            raise ValueError(f"{path} must be a regular file, got a socket or device") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(f"{path} must be a regular file")
        yield fd
    finally:
        os.close(fd)


def read_all(path: Path, most: int) -> bytes:
    """Returns the contents of a regular file of at most `most` bytes.

    Raises:
        FileNotFoundError, OSError: as in :func:`open_regular`.
        ValueError: as in :func:`open_regular`, or the file is larger.
    """
    with open_regular(path) as fd:
        size = os.fstat(fd).st_size
        if size > most:
            raise ValueError(f"{path} must have at most {most} bytes, has {size}")
        contents = bytearray(size)
        read_into(fd, path, 0, memoryview(contents))
    return bytes(contents)
