"""samplers.py on a small graph."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.benchmarks.test_smoke import BENCHMARKS
from tests.scripts import run_python

pytest.importorskip("torch_geometric")
pytest.importorskip("peergraph_dgl", exc_type=ImportError)


def test_samplers(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = run_python(
        BENCHMARKS / "samplers.py", "--graph", "tiny/20", "--rounds", "1", "--out", out
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len({row["sampler"] for row in rows}) == 13
    assert {row.get("peer") for row in rows} == {"dgl", "pyg", None}
    assert all(row["ms"] > 0 and row.get("ratio", 1) > 0 for row in rows)
