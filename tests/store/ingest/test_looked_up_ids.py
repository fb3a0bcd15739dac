"""Nodes with strings or sparse integers as ids, conditions and queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peergraph.store import BadRowsError, EdgeFiles, EdgeSource, GraphSource, NodeFiles, Store
from tests.named_case import named_case
from tests.store.graphs import random_coo
from tests.store.ingest.same_folder import assert_same_folder, relations

arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (peergraph[ingest])")
parquet = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("duckdb", reason="duckdb is not installed (peergraph[ingest])")

USERS, ITEMS = 30, 50


def user_id(node: Any) -> str:
    return f"user {7 * int(node) % USERS:03}"


def item_id(node: Any) -> int:
    return 10**12 - 97 * int(node)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, torch.Tensor]:
    """Users with strings, items with large integers, purchases with a weight."""
    edges = random_coo(USERS, ITEMS, 500)
    knows = random_coo(USERS, USERS, 200, seed=1)
    x, w = torch.randn(USERS, 2), torch.randn(500)
    users = {"name": [user_id(i) for i in range(USERS)], "a": x[:, 0].numpy(), "b": x[:, 1].numpy()}
    parquet.write_table(arrow.table(users), tmp_path / "users.parquet", row_group_size=7)
    parquet.write_table(
        arrow.table({"key": [item_id(i) for i in range(ITEMS)]}), tmp_path / "items.parquet"
    )
    buys = {
        "who": [user_id(u) for u in edges[0]],
        "what": [item_id(i) for i in edges[1]],
        "w": w.numpy(),
    }
    for part in range(2):
        rows = slice(250 * part, 250 * (part + 1))
        table = arrow.table({name: values[rows] for name, values in buys.items()})
        parquet.write_table(table, tmp_path / f"buys{part}.parquet", row_group_size=60)
    lines = "".join(f"{user_id(a)},{user_id(b)}\n" for a, b in knows.t())
    (tmp_path / "knows.csv").write_text("a,b\n" + lines)
    return {"buys": edges, "knows": knows, "x": x, "w": w}


def test_strings_and_sparse_integers(tmp_path: Path, files: dict[str, torch.Tensor]) -> None:
    expected = GraphSource(
        {"user": USERS, "item": ITEMS},
        relations(user__buys__item=files["buys"], user__knows__user=files["knows"]),
        {"user": {"x": files["x"]}},
        {("user", "buys", "item"): {"w": files["w"]}},
    )
    for memory in (1, 1 << 30):
        with named_case(memory):
            folder = tmp_path / f"store{memory}"
            Store.ingest(
                folder,
                nodes={
                    "user": NodeFiles(
                        tmp_path / "users.parquet", id="name", tables={"x": ["a", "b"]}
                    ),
                    "item": NodeFiles(tmp_path / "items.parquet", id="key"),
                },
                edges={
                    ("user", "buys", "item"): EdgeFiles(
                        str(tmp_path / "buys*.parquet"), "who", "what", tables={"w": "w"}
                    ),
                    ("user", "knows", "user"): EdgeFiles(tmp_path / "knows.csv", "a", "b"),
                },
                memory=memory,
            )
            assert_same_folder(folder, expected)
            names = parquet.read_table(folder / "node0.ids.parquet")["id"].to_pylist()
            assert names == [user_id(i) for i in range(USERS)]
            keys = parquet.read_table(folder / "node1.ids.parquet")["id"].to_pylist()
            assert keys == [item_id(i) for i in range(ITEMS)]


def test_ids_that_only_edges_name_are_numbered_in_their_order(
    tmp_path: Path, files: dict[str, torch.Tensor]
) -> None:
    Store.ingest(tmp_path / "s", edges=EdgeFiles(tmp_path / "knows.csv", "a", "b"))
    named = sorted({user_id(i) for i in files["knows"].unique()})
    numbers = {name: number for number, name in enumerate(named)}
    edges = files["knows"].clone().apply_(lambda node: numbers[user_id(node)])
    expected = GraphSource.homogeneous(len(named), EdgeSource(coo=edges))
    assert_same_folder(tmp_path / "s", expected)
    ids = parquet.read_table(tmp_path / "s" / "node0.ids.parquet")["id"].to_pylist()
    assert ids == named


def test_reverse_edges_of_looked_up_ids(tmp_path: Path, files: dict[str, torch.Tensor]) -> None:
    Store.ingest(
        tmp_path / "s",
        nodes=NodeFiles(tmp_path / "users.parquet", id="name"),
        edges=EdgeFiles(tmp_path / "knows.csv", "a", "b", add_reverse=True),
    )
    both = torch.stack([files["knows"], files["knows"].flip(0)], dim=2).reshape(2, -1)
    assert_same_folder(tmp_path / "s", GraphSource.homogeneous(USERS, EdgeSource(coo=both)))


def test_edges_that_are_sorted_by_destination(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("s,d\na,b\nc,b\nb,c\n")
    Store.ingest(tmp_path / "s", edges=EdgeFiles(tmp_path / "e.csv"))
    edges = torch.tensor([[0, 2, 1], [1, 1, 2]])
    assert_same_folder(tmp_path / "s", GraphSource.homogeneous(3, EdgeSource(coo=edges)))


def test_unknown_repeated_and_missing_ids_are_named_or_left_out(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("id,v\nx,1\ny,2\nx,3\n,4\nz,5\n")
    (tmp_path / "e.csv").write_text("s,d,w\nx,y,1\nx,q,2\n,y,3\nz,z,\ny,z,5\ny,x\nz,x,6\n")
    nodes = NodeFiles(tmp_path / "n.csv", id="id", tables={"v": "v"})
    edges = EdgeFiles(tmp_path / "e.csv", tables={"w": "w"})
    with pytest.raises(BadRowsError, match="earlier row: row 2 \\(x\\)") as raised:
        Store.ingest(tmp_path / "s", nodes=nodes, edges=edges)
    assert "row 3" in str(raised.value)
    assert raised.value.bad_rows.total == 2
    report = Store.ingest(tmp_path / "s", nodes=nodes, edges=edges, bad_rows="skip")
    expected = GraphSource.homogeneous(
        3,
        EdgeSource(coo=torch.tensor([[0, 1, 2], [1, 2, 0]])),
        {"v": torch.tensor([1, 2, 5])},
        {"w": torch.tensor([1, 5, 6])},
    )
    assert_same_folder(tmp_path / "s", expected)
    text = str(report)
    for words in ("destination id: row 1 (q)", "source is missing: row 2", "row 3", "row 5"):
        assert words in text, text
    assert report.bad_rows.total == 6


def test_batches_without_an_id_do_not_decide_the_kind_of_ids(tmp_path: Path) -> None:
    lines = [*[","] * 3000, "ann,bob", *[","] * 3000, "bob,bob"]
    (tmp_path / "e.csv").write_text("s,d\n" + "\n".join(lines) + "\n")
    (tmp_path / "n.csv").write_text("id,x\n" + "\n".join(lines).replace("ann,bob", "ann,") + "\n")
    for nodes in (None, NodeFiles(tmp_path / "n.csv", id="id")):
        with named_case(nodes):
            folder = tmp_path / f"s{nodes is None}"
            edges = EdgeFiles(tmp_path / "e.csv")
            options = {} if nodes is None else {"nodes": nodes}
            report = Store.ingest(folder, edges=edges, bad_rows="skip", memory=1, **options)
            assert report.bad_rows.total == 6000 * (1 if nodes is None else 2)
            both = EdgeSource(coo=torch.tensor([[0, 1], [1, 1]]))
            assert_same_folder(folder, GraphSource.homogeneous(2, both))


def test_conditions_and_joins(tmp_path: Path, files: dict[str, torch.Tensor]) -> None:
    good = files["w"] > 0
    good_edges = EdgeSource(coo=files["buys"][:, good])
    expected = GraphSource(
        {"user": USERS, "item": ITEMS},
        {("user", "buys", "item"): good_edges},
        edge_tables={("user", "buys", "item"): {"w": files["w"][good]}},
    )
    nodes = {
        "user": NodeFiles(tmp_path / "users.parquet", id="name"),
        "item": NodeFiles(tmp_path / "items.parquet", id="key"),
    }
    buys = str(tmp_path / "buys*.parquet")
    query = f"SELECT who, what, w FROM '{buys}' WHERE w > 0"
    for name, edges in (
        ("where", EdgeFiles(buys, "who", "what", tables={"w": "w"}, where="w > 0")),
        ("query", EdgeFiles(query=query, tables={"w": "w"})),
    ):
        with named_case(name):
            folder = tmp_path / name
            Store.ingest(folder, nodes=nodes, edges={("user", "buys", "item"): edges})
            assert_same_folder(folder, expected)
    for bad_edges in (EdgeFiles(buys, where="nothing = 1"), EdgeFiles(query="SELEC")):
        with pytest.raises(ValueError, match="is not valid"):
            Store.ingest(tmp_path / "bad", nodes=nodes, edges={("user", "b", "item"): bad_edges})
    assert np.load(tmp_path / "where" / "edge0.indptr.npy")[-1] == int(good.sum())
