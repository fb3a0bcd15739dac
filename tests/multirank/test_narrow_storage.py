"""Narrow storage over several ranks: tables on all tiers, stores, folders, errors and reports."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import peergraph
from peergraph.aggregate import Csc, g_spmm
from peergraph.memory import Group, NarrowTable, TableRows
from peergraph.memory.table.rows_with_scales import RowsWithScales
from peergraph.store import NODE, EdgeSource, GraphSource, Store
from peergraph.testing import run_ranks
from tests.memory.narrow_rows import (
    FLOATS,
    STORAGES,
    expected_rows,
    is_narrow,
    narrow_table,
    values,
)
from tests.memory.tables import TIER_KINDS, random_ids, split
from tests.named_case import named_case
from tests.store.graphs import PLANS, build, homogeneous_source

PLACES = [
    pytest.param(2, "cpu", id="2-cpu"),
    pytest.param(3, "cpu", id="3-cpu"),
    pytest.param(2, "cuda", id="2-gpus", marks=pytest.mark.gpus(2)),
    pytest.param(4, "cuda", id="4-gpus", marks=pytest.mark.gpus(4)),
]


def _check_tables(group: Group) -> None:
    widths = (1, 7, 16, 100, 128)
    for i, storage in enumerate(STORAGES):
        for j, kind in enumerate(TIER_KINDS):
            dtype = FLOATS[(i + j) % len(FLOATS)]
            if not is_narrow(storage, dtype):
                continue
            with named_case(storage, dtype, kind):
                x = values((61, widths[(i + j) % len(widths)]), dtype)
                expected = expected_rows(x, storage)
                table = narrow_table(x, storage, split(61, kind), group)
                ids = random_ids(61, (90,), torch.int64, seed=group.rank)
                assert torch.equal(table.gather(ids).cpu(), expected[ids])
                assert torch.equal(table.read(), expected)
                table.close()


def _check_scales_apart(group: Group) -> None:
    """Whole sectors, sharded: each rank has all scales, and writes those of the others."""
    x = values((61, 128), torch.float32)
    ids = random_ids(61, (90,), torch.int64, seed=group.rank)
    for kind in ("sharded", "on gpus"):
        table = narrow_table(x, "int8", split(61, kind), group)
        assert isinstance(table.stored, RowsWithScales)
        own = torch.arange(group.rank, 61, group.world_size)
        table.scatter(own, 2 * x[own])
        peergraph.synchronize()
        group.barrier()
        expected = expected_rows(2 * x, "int8")
        assert torch.equal(table.gather(ids).cpu(), expected[ids])
        every = torch.arange(90, device=group.device)
        csc = Csc.from_edge_index(torch.stack([every, every]), 90, 90)
        actual = g_spmm(csc, "copy_u", "sum", TableRows(table, ids.to(group.device)))
        assert torch.equal(actual.cpu(), expected[ids])
        group.barrier()
        table.close()


def _check_store(store: Store, source: GraphSource) -> None:
    x, w = source.node_tables[NODE]["x"], source.edge_tables[store.edge_types[0]]["w"]
    assert isinstance(x, torch.Tensor)
    assert isinstance(w, torch.Tensor)
    assert torch.equal(store.node_table("x").read(), expected_rows(x, "int8:4"))
    assert torch.equal(store.edge_table("w").read(), expected_rows(w, "float16"))


def _check_stores(group: Group, folder: Path) -> None:
    source = homogeneous_source()
    storage = {"x": "int8:4", "w": "float16"}
    options = {"group": group, "storage": storage, "memory_budget": 6000}
    for plan in PLANS:
        local_source = source if group.rank == 0 else None
        with named_case(plan), build(local_source, plan, **options) as store:
            _check_store(store, source)
            report = store.storage_reports["_N.x"]
            assert (report.rows, report.storage) == (60, "int8:4")
            if plan == "mixed":
                store.save(folder / "store")
    with Store.load(folder / "store", group=group, plan="sharded") as store:
        _check_store(store, source)
        assert store.storage_reports == {}


def _check_stores_with_scales_apart(group: Group, folder: Path) -> None:
    """Folders are the same whether a store holds scales apart or not."""
    x = values((60, 128), torch.float32)
    expected = expected_rows(x, "int8")
    edges = EdgeSource(coo=torch.randint(60, (2, 300), generator=torch.Generator().manual_seed(1)))
    source = GraphSource.homogeneous(60, edges, {"x": x}) if group.rank == 0 else None

    def check(store: Store, apart: bool) -> None:
        table = store.node_table("x")
        assert isinstance(table, NarrowTable)
        assert isinstance(table.stored, RowsWithScales) == apart
        assert torch.equal(table.read(), expected)
        ids = random_ids(60, (50,), torch.int64, seed=group.rank)
        assert torch.equal(table.gather(ids).cpu(), expected[ids])
        placed = next(p for p in store.plan.placements if p.name == "_N.x")
        allocation = next(a for a in store.memory().allocations if a.name == "_N.x")
        assert sum(allocation.of_rank(group.rank)) <= placed.bytes_per_rank(group.world_size)
        if apart:
            assert allocation.replicated == (60 * 4,) * group.world_size
            assert sum(allocation.sharded) == 60 * 128

    with Store.build(source, group=group, plan="sharded", storage={"x": "int8"}) as store:
        check(store, apart=True)
        store.save(folder / "apart")
    with Store.load(folder / "apart", group=group, plan="replicated") as store:
        check(store, apart=False)
        store.save(folder / "joined")
    with Store.load(folder / "joined", group=group, plan="sharded") as store:
        check(store, apart=True)
    if group.rank == 0:
        files = [sorted((folder / name).glob("*.npy")) for name in ("apart", "joined")]
        for one, other in zip(*files, strict=True):
            assert one.read_bytes() == other.read_bytes()


def _check_shares(group: Group) -> None:
    """Each rank brings the rows of its nodes; the report is of all of them."""
    x = values((40, 5), torch.float32)
    begin, end = 40 * group.rank // group.world_size, 40 * (group.rank + 1) // group.world_size
    no_edges = EdgeSource(csc=(torch.zeros(end - begin + 1).long(), torch.empty(0).long()))

    def share(rows: torch.Tensor) -> GraphSource:
        tables = {"x": rows[begin:end]}
        return GraphSource.homogeneous(40, no_edges, tables, node_range=(begin, end))

    with Store.build(share(x), group=group, storage={"x": "int8"}) as store:
        assert torch.equal(store.node_table("x").read(), expected_rows(x, "int8"))
        report = store.storage_reports["_N.x"]
        assert (report.rows, report.minimum) == (40, float(x.min()))
    bad = x.clone()
    bad[39, 2] = float("nan")
    with pytest.raises(ValueError, match=r"_N.x: row 39 has nan in column 2"):
        Store.build(share(bad), group=group, storage={"x": "int8"})
    storage = {"x": "int8" if group.rank else "float16"}
    with pytest.raises(ValueError, match="the ranks disagree about storage"):
        Store.build(share(x), group=group, storage=storage)


def _all_cases(device: str, folder: Path) -> None:
    group = Group.current(device=device, timeout=120)
    _check_tables(group)
    _check_scales_apart(group)
    _check_stores(group, folder)
    _check_stores_with_scales_apart(group, folder)
    _check_shares(group)


@pytest.mark.parametrize(("world_size", "device"), PLACES)
def test_narrow_storage(world_size: int, device: str, tmp_path: Path) -> None:
    run_ranks(_all_cases, world_size, device, tmp_path, device=device)
