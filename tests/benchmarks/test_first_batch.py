"""first_batch.py on a few edges."""

from __future__ import annotations

import json
from pathlib import Path

from tests.benchmarks.test_smoke import BENCHMARKS
from tests.scripts import run_python


def test_first_batch(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    sizes = ["--nodes", "5e3", "--edges", "2e4", "--dim", "3", "--repeats", "1"]
    stages = ["--stages", "share,save,load,full_graph", "--peers", "pyg,copies", "--log"]
    where = ["--world", "2", "--device", "cpu", "--folder", tmp_path, "--out", out]
    done = run_python(BENCHMARKS / "first_batch.py", *sizes, *stages, *where)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["stage"] for row in rows} == {
        *("share", "first batch", "save", "load", "full_graph"),
        *("to_csc", "copy of rows", "disk read", "disk write"),
    }
    assert "edges_per_s" in done.stdout
    assert list(tmp_path.iterdir()) == [out]
