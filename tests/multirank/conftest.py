"""What holds for every test of several ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.shared_memory import in_use, shared_files


@pytest.fixture(autouse=True)
def _no_shared_memory_file_is_left() -> Iterator[None]:
    """A file that was not there before and that nobody uses; other tests run meanwhile."""
    before = shared_files()
    yield
    left = shared_files() - before
    deadline = time.monotonic() + 5
    while left and time.monotonic() < deadline:
        left &= shared_files() - in_use()
        time.sleep(0.05)
    assert left == set()
