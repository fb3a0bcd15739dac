"""The files that shared memory is made of, and who uses them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/dev/shm")
# What Python's and torch's own multiprocessing keep there, of any process of the machine.
_OF_OTHERS = ("sem.", "torch_", "pymp-")


def shared_files() -> set[str]:
    """Names of the files in shared memory."""
    return {p.name for p in FOLDER.iterdir() if not p.name.startswith(_OF_OTHERS)}


def in_use() -> set[str]:
    """Names of those that a process of this machine has open or mapped."""
    used: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        # Processes end meanwhile, files are closed, and some processes are other users'.
        with suppress(OSError):
            used += (process / "maps").read_text().splitlines()
            for fd in (process / "fd").iterdir():
                with suppress(OSError):
                    used.append(os.readlink(fd))
    paths = [Path(text[text.find("/") :]) for text in used if "/" in text]
    return {path.name for path in paths if path.parent == FOLDER}
