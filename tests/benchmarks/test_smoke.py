"""Benchmarks of mini-batches, samples, tables and layers on small inputs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.benchmarks.running import BENCHMARKS, SMALL, run
from tests.scripts import run_python

CASES = ["--graph", "tiny/20", "--cases", "3-2:16", "--plans", "sharded"]

POLICIES = ["auto", "solver", "clique", "clique-opt"]
# The first three are measured with two samplers.
FACTORS = ["base"] * 2 + ["+ structure"] * 2 + ["+ features"] * 2
FACTORS += ["+ sampler", "+ solver", "+ replication"]
PLACEMENT_ROWS = {
    "budgets": [(setting, "auto") for setting in ("fits", "40%", "25%") for _ in range(2)],
    "factors": [(factor, "by hand") for factor in FACTORS],
    "links": [(setting, policy) for setting in ("full", "ring") for policy in POLICIES],
}


def test_kinds(tmp_path: Path) -> None:
    small = "--graph tiny/20 --cases 3-2:16 --plans sharded --world 2"
    records, table = run("kinds", tmp_path / "out.jsonl", small, "--peers", "torch")
    timed = {(r["system"], r["kind"]) for r in records if "ms" in r}
    kinds = {"plain", "replace", "disjoint", "weighted", "temporal", "last", "induced"}
    assert {kind for system, kind in timed if system == "peergraph"} == {
        *kinds,
        "walk",
        "node2vec",
        "pinsage",
    }
    assert all(r["floor_ms"] > 0 for r in records if r["system"] == "peergraph" and "ms" in r)
    assert all(r["ratio"] > 0 for r in records if r["system"] == "torch" and "ms" in r)
    assert "floor_ms" in table


def test_gather(tmp_path: Path) -> None:
    sizes = "--dims 16,100 --host-dims 16 --count 500"
    memory = "--table-gib 0.0005 --host-gib 0.0005"
    records, table = run(
        "gather",
        tmp_path / "out.jsonl",
        sizes,
        memory,
        "--world",
        "2",
        "--peers",
        "wholegraph,nccl,torch",
    )
    timed = [(r["system"], r.get("plan"), r["dim"]) for r in records if "ms" in r]
    for plan, dim in [("replicated", 16), ("sharded", 100), ("host", 16)]:
        assert ("peergraph", plan, dim) in timed
    for peer in ("nccl five steps", "torch index_select", "copy"):
        assert (peer, None, 100) in timed
    assert all(r["ratio"] > 0 for r in records if r["system"] == "copy")
    skipped = [r for r in records if "skipped" in r]
    assert [(r["system"], r["skipped"]) for r in skipped] == [
        ("wholegraph", "it runs on GPUs only")
    ]
    assert "nccl five steps" in table
    assert "it runs on GPUs only" in table


def test_embedding(tmp_path: Path) -> None:
    sizes = "--dims 6 --count 200 --rows 500 --world 2"
    chosen = "--optimizers sgd,adam --plans sharded --peers torch"
    records, _ = run("embedding", tmp_path / "out.jsonl", sizes, chosen)
    assert [(r["system"], r["op"]) for r in records] == [
        (system, op) for op in ("sgd", "adam") for system in ("peergraph", "torch, own rows")
    ]
    assert all(r["ms"] >= r["ms_step"] > 0 for r in records)


def test_sampling(tmp_path: Path) -> None:
    records, _ = run("sampling", tmp_path / "out.jsonl", *CASES, "--world", "2")
    assert [r["semantics"] for r in records] == ["dgl", "pyg"]
    assert all(0 < r["edges"] <= 16 * (3 + 3 * 2 + 2) for r in records)
    assert records[0]["edges"] >= records[1]["edges"]


def test_ppr(tmp_path: Path) -> None:
    sizes = "--graph tiny/20 --seeds 8 --eps 1e-2,1e-3 --keep 5"
    peers = "--plans sharded --world 2 --peers torch,scipy"
    records, _ = run("ppr", tmp_path / "out.jsonl", sizes, peers)
    assert [(r["system"], r["setting"]) for r in records] == [
        *(("peergraph", setting) for setting in ("eps 0.01", "eps 0.001")),
        *(("torch", setting) for setting in ("eps 0.01", "eps 0.001")),
        ("scipy", "exact"),
    ]
    assert all(r["ratio"] > 0 for r in records if r["system"] == "torch")


def test_top_k(tmp_path: Path) -> None:
    sizes = "--rows 5000 --dim 16 --queries 6 --k 3,70 --world 2"
    records, _ = run(
        "top_k", tmp_path / "out.jsonl", sizes, "--storages", "float32,int8", "--peers", "torch"
    )
    systems = ("peergraph", "peergraph int8", "torch float32", "torch bfloat16")
    assert [(r["system"], r["setting"]) for r in records] == [
        (system, setting) for system in systems for setting in ("top 3", "top 70")
    ]


def test_minibatch(tmp_path: Path) -> None:
    width = "--feature-dim 8"
    records, _ = run("minibatch", tmp_path / "out.jsonl", *CASES, width, "--world", "1")
    assert len(records) == 2
    assert all(r["ms"] >= r["ms_sample"] > 0 for r in records)


def test_minibatch_by_storage(tmp_path: Path) -> None:
    width = ["--feature-dim", "20", "--storages", "bfloat16,int8", "--features", "replicated,host"]
    chosen = [*CASES, *width, "--world", "1", "--plans", "replicated"]
    records, table = run("minibatch", tmp_path / "out.jsonl", *chosen)
    results = [(r["system"], r["plan"], r["layers"], r["row_bytes"]) for r in records]
    assert results == [
        (storage, plan, way, row_bytes)
        for plan, ways in (("replicated", ("gathered", "in place")), ("host", ("gathered",)))
        for storage, row_bytes in (("float32", 80), ("bfloat16", 40), ("int8", 24))
        for way in ways
    ]
    assert all(r["ratio"] == 1 for r in records if r["system"] == "float32")
    assert all(min(r["ms_sample"], r["ms_sum"]) > 0 for r in records)
    assert "stored_gbs" in table


def test_training(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    model = "--feature-dim 8 --hidden 8 --ways csr,coo,blocks,loader,accelerated,lazy"
    records, _ = run("training", tmp_path / "out.jsonl", *CASES, model, "--world", "2")
    assert [r["layers"] for r in records] == [
        "csr",
        "coo",
        "blocks",
        "loader",
        "accelerated",
        "lazy",
    ]
    assert all(r["epoch_s"] > 0 for r in records)
    assert records[0]["loss"] == pytest.approx(records[1]["loss"], rel=0.2)


RGAT = ["--scale", "1e-5", "--batches", "8", "--columns", "16", "--hidden", "16"]


@pytest.mark.parametrize("model", ["rgat", "rgatv2", "rsage", "rgcn", "hgt"])
def test_rgat(tmp_path: Path, model: str) -> None:
    pytest.importorskip("torch_geometric")
    world = "2" if model == "rgat" else "1"
    chosen = [*RGAT, "--graph", "full.371", "--model", model, "--layers", "both", "--verbose"]
    records, text = run(
        "rgat", tmp_path / "out.jsonl", *chosen, "--precision", "float32", "--world", world
    )
    results = [(r.get("layers"), r["op"]) for r in records]
    ops = ["loader and training", "training in memory"]
    assert results == [
        (None, "loader"),
        *((layers, op) for op in ops for layers in ("accelerated", "pyg")),
    ]
    assert all(r["seeds_per_s"] > 0 for r in records)
    ((fast, plain),) = re.findall(r"'accelerated': ([\d.]+), 'pyg': ([\d.]+)", text)
    assert float(fast) == pytest.approx(float(plain), rel=1e-5)
    assert "paper cites paper" in text
    assert "no result of MLPerf" in text


def test_rgat_inference_on_one_rank(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    chosen = [*RGAT, "--inference", "--placement", "hot", "--rows", "float8_e4m3", "--world", "1"]
    chosen += ["--features", "lazy", "--layers", "accelerated"]
    records, _ = run("rgat", tmp_path / "out.jsonl", *chosen)
    assert [r["op"] for r in records] == ["loader", "loader and inference", "inference in memory"]


def test_frames(tmp_path: Path) -> None:
    pytest.importorskip("torch_frame")
    chosen = ["--rows", "3000", "--batch", "8", "--fanouts", "4,2", "--world", "2"]
    chosen += ["--seeds", "item", "--workers", "1", "--storage", "float16"]
    records, table = run("frames", tmp_path / "out.jsonl", *chosen)
    *timed, reach = records
    assert [(r["system"], r["op"]) for r in timed] == [
        ("peergraph", "loader"),
        ("samples alone", "loader"),
        ("without times", "samples"),
        ("peergraph", "samples"),
        ("window of all", "samples"),
        ("window of a quarter", "samples"),
        ("peergraph", "training"),
        ("batches in memory", "training"),
    ]
    of_peer = ("over_eighth", "over_workers")
    assert all(reach[name] > 0 for name in (*of_peer, "over_memory", "over_untimed", "window"))
    assert "over_workers" in table


def test_rgat_by_relations(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    chosen = "--relations 1,8 --fanouts 3,2 --scale 1e-3 --world 2"
    records, _ = run("rgat", tmp_path / "out.jsonl", chosen)
    assert [(r["graph"], r["op"]) for r in records] == [
        ("1 relations*0.001", "loader"),
        ("8 relations*0.001", "loader"),
    ]


def test_training_by_storage_and_precision(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    chosen = "--ways lazy,captured --precisions float32,bfloat16"
    sizes = "--feature-dim 8 --hidden 8 --storages float32,bfloat16"
    records, _ = run("training", tmp_path / "out.jsonl", *CASES, chosen, sizes, "--world", "1")
    assert [(r["system"], r["layers"], r["setting"]) for r in records] == [
        (system, way, setting)
        for system in ("peergraph", "peergraph bfloat16")
        for way in ("lazy", "captured")
        for setting in ("float32", "bfloat16")
    ]
    assert all(("ratio" in r) == (r["system"] != "peergraph") for r in records)
    assert len({r["semantics"] for r in records}) == 1


def test_aggregate(tmp_path: Path) -> None:
    sizes = "--graph tiny/20 --dims 8 --block 50"
    records, table = run("aggregate", tmp_path / "out.jsonl", sizes, "--peers", "torch,scatter")
    assert not [r for r in records if "error" in r]
    timed = {(r["system"], r["semantics"]) for r in records}
    assert ("torch csr", "weighted sum") in timed
    assert ("scatter", "mean + backward") in timed
    assert ("peergraph", "attention + backward") in timed
    assert "edge softmax + backward" in table


def test_spmm(tmp_path: Path) -> None:
    small = "--graphs tiny/200 --dims 7,16 --blocks 2 --peers torch"
    records, table = run("spmm", tmp_path / "out.jsonl", small)
    assert not [r for r in records if "error" in r]
    systems = {r["system"] for r in records if r["dim"] == 7 and r["semantics"] == "weighted sum"}
    assert systems == {
        *("peergraph", "peergraph, padded", "peergraph, already padded", "peergraph, 2 blocks"),
        "torch csr",
    }
    assert all(r["ratio"] > 0 for r in records if r["system"] == "torch csr")
    assert "edge_floor_ms" in table


def test_dgl_layers(tmp_path: Path) -> None:
    pytest.importorskip("peergraph_dgl", exc_type=ImportError)
    more = "--graph tiny/200 --dims 8 --layers copy_u_sum,u_add_v,SAGE,GATv2"
    records, table = run("dgl_layers", tmp_path / "out.jsonl", more)
    assert not [r for r in records if "error" in r]
    timed = [(r["layers"], r["system"]) for r in records if "ms" in r]
    for name, systems in (("u_add_v", 2), ("SAGE", 4), ("GATv2", 4)):
        assert len([system for layer, system in timed if layer == name]) == systems
    assert all("ratio" in r for r in records if r.get("system") == "dgl")
    assert "copy_u_sum" in table


def test_epoch(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    pytest.importorskip("peergraph_dgl", exc_type=ImportError)
    model = "--feature-dim 8 --hidden 8 --runs plain:cpu:1,dgl:cpu:2,pyg:cpu:1"
    records, table = run("epoch", tmp_path / "out.jsonl", *CASES, model)
    systems = ["plain dgl", "peergraph, dgl", "peergraph, pyg"]
    assert [(r["system"], r["world"]) for r in records] == list(
        zip(systems, [1, 2, 1], strict=True)
    )
    for r in records:
        assert r["epoch_s"] > 0
        assert r["ms"] >= max(r["ms_sample"], r["ms_gather"], r["ms_train"]) > 0
        assert 0 < r["edges"] <= 16 * (3 + 3 * 2 + 2)
    assert ["over_plain" in r for r in records] == [False, True, True]
    assert "over_plain" in table


def test_layers(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    sizes = "--graph tiny/200 --blocks tiny/200 --fanouts 3-2 --batch 8"
    layers = "sum,SAGE,GCN,GAT,GATv2,GIN,GINE,RGCN"
    more = ["--dims", "8", "--layers", layers, "--peers", "coo,csr,cusparse,dgl"]
    records, table = run("layers", tmp_path / "out.jsonl", sizes, *more)
    assert not [r for r in records if "error" in r]
    timed = {(r["semantics"], r["system"], r["layers"]) for r in records if "ms" in r}
    for where in ("graph", "batch"):
        with_csr = {layer for w, s, layer in timed if (w, s) == (where, "csr")}
        assert with_csr == {"sum", "SAGE", "GCN", "GIN"}
        assert len([1 for w, s, _ in timed if (w, s) == (where, "peergraph")]) == 8
    assert "GATv2" in table
    more = ["--dims", "8", "--layers", "SAGE", "--parts", "communities,renumbered"]
    records, _ = run("layers", tmp_path / "more.jsonl", sizes, *more, "--community", "16")
    assert [r["semantics"] for r in records if "ms" in r] == ["communities", "renumbered"]
    pytest.importorskip("matplotlib")
    assert list(tmp_path.glob("layers_*.svg"))


def test_end_to_end(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    model = "--feature-dim 8 --hidden 8 --layers loader,accelerated,lazy"
    ahead = "--depths 1,2 --blocks auto,3"
    records, table = run("end_to_end", tmp_path / "out.jsonl", *CASES, model, ahead, "--world", "2")
    ways = ["compute", "plain", *["prefetch"] * 4]
    assert [(r["layers"], r["way"]) for r in records] == [
        (layers, way) for layers in ("loader", "accelerated", "lazy") for way in ways
    ]
    chosen = [(r["depth"], r["blocks"]) for r in records if r["way"] == "prefetch"]
    assert chosen == [(1, 0), (1, 3), (2, 0), (2, 3)] * 3  # no limit where there is no GPU
    assert all(r["over_compute"] > 0 and r["epoch_s"] > 0 for r in records)
    assert "over_compute" in table


@pytest.mark.parametrize("links", [False, True])
def test_small_batches(tmp_path: Path, links: bool) -> None:
    pytest.importorskip("torch_geometric")
    sizes = "--graph tiny/20 --cases 3-2:16 --feature-dim 8 --hidden 8"
    options = ["--world", "1", *(["--links"] if links else [])]
    records, table = run("small_batches", tmp_path / "out.jsonl", sizes, *options)
    ways = ["loader", "captured", "compute", "batches"]
    assert [(r["layers"], r["way"]) for r in records] == [
        (layers, way) for layers in ("loader", "accelerated") for way in ways
    ]
    assert "ms_host" in table


def test_small_batches_in_turns(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    sizes = "--graph tiny/20 --cases 3-2:16 --feature-dim 8 --hidden 8"
    turns = "--layers accelerated --turns 3 --steps 4 --world 2"
    records, table = run("small_batches", tmp_path / "out.jsonl", sizes, turns)
    makers = ["memory", "ahead", "thread", "loop", "adaptive", "request"]
    assert [r["way"] for r in records] == makers
    assert {r["part"] for r in records} == {"turns"}
    assert all(r["iterations"] == 3 and r["over_memory"] > 0 for r in records)
    assert [("by_thread" in r) for r in records] == [maker == "adaptive" for maker in makers]
    assert "over_memory" in table


def test_placement(tmp_path: Path) -> None:
    small = "--graph tiny/20 --small 2 --cases 3-2:16 --feature-dim 8"
    records, table = run("placement", tmp_path / "out.jsonl", small, "--world", "4")
    assert not [r for r in records if "error" in r]
    timed = [r for r in records if "ms" in r]
    of_part = {part: [r for r in timed if r["part"] == part] for part in PLACEMENT_ROWS}
    for part, rows in PLACEMENT_ROWS.items():
        assert [(r["setting"], r.get("plan")) for r in of_part[part]] == rows
    for r in timed:
        assert r["hit_replicated"] + r["hit_sharded"] + r["hit_host"] == pytest.approx(1)
    assert [r["op"] for r in of_part["budgets"]] == ["gather", "batch"] * 3
    assert of_part["budgets"][0]["hit_host"] == 0
    assert all(r["missing_gbs"] > 0 for r in of_part["budgets"] if r.get("hit_host") and "gbs" in r)
    base, _, structure, *_ = of_part["factors"]
    cumulative = [r["sampler"] for r in of_part["factors"] if r["op"] == "batch"]
    assert cumulative == ["reservoir"] * 3 + ["plain"] * 3
    assert base["slowest_link_mb"] == 0 < structure["slowest_link_mb"]
    machines = [r for r in records if r.get("part") == "machines"]
    assert len(machines) == 16
    assert all(r["link_ms"] > 0 for r in machines)
    assert "placement machines" in table


def test_unknown_names_are_refused() -> None:
    done = run_python(BENCHMARKS / "sampling.py", *SMALL, "--peers", "torch")
    assert done.returncode == 2
    assert "--peers: unknown torch; there are wholegraph" in done.stderr
