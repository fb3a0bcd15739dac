"""Stores give back exactly the graph they were built from, whatever the plan."""

from __future__ import annotations

import pickle
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from peergraph.memory import Group
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Plan, RowSource, Store
from peergraph.testing import run_ranks
from tests.named_case import named_case, named_cases
from tests.store.graphs import PLANS, build, heterogeneous_source, homogeneous_source
from tests.store.same_graph import assert_same_graph


@named_cases("plan", PLANS)
def test_homogeneous(plan: str, device: torch.device) -> None:
    source = homogeneous_source()
    with build(source, plan, device=device, memory_budget=5000) as store:
        assert store.is_homogeneous
        assert store.num_nodes() == 60
        assert store.num_edges() == 400
        assert_same_graph(store, source)


@named_cases("plan", PLANS)
def test_heterogeneous(plan: str, device: torch.device) -> None:
    source = heterogeneous_source()
    with build(source, plan, device=device, memory_budget=3000) as store:
        assert not store.is_homogeneous
        assert store.edge_types == list(source.edges)
        assert_same_graph(store, source)


def test_csc_input(device: torch.device) -> None:
    for dtype, with_ids in product([torch.int32, torch.int64], [False, True]):
        with named_case(dtype, "ids", with_ids):
            indptr = torch.tensor([0, 2, 2, 5])
            # A column of a matrix: not contiguous, also where the store does not copy it.
            indices = torch.tensor([[2, 9], [0, 9], [1, 9], [1, 9], [2, 9]], dtype=dtype)[:, 0]
            edge_ids = torch.tensor([4, 0, 3, 1, 2]) if with_ids else None
            source = GraphSource.homogeneous(
                3, EdgeSource(csc=(indptr, indices), edge_ids=edge_ids)
            )
            with Store.build(source, plan="sharded", device=device) as store:
                in_csc_order = torch.stack([indices.long(), torch.tensor([0, 0, 2, 2, 2])])
                order = torch.arange(5) if edge_ids is None else edge_ids.argsort()
                assert torch.equal(store.edge_index(), in_csc_order[:, order])


@named_cases("plan", PLANS)
def test_graphs_without_edges(plan: str, device: torch.device) -> None:
    for num_nodes in (0, 1, 5):
        with named_case("nodes", num_nodes):
            source = GraphSource.homogeneous(
                num_nodes,
                EdgeSource(coo=torch.empty((2, 0), dtype=torch.int64)),
                node_tables={"x": torch.ones(num_nodes, 2)},
            )
            with build(source, plan, device=device, memory_budget=100) as store:
                assert store.edge_index().shape == (2, 0)
                assert torch.equal(store.node_table("x").read(), torch.ones(num_nodes, 2))


def test_renumbering_is_by_falling_out_degree(device: torch.device) -> None:
    source = homogeneous_source()
    edges = source.edges[EDGE].coo
    assert edges is not None
    with Store.build(source, plan="sharded", device=device) as store:
        order = store.id_map().to_user
        assert order is not None
        hotness = torch.bincount(edges[0], minlength=60)[order.read().long()]
        assert bool((hotness[1:] <= hotness[:-1]).all())
        back = store.id_map().to_internal
        assert back is not None
        assert torch.equal(back.read()[order.read().long()], torch.arange(60, dtype=torch.int32))


def test_one_tier_needs_no_renumbering(device: torch.device) -> None:
    with Store.build(homogeneous_source(), plan="host", device=device) as store:
        assert store.id_map().to_internal is None
        assert all(p.kind != "ids" for p in store.plan.placements)


def test_plan_by_hand(device: torch.device) -> None:
    source = homogeneous_source()
    with build(source, "mixed", device=device) as store:
        assert store.plan.bytes_host() > 0
        again = Plan.from_dict(store.plan.to_dict())
    assert_same_graph(Store.build(source, plan=again, device=device), source)
    with pytest.raises(ValueError, match=r"'_N-_E-_N' has 50 rows, the plan 60"):
        Store.build(homogeneous_source(50), plan=again, device=device)
    other = GraphSource.homogeneous(60, source.edges[EDGE], {"z": torch.zeros(60)})
    with pytest.raises(KeyError, match=r"no node table '_N.z'"):
        Store.build(other, plan=again, device=device)


def test_rows_made_piece_by_piece(device: torch.device) -> None:
    values = torch.randn(60, 7)
    pieces: list[tuple[int, int]] = []

    def rows(begin: int, end: int) -> Tensor:
        pieces.append((begin, end))
        return values[begin:end]

    source = homogeneous_source()
    source.node_tables = {NODE: {"x": RowSource((60, 7), torch.float32, rows)}}
    with Store.build(source, plan="sharded", device=device) as store:
        assert torch.equal(store.node_table("x").read(), values)
    assert pieces[0][0] == 0
    assert pieces[-1][1] == 60


OTHER_ROWS = [
    (torch.ones(59, 7), ValueError, r"\[60, 7\] of torch.float32, got \[59, 7\] of"),
    (torch.ones(61, 7), ValueError, r"got \[61, 7\]"),
    (torch.ones(0, 7), ValueError, r"got \[0, 7\]"),
    (torch.ones(60, 6), ValueError, r"got \[60, 6\]"),
    (torch.ones(60), ValueError, r"got \[60\]"),
    (torch.ones(60, 7).double(), ValueError, r"got \[60, 7\] of torch.float64"),
    (None, TypeError, "a tensor, got NoneType"),
]


def test_sources_that_give_other_rows(device: torch.device) -> None:
    for rows, error, message in OTHER_ROWS:
        with named_case(message):
            source = homogeneous_source()
            source.node_tables = {
                NODE: {"x": RowSource((60, 7), torch.float32, lambda b, e, rows=rows: rows)}
            }
            with pytest.raises(error, match=rf"'?_N\.x'?: rows\(0, 60\) must be .*{message}"):
                Store.build(source, plan="sharded", device=device)


def _build_of_too_few_rows(device: str) -> str:
    group = Group.current(device=device)
    begin, end = 30 * group.rank, 30 * group.rank + 30
    # Only the last rank's source gives too few.
    few = group.rank == group.world_size - 1
    rows = RowSource((30, 3), torch.float32, lambda b, e: torch.ones(e - b - few, 3))
    edges = EdgeSource(csc=(torch.zeros(31).long(), torch.zeros(0).long()))
    source = GraphSource.homogeneous(60, edges, {"x": rows}, node_range=(begin, end))
    try:
        Store.build(source, plan="sharded", group=group)
    except ValueError as error:
        return str(error)
    return "built"


def test_too_few_rows_on_one_rank_are_an_error_on_all() -> None:
    for message in run_ranks(_build_of_too_few_rows, 2, "cpu"):
        assert "rows(30, 60) must be [30, 3] of torch.float32, got [29, 3]" in message


def test_tables_can_be_added(device: torch.device) -> None:
    with Store.build(homogeneous_source(), plan="sharded", device=device) as store:
        values = torch.arange(60).view(60, 1)
        store.add_node_table("index", values)
        assert torch.equal(
            store.node_table("index").gather(torch.tensor([7, 3])).cpu(), values[[7, 3]]
        )
        store.add_edge_table("kind", torch.arange(400))
        assert torch.equal(store.edge_table("kind").read(), torch.arange(400))
        with pytest.raises(ValueError, match="'index' exists"):
            store.add_node_table("index", values)
        with pytest.raises(ValueError, match="60 rows"):
            store.add_node_table("short", values[:5])


@pytest.mark.parametrize("plan", ["sharded", "host"])
def test_save_and_load(plan: str, tmp_path: Path, device: torch.device) -> None:
    for make in (homogeneous_source, heterogeneous_source):
        with named_case(make.__name__):
            source = make()
            folder = tmp_path / make.__name__
            with Store.build(source, plan=plan, device=device) as store:
                store.save(folder)
                with pytest.raises(FileExistsError, match=make.__name__):
                    store.save(folder)
            with Store.load(folder, plan="replicated", device=device) as again:
                assert_same_graph(again, source)
            assert [p.suffix for p in folder.iterdir() if p.suffix != ".npy"] == [".json"]


def test_load_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"manifest\.json is missing"):
        Store.load(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 99}')
    with pytest.raises(ValueError, match="format 99"):
        Store.load(tmp_path)


def test_pickled_store_is_a_handle() -> None:
    source = homogeneous_source()
    with Store.build(source, plan="sharded", device="cpu") as store:
        assert_same_graph(pickle.loads(pickle.dumps(store)), source)


def coo(*edges: tuple[int, int]) -> EdgeSource:
    return EdgeSource(coo=torch.tensor(edges).T.contiguous())


BAD_EDGE_SOURCES = [
    (lambda: EdgeSource(), ValueError, "exactly one of coo and csc"),
    (lambda: EdgeSource(coo=torch.zeros(3, 4).long()), ValueError, r"\[2, E\], got \[3, 4\]"),
    (lambda: EdgeSource(coo=torch.zeros(2, 4)), ValueError, "int32 or int64"),
    (
        lambda: EdgeSource(csc=(torch.tensor([0, 3, 2]), torch.zeros(2).long())),
        ValueError,
        "must not fall",
    ),
    (
        lambda: EdgeSource(csc=(torch.tensor([0, 3]), torch.zeros(2).long())),
        ValueError,
        r"number of indices \(2\)",
    ),
]


def test_bad_edge_sources() -> None:
    for make, error, message in BAD_EDGE_SOURCES:
        with named_case(message), pytest.raises(error, match=message):
            make()


BAD_GRAPHS = [
    (lambda: None, ValueError, "no rank of the node group brings a graph"),
    (
        lambda: GraphSource.homogeneous(3, coo((0, 1), (3, 1))),
        IndexError,
        "edge 1: source id 3 is out of range for 3 nodes",
    ),
    (
        lambda: GraphSource.homogeneous(3, coo((0, 1), (0, -1))),
        IndexError,
        "edge 1: destination id -1",
    ),
    (
        lambda: GraphSource.homogeneous(
            1, EdgeSource(csc=(torch.tensor([0, 2]), torch.tensor([0, 5])))
        ),
        IndexError,
        r"indices\[1\] = 5",
    ),
    (
        lambda: GraphSource.homogeneous(
            1,
            EdgeSource(
                csc=(torch.tensor([0, 2]), torch.tensor([0, 0])), edge_ids=torch.tensor([1, 1])
            ),
        ),
        ValueError,
        r"edge_ids\[1\] = 1 repeats an earlier id",
    ),
    (lambda: GraphSource({"a": -1}, {}), ValueError, "num_nodes of 'a' must not be negative"),
    (
        lambda: GraphSource({"a": 1.5}, {}),
        TypeError,
        "num_nodes of 'a' must be an int, got 1.5",
    ),
    (
        lambda: GraphSource.homogeneous(3, coo((0, 1)), {"x": torch.zeros(2, 4)}),
        ValueError,
        "'x' must have 3 rows",
    ),
    (
        lambda: GraphSource({"a": 3}, {("a", "r", "b"): coo((0, 1))}),
        ValueError,
        "unknown node type 'b'",
    ),
]


def test_bad_graphs() -> None:
    for source, error, message in BAD_GRAPHS:
        with named_case(message), pytest.raises(error, match=message):
            Store.build(source(), device="cpu")
