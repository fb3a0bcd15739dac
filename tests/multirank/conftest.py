"""What holds for every test of several ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# What Python's and torch's own multiprocessing keep there, of any process of the machine.
_OF_OTHERS = ("sem.", "torch_", "pymp-")


def _shared_memory_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if not name.startswith(_OF_OTHERS)}


@pytest.fixture(autouse=True)
def _no_shared_memory_file_is_left() -> Iterator[None]:
    before = _shared_memory_files()
    yield
    assert _shared_memory_files() <= before
