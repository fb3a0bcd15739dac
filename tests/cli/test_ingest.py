"""`peergraph ingest` and `peergraph info FOLDER`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.store.ingest.same_folder import assert_same_folder, relations
from tests.store.saved_stores import save_small_store

from peergraph.cli.__main__ import main
from peergraph.store import EdgeSource, GraphSource, Store

pytest.importorskip("pyarrow", reason="pyarrow is not installed (peergraph[ingest])")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("n.csv").write_text("pid;y;f0;f1\n2;7;1.5;2\n0;8;0.5;1\n1;9;2.5;3\n")
    Path("e.csv").write_text("dst,src,w\n1,0,4\n0,2,5\n1,1,6\n")
    return tmp_path


X = torch.tensor([[0.5, 1], [2.5, 3], [1.5, 2]])
COO = torch.tensor([[0, 2, 1], [1, 0, 1]])


@pytest.mark.parametrize("columns", ["f*", "f0|f1"])
def test_files_of_types_by_options(
    columns: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = f"paper=n.csv:id=pid,x={columns},y=y,delimiter=;"
    edges = "paper,cites,paper=*e.csv:source=src,destination=dst,w=w"
    assert main(["ingest", "s", "--nodes", nodes, "--edges", edges, "--memory", "1G"]) == 0
    assert "s: 3 nodes, 3 edges" in capsys.readouterr().out
    expected = GraphSource(
        {"paper": 3},
        relations(paper__cites__paper=COO),
        {"paper": {"x": X, "y": torch.tensor([8, 9, 7])}},
        {("paper", "cites", "paper"): {"w": torch.tensor([4, 5, 6])}},
    )
    assert_same_folder(files / "s", expected)


def test_a_graph_of_one_type_and_a_description(files: Path) -> None:
    edges = "e.csv:source=src,destination=dst,edge_ids=no"
    assert main(["ingest", "a", "--edges", edges, "--nodes", ":num_nodes=5"]) == 0
    with Store.load("a", plan="host", device="cpu") as store:
        assert store.is_homogeneous
        assert (store.num_nodes(), store.num_edges()) == (5, 3)
    Path("g.json").write_text(
        '{"edges": {"files": "e.csv", "source": "src", "destination": "dst"}}'
    )
    assert main(["ingest", "b", "g.json"]) == 0
    assert_same_folder(files / "b", GraphSource.homogeneous(3, EdgeSource(coo=COO)))


def test_errors_are_printed(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edges = ["--edges", "e.csv:source=src,destination=dst"]
    for status, words, arguments in (
        (1, "id out of range for 2 nodes: row 1 (2)", [*edges, "--nodes", ":num_nodes=2"]),
        (2, "there is no nothing", ["nothing"]),
        (2, "expected a number", ["--nodes", "a=:num_nodes=x"]),
        (2, "expected yes or no", ["--edges", "e.csv:edge_ids=3"]),
        (2, "expected KEY=VALUE", ["--edges", "e.csv:w=w,3"]),
        (2, "an edge type is", ["--edges", "a=e.csv"]),
        (2, "named twice", [*edges, *edges]),
        (2, "no files", []),
    ):
        assert main(["ingest", "s", *arguments]) == status, words
        assert words in capsys.readouterr().err
    assert not Path("s").exists()


def test_bad_rows_and_ids_of_strings(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb")
    Path("s.csv").write_text("who,whom\nann,bob\nbob,\n")
    assert main(["ingest", "s", "--edges", "s.csv"]) == 2
    assert "may be a header or a row" in capsys.readouterr().err
    assert main(["ingest", "s", "--edges", "s.csv:header=yes"]) == 1
    error = capsys.readouterr().err
    assert "edges _N-_E-_N have rows that cannot be used" in error
    assert "--bad-rows skip leaves out such edges" in error
    assert main(["ingest", "s", "--edges", "s.csv:header=yes", "--bad-rows", "skip"]) == 0
    assert "the destination is missing: row 1" in capsys.readouterr().out
    assert main(["info", "s"]) == 0
    assert "2, their ids are in node0.ids.parquet" in capsys.readouterr().out
    assert Path("s/node0.ids.parquet").exists()
    Path("n.csv").write_text("y\n1\nno\n")
    assert main(["ingest", "t", "--nodes", "n.csv:y=y", "--bad-rows", "skip"]) == 1
    assert "have to be mended" in capsys.readouterr().err


def test_info_describes_a_store(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_small_store(files / "small")
    assert main(["info", "small"]) == 0
    text = capsys.readouterr().out
    for words in (
        "Nodes user",
        "20 x 4 float32",
        "user-buys-item",
        "in-degree",
        "SparseAdam",
        "####",
    ):
        assert words in text, text
    assert main(["info", "small", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    with Store.load("small", plan="host", device="cpu") as store:
        for edges in facts["edges"]:
            degrees = store.in_degree(tuple(edges["type"]))
            assert edges["degrees"]["max"] == int(degrees.max())
            for part in edges["degrees"]["histogram"]:
                some = degrees[(degrees >= part["from"]) & (degrees <= part["to"])]
                assert (part["nodes"], part["edges"]) == (len(some), int(some.sum()))
            parts = edges["degrees"]["histogram"]
            assert sum(part["nodes"] for part in parts) == len(degrees)
    assert main(["info", "nothing"]) == 2
    assert "no saved store" in capsys.readouterr().err
    assert main(["info", "--picture", "a.svg"]) == 2


def test_info_draws_degrees(files: Path) -> None:
    pytest.importorskip("matplotlib")
    save_small_store(files / "small")
    assert main(["info", "small", "--picture", "a.svg"]) == 0
    assert "<svg" in Path("a.svg").read_text()
