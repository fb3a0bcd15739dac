"""ingest.py on few edges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.benchmarks.running import BENCHMARKS, read, run_script


def test_ingest(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    options = ["--nodes", "500", "--edges", "2e4", "--memory", "1M,1G", "--folder", tmp_path]
    done = run_script("ingest", *options, "--probe", "1M", "--out", out)
    rows = read(out)
    assert [row["memory_gib"] for row in rows] == [2**-10, 1]
    assert all(row["edges"] == 20_000 and row["at_disk_rate"] > 0 for row in rows)
    assert "million_edges_per_s" in done.stdout
    assert list(tmp_path.iterdir()) == [out]


def test_files_are_the_same_for_any_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed (peergraph[ingest])")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from inputs import edge_files

    monkeypatch.setattr(edge_files, "_ROWS_PER_FILE", 1000)
    monkeypatch.setattr(edge_files, "_ROWS_PER_STEP", 300)
    monkeypatch.setattr(edge_files, "_STEP_BYTES", 640)
    contents = []
    for threads in (1, 4):
        folder = tmp_path / str(threads)
        folder.mkdir()
        edge_files.write_features(folder / "x.npy", 55, 3, threads)
        for ending in ("parquet", "npy", "csv"):
            (folder / ending).mkdir()
            edge_files.write_edges(folder / ending, ending, 5000, 3500, threads)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        contents.append([(path.relative_to(folder), path.read_bytes()) for path in files])
        assert len(files) == 1 + 3 * 4
    assert contents[0] == contents[1]
    edges = np.concatenate([np.load(p) for p in sorted((folder / "npy").iterdir())], axis=1)
    assert edges.shape == (2, 3500)
    assert 0 <= edges.min() <= edges.max() < 5000
    assert 0.18 < (edges[1] < 50).mean() < 0.25
    features = np.load(folder / "x.npy")
    assert features.shape == (55, 3)
    assert (features > 0).all()
