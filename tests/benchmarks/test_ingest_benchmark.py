"""ingest.py on few edges."""

from __future__ import annotations

import json
from pathlib import Path

from tests.benchmarks.test_smoke import BENCHMARKS
from tests.scripts import run_python


def test_ingest(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    options = ["--nodes", "500", "--edges", "2e4", "--memory", "1M,1G", "--folder", tmp_path]
    done = run_python(BENCHMARKS / "ingest.py", *options, "--probe", "1M", "--out", out)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["memory_gib"] for row in rows] == [2**-10, 1]
    assert all(row["edges"] == 20_000 and row["at_disk_rate"] > 0 for row in rows)
    assert "million_edges_per_s" in done.stdout
    assert list(tmp_path.iterdir()) == [out]
