"""accuracy_loaders.py on a small graph, where torch-sparse is there for plain PyG."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.benchmarks.running import read, run_script
from tests.benchmarks.test_accuracy_dgl import communities

pytest.importorskip("torch_sparse")


def test_both_sides(tmp_path: Path) -> None:
    np.savez(tmp_path / "cora.npz", directed=np.array(False), **communities("", ""))
    records = tmp_path / "records.jsonl"
    options = ("--graphs", "cora", "--seeds", "2", "--epochs", "3", "--records", records)
    run_script("accuracy_loaders", "--data", tmp_path, *options)
    rows = read(records)
    assert len(rows) == 5
    assert all(len(row[side]) == 2 for row in rows for side in ("store", "pyg"))
