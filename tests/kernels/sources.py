"""The kernels that there are: every function that the sources declare to run on a GPU."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "csrc"
_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(")


def kernels() -> set[str]:
    """Names of all kernels in `csrc/`."""
    files = [path for path in SOURCES.rglob("*") if path.suffix in (".cu", ".cuh")]
    texts = [path.read_text() for path in files]
    names = [name for text in texts for name in _KERNEL.findall(text)]
    assert len(names) == sum(text.count("__global__ void") for text in texts), "one was not found"
    return set(names)
