"""Losses on partitioned graphs are those of PyG and DGL: a small case of the benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.benchmarks.running import read, run_script


def check_curves(folder: Path, *arguments: str, systems: set[tuple[str, int]]) -> None:
    """Runs the benchmark, which fails where a loss is out of tolerance."""
    pytest.importorskip("torch_geometric")
    out, table = folder / "out.jsonl", folder / "table.md"
    run_script("fullgraph_curves", *arguments, "--out", out, "--table", table)
    records = read(out)
    assert {(r["system"], r["world"]) for r in records} == systems
    losses = [r["losses"] for r in records]
    assert all(curve[-1] < curve[0] for curve in losses)
    rows = table.read_text().splitlines()
    assert len(rows) == 2 + len([r for r in records if r["system"] == "plain"])


def test_on_the_cpu(tmp_path: Path) -> None:
    few = "--frameworks pyg --models GCN,to_hetero --epochs 5"
    systems = {("plain", 1), ("plain, other order", 1), ("peergraph", 2)}
    check_curves(tmp_path, "--device", "cpu", "--worlds", "2", few, systems=systems)


def test_dgl_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("peergraph_dgl", exc_type=ImportError)
    few = "--frameworks dgl --models RGCN --dtypes float64 --epochs 5"
    systems = {("plain", 1), ("peergraph", 2)}
    check_curves(tmp_path, "--device", "cpu", "--worlds", "2", few, systems=systems)


@pytest.mark.parametrize(
    "ranks", [pytest.param(n, marks=pytest.mark.gpus(n), id=f"{n}-gpus") for n in (1, 2, 4)]
)
def test_on_gpus(tmp_path: Path, ranks: int) -> None:
    """All models, with dropout and without, in float64."""
    few = "--frameworks pyg --dtypes float64 --epochs 20"
    systems = {("plain", 1), ("peergraph", ranks)}
    check_curves(tmp_path, "--device", "cuda", "--worlds", str(ranks), few, systems=systems)
