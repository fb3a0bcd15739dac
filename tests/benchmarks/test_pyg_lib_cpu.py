"""pyg_lib_cpu.py on a small graph, where pyg-lib is installed, and its message where it is not."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from tests.benchmarks.test_smoke import BENCHMARKS
from tests.scripts import run_python

_INSTALLED = importlib.util.find_spec("pyg_lib") is not None


@pytest.mark.skipif(not _INSTALLED, reason="pyg-lib is not installed")
def test_samples_beside_pyg_lib(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    options = ["--edges", "2e4", "--rounds", "2"]
    done = run_python(BENCHMARKS / "pyg_lib_cpu.py", *options, "--out", out)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 16
    assert all(r["ratio"] > 0 and r["edges"] > 0 for r in rows)
    # The most recent neighbours are no matter of chance.
    assert all(r["edges"] == r["pyg_lib_edges"] for r in rows if r["strategy"] == "last")


@pytest.mark.skipif(_INSTALLED, reason="pyg-lib is installed")
def test_says_what_is_missing() -> None:
    done = run_python(BENCHMARKS / "pyg_lib_cpu.py")
    assert done.returncode != 0
    assert "pyg-lib is not installed" in done.stderr
