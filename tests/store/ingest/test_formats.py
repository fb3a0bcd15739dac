"""Datasets as OGB, OGB-LSC, DGL and PyG store them, and descriptions in files."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peergraph.store import EdgeSource, GraphSource, Store
from tests.named_case import named_case
from tests.store.graphs import random_coo
from tests.store.ingest.same_folder import assert_same_folder, relations

pytest.importorskip("pyarrow", reason="pyarrow is not installed (peergraph[ingest])")


def write_csv(path: Path, rows: Any, header: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [header] * bool(header)
    lines += [",".join(map(str, np.atleast_1d(row).tolist())) for row in rows]
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


def masks(count: int) -> dict[str, torch.Tensor]:
    numbers = torch.arange(count)
    return {f"{n}_mask": numbers % 3 == i for i, n in enumerate(("train", "val", "test"))}


def write_split(folder: Path, count: int) -> None:
    for name, mask in masks(count).items():
        file = name.removesuffix("_mask").replace("val", "valid")
        write_csv(folder / f"{file}.csv.gz", mask.nonzero()[:, 0])


def test_ogb_text(tmp_path: Path) -> None:
    root, edges = tmp_path / "ogbn_small", random_coo(30, 30, 200)
    x, y, year = torch.randint(50, (30, 4)) / 8, torch.arange(30)[:, None] % 7, torch.arange(30)
    feature = torch.randint(9, (200, 2))
    write_csv(root / "raw/edge.csv.gz", edges.t())
    write_csv(root / "raw/node-feat.csv.gz", x)
    write_csv(root / "raw/node-label.csv.gz", y)
    write_csv(root / "raw/node_year.csv.gz", year[:, None])
    write_csv(root / "raw/edge-feat.csv.gz", feature)
    write_csv(root / "raw/num-node-list.csv.gz", [30])
    write_csv(root / "raw/num-edge-list.csv.gz", [200])
    write_split(root / "split/time", 30)
    Store.ingest(tmp_path / "s", root)
    tables = {"x": x, "y": y, "node_year": year[:, None], **masks(30)}
    expected = GraphSource.homogeneous(30, EdgeSource(coo=edges), tables, {"edge_attr": feature})
    assert_same_folder(tmp_path / "s", expected)
    write_csv(root / "raw/num-node-list.csv.gz", [10, 20])
    with pytest.raises(ValueError, match="2 graphs"):
        Store.ingest(tmp_path / "t", root)


def test_ogb_arrays(tmp_path: Path) -> None:
    root, edges = tmp_path / "papers", random_coo(30, 30, 200)
    x, year = torch.randn(30, 4).half(), torch.arange(30)[:, None]
    y = torch.where(torch.arange(30) < 9, torch.arange(30.0), torch.nan)[:, None]
    (root / "raw").mkdir(parents=True)
    for number, save in enumerate((np.savez, np.savez_compressed)):
        save(
            root / "raw/data.npz",
            node_feat=x.numpy(),
            edge_index=edges.numpy(),
            node_year=year.numpy(),
            num_nodes_list=np.array([30]),
            num_edges_list=np.array([200]),
        )
        save(root / "raw/node-label.npz", node_label=y.numpy())
        write_split(root / "split/time", 30)
        Store.ingest(tmp_path / f"s{number}", root / "raw" if number else root)
        tables = {"x": x, "node_year": year, "y": y, **({} if number else masks(30))}
        expected = GraphSource.homogeneous(30, EdgeSource(coo=edges), tables)
        assert_same_folder(tmp_path / f"s{number}", expected)


def test_ogb_of_several_types(tmp_path: Path) -> None:
    raw = tmp_path / "mag/raw"
    writes, cites = random_coo(9, 20, 70), random_coo(20, 20, 90)
    x, y = torch.randint(50, (20, 4)) / 8, torch.arange(20)[:, None] % 7
    write_csv(raw / "num-node-dict.csv.gz", [[20, 9]], "paper,author")
    write_csv(
        raw / "triplet-type-list.csv.gz",
        [np.array(["author", "writes", "paper"]), np.array(["paper", "cites", "paper"])],
    )
    write_csv(raw / "relations/author___writes___paper/edge.csv.gz", writes.t())
    write_csv(raw / "relations/author___writes___paper/num-edge-list.csv.gz", [70])
    write_csv(raw / "relations/author___writes___paper/edge_reltype.csv.gz", [[0]] * 70)
    write_csv(raw / "relations/paper___cites___paper/edge.csv.gz", cites.t())
    write_csv(raw / "node-feat/paper/node-feat.csv.gz", x)
    write_csv(raw / "node-label/paper/node-label.csv.gz", y)
    write_csv(raw / "nodetype-has-feat.csv.gz", [["True", "False"]], "paper,author")
    write_split(tmp_path / "mag/split/time/paper", 20)
    Store.ingest(tmp_path / "s", tmp_path / "mag", memory=1)
    expected = GraphSource(
        {"paper": 20, "author": 9},
        relations(author__writes__paper=writes, paper__cites__paper=cites),
        {"paper": {"x": x, "y": y, **masks(20)}},
        {("author", "writes", "paper"): {"edge_reltype": torch.zeros(70, 1, dtype=torch.int64)}},
    )
    assert_same_folder(tmp_path / "s", expected)


def test_lsc(tmp_path: Path) -> None:
    mag = tmp_path / "mag240m"
    writes, x = random_coo(9, 20, 70), torch.randn(20, 4).half()
    y = torch.where(torch.arange(20) < 9, torch.arange(20.0), torch.nan)
    for name in ("paper", "author___writes___paper"):
        (mag / "processed" / name).mkdir(parents=True)
    torch.save({"paper": 20, "author": 9, "num_classes": 7}, mag / "meta.pt")
    np.save(mag / "processed/paper/node_feat.npy", x.numpy())
    np.save(mag / "processed/paper/node_label.npy", y.numpy())
    np.save(mag / "processed/author___writes___paper/edge_index.npy", writes.numpy())
    Store.ingest(tmp_path / "m", mag)
    expected = GraphSource(
        {"author": 9, "paper": 20},
        relations(author__writes__paper=writes),
        {"paper": {"x": x, "y": y}},
    )
    assert_same_folder(tmp_path / "m", expected)

    wiki, triples = tmp_path / "wiki/processed", torch.randint(30, (80, 3))
    wiki.mkdir(parents=True)
    np.save(wiki / "train_hrt.npy", triples.numpy())
    np.save(wiki / "entity_feat.npy", np.ones((30, 2), np.float16))
    Store.ingest(tmp_path / "w", tmp_path / "wiki")
    edges = EdgeSource(coo=triples[:, [0, 2]].t().contiguous())
    tables = {"x": torch.ones(30, 2).half()}
    types = {"edge_type": triples[:, 1]}
    assert_same_folder(tmp_path / "w", GraphSource.homogeneous(30, edges, tables, types))


def test_pyg_processed_files(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    from torch_geometric.data import Data, HeteroData, InMemoryDataset

    edges, w = random_coo(30, 30, 200), torch.randn(200)
    tables = {"x": torch.randn(30, 3), "y": torch.arange(30)}
    data = Data(edge_index=edges, edge_attr=w, name="small", **tables)
    hetero = HeteroData()
    hetero["user"].x = tables["x"]
    hetero["item"].num_nodes = 8
    buys = random_coo(30, 8, 90)
    hetero["user", "buys", "item"].edge_index = buys
    hetero["user", "buys", "item"].stars = torch.arange(90)
    one = GraphSource.homogeneous(30, EdgeSource(coo=edges), tables, {"edge_attr": w})
    two = GraphSource(
        {"user": 30, "item": 8},
        relations(user__buys__item=buys),
        {"user": {"x": tables["x"]}},
        {("user", "buys", "item"): {"stars": torch.arange(90)}},
    )
    for name, graph, expected in (("one", data, one), ("two", hetero, two)):
        folder = tmp_path / name / "processed"
        folder.mkdir(parents=True)
        InMemoryDataset.save([graph], str(folder / "data.pt"))
        torch.save(graph, tmp_path / f"{name}.pt")
        for source in (tmp_path / name, tmp_path / f"{name}.pt"):
            with named_case(source.name):
                store = tmp_path / f"{source.name}-store"
                Store.ingest(store, source)
                assert_same_folder(store, expected)
    InMemoryDataset.save([data, data], str(tmp_path / "two_graphs.pt"))
    with pytest.raises(ValueError, match="2 graphs"):
        Store.ingest(tmp_path / "s", tmp_path / "two_graphs.pt")
    torch.save({"a": print}, tmp_path / "unsafe.pt")
    with pytest.raises(ValueError, match="no processed file"):
        Store.ingest(tmp_path / "s", tmp_path / "unsafe.pt")
    content = (tmp_path / "unsafe.pt").read_bytes()
    for damaged in (b"", content[:100], content[: len(content) // 2], b"PK\x03\x04", b"\x80\x02}"):
        (tmp_path / "damaged.pt").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"damaged\.pt is no processed file"):
            Store.ingest(tmp_path / "b", tmp_path / "damaged.pt")


def test_dgl_files(tmp_path: Path) -> None:
    dgl = pytest.importorskip("peergraph_dgl") and pytest.importorskip("dgl")
    edges = random_coo(30, 30, 200)
    graph = dgl.graph((edges[0], edges[1]), num_nodes=30)
    graph.ndata["x"], graph.edata["w"] = torch.randn(30, 3), torch.randn(200)
    buys, knows = random_coo(30, 8, 90), random_coo(30, 30, 50)
    types = {("user", "buys", "item"): tuple(buys), ("user", "knows", "user"): tuple(knows)}
    hetero = dgl.heterograph(types, num_nodes_dict={"user": 30, "item": 8})
    hetero.nodes["user"].data["x"] = graph.ndata["x"]
    node_tables, edge_tables = {"x": graph.ndata["x"]}, {"w": graph.edata["w"]}
    one = GraphSource.homogeneous(30, EdgeSource(coo=edges), node_tables, edge_tables)
    two = GraphSource(
        {"item": 8, "user": 30},
        relations(user__buys__item=buys, user__knows__user=knows),
        {"user": node_tables},
    )
    for name, saved, expected in (("one", graph, one), ("two", hetero, two)):
        with named_case(name):
            dgl.save_graphs(str(tmp_path / f"{name}.bin"), [saved])
            Store.ingest(tmp_path / name, tmp_path / f"{name}.bin")
            assert_same_folder(tmp_path / name, expected)
    dgl.save_graphs(str(tmp_path / "both.bin"), [graph, graph])
    with pytest.raises(ValueError, match="2 graphs"):
        Store.ingest(tmp_path / "s", tmp_path / "both.bin")


def test_descriptions(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("y,f0,f1\n1,0.5,1\n2,1.5,2\n")
    (tmp_path / "e.tsv").write_text("0\t1\n1\t1\n")
    np.save(tmp_path / "w.npy", np.array([3, 4]))
    nodes = {"files": "n.csv", "tables": {"x": {"columns": "f*", "dtype": "float16"}, "y": "y"}}
    edges = {"files": ["e.tsv"], "csv": {"header": False}, "tables": {"w": "w.npy"}}
    x, y = torch.tensor([[0.5, 1], [1.5, 2]]).half(), torch.tensor([1, 2])
    coo, w = torch.tensor([[0, 1], [1, 1]]), torch.tensor([3, 4])
    one = GraphSource.homogeneous(2, EdgeSource(coo=coo), {"x": x, "y": y}, {"w": w})
    named = GraphSource(
        {"a": 2}, relations(a__to__a=coo), {"a": {"x": x, "y": y}}, {("a", "to", "a"): {"w": w}}
    )
    toml = (
        'nodes.a = {files = "n.csv", tables = {x = {columns = "f*", dtype = "float16"}, y = "y"}}\n'
        'edges."a,to,a" = {files = "e.tsv", csv = {header = false}, tables = {w = "w.npy"}}\n'
    )
    texts = {
        "one.json": (json.dumps({"nodes": nodes, "edges": edges}), one),
        "named.json": (json.dumps({"nodes": {"a": nodes}, "edges": {"a,to,a": edges}}), named),
    }
    if sys.version_info >= (3, 11):
        texts["named.toml"] = toml, named
    for name, (text, expected) in texts.items():
        with named_case(name):
            (tmp_path / name).write_text(text)
            Store.ingest(tmp_path / f"{name}.store", tmp_path / name)
            assert_same_folder(tmp_path / f"{name}.store", expected)
    for words, values in (
        ("unknown key 'node'", {"node": {}}),
        ("edges.a: an edge type|an edge type is", {"edges": {"a": {"files": "e"}}}),
        ("unknown key 'fils'", {"edges": {"a,b,c": {"fils": "e"}}}),
        ("needs files", {"edges": {"a,b,c": {"source": "s", "destination": "d"}}}),
        ("must be an object", {"edges": {"a,b,c": 3}}),
        ("must be a path", {"edges": {"files": 3}}),
        ("nan must be", {"nodes": {"files": "n.csv", "tables": {"x": {"columns": "f", "nan": 1}}}}),
    ):  # fmt: skip
        (tmp_path / "bad.json").write_text(json.dumps(values))
        with named_case(words), pytest.raises(ValueError, match=words):
            Store.ingest(tmp_path / "s", tmp_path / "bad.json")
