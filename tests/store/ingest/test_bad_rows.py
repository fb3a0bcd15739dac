"""Rows that cannot be used are counted and named, and what is interrupted leaves no store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from peergraph.store import (
    BadRowsError,
    Columns,
    EdgeFiles,
    EdgeSource,
    GraphSource,
    NodeFiles,
    Rows,
    Store,
)
from tests.named_case import named_case
from tests.store.graphs import random_coo
from tests.store.ingest.same_folder import assert_same_folder, coo

arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (peergraph[ingest])")
parquet = pytest.importorskip("pyarrow.parquet")

CSV = """s,d,w
0,1,0.5
0,9,1
-1,2,1
2,1,
3
x,1,1
1.5,1,1
1,2,nan
2,2,4,4
,0,2
3,3,2
"""


def test_every_kind_of_bad_row_of_edges(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(CSV)
    (tmp_path / "good.csv").write_text("s,d,w\n1,1,7.25\n")
    files = EdgeFiles([tmp_path / "e.csv", tmp_path / "good.csv"], tables={"w": "w"})
    nodes = NodeFiles(num_nodes=4)
    with pytest.raises(BadRowsError) as raised:
        Store.ingest(tmp_path / "s", nodes=nodes, edges=files)
    text = str(raised.value)
    for words in (
        "destination id out of range for 4 nodes: row 1 (9)",
        "source id out of range for 4 nodes: row 2 (-1)",
        "table 'w': a value is missing: row 3",
        "table 'w': a value is NaN: row 7",
        "1 values, 3 columns: row 4",
        "the source is not written as a whole number: row 5, row 6",
        "4 values, 3 columns: row 8",
        "the source is missing: row 9",
    ):
        assert words in text, text
    assert raised.value.bad_rows.total == 9
    assert not (tmp_path / "s").exists()
    report = Store.ingest(tmp_path / "s", nodes=nodes, edges=files, bad_rows="skip")
    assert str(report).startswith(f"{tmp_path / 's'}: 4 nodes, 3 edges")
    assert "9 bad rows were left out" in str(report)
    w = torch.tensor([0.5, 2, 7.25])
    edges = EdgeSource(coo=coo((0, 1), (3, 3), (1, 1)))
    assert_same_folder(tmp_path / "s", GraphSource.homogeneous(4, edges, edge_tables={"w": w}))


def test_many_bad_rows_are_counted_and_the_first_ones_named(tmp_path: Path) -> None:
    edges = coo(*((i, 100) for i in range(20)))
    with pytest.raises(BadRowsError, match=r"20 rows: destination id .*row 4 \(100\), \.\.\.$"):
        Store.ingest(tmp_path / "s", nodes=NodeFiles(num_nodes=50), edges=EdgeFiles(edges))


def test_missing_values_of_nodes(tmp_path: Path) -> None:
    columns = {"x": [1.0, None, float("nan")], "n": [1, None, 3]}
    parquet.write_table(arrow.table(columns), tmp_path / "n.parquet")
    np.save(tmp_path / "x.npy", np.array([1, np.nan, 2], np.float32))
    edges = EdgeFiles(coo((0, 1)))

    def ingest(**tables: object) -> Store:
        folder = tmp_path / f"s{len(list(tmp_path.iterdir()))}"
        nodes = NodeFiles(tmp_path / "n.parquet", tables=tables)
        Store.ingest(folder, nodes=nodes, edges=edges, bad_rows="skip")
        return Store.load(folder, plan="host", device="cpu")

    for table, words in (
        ("x", "n.parquet: 1 row: table 'x': a value is missing: row 1\n"),
        ("x", "1 row: table 'x': a value is NaN: row 2"),
        ("n", "value is missing: row 1"),
        (["x", "n"], "value is missing: row 1"),
        (tmp_path / "x.npy", "value is NaN: row 1"),
    ):
        with named_case(table), pytest.raises(BadRowsError) as raised:
            ingest(x=table)
        assert words in f"{raised.value}\n"
    with ingest(
        a=Columns("x", nan="keep"),
        b=Columns("x", nan="zero"),
        c=Rows(tmp_path / "x.npy", nan="zero"),
    ) as store:
        assert store.node_table("a").read().isnan().tolist() == [False, True, True]
        assert store.node_table("b").read().tolist() == [1, 0, 0]
        assert store.node_table("c").read().tolist() == [1, 0, 2]


def test_numbers_that_do_not_fit_and_rows_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("s,d,t\n0,1,300\n1,0,5\n")
    big = np.array([[0, 2**63 + 1], [1, 1]], np.uint64)
    nodes = NodeFiles(num_nodes=2)
    for words, edges in (
        ("too large: row 0", EdgeFiles(tmp_path / "e.csv", tables={"t": Columns("t", "int8")})),
        ("the source is too large: row 1", EdgeFiles(big)),
        ("has 3 rows, there are 2", EdgeFiles(tmp_path / "e.csv", tables={"t": torch.zeros(3)})),
        ("has 1 rows, there are 2", EdgeFiles(tmp_path / "e.csv", tables={"t": torch.zeros(1)})),
    ):  # fmt: skip
        with named_case(words), pytest.raises(ValueError, match=words):
            Store.ingest(tmp_path / "s", nodes=nodes, edges=edges)
    array_nodes = NodeFiles(num_nodes=2, tables={"x": torch.zeros(3)})
    with pytest.raises(ValueError, match="has 3 rows"):
        Store.ingest(tmp_path / "s", nodes=array_nodes, edges=EdgeFiles(coo((0, 1))))
    parquet.write_table(arrow.table({"id": [0, 1, 1, 5, 3]}), tmp_path / "n.parquet")
    array_nodes = NodeFiles(tmp_path / "n.parquet", id="id", numbering="dense")
    with pytest.raises(BadRowsError) as raised:
        Store.ingest(tmp_path / "s", nodes=array_nodes, edges=EdgeFiles(coo((0, 1))))
    assert "earlier row: row 2 (1)" in str(raised.value)
    assert "out of range for 5 nodes: row 3 (5)" in str(raised.value)


def test_rows_of_all_tables_are_left_out_with_their_edges(tmp_path: Path) -> None:
    """Columns and separate files, whatever makes an edge a bad row."""
    (tmp_path / "e.csv").write_text("src,dst,w\n0,1,5\n0,9,6\n1\n1,0,7\n1,1,8\n2,2,9\n")
    (tmp_path / "v.csv").write_text("v\n10\n11\n12\n13\nno\n15\n")
    for numbering, ids in (("dense", [0, 1, 2]), ("mapped", ["0", "1", "2"])):
        parquet.write_table(arrow.table({"id": ids}), tmp_path / "n.parquet")
        nodes = NodeFiles(tmp_path / "n.parquet", id="id", numbering=numbering)
        tables = {"w": "w", "v": Rows(tmp_path / "v.csv"), "a": torch.arange(6)}
        edges = EdgeFiles(tmp_path / "e.csv", tables=tables)
        with named_case(numbering):
            Store.ingest(tmp_path / numbering, nodes=nodes, edges=edges, bad_rows="skip")
            expected = GraphSource.homogeneous(
                3,
                EdgeSource(coo=coo((0, 1), (1, 0), (2, 2))),
                edge_tables={
                    "w": torch.tensor([5, 7, 9]),
                    "v": torch.tensor([[10], [13], [15]]),
                    "a": torch.tensor([0, 3, 5]),
                },
            )
            assert_same_folder(tmp_path / numbering, expected)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    parquet.write_table(arrow.table({"s": range(1000), "d": range(1000)}), tmp_path / "e.parquet")
    content = bytearray((tmp_path / "e.parquet").read_bytes())
    content[10:900] = bytes(890)
    (tmp_path / "torn.parquet").write_bytes(content)
    (tmp_path / "e.csv.gz").write_bytes(b"\x1f\x8b\x08\x00 no gzip")
    (tmp_path / "e.npy").write_bytes(b"no array")
    np.save(tmp_path / "cut.npy", np.zeros((2, 1000), np.int64))
    os.truncate(tmp_path / "cut.npy", 9000)
    for name in ("torn.parquet", "e.csv.gz", "e.npy", "cut.npy"):
        with named_case(name), pytest.raises(ValueError, match=name):
            Store.ingest(
                tmp_path / "s", nodes=NodeFiles(num_nodes=1000), edges=EdgeFiles(tmp_path / name)
            )
        assert [f.name for f in tmp_path.iterdir() if f.name.startswith("s")] == []


def test_parquet_files_with_checksums_are_compared(tmp_path: Path) -> None:
    """A bit that has changed is named; files of large row groups are read by another reader."""
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    for rows, memory in ((1000, 1 << 30), (10_000, 1)):
        ids = np.arange(rows)
        parquet.write_table(arrow.table({"s": ids, "d": ids}), tmp_path / "e.parquet", **options)
        content = bytearray((tmp_path / "e.parquet").read_bytes())
        content[content.index((rows // 2).to_bytes(8, "little"))] ^= 1
        (tmp_path / "e.parquet").write_bytes(content)
        edges, nodes = EdgeFiles(tmp_path / "e.parquet"), NodeFiles(num_nodes=rows)
        with named_case(rows), pytest.raises(ValueError, match=r"e\.parquet cannot be read.*CRC"):
            Store.ingest(tmp_path / "s", edges=edges, nodes=nodes, memory=memory)


SCRIPT = """
import sys
from peergraph.store import EdgeFiles, NodeFiles, Store
folder, edges = sys.argv[1:]
nodes = NodeFiles(num_nodes=5000)
for number in range(1000):
    Store.ingest(f"{folder}/{number}", edges=EdgeFiles(edges), nodes=nodes, memory=1 << 20)
"""


@pytest.mark.timeout(120)
def test_a_killed_ingest_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    edges = random_coo(5000, 5000, 200_000)
    np.save(tmp_path / "e.npy", edges.numpy())
    stores = tmp_path / "stores"
    command = [sys.executable, "-c", SCRIPT, str(stores), str(tmp_path / "e.npy")]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 60
    while not list(stores.glob("*.part-*/temporary/edge0/bucket*")) and time.monotonic() < deadline:
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = list(stores.glob("*.part-*"))
    for part in left:
        assert not (part / "manifest.json").exists()
        with pytest.raises(FileNotFoundError):
            Store.load(part, plan="host", device="cpu")
    assert left
    name = left[0].name.split(".")[0]
    Store.ingest(
        stores / name, edges=EdgeFiles(tmp_path / "e.npy"), nodes=NodeFiles(num_nodes=5000)
    )
    assert not list(stores.glob("*.part-*"))
    assert_same_folder(stores / name, GraphSource.homogeneous(5000, EdgeSource(coo=edges)))
