"""Scripts that let systems take turns, on small graphs: on the CPU, without ranks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.benchmarks.running import BENCHMARKS, read, run_script
from tests.scripts import run_python

_HAS_PYG_LIB = importlib.util.find_spec("pyg_lib") is not None


def test_sampling_cpu(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    options = "--graph tiny/20 --threads 1,3 --cases 3-2:16 --rounds 2"
    done = run_script("sampling_cpu", options, "--out", out)
    rows = read(out)
    assert [(r["fanout"], r["batch"], r["threads"]) for r in rows] == [
        ("3-2", 16, 1),
        ("3-2", 16, 3),
    ]
    assert all(r["ratio"] > 0 and r["cpu_ms"] >= 0 and r["edges"] > 0 for r in rows)
    assert "cpu_ratio" in done.stdout


@pytest.mark.skipif(not _HAS_PYG_LIB, reason="pyg-lib is not installed")
def test_samples_beside_pyg_lib(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run_script("pyg_lib_cpu", "--edges", "2e4", "--rounds", "2", "--out", out)
    rows = read(out)
    assert len(rows) == 16
    assert all(r["ratio"] > 0 and r["edges"] > 0 for r in rows)
    # The most recent neighbours are no matter of chance.
    assert all(r["edges"] == r["pyg_lib_edges"] for r in rows if r["strategy"] == "last")


@pytest.mark.skipif(_HAS_PYG_LIB, reason="pyg-lib is installed")
def test_says_that_pyg_lib_is_missing() -> None:
    done = run_python(BENCHMARKS / "pyg_lib_cpu.py")
    assert done.returncode != 0
    assert "pyg-lib is not installed" in done.stderr


def test_samplers(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    pytest.importorskip("peergraph_dgl", exc_type=ImportError)
    out = tmp_path / "out.jsonl"
    run_script("samplers", "--graph", "tiny/20", "--rounds", "1", "--out", out)
    rows = read(out)
    assert len({row["sampler"] for row in rows}) == 13
    assert {row.get("peer") for row in rows} == {"dgl", "pyg", None}
    assert all(row["ms"] > 0 and row.get("ratio", 1) > 0 for row in rows)


def test_sampler_reach(tmp_path: Path) -> None:
    """Peergraph's samplers, the peers', and the ratios."""
    pytest.importorskip("peergraph_dgl", exc_type=ImportError)
    rows = {}
    for name, options in (("own", ()), ("peers", ("--peer",))):
        out = tmp_path / name
        run_script("sampler_reach", "--graphs", "tiny/20", "--rounds", "1", "--out", out, *options)
        rows[name] = read(out)
    assert len(rows["own"]) == 14
    assert all(row["ms"] > 0 for row in rows["own"])
    for row in rows["peers"]:
        assert row["system"] == "torch-sparse" or row["ms"] > 0, row
    done = run_script("sampler_reach", "--join", tmp_path / "own", tmp_path / "peers")
    assert "per_core" in done.stdout
    assert all(row["sampler"] in done.stdout for row in rows["peers"] if "ms" in row)


def test_host_time() -> None:
    done = run_script("host_time", "--rounds", "1", "--steps", "2")
    assert "| accelerated step |" in done.stdout


def test_windows_of_time() -> None:
    done = run_script("temporal_cpu", "--windows", "--edges", "20000", "--rounds", "2")
    rows = [line.split("|") for line in done.stdout.splitlines()[2:]]
    assert len(rows) == 12
    assert all(float(row[4]) > 0 for row in rows)


def test_builds_have_the_same_samples() -> None:
    plugin = BENCHMARKS.parent / "plugin"
    options = ("--before", plugin, "--after", plugin, "--edges", "2000", "--rounds", "1")
    done = run_script("temporal_cpu", *options)
    rows = done.stdout.splitlines()[2:]
    assert len(rows) == 20
    assert all(row.endswith("| yes |") for row in rows)


def test_first_batch(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    sizes = "--nodes 5e3 --edges 2e4 --dim 3 --repeats 1"
    stages = "--stages share,save,load,full_graph --peers pyg,copies --log"
    where = ["--world", "2", "--device", "cpu", "--folder", tmp_path, "--out", out]
    done = run_script("first_batch", sizes, stages, *where)
    assert {row["stage"] for row in read(out)} == {
        *("share", "first batch", "save", "load", "full_graph"),
        *("to_csc", "copy of rows", "disk read", "disk write"),
    }
    assert "edges_per_s" in done.stdout
    assert list(tmp_path.iterdir()) == [out]
