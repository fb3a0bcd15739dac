"""Which files are read, and how CSV files are split into rows and values."""

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peergraph.store import BadRowsError, CsvFormat, EdgeFiles, NodeFiles, Rows, Store, TableFiles
from peergraph.store.ingest.read.open_rows import open_rows
from peergraph.store.ingest.workspace import Workspace
from tests.named_case import named_case
from tests.store.ingest.test_exact_values import ingest_edges, ingest_table

arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (peergraph[ingest])")
parquet = pytest.importorskip("pyarrow.parquet")
duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed (peergraph[ingest])")

NODES = NodeFiles(num_nodes=10)


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("node,node\n0,1\n")
    (tmp_path / "b.csv").write_text(",\n0,1\n")
    columns = [arrow.array([0]), arrow.array([1])]
    parquet.write_table(arrow.Table.from_arrays(columns, ["n", "n"]), tmp_path / "c.parquet")
    for name in ("a.csv", "b.csv", "c.parquet"):
        csv = CsvFormat(header=True)
        with named_case(name), pytest.raises(ValueError, match="two columns of the name"):
            ingest_edges(tmp_path, EdgeFiles(tmp_path / name, csv=csv))


def test_names_of_columns_are_exact(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("x[0],x0\n1,2\n")
    assert ingest_table(tmp_path, tmp_path / "x.csv", "x[0]").tolist() == [1]
    (tmp_path / "e.csv").write_text("src,SRC,dst\n1,5,2\n7,1,3\n")
    parquet.write_table(
        arrow.table({"src": [1, 7], "SRC": [5, 1], "dst": [2, 3]}), tmp_path / "e.pq"
    )
    for name in ("e.csv", "e.pq"):
        with named_case(name):
            edges = EdgeFiles(tmp_path / name, "src", "dst")
            assert ingest_edges(tmp_path, edges, nodes=NODES) == [[1, 2], [7, 3]]
            assert ingest_edges(tmp_path, replace(edges, where="dst = 2"), nodes=NODES) == [[1, 2]]
            with pytest.raises(ValueError, match="differ by case only: 'src', 'SRC'"):  # of DuckDB
                ingest_edges(tmp_path, replace(edges, where="SRC = 5"), nodes=NODES)
    types = CsvFormat(types={"scr": "string"})
    with pytest.raises(ValueError, match="no column 'scr'"):
        ingest_edges(tmp_path, EdgeFiles(tmp_path / "e.csv", "src", "dst", csv=types))


def test_the_first_two_columns_are_the_ends_unless_others_are_named_so(tmp_path: Path) -> None:
    path, words = tmp_path / "e.csv", "name them by source= and destination="
    for header in ("dst,src,w", "src,w,dst", "id,src,dst", "Target,Source,w", ",source_id,w"):
        path.write_text(f"{header}\n0,1,2\n1,2,0\n")
        with named_case(header), pytest.raises(ValueError, match=words):
            ingest_edges(tmp_path, EdgeFiles(path))
    for header in ("src,dst,target", "from,to,source", "paper,author,w", "s,destination,w"):
        path.write_text(f"{header}\n0,1,2\n1,2,0\n")
        with named_case(header):
            assert ingest_edges(tmp_path, EdgeFiles(path)) == [[0, 1], [1, 2]]
    path.write_text("dst,src,w\n0,1,2\n1,2,0\n")
    assert ingest_edges(tmp_path, EdgeFiles(path, "src", "dst")) == [[1, 0], [2, 1]]


def test_the_index_of_a_frame_is_no_column_of_a_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.5, 2.5, 3.5], "b": [4.5, 5.5, 6.5]})
    chosen = frame[frame["a"] > 2]
    chosen.to_parquet(tmp_path / "x.parquet")
    for values in (tmp_path / "x.parquet", chosen):
        rows = ingest_table(tmp_path, None, Rows(values), num_nodes=2)
        assert rows.tolist() == chosen.to_numpy().tolist()


def test_relations_of_one_connection(tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        ids = connection.sql("SELECT 'n' || i AS id, i / 2 AS x FROM range(3000) t(i)")
        ends = connection.sql(
            "SELECT 'n' || i AS src, 'n' || i * 7 % 3000 AS dst FROM range(3000) t(i)"
        )
        nodes = NodeFiles(ids, id="id", tables={"x": "x"})
        edges = EdgeFiles(ends, where="src != 'n5'")
        Store.ingest(tmp_path / "s", nodes=nodes, edges=edges)
        assert ids.fetchall()[9] == ("n9", 4.5)  # the connection serves other queries
    numbers = np.arange(3000)
    right = np.delete(np.stack([numbers, numbers * 7 % 3000]), 5, axis=1)
    with Store.load(tmp_path / "s", plan="host", device="cpu") as loaded:
        assert loaded.node_table("x").read().tolist() == (numbers / 2).tolist()
        assert loaded.edge_index().tolist() == right.tolist()


def test_headers_are_declared_or_unambiguous(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    for text, named in (
        ("src,dst\n0,1\n", ()),
        ("from,to\nann,bob\n", ()),
        ("who,whom\n0,1\n", ()),
        ("who,whom\nann,bob\n", ("who", "whom")),
    ):
        path.write_text(text)
        with named_case(text):
            assert ingest_edges(tmp_path, EdgeFiles(path, *named)) == [[0, 1]]
    for text in ("0,1\n1,0\n", "ann,bob\nbob,ann\n", "x,1\ny,2\n"):
        path.write_text(text)
        with named_case(text), pytest.raises(ValueError, match="may be a header or a row"):
            ingest_edges(tmp_path, EdgeFiles(path))
    path.write_text("0,1\n1,0\n")
    plain = CsvFormat(header=False)
    assert ingest_edges(tmp_path, EdgeFiles(path, csv=plain)) == [[0, 1], [1, 0]]
    (tmp_path / "x.csv").write_text("0.5,1\n2,3\n")
    with pytest.raises(ValueError, match="may be a header or a row"):
        ingest_table(tmp_path, None, Rows(tmp_path / "x.csv"), num_nodes=2)
    result = ingest_table(tmp_path, None, Rows(tmp_path / "x.csv", csv=plain), num_nodes=2)
    assert result.tolist() == [[0.5, 1], [2, 3]]


def test_bad_lines_behind_the_first_block(tmp_path: Path) -> None:
    lines = [f"{i % 1000000},{i * 7 % 1000000}" for i in range(1_700_000)]
    lines[1_600_000] = "1,2,3"
    lines[1_650_000] = "1"
    (tmp_path / "e.csv").write_text("src,dst\n" + "\n".join(lines) + "\n")
    nodes, edges = NodeFiles(num_nodes=1_000_000), EdgeFiles(tmp_path / "e.csv")
    with pytest.raises(BadRowsError, match="3 values, 2 columns: row 1600000") as raised:
        Store.ingest(tmp_path / "s", nodes=nodes, edges=edges)
    assert "1 values, 2 columns: row 1650000" in str(raised.value)
    report = Store.ingest(tmp_path / "s", nodes=nodes, edges=edges, bad_rows="skip")
    assert sum(report.num_edges.values()) == 1_700_000 - 2


def test_lines_of_csv(tmp_path: Path) -> None:
    path, nodes = tmp_path / "e.csv", NODES
    for name, content, expected in (
        ("byte order mark, other line ends", b"\xef\xbb\xbfsrc,dst\r\n0,1\r\n2,3\r\n", 2),
        ("no line end at the end", b"src,dst\n0,1\n2,3", 2),
        ("quoted", b'src,dst\n"0","1"\n', 1),
        ("a text of two lines", b'src,dst,title\n0,1,"a\nb"\n2,3,"c ""d"""\n', 2),
    ):
        path.write_bytes(content)
        with named_case(name):
            assert len(ingest_edges(tmp_path, EdgeFiles(path), nodes=nodes)) == expected
    for words, content in (
        ("is missing: row 1", b"src,dst\n0,1\n\n2,3\n"),
        (
            "line 3 cannot be read: a quotation mark that is not closed",
            b'src,dst\n0,1\n2,"3\n4,5\n',
        ),
        ("line 3 cannot be read", b'src,dst\n0,1\n2,"3\n4,5\n6,"7\n8,9\n'),
        ("line 2 has a zero byte", b"src,dst\n0,\x001\n"),
        ("line 3 is not UTF-8", "src,dst,n\n0,1,a\n2,3,é\n".encode("latin-1")),
        ("no line is behind", b"src,dst\n"),
        ("UTF-16", "src,dst\n0,1\n".encode("utf-16")),
        ("gzip", gzip.compress(b"src,dst\n0,1\n")),
    ):
        path.write_bytes(content)
        csv = CsvFormat(skip_rows=10**9 if "behind" in words else 0)
        tables = {"n": "n"} if b",n" in content else {}
        edges = EdgeFiles(path, "src", "dst", tables=tables, csv=csv)
        with named_case(words), pytest.raises(ValueError, match=words):
            ingest_edges(tmp_path, edges, nodes=nodes)
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"src,dst\n" + b"0,1\n" * 9999)[:-9])
    with pytest.raises(ValueError, match="cut.csv.gz cannot be read"):
        ingest_edges(tmp_path, EdgeFiles(tmp_path / "cut.csv.gz"), nodes=nodes)
    (tmp_path / "none.csv.gz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"none\.csv\.gz is empty"):
        ingest_edges(tmp_path, EdgeFiles(tmp_path / "none.csv.gz"), nodes=nodes)
    (tmp_path / "y.csv").write_text("y\n1\n\n3\n")
    with pytest.raises(BadRowsError, match="is missing: row 1"):
        ingest_table(tmp_path, tmp_path / "y.csv", "y")


def test_files_of_a_folder_are_read_or_named(tmp_path: Path) -> None:
    def folder(name: str) -> Path:
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.csv").write_text("src,dst\n0,1\n")
        return tmp_path / name

    upper = folder("upper")
    (upper / "b.csv.GZ").write_bytes(gzip.compress(b"src,dst\n2,0\n"))
    assert ingest_edges(tmp_path, EdgeFiles(upper)) == [[0, 1], [2, 0]]
    nested, other, link = folder("nested"), folder("other"), folder("link")
    (nested / "year=2020").mkdir()
    (other / "b.json").write_text("{}")
    (link / "b.csv").symlink_to(tmp_path / "gone.csv")
    for path, error in ((nested, ValueError), (other, ValueError), (link, FileNotFoundError)):
        with named_case(path.name), pytest.raises(error):
            ingest_edges(tmp_path, EdgeFiles(path))
    linked = folder("linked")
    (linked / "latest.csv").symlink_to(linked / "a.csv")
    for files in (linked, f"{linked}/*.csv"):
        with pytest.raises(ValueError, match="has a file twice"):
            ingest_edges(tmp_path, EdgeFiles(files))
    hidden = folder("hidden")
    (hidden / "_SUCCESS").write_text("")
    report = Store.ingest(tmp_path / "s", edges=EdgeFiles(hidden))
    assert "_SUCCESS was left out" in str(report)
    twice = [tmp_path / "hidden", tmp_path / "hidden/a.csv"]
    with pytest.raises(ValueError, match="named twice"):
        ingest_edges(tmp_path, EdgeFiles(twice))


def test_a_file_that_is_listed_twice_has_its_rows_twice(tmp_path: Path) -> None:
    parquet.write_table(arrow.table({"s": [0, 1, 2], "d": [1, 2, 0]}), tmp_path / "e.parquet")
    np.save(tmp_path / "e.npy", np.array([[0, 1, 2], [1, 2, 0]]))
    for name in ("e.parquet", "e.npy"):
        files = [tmp_path / name] * 2
        with named_case(name):
            edges = EdgeFiles(files, tables={"w": torch.arange(6)})
            store = tmp_path / f"{name}.store"
            Store.ingest(store, edges=edges)
            with Store.load(store, plan="host", device="cpu") as loaded:
                assert loaded.edge_table("w").read().tolist() == [0, 1, 2, 3, 4, 5]
            with pytest.raises(ValueError, match="has 3 rows, there are 6"):
                ingest_edges(tmp_path, EdgeFiles(files, tables={"w": torch.arange(3)}))


def test_files_that_change_while_they_are_read_are_named(tmp_path: Path) -> None:
    for name in ("e.csv", "e.parquet", "e.npy", "e.npz"):
        for change in ("appended", "replaced"):
            path = tmp_path / name
            rows = np.arange(6).reshape(3, 2)
            if name == "e.csv":
                path.write_text("src,dst\n0,1\n2,3\n4,5\n")
            elif name == "e.parquet":
                parquet.write_table(arrow.table({"src": rows[:, 0], "dst": rows[:, 1]}), path)
            else:
                (np.save if name == "e.npy" else np.savez)(path, rows)
            source = open_rows(
                f"{path}:arr_0" if name == "e.npz" else path, CsvFormat(), (), "edges"
            )
            content = path.read_bytes()
            if change == "replaced":
                path.rename(tmp_path / "old")
            path.write_bytes(content + b"6,7\n" if name == "e.csv" else content)
            os.utime(path, ns=(0, 0))
            with named_case(name, change), pytest.raises(ValueError, match=f"{name}.* changed"):
                list(source.read(source.names, 1 << 20))


def test_an_array_in_fortran_order_has_more_columns_than_files_may_be_open(
    tmp_path: Path,
) -> None:
    values = np.asfortranarray(np.arange(3.0 * 999).reshape(3, 999))
    np.save(tmp_path / "x.npy", values)
    nodes = NodeFiles(num_nodes=3, tables={"x": tmp_path / "x.npy"})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(900, soft), hard))
    try:
        Store.ingest(tmp_path / "store", nodes=nodes, edges=EdgeFiles(torch.tensor([[0], [1]])))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with Store.load(tmp_path / "store", plan="host", device="cpu") as loaded:
        assert loaded.node_table("x").read().tolist() == values.tolist()


@pytest.mark.timeout(60)
def test_pipes_and_arrays_with_wrong_headers_are_named(tmp_path: Path) -> None:
    for name in ("e.csv", "e.parquet", "e.npy"):
        os.mkfifo(tmp_path / name)
        with named_case(name), pytest.raises(ValueError, match="regular file"):
            ingest_edges(tmp_path, EdgeFiles(tmp_path / name))
    for shape in ("(2, -5)", "(2, True)", "(2, 99999999999999)", "(2**70, 2)", "()"):
        text = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}"
        header = text.encode().ljust(117) + b"\n"
        magic = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
        (tmp_path / "bad.npy").write_bytes(magic + header + bytes(80))
        with named_case(shape), pytest.raises(ValueError, match=r"bad\.npy"):
            ingest_edges(tmp_path, EdgeFiles(tmp_path / "bad.npy"))
    np.save(tmp_path / "objects.npy", np.array([[0, 1], [1, 0]], object))
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3), np.int64))
    for name, words in (("objects.npy", "objects.npy"), ("a.npz:no", "no array 'no'")):
        with named_case(name), pytest.raises(ValueError, match=words):
            ingest_edges(tmp_path, EdgeFiles(f"{tmp_path}/{name}"))


def test_descriptions_with_values_of_other_types(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("src,dst\n0,1\n")
    for key, value in (
        ("where", 5),
        ("add_reverse", "no"),
        ("edge_ids", 1),
        ("query", 5),
        ("csv", {"header": "no"}),
        ("csv", {"delimiter": ",,"}),
        ("csv", {"delimiter": '"'}),
        ("csv", {"skip_rows": -1}),
        ("csv", {"types": 3}),
    ):
        files = {} if key == "query" else {"files": "e.csv"}
        (tmp_path / "g.json").write_text(json.dumps({"edges": files | {key: value}}))
        with named_case(key, value), pytest.raises(ValueError, match=r"g\.json: edges"):
            Store.ingest(tmp_path / "s", tmp_path / "g.json")


@pytest.mark.filterwarnings("ignore")  # of torch, about nested tensors
def test_dtypes_and_tensors_that_tables_do_not_take(tmp_path: Path) -> None:
    for dtype in (np.float32, float, torch.qint8, 3):
        with named_case(dtype), pytest.raises(ValueError, match="dtype must be one of"):
            ingest_table(tmp_path, None, Rows(torch.ones(2), dtype=dtype), num_nodes=2)  # type: ignore[arg-type]
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    quantized = torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8)
    for values in (nested, quantized, torch.ones(2, device="meta"), torch.ones(2).to_sparse()):
        with pytest.raises(ValueError, match="a tensor must be dense"):
            ingest_table(tmp_path, None, Rows(values), num_nodes=2)


def test_stores_with_names_of_databases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parquet.write_table(arrow.table({"s": ["a", "b"], "d": ["b", "a"]}), "e';--.parquet")
    for name in ("md:out", "sqlite:out", "it's; DROP", "a*b"):
        with named_case(name):
            Store.ingest(name, edges=EdgeFiles("e';--.parquet"))
            ids = parquet.read_table(Path(name).absolute() / "node0.ids.parquet")
            assert ids["id"].to_pylist() == ["a", "b"]


def test_text_that_is_no_utf_8(tmp_path: Path) -> None:
    buffers = [arrow.py_buffer(np.array([0, 2, 4], np.int32)), arrow.py_buffer(b"\xff\xfe\x80\x81")]
    text = arrow.StringArray.from_buffers(2, *buffers)
    parquet.write_table(arrow.table({"s": text, "d": text}), tmp_path / "e.parquet")
    with pytest.raises(ValueError, match="UTF"):
        ingest_edges(tmp_path, EdgeFiles(tmp_path / "e.parquet"))


def test_a_disk_that_takes_no_more_is_named(tmp_path: Path) -> None:
    """Here, files of more than 1 MB fail. Nothing is left."""
    edges = EdgeFiles(np.zeros((2, 100), np.int64), tables={"w": np.zeros((100, 4000))})
    text = EdgeFiles(arrow.table({"s": ["a"] * 9, "d": ["b"] * 9, "w": [[0.5] * 20_000] * 9}))
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        for name, files in (("arrays", edges), ("text", replace(text, tables={"w": "w"}))):
            with named_case(name), pytest.raises(OSError, match="part-"):
                Store.ingest(tmp_path / "s", edges=files, bad_rows="skip")
            assert list(tmp_path.iterdir()) == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous)


def test_ctrl_c_stays_one(tmp_path: Path) -> None:
    """Whatever is done when it comes. Nothing is left, or the whole store, if it came last."""
    count = 300_000
    ids = [f"k{i}" for i in range(count)]
    table = arrow.table({"s": ids, "d": ids[::-1]})
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for attempt in range(4):
            timer = threading.Timer(0.1 + 0.2 * attempt, signal.raise_signal, [signal.SIGINT])
            try:
                timer.start()
                Store.ingest(tmp_path / f"s{attempt}", edges=EdgeFiles(table))
                timer.cancel()
                timer.join()
            except KeyboardInterrupt:
                left = list(tmp_path.glob(f"s{attempt}*"))
                assert left in ([], [tmp_path / f"s{attempt}"])
                for folder in left:
                    with Store.load(folder, plan="host", device="cpu") as store:
                        assert store.edge_index().shape == (2, count)
    finally:
        signal.signal(signal.SIGINT, previous)


def conditions(where: str, **columns: Any) -> EdgeFiles:
    count = len(next(iter(columns.values())))
    ends = {"s": [0] * count, "d": list(range(count))}
    return EdgeFiles(arrow.table({**ends, **columns}), where=where)


def test_conditions_are_expressions_of_a_row(tmp_path: Path) -> None:
    x = [3, 1, 2, None]
    for where, rows in (
        ("x >= 2", [0, 2]),
        ("x IS NULL or X = 1 -- a comment", [1, 3]),
        ("x BETWEEN 2 AND 3 AND d < 2", [0]),
        ("CASE WHEN x > 2 THEN true ELSE d = 3 END", [0, 3]),
        ("nullif(x, 3) IS NULL", [0, 3]),
        ("len(list_filter([1, 2], lambda y: y < x)) = 1", [2]),
        ("true", [0, 1, 2, 3]),
    ):
        with named_case(where):
            result = ingest_edges(tmp_path, conditions(where, x=x), nodes=NODES)
            assert [d for _, d in result] == rows
    target = tmp_path / "outside.csv"
    for where in (
        "random() < 0.5",
        "now() > '2020-01-01'",
        "current_date > '2020-01-01'",
        "nextval('a') > 1",
        f"true; COPY (SELECT 1) TO '{target}'",
        "true LIMIT 2",
        "true) UNION (SELECT 1",
        "x > (SELECT 1)",
        "sum(x) > 1",
        "row_number() OVER () > 1",
        "unnest([true])",
        "getvariable('a')",
        "y = 1",
        "$1 = 1",
        "",
        "-- a comment",
        "x = 1, x = 2",
    ):
        with named_case(where), pytest.raises(ValueError, match="where="):
            ingest_edges(tmp_path, conditions(where, x=x), nodes=NODES)
    assert not target.exists()
    parquet.write_table(arrow.table({"s": [0], "d": [1]}).slice(0, 0), tmp_path / "none.parquet")
    (tmp_path / "none.csv").write_text("s,d\n")
    (tmp_path / "nothing.csv").write_text("")
    for where in ("true; SELECT 1", "true LIMIT 2", "", " ", "-- a comment", "s = 1, s = 2"):
        for name in ("none.parquet", "none.csv", "nothing.csv"):
            edges = EdgeFiles(tmp_path / name, where=where)
            with named_case(where, name), pytest.raises(ValueError, match="where="):
                ingest_edges(tmp_path, edges, nodes=NODES)
    with named_case("a column of any name"):
        table = conditions("_peergraph_row < 2", _peergraph_row=[2, 1, 0])
        assert [d for _, d in ingest_edges(tmp_path, table, nodes=NODES)] == [1, 2]


def test_conditions_on_text_compare_numbers(tmp_path: Path) -> None:
    """DuckDB alone would round 0.4 to the type of 0."""
    (tmp_path / "e.csv").write_text("src,dst,w,t\n0,1,0.4,07\n1,2,0,8\n2,3,12345.5,a\n")
    path = tmp_path / "e.csv"
    assert ingest_edges(tmp_path, EdgeFiles(path, where="w > 0")) == [[0, 1], [2, 3]]
    types = CsvFormat(types={"t": "string"})
    assert ingest_edges(tmp_path, EdgeFiles(path, where="t = '07'", csv=types)) == [[0, 1]]
    with pytest.raises(ValueError, match="has numbers and text: '8' .*and '07'"):
        ingest_edges(tmp_path, EdgeFiles(path, where="t = '7'"))
    table = arrow.table({"s": [0, 1], "d": [1, 2], "t": ["07", "7"]})
    assert ingest_edges(tmp_path, EdgeFiles(table, where="t = '07'")) == [[0, 1]]
    # The type of a number does not depend on the other rows of its batch, or of its file.
    for number, values in enumerate((["5"], ["5", "5.5"], ["5.0"])):
        lines = "".join(f"{number},{i},{value}\n" for i, value in enumerate(values))
        (tmp_path / f"n{number}.csv").write_text("src,dst,w\n" + lines)
    numbers = EdgeFiles(str(tmp_path / "n*.csv"), where="CAST(w AS VARCHAR) = '5.0'")
    assert ingest_edges(tmp_path, numbers) == [[0, 0], [1, 0], [2, 0]]
    (tmp_path / "n0.csv").write_text(f"src,dst,w\n0,1,{2**53 + 1}\n1,2,{2**53}\n")
    numbers = EdgeFiles(tmp_path / "n0.csv", where=f"w = {2**53 + 1}")
    with pytest.raises(ValueError, match="declare the type of the column"):
        ingest_edges(tmp_path, numbers)
    typed = replace(numbers, csv=CsvFormat(types={"w": "int64"}))
    assert ingest_edges(tmp_path, typed) == [[0, 1]]
    for part, kind in enumerate((arrow.int64(), arrow.float64())):
        columns = {"s": [0], "d": [part], "w": arrow.array([5], kind)}
        parquet.write_table(arrow.table(columns), tmp_path / f"w{part}.parquet")
    numbers = EdgeFiles(str(tmp_path / "w*.parquet"), where="CAST(w AS VARCHAR) = '5.0'")
    assert ingest_edges(tmp_path, numbers) == [[0, 0], [0, 1]]
    path.write_text(path.read_text().replace("07", "7"))
    with pytest.raises(ValueError, match="has numbers and text: '7' .*and 'a'"):
        ingest_edges(tmp_path, EdgeFiles(path, where="t > 3"))


def test_databases_of_an_ingest_reach_their_files_only(tmp_path: Path) -> None:
    (tmp_path / "given.csv").write_text("a\n1\n")
    (tmp_path / "other.csv").write_text("a\n2\n")
    (tmp_path / "store").mkdir()
    workspace = Workspace(tmp_path / "store", memory=1 << 30, progress=False)
    database = workspace.new_database([str(tmp_path / "given.csv")])
    try:
        assert database.sql(f"SELECT a FROM '{tmp_path}/given.csv'").fetchall() == [(1,)]
        for query in (
            f"SELECT a FROM '{tmp_path}/other.csv'",
            f"COPY (SELECT 1) TO '{tmp_path}/written.csv'",
            f"ATTACH '{tmp_path}/a.db'",
            "INSTALL spatial",
            "LOAD spatial",
            "SELECT * FROM 'https://localhost/a.parquet'",
            "SET enable_external_access = true",
            "SET autoinstall_known_extensions = true",
            "SELECT * FROM tmp_path",  # a variable of Python
        ):
            with named_case(query), pytest.raises(duckdb.Error):
                database.sql(query).fetchall()
    finally:
        database.close()
    assert not (tmp_path / "written.csv").exists()
    assert not (tmp_path / "a.db").exists()


def test_queries_read_what_they_name(tmp_path: Path) -> None:
    parquet.write_table(arrow.table({"s": [0, 1], "d": [1, 0]}), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("s,d\n007,1\n")
    query = f"WITH t AS (SELECT * FROM '{tmp_path}/*.parquet') SELECT d, s FROM t ORDER BY s"
    assert ingest_edges(tmp_path, EdgeFiles(query=query)) == [[1, 0], [0, 1]]
    for query in (
        f"COPY (SELECT 1) TO '{tmp_path}/x.csv'",
        f"SELECT 1; COPY (SELECT 1) TO '{tmp_path}/x.csv'",
        f"SELECT * FROM '{tmp_path}/b.csv'",
        f"SELECT * FROM read_csv('{tmp_path}/b.csv')",
        "SELECT 1; SELECT 2",
        "SELECT * FROM nothing",
    ):
        with named_case(query), pytest.raises(ValueError, match="is not valid"):
            ingest_edges(tmp_path, EdgeFiles(query=query))
    assert not (tmp_path / "x.csv").exists()
    text = f"SELECT s, d FROM read_csv('{tmp_path}/b.csv', all_varchar = true)"
    with pytest.raises(ValueError, match="not written as a whole number"):
        ingest_edges(tmp_path, EdgeFiles(query=text), nodes=NODES)


def test_queries_do_not_round_values_to_the_types_of_the_first_file(tmp_path: Path) -> None:
    for name, weights in (("ä1", [1, 2]), ("ä2", [1.5, 2.5])):
        table = arrow.table({"s": [0, 1], "d": [1, 0], "w": weights})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    one, two = (f"'{tmp_path}/ä{number}.parquet'" for number in (1, 2))
    for files in (
        f"'{tmp_path}/ä*.parquet'",
        f"read_parquet('{tmp_path}/ä*.parquet')",
        f"(SELECT * FROM parquet_scan([{one}, {two}]))",
    ):
        edges = EdgeFiles(query=f"SELECT * FROM {files}", tables={"w": "w"})
        with named_case(files), pytest.raises(ValueError, match=r"'w' is int64 in .*union_by_name"):
            ingest_edges(tmp_path, edges, nodes=NODES)
    for files, expected in (
        (f"read_parquet([{one}, {two}], union_by_name = true)", [1, 2, 1.5, 2.5]),
        (f"{one} JOIN (SELECT s, w AS weight FROM {two}) USING (s)", [1, 2]),
    ):
        edges = EdgeFiles(query=f"SELECT s, d, w FROM {files}", tables={"w": "w"})
        with named_case(files):
            Store.ingest(tmp_path / "store", nodes=NODES, edges=edges)
            table = np.load(tmp_path / "store" / "edge0.table0.npy")
            assert table.tolist() == expected
            shutil.rmtree(tmp_path / "store")


def test_columns_that_only_later_files_have(tmp_path: Path) -> None:
    """Patterns and tables name them, so they are not left out."""
    for name, columns in (("a1", ["f0"]), ("a2", ["f1", "f0"])):
        table = arrow.table({"id": [len(columns) - 1], **{key: [0.5] for key in columns}})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    files, rows = tmp_path / "a*.parquet", Rows(tmp_path / "a*.parquet")
    for options in (
        {"nodes": NodeFiles(files, id="id", tables={"x": "f*"})},
        {"nodes": NodeFiles(files, id="id", tables={"x": "f1"})},
        {"nodes": NodeFiles(num_nodes=2, tables={"x": rows})},
        {"tables": {"t": TableFiles(files, key="id")}},
    ):
        with named_case(str(options)), pytest.raises(ValueError, match="a1.parquet has no column"):
            Store.ingest(tmp_path / "store", **options)
    nodes = NodeFiles(files, id="id", tables={"x": ["f0"]})
    Store.ingest(tmp_path / "store", nodes=nodes)
    assert np.load(tmp_path / "store" / "node0.table0.npy").tolist() == [[0.5], [0.5]]


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_times_do_not_depend_on_the_zone_of_the_machine(
    tmp_path: Path, zone: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(time.tzset)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    t = arrow.array([978307199, 978307200], arrow.timestamp("s", "Europe/Paris"))
    parquet.write_table(arrow.table({"s": [0, 1], "d": [1, 0], "t": t}), tmp_path / "e.parquet")
    for where in ("t >= '2001-01-01'", "year(t) = 2001"):
        edges = EdgeFiles(tmp_path / "e.parquet", where=where)
        query = EdgeFiles(query=f"SELECT * FROM '{tmp_path}/e.parquet' WHERE {where}")
        with named_case(where):
            assert ingest_edges(tmp_path, edges, nodes=NODES) == [[1, 0]]
            assert ingest_edges(tmp_path, query, nodes=NODES) == [[1, 0]]


@pytest.mark.parametrize("shape", [(5, 3), (4, 4), (3, 2, 4), (2, 2, 2), (7,)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", [np.save, np.savez_compressed])
def test_arrays_keep_their_shape_in_any_order(
    tmp_path: Path, shape: tuple[int, ...], order: Any, save: Any
) -> None:
    values = np.arange(float(np.prod(shape))).reshape(shape)
    path = tmp_path / ("x.npy" if save is np.save else "x.npz")
    save(path, np.array(values, order=order))
    source = path if save is np.save else f"{path}:arr_0"
    nodes = NodeFiles(num_nodes=shape[0], tables={"x": Rows(source)})
    edges = EdgeFiles(np.zeros((2, 0), np.int64))
    Store.ingest(tmp_path / "s", nodes=nodes, edges=edges)
    result = np.load(tmp_path / "s" / "node0.table0.npy")
    np.testing.assert_array_equal(result, values)


@pytest.mark.parametrize(
    "edges", [[[0, 1], [2, 0]], [[0, 1, 2], [1, 2, 0]], [[0, 1], [1, 2], [2, 0]]]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_edge_arrays_in_any_order(tmp_path: Path, edges: list[list[int]], order: Any) -> None:
    values = np.array(edges)
    np.save(tmp_path / "e.npy", np.array(values, order=order))
    Store.ingest(tmp_path / "s", edges=EdgeFiles(tmp_path / "e.npy"))
    expected = torch.from_numpy(values if len(values) == 2 else values.T)
    with Store.load(tmp_path / "s", plan="host", device="cpu") as store:
        assert store.edge_index().tolist() == expected.tolist()


WITHOUT_PANDAS = """
import sys
from pathlib import Path
from peergraph.store import EdgeFiles, NodeFiles, Store
folder = Path(sys.argv[1])
for text in (True, False):
    nodes = NodeFiles(folder / "n.csv", id="id") if text else NodeFiles()
    edges = EdgeFiles(folder / f"{text}.csv", tables={"w": "w"}, where="w > 0.75")
    Store.ingest(folder / str(text), nodes=nodes, edges=edges, bad_rows="skip")
assert "pyarrow" in sys.modules and "pandas" not in sys.modules
"""


def test_csv_files_are_read_without_pandas(tmp_path: Path) -> None:
    """Arrow imports it where it makes an array of a list, which takes a second."""
    (tmp_path / "n.csv").write_text("id\nann\nbob\n\nann\n")
    (tmp_path / "True.csv").write_text("s,d,w\nann,bob,0.5\nbob,ann,1\n3,3\nann,eve,2\n,ann,\n")
    (tmp_path / "False.csv").write_text("s,d,w\n1,0,1e3\n0, 1,\n0,1,16777217\n0,-1,7\n")
    command = [sys.executable, "-c", WITHOUT_PANDAS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", ["s,d", "s,d\n", "\ufeffs,d", "\ufeff", ""])
def test_csv_files_without_rows(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text("s,d\n0,1\n")
    (tmp_path / "b.csv").write_text(text)
    files = EdgeFiles([tmp_path / "a.csv", tmp_path / "b.csv"], csv=CsvFormat(header=True))
    Store.ingest(tmp_path / "s", edges=files)
    with Store.load(tmp_path / "s", plan="host", device="cpu") as store:
        assert store.edge_index().tolist() == [[0], [1]]


def test_many_small_row_groups(tmp_path: Path) -> None:
    ids = [f"n{i}" for i in range(2500)]
    kind = arrow.dictionary(arrow.int32(), arrow.string())
    columns = {"id": arrow.array(ids, kind), "y": list(range(2500))}
    parquet.write_table(arrow.table(columns), tmp_path / "n.parquet", row_group_size=3)
    nodes = NodeFiles(tmp_path / "n.parquet", id="id", tables={"y": "y"})
    edges = EdgeFiles(arrow.table({"s": ids[:2], "d": ids[-2:]}))
    Store.ingest(tmp_path / "s", nodes=nodes, edges=edges)
    with Store.load(tmp_path / "s", plan="host", device="cpu") as store:
        assert store.node_table("y").gather(torch.arange(2500)).tolist() == list(range(2500))
        assert store.edge_index().tolist() == [[0, 1], [2498, 2499]]
