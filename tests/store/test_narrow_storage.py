"""Stores with narrow storage: the option, reports, saved folders, ingest and the command line."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from peergraph.cli.__main__ import main
from peergraph.memory import NarrowTable, Table
from peergraph.sampling import NeighborSampler
from peergraph.store import EDGE, EdgeFiles, GraphSource, NodeFiles, Rows, RowSource, Store
from tests.memory.narrow_rows import STORAGES, expected_rows
from tests.named_case import named_case
from tests.store.graphs import PLANS, build, heterogeneous_source, homogeneous_source
from tests.store.saved_stores import change_manifest


def _tables(source: GraphSource) -> dict[str, Tensor]:
    tables: Any = {**source.node_tables["_N"], **source.edge_tables[EDGE]}
    return dict(tables)


def test_every_plan_and_storage(device: torch.device) -> None:
    source = homogeneous_source()
    tables = _tables(source)
    plans = [PLANS[i % len(PLANS)] for i in range(len(STORAGES))]
    for storage, plan in zip(STORAGES, plans, strict=True):
        options = {"x": storage, "w": storage, "half": "bfloat16"}
        with (
            named_case(storage, plan),
            build(source, plan, device=device, memory_budget=6000, storage=options) as store,
        ):
            assert torch.equal(store.node_table("x").read(), expected_rows(tables["x"], storage))
            assert torch.equal(store.edge_table("w").read(), expected_rows(tables["w"], storage))
            assert torch.equal(store.node_table("y").read(), tables["y"])
            half = store.node_table("half")
            assert type(half) is Table
            assert torch.equal(half.read(), tables["half"])
            assert set(store.storage_reports) == {"_N.x", "_N-_E-_N.w"}


def test_disk(tmp_path: Path) -> None:
    source = homogeneous_source()
    options: Any = {"storage": {"x": "float16"}, "spill": tmp_path, "host_budget": 4096 * 2}
    with Store.build(source, device="cpu", **options) as store:
        table = store.node_table("x")
        assert table.tiers.disk > 0
        expected = expected_rows(_tables(source)["x"], "float16")
        assert torch.equal(table.read(), expected)
        ids = torch.tensor([3, 59, 0])
        assert torch.equal(table.gather(ids), expected[ids])


def test_types() -> None:
    source = heterogeneous_source()
    storage = {"user": {"x": "float16"}, "x": "int8"}
    with Store.build(source, device="cpu", storage=storage) as store:
        users, items = (store.node_table("x", t) for t in ("user", "item"))
        assert isinstance(users, NarrowTable)
        assert isinstance(items, NarrowTable)
        assert (users.codec.storage, items.codec.storage) == ("float16", "int8")
        reports = store.storage_reports
        assert {name: r.storage for name, r in reports.items()} == {
            "user.x": "float16",
            "item.x": "int8",
        }


def test_reports_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "peergraph")
    with Store.build(homogeneous_source(), device="cpu", storage={"x": "int8"}) as store:
        assert str(store.storage_reports["_N.x"]) in caplog.text


def test_plan_counts_stored_bytes() -> None:
    source = homogeneous_source()

    def bytes_of_x(**options: Any) -> int:
        with Store.build(source, plan="replicated", device="cpu", **options) as store:
            allocations = [a for a in store.memory().allocations if a.name == "_N.x"]
            placed = [p for p in store.plan.placements if p.name == "_N.x"]
            assert sum(allocations[0].replicated) == placed[0].bytes_replicated
            return placed[0].bytes_replicated

    full = bytes_of_x()
    assert full == 60 * 7 * 4
    assert bytes_of_x(storage={"x": "bfloat16"}) == full // 2


@pytest.mark.parametrize(
    ("storage", "error", "message"),
    [
        ({"z": "int8"}, ValueError, "storage names no table: 'z'; there are 'x' of '_N'"),
        ({"_N": {"w": "int8"}}, ValueError, r"storage names no table: \('_N', 'w'\)"),
        ({"y": "int8"}, ValueError, "table 'y' of '_N': storage 'int8' is for tables of float32"),
        ({"mask": "float16"}, ValueError, "table 'mask' of '_N'"),
        ({"x": "int4"}, ValueError, "table 'x': storage must be one of float16"),
        ({"x": "float64"}, ValueError, "'float64' is for tables of that dtype"),
        ("int8", TypeError, "storage must be a mapping"),
    ],
)
def test_bad_options(storage: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Store.build(homogeneous_source(), device="cpu", storage=storage)


def test_values_that_do_not_fit() -> None:
    source = homogeneous_source()
    _tables(source)["x"][41, 3] = 1e5
    with pytest.raises(ValueError, match=r"_N.x: row 41 has 100000 in column 3"):
        Store.build(source, device="cpu", storage={"x": "float16"})


def test_rows_that_a_function_makes() -> None:
    x = torch.randn(60, 7)
    source = homogeneous_source()
    rows = RowSource((60, 7), torch.float32, lambda begin, end: x[begin:end], "float8_e4m3")
    source.node_tables["_N"]["x"] = rows  # type: ignore[index]
    with Store.build(source, device="cpu") as store:
        assert torch.equal(store.node_table("x").read(), expected_rows(x, "float8_e4m3"))
    with Store.build(source, device="cpu", storage={"x": "float32"}) as store:
        assert torch.equal(store.node_table("x").read(), x)


def test_weights_of_samplers_are_read_in_place() -> None:
    source = homogeneous_source()
    _tables(source)["w"].abs_()
    with (
        Store.build(source, device="cpu", storage={"w": "float16"}) as store,
        pytest.raises(NotImplementedError, match=r"'_N-_E-_N.w' in place"),
    ):
        NeighborSampler(store, [3], weights="w").sample(torch.tensor([1, 2]))


def test_saved_and_loaded(tmp_path: Path) -> None:
    source = homogeneous_source()
    x = _tables(source)["x"]
    storage = {"x": "int8:4", "w": "float8_e5m2"}
    with Store.build(source, device="cpu", storage=storage) as store:
        store.save(tmp_path / "narrow")
        saved = store.node_table("x").read(), store.edge_table("w").read()
    manifest = json.loads((tmp_path / "narrow" / "manifest.json").read_text())
    entry = manifest["nodes"][0]["tables"][0]
    assert manifest["format"] == 3
    assert entry["storage"] == {"name": "int8:4", "dtype": "float32", "row_shape": [7]}
    assert entry["shape"] == [60, 16]
    for setting, stored in (
        (None, "int8:4"),
        ({"x": "int8:4"}, "int8:4"),
        ({"x": "float32"}, None),
        ({"x": "bfloat16"}, "bfloat16"),
    ):
        with Store.load(tmp_path / "narrow", device="cpu", storage=setting) as store:
            table = store.node_table("x")
            assert (table.codec.storage if isinstance(table, NarrowTable) else None) == stored
            again = expected_rows(saved[0], stored) if stored == "bfloat16" else saved[0]
            assert torch.equal(table.read(), again)
            assert torch.equal(store.edge_table("w").read(), saved[1])
            assert set(store.storage_reports) == ({"_N.x"} if stored == "bfloat16" else set())
    with Store.build(source, device="cpu") as store:
        store.save(tmp_path / "full")
    assert json.loads((tmp_path / "full" / "manifest.json").read_text())["format"] == 2
    with Store.load(tmp_path / "full", device="cpu", storage={"x": "float16"}) as store:
        assert torch.equal(store.node_table("x").read(), expected_rows(x, "float16"))


def test_added_tables(tmp_path: Path, device: torch.device) -> None:
    added = torch.randn(60, 9)
    with Store.build(homogeneous_source(), device=device) as store:
        weights = torch.rand(store.num_edges(), 2)
        table = store.add_node_table("added", added, storage="int8:4")
        store.add_edge_table("v", weights, storage=torch.bfloat16, plan="host")
        assert torch.equal(table.read(), expected_rows(added, "int8:4"))
        assert store.storage_reports["_N.added"].storage == "int8:4"
        assert store.storage_reports["_N-_E-_N.v"].rows == store.num_edges()
        placed = {p.name: p for p in store.plan.placements}
        assert placed["_N-_E-_N.v"].bytes_host == 4 * store.num_edges()
        assert store.add_node_table("plain", added, storage="float32").dtype == torch.float32
        assert type(store.node_table("plain")) is Table
        store.save(tmp_path / "store")
    with Store.load(tmp_path / "store", device=device) as store:
        table = store.node_table("added")
        assert isinstance(table, NarrowTable)
        assert torch.equal(table.read(), expected_rows(added, "int8:4"))
        assert torch.equal(store.edge_table("v").read(), expected_rows(weights, "bfloat16"))


def test_added_tables_that_do_not_fit(device: torch.device) -> None:
    x = torch.ones(60, 4)
    x[23, 1] = 1e6
    with Store.build(homogeneous_source(), device=device) as store:
        before = store.plan
        for values, storage, message in (
            (x, "float16", r"_N.new: row 23 has 1e\+06 in column 1"),
            (x.long(), "int8", "table 'new' of '_N': storage 'int8' is for tables of"),
            (x, "int5", "table 'new': storage must be one of"),
            (x, "float64", "'float64' is for tables of that dtype"),
        ):
            with pytest.raises(ValueError, match=message):
                store.add_node_table("new", values, storage=storage)
            assert "new" not in store.node_table_names()
            assert store.plan == before
        table = store.add_node_table("new", x, storage="bfloat16")
        assert torch.equal(table.read(), x.bfloat16().float())


def test_damaged_manifests(tmp_path: Path) -> None:
    with Store.build(homogeneous_source(), device="cpu", storage={"x": "int8"}) as store:
        store.save(tmp_path / "store")
    text = (tmp_path / "store" / "manifest.json").read_text()

    def table(values: dict[str, Any]) -> dict[str, Any]:
        entry: dict[str, Any] = values["nodes"][0]["tables"][0]
        return entry

    for change, message in (
        (lambda v: v.update(format=2), "unknown key 'storage'"),
        (lambda v: v.update(format=5), "format 5, this version reads 2 to 4"),
        (lambda v: table(v)["storage"].update(name="int5"), "storage must be one of"),
        (lambda v: table(v)["storage"].update(name="float32"), "is the dtype of the rows"),
        (lambda v: table(v)["storage"].update(row_shape=[99]), "rows of 112 bytes"),
        (lambda v: table(v)["storage"].update(dtype="int64"), "is for tables of"),
        (lambda v: table(v)["storage"].update(more=1), "unknown key 'more'"),
    ):
        change_manifest(tmp_path / "store", change)
        with named_case(message), pytest.raises(ValueError, match=message):
            Store.load(tmp_path / "store", device="cpu", verify=False)
        (tmp_path / "store" / "manifest.json").write_text(text)


def test_ingest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((40, 6)).astype(np.float32)
    w = generator.standard_normal(90)
    np.save(tmp_path / "x.npy", x)
    coo = generator.integers(40, size=(2, 90))
    edges = EdgeFiles(coo, tables={"w": Rows(w)})
    nodes = NodeFiles(tables={"x": tmp_path / "x.npy"})
    report = Store.ingest(
        tmp_path / "a", nodes=nodes, edges=edges, storage={"x": "int8", "w": "bfloat16"}
    )
    assert {name: r.rows for name, r in report.storage_reports.items()} == {
        "_N.x": 40,
        "_N-_E-_N.w": 90,
    }
    assert "40 rows of float32 stored as int8" in str(report)
    with Store.load(tmp_path / "a", device="cpu") as store:
        assert torch.equal(store.node_table("x").read(), expected_rows(torch.from_numpy(x), "int8"))
        assert torch.equal(
            store.edge_table("w").read(), expected_rows(torch.from_numpy(w), "bfloat16")
        )
    with pytest.raises(ValueError, match="storage names no table: 'z'"):
        Store.ingest(tmp_path / "b", nodes=nodes, edges=edges, storage={"z": "int8"})
    x[17, 5] = np.inf
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(ValueError, match=r"_N.x: row 17 has inf in column 5"):
        Store.ingest(tmp_path / "b", nodes=nodes, edges=edges, storage={"x": "int8"})
    assert not (tmp_path / "b").exists()
    assert main(["info", str(tmp_path / "a")]) == 0
    assert "table x                40 x 6 float32 stored as int8, 480 B" in capsys.readouterr().out


def test_command_line_plans_stored_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    def placed(*arguments: str) -> dict[str, int]:
        described = ["--nodes", "1000", "--edges", "9000", "--row-bytes", "400,8"]
        topology = ["--gpus", "0,1", "--budget", "1G"]
        assert main(["plan", "--json", *described, *topology, *arguments]) == 0
        placements = json.loads(capsys.readouterr().out)["plan"]["placements"]
        return {p["name"]: p["bytes_replicated"] for p in placements}

    assert placed()["_N.x"] == 400_000
    assert placed("--storage", "x=int8")["_N.x"] == 112_000
    both = placed("--storage", "_N.x=bfloat16", "--storage", "x1=float16")
    assert (both["_N.x"], both["_N.x1"]) == (208_000, 4_000)
    for wrong in ("z=int8", "x=int5"):
        assert main(["plan", "--gpus", "0,1", "--storage", wrong]) == 2
        assert "storage" in capsys.readouterr().err
    arguments = ["--gpus", "0,1", "--full-graph", "--widths", "8,8,2"]
    assert main(["plan", *arguments, "--storage", "x=int8"]) == 2
    assert "--storage is for plans of mini-batches" in capsys.readouterr().err
