"""sampling_cpu.py on a small graph."""

from __future__ import annotations

import json
from pathlib import Path

from tests.benchmarks.test_smoke import BENCHMARKS
from tests.scripts import run_python


def test_sampling_cpu(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    options = ["--graph", "tiny/20", "--threads", "1,3", "--cases", "3-2:16", "--rounds", "2"]
    done = run_python(BENCHMARKS / "sampling_cpu.py", *options, "--out", out)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(r["fanout"], r["batch"], r["threads"]) for r in rows] == [
        ("3-2", 16, 1),
        ("3-2", 16, 3),
    ]
    assert all(r["ratio"] > 0 and r["cpu_ms"] >= 0 and r["edges"] > 0 for r in rows)
    assert "cpu_ratio" in done.stdout
