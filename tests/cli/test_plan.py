"""`peergraph plan`: text, JSON and pictures, for machines and graphs of all kinds."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from benchmarks.placing.machines import MACHINES, machine
from tests.conftest import NUM_GPUS
from tests.store.graphs import heterogeneous_source, homogeneous_source

from peergraph.cli.__main__ import main
from peergraph.store import Plan, Store
from peergraph.store.placement.policies import POLICIES, plan_on

SMALL = ["--nodes", "1e4", "--edges", "2e5", "--budget", "1M"]


def plan(*arguments: str) -> int:
    """Runs the command; a name of :data:`MACHINES` stands for a file of its links."""
    words = list(arguments)
    with TemporaryDirectory() as folder:
        for number, word in enumerate(words):
            if word in MACHINES:
                file = Path(folder) / f"{word}.json"
                file.write_text(machine(word).to_json())
                words[number] = str(file)
        return main(["plan", *SMALL, *words])


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert plan("--json", *arguments) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert plan(*arguments) == 2
    return capsys.readouterr().err


# Each machine and each policy; the partition solver has tests of its own.
@pytest.mark.parametrize(("name", "policy"), list(zip(MACHINES, cycle(POLICIES))))
def test_machines_and_policies(name: str, policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    facts = planned(capsys, "--topology", name, "--policy", policy)
    plan = Plan.from_dict(facts["plan"])
    # Each item may round up by a byte.
    assert plan.bytes_per_rank() <= (1 << 20) + 2
    assert [p.kind for p in plan.placements] == ["structure", "node table"]
    assert all(sum(p.hits) == pytest.approx(1) for p in plan.predictions)
    sharded = sum(p.tiers.sharded for p in plan.placements)
    replicated = sum(p.tiers.replicated for p in plan.placements)
    stored = facts["plan"]["partitions"]["stored"]
    alone = all(len(parts) == len(stored) for parts in stored)
    if policy == "solver":
        assert (sharded == 0) == alone
        assert (replicated == 0) != alone


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--topology", "dgx1-6") == 0
    text = capsys.readouterr().out
    for part in ("topology 'dgx1[0,1,2,3,4,5]'", "at most 2 on each GPU", "plan 'auto'", "B from"):
        assert part in text


def test_auto_reads_no_more_over_links(capsys: pytest.CaptureFixture[str]) -> None:
    def moved(policy: str) -> float:
        plan = planned(capsys, "--topology", "dgx1-6", "--policy", policy)["plan"]
        links = [row for p in plan["predictions"] for row in p["link_bytes"]]
        return sum(sum(row) for row in links) - sum(links[i][i % 6] for i in range(len(links)))

    assert moved("auto") <= moved("solver") * 1.01


def test_masks_and_subsets(capsys: pytest.CaptureFixture[str]) -> None:
    facts = planned(capsys, "--topology", "full8", "--mask", "0-2,1-3", "--gpus", "0,1,2,3")
    links = facts["topology"]["bulk"]["bandwidth"]
    assert [[j for j in range(4) if links[i][j]] for i in range(4)] == [
        [0, 1, 3],
        [0, 1, 2],
        [1, 2, 3],
        [0, 2, 3],
    ]
    # The plan really avoids the masked links.
    for prediction in facts["plan"]["predictions"]:
        moved = prediction["link_bytes"]
        assert moved[0][2] == moved[2][0] == moved[1][3] == moved[3][1] == 0
        assert len(moved) == 4
    assert Plan.from_dict(facts["plan"]).copies == 2


@pytest.mark.parametrize("make", [homogeneous_source, heterogeneous_source])
def test_saved_store(make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make()
    with Store.build(source, device="cpu") as store:
        store.save(tmp_path / "s")
    facts = planned(capsys, "--topology", "full4", "--store", str(tmp_path / "s"))
    placed = [(p["kind"], p["name"]) for p in facts["plan"]["placements"]]
    assert len(placed) == len(set(placed))
    tables = sum(len(t) for t in source.node_tables.values())
    assert sum(kind == "node table" for kind, _ in placed) == tables
    assert sum(kind == "structure" for kind, _ in placed) == len(source.edges)


def test_ratios_and_order(capsys: pytest.CaptureFixture[str]) -> None:
    facts = planned(capsys, "--topology", "full4", "--graph-ratio", "0.5", "--feature-ratio", "0.1")
    structure, table = facts["plan"]["placements"]
    assert structure["tiers"]["sharded"] == pytest.approx(5000, abs=1)
    assert table["tiers"] == {"replicated": 0, "sharded": 1000, "host": 9000, "disk": 0}
    facts = planned(capsys, "--topology", "full4", "--first", "structure", "--budget", "1200000")
    assert facts["plan"]["placements"][0]["tiers"]["replicated"] == 10000


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_picture(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"plan.{ending}"
    planned(capsys, "--topology", "dgx1", "--picture", str(file))
    start = file.read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if ending == "png" else b"<?xml" in start


@pytest.mark.skipif(NUM_GPUS > 1, reason="one rank measures one GPU")
def test_measured_machine(
    device: torch.device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if device.type == "cpu" and NUM_GPUS:
        pytest.skip("a machine with a GPU is planned by what its GPU has measured")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert planned(capsys)["topology"]["name"] == "default figures"
    assert len(planned(capsys, "--gpus", "0,1,2")["topology"]["memory"]) == 3
    measured = planned(capsys, "--measure")["topology"]
    assert planned(capsys)["topology"] == measured
    file = tmp_path / "t.json"
    file.write_text(json.dumps(measured))
    assert planned(capsys, "--topology", str(file))["topology"] == measured


def test_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = ("--topology", "full4")
    assert "No such file" in refused(capsys, "--topology", "nonsense")
    assert "no saved store" in refused(capsys, *full, "--store", str(tmp_path))
    assert "graph_ratio must be in 0..1" in refused(capsys, *full, "--graph-ratio", "2")
    assert "the budget is 10" in refused(capsys, *full, "--graph-ratio", "1", "--budget", "10")
    assert "GPU 9 is not one of" in refused(capsys, *full, "--gpus", "9")
    assert "GPU 9 is not one of" in refused(capsys, *full, "--mask", "0-9")
    assert "--nodes must be at least 1" in refused(capsys, *full, "--nodes", "0")
    assert "--measure is for this machine" in refused(capsys, *full, "--measure")
    with pytest.raises(SystemExit):
        main(["plan", *full, "--mask", "0:1"])
    assert "expected links like 0-1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["plan", *full, "--nodes", "many"])
    assert "expected a number" in capsys.readouterr().err
    for text in ("5", "0", "nan", "-1"):
        with pytest.raises(SystemExit):
            main(
                ["plan", *full, "--full-graph", "--nodes", "9", "--edges", "9", "--labelled", text]
            )
        assert "expected a share in (0, 1]" in capsys.readouterr().err
    with pytest.raises(ValueError, match="policy must be one of auto"):
        plan_on(machine("full4"), [], None, 0, "best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="budget must not be negative, got -1"):
        plan_on(machine("full4"), [], None, -1)  # type: ignore[arg-type]


def test_full_graph(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole = ["--full-graph", "--budget", "1G"]
    facts = planned(capsys, "--topology", "full4", *whole, "--widths", "8,16,4")
    assert facts["nodes"] == {"_N": [2500] * 4}
    assert [(each["row_bytes"], each["count"]) for each in facts["sums"]] == [(16, 2)]
    assert set(facts["sums"][0]["modes"]) == {"halo", "blocks", "in_kernel"}
    for skew in ("0", "1.5"):
        less = planned(capsys, "--topology", "full4", *whole, "--skew", skew)
        rows = less["relations"][0]["rows"][0][1]
        # With 20 edges from each node, all ranks need nearly all; a few hubs are few rows.
        assert rows > 2450 if skew == "0" else rows < 2000
    assert plan("--topology", "full2", *whole, "--mode", "blocks") == 0
    assert "exchange: blocks (asked for)" in capsys.readouterr().out
    for kind, source in (("homogeneous", homogeneous_source()), ("types", heterogeneous_source())):
        folder = str(tmp_path / kind)
        with Store.build(source, device="cpu") as store:
            store.save(folder)
            edges = {t: store.num_edges(t) for t in store.edge_types}
        for order in ("auto", "communities"):
            facts = planned(capsys, "--store", folder, "--topology", "full2", *whole,
                            "--order", order)  # fmt: skip
            edge_counts = {tuple(r["type"]): sum(map(sum, r["edges"])) for r in facts["relations"]}
            assert edge_counts == edges
            assert facts["bytes"]["node rows"] != [0, 0]
            assert [d["num_chunks"] for d in facts["duplication"]] == [2**i for i in range(1, 11)]
            assert plan("--store", folder, "--topology", "full2", *whole) == 0
            assert "2 x 16 chunks need" in capsys.readouterr().out


def test_offloaded_full_graph(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--topology", "full2", "--full-graph", "--widths", "100,32,8", "--memory-budget", "6M"]
    facts = planned(capsys, *small)
    assert facts["decision"].startswith("offloaded: resident training takes")
    whole = facts["offload"]
    assert sum(whole["bytes_by_tier"].values()) >= whole["rows"]["features"]["bytes"]
    asked = planned(capsys, *small, "--num-chunks", "7")["offload"]
    assert (asked["num_chunks"], asked["reason"]) == (7, "as asked for")
    gat = "--layer-type", "gat", "--heads", "2", "--offload", "yes"
    attention = planned(capsys, *small, *gat)["offload"]
    assert attention["model"] == "gat 100-32-8 with 2 heads"
    # The products are a pass of their own, and so are their gradients.
    assert len(attention["passes"]) == 3 + 4
    error = refused(capsys, *small, "--offload", "no")
    assert "Offloaded training (offload=None or True)" in error
    assert "host memory is not enough" in refused(
        capsys, *small, "--budget", "3M", "--host-memory", "1K"
    )
    assert plan(*small, "--num-chunks", "9") == 0
    printed = capsys.readouterr().out
    for expected in ("offloaded, as asked for", "chunks of a rank: 9 (as asked for)",
                     "rows that all chunks need"):  # fmt: skip
        assert expected in printed


def test_full_graph_refused(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "--topology", "full4", "--full-graph", "--widths", "8,16,4",
                    "--budget", "100K")  # fmt: skip
    assert "not enough for offloaded training" in error
    error = refused(capsys, "--topology", "pcie2", "--full-graph", "--mode", "in_kernel")
    assert "mode 'in_kernel' is not for these ranks" in error
    error = refused(capsys, "--topology", "full4", "--full-graph", "--picture", "a.png")
    assert "--picture is for plans of mini-batches" in error
    assert "--skew must be" in refused(capsys, "--topology", "full4", "--full-graph", "--skew=-1")
