"""exchange_overlap.py on ranks that take themselves for ranks of several machines."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.benchmarks.running import BENCHMARKS, read, run_script
from tests.scripts import run_python

from peergraph.memory.distributed.routes import Routes
from peergraph.memory.group.machines import Machines, Place

pytest.importorskip("torch_geometric")
sys.path.insert(0, str(BENCHMARKS))

from network.overlap import hot_ratio_for, partners
from training import MODELS, make_model


def test_a_layout(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    sizes = ["--graph", "tiny/20", "--batch", "16", "--fanout", "3,2", "--columns", "16"]
    sizes += ["--hidden", "8", "--steps", "2", "--rounds", "1", "--wires", "0.5,100"]
    script = BENCHMARKS / "exchange_overlap.py"
    done = run_python(script, "--layout", "1+3", *sizes, "--out", out)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "over_exchange" in done.stdout
    records = read(out)
    assert [(r["wire"], r["ddp"]) for r in records] == [(0.5, 0), (0.5, 1), (100, 0), (100, 1)]
    for r in records:
        # Ids, numbers and headers come on top of the rows.
        assert r["over_cold"] > 1
        assert r["cold_rows"] > 0
        assert min(r["ratio"], r["over_exchange"], r["wire_over_step"]) > 0
    # No share of cold rows is large enough.
    assert [r["hot_ratio"] for r in records if r["wire"] == 100] == [0, 0]


@pytest.mark.gpus(2)
def test_a_layout_of_gpus(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    sizes = "--graph tiny --batch 64 --steps 2 --rounds 1 --wires 1"
    device = "--layout 1+1 --device cuda"
    run_script("exchange_overlap", device, sizes, "--out", out)
    assert [record["ddp"] for record in read(out)] == [0, 1]


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (1, 3), (2, 3), (4, 2, 1)])
def test_partners_are_those_of_the_exchange(sizes: tuple[int, ...]) -> None:
    places = [Place(str(i), "", "") for i, size in enumerate(sizes) for _ in range(size)]
    for rank in range(len(places)):
        machines = Machines(rank, places)
        assert partners(machines) == Routes(machines, torch.device("cpu")).partners


def test_hot_ratio_for_a_share_of_cold_rows() -> None:
    internal = torch.arange(1000)[torch.randperm(1000)]
    assert hot_ratio_for(0.25, internal, 1000) == pytest.approx(0.75, abs=0.01)
    assert hot_ratio_for(0.0, internal, 1000) == pytest.approx(1, abs=0.01)
    assert hot_ratio_for(1.5, internal, 1000) == 0


@pytest.mark.parametrize("kind", MODELS)
def test_models_of_the_loaders_ways(kind: str) -> None:
    widths = [8, 8, 3]
    model = make_model(widths, "accelerated", kind)
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    batch = SimpleNamespace(edge_index=edges, num_sampled_nodes=None, num_sampled_edges=None)
    assert model(torch.rand(3, 8), batch).shape == (3, 3)
    if kind != "sage":
        with pytest.raises(NotImplementedError, match=kind):
            make_model(widths, "csr", kind)
