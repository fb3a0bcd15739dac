"""What holds for every test of several ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

SHARED_MEMORY = Path("/dev/shm")
# What Python's and torch's own multiprocessing keep there, of any process of the machine.
_OF_OTHERS = ("sem.", "torch_", "pymp-")


def _files() -> set[str]:
    return {p.name for p in SHARED_MEMORY.iterdir() if not p.name.startswith(_OF_OTHERS)}


def _in_use() -> set[str]:
    """Names of the files that a process of this machine has open or mapped."""
    used: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        # Processes end meanwhile, files are closed, and some processes are other users'.
        with suppress(OSError):
            used += (process / "maps").read_text().splitlines()
            for fd in (process / "fd").iterdir():
                with suppress(OSError):
                    used.append(os.readlink(fd))
    paths = [Path(text[text.find("/") :]) for text in used if "/" in text]
    return {path.name for path in paths if path.parent == SHARED_MEMORY}


@pytest.fixture(autouse=True)
def _no_shared_memory_file_is_left() -> Iterator[None]:
    """A file that was not there before and that nobody uses; other tests run meanwhile."""
    before = _files()
    yield
    left = _files() - before
    deadline = time.monotonic() + 5
    while left and time.monotonic() < deadline:
        left &= _files() - _in_use()
        time.sleep(0.05)
    assert left == set()
