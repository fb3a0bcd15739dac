"""sampler_reach.py on a small graph: Peergraph's samplers, the peers', and the ratios."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.benchmarks.test_smoke import BENCHMARKS
from tests.scripts import run_python

pytest.importorskip("peergraph_dgl", exc_type=ImportError)


def test_reach(tmp_path: Path) -> None:
    rows = {}
    for name, options in (("own", ()), ("peers", ("--peer",))):
        out = tmp_path / name
        arguments = ("--graphs", "tiny/20", "--rounds", "1", "--out", out, *options)
        done = run_python(BENCHMARKS / "sampler_reach.py", *arguments)
        assert done.returncode == 0, done.stderr[-3000:]
        rows[name] = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows["own"]) == 14
    assert all(row["ms"] > 0 for row in rows["own"])
    for row in rows["peers"]:
        assert row["system"] == "torch-sparse" or row["ms"] > 0, row
    files = [tmp_path / "own", tmp_path / "peers"]
    done = run_python(BENCHMARKS / "sampler_reach.py", "--join", *files)
    assert "per_core" in done.stdout
    assert all(row["sampler"] in done.stdout for row in rows["peers"] if "ms" in row)
