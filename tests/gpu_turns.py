"""Tests on GPUs run side by side, except those that need the GPUs for themselves."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(tempfile.gettempdir())
LOCKS = f"{FOLDER}/peergraph-tests-{os.getuid()}-"
"""What the paths of the locks begin with."""


@contextmanager
def turn(alone: bool, folder: Path = FOLDER) -> Iterator[None]:
    """Waits until a test may use the GPUs of this machine, and holds them while it does.

    Tests of all processes of this user that are not `alone` hold them together. The locks are
    files': they go with a process, however it ends.
    """
    how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    # Whoever waits to be alone keeps the door shut, so only those inside have to end.
    with _locked(folder, "door") as door, _locked(folder, "gpus", how):
        if not alone:
            fcntl.flock(door, fcntl.LOCK_UN)
        yield


@contextmanager
def _locked(folder: Path, name: str, how: int = fcntl.LOCK_EX) -> Iterator[int]:
    path = folder / f"peergraph-tests-{os.getuid()}-{name}.lock"
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, how)
        yield file
    finally:
        os.close(file)
