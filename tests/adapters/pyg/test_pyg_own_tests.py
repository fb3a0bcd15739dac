"""PyG's own tests of its layers pass on ours, and those of its loaders on shared data, where a
checkout of PyG is at hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = os.environ.get("PEERGRAPH_PYG_CHECKOUT")


@pytest.mark.skipif(
    CHECKOUT is None, reason="PEERGRAPH_PYG_CHECKOUT names no checkout (packages have no tests)"
)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("module", ["own_tests", "own_loader_tests"])
def test_of_pyg_pass(module: str) -> None:
    assert CHECKOUT is not None
    command = [sys.executable, "-m", f"tests.adapters.pyg.{module}", CHECKOUT]
    assert subprocess.run(command, cwd=Path(__file__).parents[3]).returncode == 0
