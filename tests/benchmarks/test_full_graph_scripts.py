"""Benchmarks of full graphs, resident and offloaded, on small graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.benchmarks.running import BENCHMARKS, run, run_script


def test_fullgraph(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    small = "--graphs tiny/200 --models GCN:2x8 --worlds 1,2"
    records, table = run("fullgraph", tmp_path / "out.jsonl", small, "--peers", "csr,broadcast")
    assert not [r for r in records if "error" in r]
    assert [(r["world"], r["system"]) for r in records] == [
        (1, "peergraph"), (1, "broadcast"), (1, "pyg csr"), (2, "peergraph"), (2, "broadcast"),
    ]  # fmt: skip
    for r in records:
        assert r["loss"] == pytest.approx(records[0]["loss"], rel=1e-5)
        assert r["last_loss"] == pytest.approx(records[0]["last_loss"], rel=1e-4)
    assert "edge_floor_ms" in table


def test_fullgraph_orders(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    small = "--graphs tiny/20:sorted --models GCN:2x8 --worlds 2"
    ways = "--orders random,original --overlap on,off"
    records, _ = run("fullgraph", tmp_path / "out.jsonl", small, ways)
    assert [(r.get("setting"), r["order"]) for r in records] == [
        (None, "random"),
        ("random, no overlap", "random"),
        ("original", "original"),
        ("original, no overlap", "original"),
    ]
    for r in records:
        assert r["loss"] == pytest.approx(records[0]["loss"], rel=1e-5)
        assert 0 < r["remote_rows"] < 1


def test_fullgraph_stages(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    small = "--graphs tiny/20:sorted --dims 8 --worlds 3"
    records, table = run("fullgraph_stages", tmp_path / "out.jsonl", small)
    assert not [r for r in records if "error" in r]
    ways = ["sums", "copies", "no overlap", "overlap"]
    assert [(r["setting"], r["way"]) for r in records] == [
        (order, way) for order in ("random", "original") for way in ways
    ]
    overlap = {r["setting"]: r for r in records if r["way"] == "overlap"}
    assert overlap["original"]["edge_imbalance"] > 1.5 * overlap["random"]["edge_imbalance"]
    for of_rank in overlap["random"]["timeline"]:
        spans = [(what, stage) for what, stage, _, _ in of_rank]
        assert spans == [("sum", 0), ("copy", 1), ("sum", 1), ("copy", 2), ("sum", 2)]
        assert all(begin <= end for _, _, begin, end in of_rank)
    assert "hidden" in table
    pytest.importorskip("matplotlib")
    run_script("fullgraph_pictures", tmp_path, tmp_path / "out.jsonl")
    assert [p.name for p in tmp_path.glob("*.svg")] == ["stages_tiny-20-sorted_8_3.svg"]


def test_fullgraph_memory(tmp_path: Path) -> None:
    """An epoch of a GCN takes at most MG-GCN's layers + 5 buffers of rows on each rank."""
    pytest.importorskip("torch_geometric")
    small = "--graphs tiny/20 --layers 2,4,6 --hidden 64 --worlds 1,2"
    records, table = run("fullgraph_memory", tmp_path / "out.jsonl", small, "--peers", "csr")
    assert not [r for r in records if "error" in r]
    buffers = [r for r in records if "buffers" in r and r["system"] == "peergraph"]
    assert len(buffers) == 6
    assert all(0 < r["buffers"] <= r["most_allowed"] for r in buffers)
    fitting = {(r["world"], r["system"]): r["layers_fit"] for r in records if "layers_fit" in r}
    assert set(fitting) == {(1, "peergraph"), (1, "pyg csr"), (2, "peergraph")}
    assert fitting[2, "peergraph"] > 1.5 * fitting[1, "peergraph"]
    assert "build_bytes" in table


def test_fullgraph_small(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    small = "--graphs tiny/200 --models GCN:2x8+bn,GAT:2x8 --op-seconds 0.001"
    records, table = run("fullgraph_small", tmp_path / "out.jsonl", small, "--peers", "pyg csr")
    assert not [r for r in records if "error" in r]
    ops = {r["op"]: r for r in records if r["part"] == "ops"}
    assert {"linear + backward", "gat + backward", "loss of a mask + backward"} < ops.keys()
    assert "accuracy + backward" not in ops
    assert all(r["us"] > 0 and r["us_torch"] > 0 for r in ops.values())
    epochs = [r for r in records if r["part"] == "epochs"]
    assert [r["system"] for r in epochs] == ["peergraph", "peergraph captured", "pyg csr"] * 2
    gat = [r["loss"] for r in epochs if r["layers"] == "GAT:2x8"]
    assert gat == pytest.approx([gat[0]] * 3, rel=1e-5)
    for model in ("GCN:2x8+bn", "GAT:2x8"):
        run_, captured = (r for r in epochs[:2] + epochs[3:5] if r["layers"] == model)
        assert captured["loss"] == pytest.approx(run_["loss"], rel=1e-5)
    assert "us_torch" in table


def test_offload_transfers(tmp_path: Path) -> None:
    small = "--rows 300 --dim 4 --chunks 3 --world 2"
    records, table = run("offload_transfers", tmp_path / "out.jsonl", small)
    assert not [r for r in records if "error" in r]
    moved = {r["system"]: (r["gbs_in"] > 0, r["gbs_out"] > 0) for r in records if "gbs_in" in r}
    assert moved["copy both"] == moved["pass both"] == (True, True)
    assert moved["sources"] == (True, False)
    assert moved["pass in"] == (True, False)
    assert moved["gradients"][1]
    assert "pass both, products" in table


def test_offload_duplication(tmp_path: Path) -> None:
    small = "--parts duplication --graphs it-2004/2000,papers100m/10000"
    records, table = run("offload", tmp_path / "out.jsonl", small)
    assert not [r for r in records if "error" in r]
    assert [r["kind"] for r in records] == ["made", *["parts"] * 3, "batches"] * 2
    first = [r for r in records if r.get("parts") == 32]
    assert first[0]["alpha"] == pytest.approx(first[0]["published"], rel=0.15)
    assert "published_between_ranks" in table


def test_fullgraph_mgg(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    small = "--graphs tiny/200,tiny/100:communities --dims 8 --worlds 2"
    one = [f"--{part}-graphs=tiny/200" for part in ("step", "grid", "model")]
    records, table = run("fullgraph_mgg", tmp_path / "out.jsonl", small, *one, "--grid-dims", "8")
    assert not [r for r in records if "error" in r]
    ways = ["blocks", "halo", "in_kernel", "in_kernel untuned", "in_kernel apart", "distinct"]
    ways.append("no overlap")
    assert [r["system"] for r in records if r["part"] == "sums"] == 2 * ways
    assert len([r for r in records if r["part"] == "models"]) == 3 * 3
    assert [r["system"] for r in records if r["part"] == "steps"][-1] == "both"
    [grid] = [r for r in records if r["part"] == "grid"]
    assert grid["over_best"] >= 1
    assert len(grid["times"]) == 1 + 2 * 5 * 5
    assert "over_best" in table


def test_offload(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    small = "--parts epochs,switches,chunks --graphs tiny/40 --models GCN:0-8-0"
    more = "--budgets 1M --chunks 2 --worlds 1,2 --resident --offload"
    quick = "--warmup 0 --iterations 2"
    figures = tmp_path / "figures"
    records, table = run(
        "offload", tmp_path / "out.jsonl", small, more, quick, "--figures", figures
    )
    assert not [r for r in records if "error" in r]
    first = ["resident", "offloaded", "no deduplication"]
    last = ["between ranks and batches", "and chunks in order", *["offloaded"] * 4]
    settings = [*first, *last, *first, "between ranks", *last]
    assert sorted(r["setting"] for r in records) == sorted(settings)
    cut = [r["num_chunks"] for r in records if r["part"] == "chunks"]
    assert cut == [2, 4, 6, 8] * 2
    for r in records:
        assert r["loss"] == pytest.approx(records[0]["loss"], rel=1e-5)
        assert r["last_loss"] == pytest.approx(records[0]["last_loss"], rel=1e-4)
    switched = [r for r in records if r["part"] == "switches" and r["world"] == 2]
    from_host = [r["from_host_gb"] for r in switched]
    assert from_host[0] > from_host[1] > from_host[2] >= from_host[3]
    assert switched[2]["to_ranks_gb"] < switched[1]["to_ranks_gb"]
    assert all(r["rows_device_gib"] == 0 for r in switched)
    assert "from_host_gb" in table
    text = (figures / "offload.md").read_text()
    assert "## Epochs (Tables 5 to 7)" in text
    assert "## Deduplication (Table 9)" in text
    pictures = {path.stem.removeprefix("offload_") for path in figures.glob("*.svg")}
    assert pictures == {"epochs", "switches", "moved", "chunks", "scaling"}


def test_offload_inference(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    small = "--parts inference --graphs tiny/40 --models SAGE:0-8-8-0"
    more = [
        "--budgets",
        "1M",
        "--chunks",
        "2",
        "--worlds",
        "1",
        "--offload",
        "--features",
        str(tmp_path),
    ]
    records, table = run("offload", tmp_path / "out.jsonl", small, *more)
    assert [r["system"] for r in records] == ["peergraph", "pyg"]
    assert records[1]["same_classes"] > 0.99
    assert records[1]["difference_ppm"] < 10
    assert "difference_ppm" in table


def test_mgg_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    records = BENCHMARKS / "results" / "2026-11-22-h200x2-2300" / "records.jsonl"
    run_script("mgg_pictures", tmp_path, records)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"mgg_models_2.svg", "mgg_steps_2.svg", "mgg_grid_reddit_16_2.svg"} < names
