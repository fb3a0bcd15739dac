"""Stores made of arrays, Parquet and CSV files equal those built in memory."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peergraph.store import (
    EDGE,
    NODE,
    Columns,
    CsvFormat,
    EdgeFiles,
    EdgeSource,
    GraphSource,
    NodeFiles,
    Rows,
    Store,
)
from tests.named_case import named_case
from tests.store.graphs import heterogeneous_source, homogeneous_source, random_coo
from tests.store.ingest.same_folder import assert_same_folder, coo

arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (peergraph[ingest])")
csv = pytest.importorskip("pyarrow.csv")
parquet = pytest.importorskip("pyarrow.parquet")


def described(source: GraphSource) -> tuple[dict[str, NodeFiles], dict[Any, EdgeFiles]]:
    """A graph in memory as files that are arrays."""
    nodes = {
        kind: NodeFiles(num_nodes=count, tables=dict(source.node_tables.get(kind, {})))
        for kind, count in source.num_nodes.items()
    }
    edges = {
        kind: EdgeFiles(edge_source.coo, tables=dict(source.edge_tables.get(kind, {})))
        for kind, edge_source in source.edges.items()
    }
    return nodes, edges


def test_arrays_of_several_types_with_little_and_with_much_memory(tmp_path: Path) -> None:
    for name, source in (
        ("one", homogeneous_source()),
        ("several", heterogeneous_source(20)),
        ("no edges", GraphSource.homogeneous(4, EdgeSource(coo=coo()))),
        ("no nodes", GraphSource.homogeneous(0, EdgeSource(coo=coo()))),
    ):
        for memory in (1, 1 << 30):
            with named_case(name, memory):
                nodes, edges = described(source)
                folder = tmp_path / f"{name} {memory}"
                report = Store.ingest(folder, nodes=nodes, edges=edges, memory=memory)
                assert_same_folder(folder, source)
                assert report.num_nodes == dict(source.num_nodes)
                assert report.bad_rows.total == 0


def write_table(path: Path, table: Any, **options: Any) -> None:
    if path.name.endswith(".parquet"):
        parquet.write_table(table, path, **options)
        return
    rows = table.to_pydict()
    lines = [",".join(rows)] + [
        ",".join("" if v is None else str(v) for v in row)
        for row in zip(*rows.values(), strict=True)
    ]
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".csv.gz"])
def test_files_with_columns(tmp_path: Path, ending: str) -> None:
    """Globs, several files, tables of one and of several columns, types of ids."""
    edges = random_coo(40, 40, 300)
    weights = torch.randint(100, (300,)).float() / 4
    times = torch.arange(300) * 1_000_000_007
    x = torch.randint(100, (40, 3)).float() / 8
    y = torch.arange(40) % 5
    for part in range(3):
        rows = slice(100 * part, 100 * (part + 1))
        source, destination = (edges[i, rows].numpy() for i in range(2))
        kinds = (np.int32, np.uint64) if part == 1 and ending == ".parquet" else (np.int64,) * 2
        columns = {
            "time": times[rows].numpy(),
            "to": destination.astype(kinds[0]),
            "from": source.astype(kinds[1]),
            "w": weights[rows].numpy(),
        }
        write_table(tmp_path / f"edges{part}{ending}", arrow.table(columns))
    features = {f"f{i}": x[:, i].numpy() for i in range(3)}
    write_table(tmp_path / f"nodes{ending}", arrow.table({"y": y.numpy(), **features}))
    folder = tmp_path / "store"
    Store.ingest(
        folder,
        nodes=NodeFiles(str(tmp_path / f"nodes{ending}"), tables={"x": "f*", "y": "y"}),
        edges=EdgeFiles(
            str(tmp_path / f"edges*{ending}"),
            source="from",
            destination="to",
            tables={"w": Columns("w", dtype="float32"), "time": "time"},
        ),
        memory=20_000,
    )
    expected = GraphSource.homogeneous(
        40, EdgeSource(coo=edges), {"x": x, "y": y}, {"w": weights, "time": times}
    )
    assert_same_folder(folder, expected)


def test_lists_npy_files_and_dtypes(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((50, 4)).astype(np.float64)
    lists = arrow.FixedSizeListArray.from_arrays(arrow.array(x.reshape(-1)), 4)
    loose = arrow.array(x.tolist())
    parquet.write_table(arrow.table({"fixed": lists, "loose": loose}), tmp_path / "n.parquet")
    np.save(tmp_path / "half.npy", x.astype(np.float16))
    np.save(tmp_path / "fortran.npy", np.asfortranarray(random_coo(50, 50, 90).numpy().T))
    np.savez_compressed(tmp_path / "z.npz", weight=np.arange(90, dtype=">i4"))
    folder = tmp_path / "store"
    Store.ingest(
        folder,
        nodes=NodeFiles(
            tmp_path / "n.parquet",
            tables={
                "a": "fixed",
                "b": Columns("loose", dtype=torch.bfloat16),
                "c": tmp_path / "half.npy",
                "d": Rows(torch.arange(50).bfloat16()),
            },
        ),
        edges=EdgeFiles(
            tmp_path / "fortran.npy", tables={"weight": Rows(f"{tmp_path}/z.npz:weight")}
        ),
    )
    tables = {
        "a": torch.from_numpy(x),
        "b": torch.from_numpy(x).bfloat16(),
        "c": torch.from_numpy(x).half(),
        "d": torch.arange(50).bfloat16(),
    }
    edges = EdgeSource(coo=random_coo(50, 50, 90))
    weight = torch.arange(90, dtype=torch.int32)
    assert_same_folder(folder, GraphSource.homogeneous(50, edges, tables, {"weight": weight}))


def test_a_tensor_keeps_its_nan(tmp_path: Path) -> None:
    """Also bfloat16, whose bits are read as they are."""
    for dtype in (torch.bfloat16, torch.float32):
        with named_case(dtype):
            x = torch.tensor([[1, float("nan")], [2, 3]], dtype=dtype)
            nodes = NodeFiles(num_nodes=2, tables={"x": Rows(x, nan="zero")})
            Store.ingest(tmp_path / str(dtype), nodes=nodes, edges=EdgeFiles(coo((0, 1))))
            assert x.isnan().tolist() == [[False, True], [False, False]]
            expected = {"x": x.nan_to_num(0)}
            source = GraphSource.homogeneous(2, EdgeSource(coo=coo((0, 1))), expected)
            assert_same_folder(tmp_path / str(dtype), source)


def test_one_row_empty_files_and_inferred_numbers_of_nodes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("src,dst\n3,1\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("src,dst\n")
    one = GraphSource.homogeneous(4, EdgeSource(coo=coo((3, 1))))
    none = GraphSource.homogeneous(0, EdgeSource(coo=coo()))
    for names, expected in (
        (["a.csv"], one),
        (["empty.csv", "a.csv", "header.csv"], one),
        (["empty.csv"], none),
        (["header.csv"], none),
    ):
        with named_case(names):
            folder = tmp_path / "-".join(["store", *names])
            Store.ingest(folder, edges=EdgeFiles([tmp_path / name for name in names]))
            assert_same_folder(folder, expected)


def test_tab_separated_files_without_header(tmp_path: Path) -> None:
    (tmp_path / "snap.txt.gz").write_bytes(gzip.compress(b"# SNAP\n# a comment\n0\t2\n2\t1\n"))
    plain = CsvFormat(delimiter="\t", header=False, skip_rows=2)
    Store.ingest(tmp_path / "s", edges=EdgeFiles(tmp_path / "snap.txt.gz", csv=plain))
    assert_same_folder(
        tmp_path / "s", GraphSource.homogeneous(3, EdgeSource(coo=coo((0, 2), (2, 1))))
    )


def test_reverse_edges_follow_their_edges(tmp_path: Path) -> None:
    edges, w = random_coo(9, 9, 40), torch.arange(40)
    Store.ingest(
        tmp_path / "s",
        nodes=NodeFiles(num_nodes=9),
        edges=EdgeFiles(edges, tables={"w": w}, add_reverse=True),
    )
    both = torch.stack([edges, edges.flip(0)], dim=2).reshape(2, 80)
    expected = GraphSource.homogeneous(
        9, EdgeSource(coo=both), edge_tables={"w": w.repeat_interleave(2)}
    )
    assert_same_folder(tmp_path / "s", expected)


def test_without_edge_ids_the_position_is_the_id(tmp_path: Path) -> None:
    edges = random_coo(9, 9, 40)
    Store.ingest(
        tmp_path / "s", edges=EdgeFiles(edges, edge_ids=False), nodes=NodeFiles(num_nodes=9)
    )
    with Store.load(tmp_path / "s", plan="host", device="cpu") as store:
        order = torch.argsort(edges[1], stable=True)
        assert torch.equal(store.edge_index(EDGE), edges[:, order])
        assert store.csc(EDGE).edge_ids is None


def test_record_batches_and_readers_of_arrow(tmp_path: Path) -> None:
    edges = random_coo(9, 9, 40)
    table = arrow.table({"s": edges[0].numpy(), "d": edges[1].numpy()})
    dataset = pytest.importorskip("pyarrow.dataset")
    expected = GraphSource.homogeneous(9, EdgeSource(coo=edges))
    for name, files in (
        ("table", table),
        ("dataset", dataset.dataset(table)),
        ("reader", table.to_reader(max_chunksize=7)),
    ):
        with named_case(name):
            Store.ingest(tmp_path / name, nodes=NodeFiles(num_nodes=9), edges=EdgeFiles(files))
            assert_same_folder(tmp_path / name, expected)


def test_a_reader_that_is_given_twice_is_named(tmp_path: Path) -> None:
    reader = arrow.table({"s": [0], "d": [1]}).to_reader()
    edges = {("a", name, "a"): EdgeFiles(reader) for name in "xy"}
    with pytest.raises(ValueError, match="given for two types"):
        Store.ingest(tmp_path / "s", edges=edges)


def test_ids_in_any_order_number_the_nodes(tmp_path: Path) -> None:
    ids = torch.randperm(30)
    table = arrow.table({"id": ids.numpy(), "y": (10 * ids).numpy()})
    parquet.write_table(table, tmp_path / "n.parquet")
    np.save(tmp_path / "x.npy", ids[:, None].float().numpy())
    edges = random_coo(30, 30, 100)
    Store.ingest(
        tmp_path / "s",
        nodes=NodeFiles(
            tmp_path / "n.parquet", id="id", tables={"y": "y", "x": tmp_path / "x.npy"}
        ),
        edges=EdgeFiles(edges),
    )
    nodes = torch.arange(30)
    tables = {"y": 10 * nodes, "x": nodes[:, None].float()}
    assert_same_folder(tmp_path / "s", GraphSource.homogeneous(30, EdgeSource(coo=edges), tables))


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("a,b\n0,1\n")
    (tmp_path / "e.xyz").write_text("")
    file = tmp_path / "e.csv"
    for error, words, arguments in (
        (ValueError, "no files", {}),
        (ValueError, "not both", {"source": "x", "edges": EdgeFiles(file)}),
        (ValueError, "bad_rows must be", {"edges": EdgeFiles(file), "bad_rows": "no"}),
        (ValueError, "memory must be", {"edges": EdgeFiles(file), "memory": 0}),
        (FileNotFoundError, "matches", {"edges": EdgeFiles(tmp_path / "*.parquet")}),
        (FileNotFoundError, "there is no", {"source": tmp_path / "x"}),
        (ValueError, "no column 'x'", {"edges": EdgeFiles(file, "x", "b")}),
        (ValueError, "no column 'w'", {"edges": EdgeFiles(file, tables={"w": "w"})}),
        (ValueError, "that matches 'f", {"edges": EdgeFiles(file, tables={"w": "f*"})}),
        (ValueError, "known by its ending", {"edges": EdgeFiles(tmp_path / "e.xyz")}),
        (ValueError, "of one kind", {"edges": EdgeFiles([file, tmp_path / "e.parquet"])}),
        (ValueError, r"\[2, E\]", {"edges": EdgeFiles(torch.zeros(3, 1))}),
        (ValueError, "one node", {"edges": {("a", "b", "c"): EdgeFiles(file, add_reverse=True)}}),
        (ValueError, "an edge type is", {"edges": {"a": EdgeFiles(file)}}),
        (ValueError, "no known format", {"source": tmp_path}),
        (ValueError, "format must be", {"source": tmp_path, "format": "x"}),
    ):  # fmt: skip
        (tmp_path / "e.parquet").write_bytes(b"no Parquet")
        if "*" in words or error is FileNotFoundError:
            (tmp_path / "e.parquet").unlink()
        with named_case(words), pytest.raises(error, match=words):
            Store.ingest(tmp_path / "s", **arguments)
        assert not (tmp_path / "s").exists()
        assert not list(tmp_path.glob("s.part*"))
    (tmp_path / "s").mkdir()
    with pytest.raises(FileExistsError):
        Store.ingest(tmp_path / "s", edges=EdgeFiles(file))
    assert NODE == "_N"
