"""accuracy_loaders.py on a small graph, where torch-sparse is there for plain PyG."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.benchmarks.test_accuracy_dgl import communities
from tests.benchmarks.test_smoke import BENCHMARKS
from tests.scripts import run_python

pytest.importorskip("torch_sparse")


def test_both_sides(tmp_path: Path) -> None:
    np.savez(tmp_path / "cora.npz", directed=np.array(False), **communities("", ""))
    records = tmp_path / "records.jsonl"
    options = ("--graphs", "cora", "--seeds", "2", "--epochs", "3", "--records", records)
    done = run_python(BENCHMARKS / "accuracy_loaders.py", "--data", tmp_path, *options)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    assert len(rows) == 5
    assert all(len(row[side]) == 2 for row in rows for side in ("store", "pyg"))
