"""The CPU as the default device on a machine with GPUs, as it is on one without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from peergraph.memory.group import group
from tests import scripts


@contextmanager
def cpu_by_default() -> Iterator[None]:
    """Within the context, stores made without a device are on the CPU, and programs find no GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group, "_has_gpu", lambda: False)
        patch.setattr(scripts, "HIDES_GPUS", True)
        yield
