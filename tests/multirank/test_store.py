"""Stores over several ranks: one holder or a share each, every plan, the same graph everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from peergraph.memory import Group
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Store
from peergraph.testing import run_ranks
from tests.places import cpu_and_gpus
from tests.store.graphs import PLANS, build, heterogeneous_source, homogeneous_source
from tests.store.same_graph import assert_same_graph


def build_from_one_rank(plan: str, device: str) -> None:
    for make in (homogeneous_source, heterogeneous_source):
        torch.manual_seed(0)
        source = make()
        group = Group.current(device=device)
        local_source = source if group.rank == 0 else None
        with build(local_source, plan, group=group, memory_budget=4000) as store:
            assert_same_graph(store, source)


@pytest.mark.parametrize("plan", PLANS)
def test_from_one_rank(plan: str) -> None:
    run_ranks(build_from_one_rank, 2, plan, "cpu")


@pytest.mark.parametrize(
    "world_size", [pytest.param(n, marks=pytest.mark.gpus(n)) for n in (1, 2, 4)]
)
@pytest.mark.parametrize("plan", PLANS)
def test_from_one_rank_on_gpus(plan: str, world_size: int) -> None:
    run_ranks(build_from_one_rank, world_size, plan, "cuda", device="cuda")


def _split(source: GraphSource, rank: int, world_size: int) -> GraphSource:
    """The rank's share: destinations in equal ranges, edges in CSC order."""
    coo = source.edges[EDGE].coo
    assert coo is not None
    num_nodes = source.num_nodes[NODE]
    begin, end = num_nodes * rank // world_size, num_nodes * (rank + 1) // world_size
    order = torch.argsort(coo[1], stable=True)
    mine = order[(coo[1][order] >= begin) & (coo[1][order] < end)]
    degrees = torch.bincount(coo[1][mine] - begin, minlength=end - begin)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    return GraphSource.homogeneous(
        num_nodes,
        EdgeSource(csc=(indptr, coo[0][mine]), edge_ids=mine),
        {n: t[begin:end] for n, t in source.node_tables[NODE].items()},  # type: ignore[index]
        {"w": source.edge_tables[EDGE]["w"][_rows(coo, begin, end)]},  # type: ignore[index]
        node_range=(begin, end),
    )


def _rows(coo: torch.Tensor, begin: int, end: int) -> slice:
    """A share of the edge tables as long as the share of the edges."""
    counts = torch.bincount(coo[1], minlength=end)
    first = int(counts[:begin].sum())
    return slice(first, first + int(counts[begin:end].sum()))


def _from_shares(plan: str, device: str) -> None:
    source = homogeneous_source()
    group = Group.current(device=device)
    share = _split(source, group.rank, group.world_size)
    with build(share, plan, group=group) as store:
        assert_same_graph(store, source)


@cpu_and_gpus(2)
@pytest.mark.parametrize("plan", ["host", "mixed"])
def test_from_shares(device_type: str, plan: str) -> None:
    run_ranks(_from_shares, 2, plan, device_type, device=device_type)


def _errors_reach_all() -> None:
    group = Group.current(device="cpu")
    bad = GraphSource.homogeneous(2, EdgeSource(coo=torch.tensor([[0], [9]])))
    with pytest.raises(IndexError, match="destination id 9"):
        Store.build(bad if group.rank == 0 else None, group=group)
    gap = GraphSource.homogeneous(
        4,
        EdgeSource(csc=(torch.tensor([0, 0]), torch.zeros(0, dtype=torch.int64))),
        node_range=(group.rank, group.rank + 1),
    )
    with pytest.raises(ValueError, match=r"node_range of '_N' must cover 0..4 in rank order"):
        Store.build(gap, group=group)
    # Ids 0 and 1 on both ranks, or ids on one of them that the other has by default.
    for last_has_ids in (True, False):
        ids = torch.tensor([0, 1]) if group.rank == 0 or last_has_ids else None
        if not last_has_ids and ids is not None:
            ids += 2
        edges = EdgeSource(csc=(torch.tensor([0, 2]), torch.zeros(2).long()), edge_ids=ids)
        twice = GraphSource.homogeneous(2, edges, node_range=(group.rank, group.rank + 1))
        with pytest.raises(ValueError, match="edge_ids of the ranks must be a permutation"):
            Store.build(twice, group=group)


def test_errors_reach_all_ranks() -> None:
    run_ranks(_errors_reach_all, 2)


def _save_and_load(folder: str) -> None:
    source = homogeneous_source()
    group = Group.current(device="cpu")
    with Store.build(source if group.rank == 0 else None, plan="sharded", group=group) as store:
        store.save(folder)
    with Store.load(folder, plan="sharded", group=group) as again:
        assert_same_graph(again, source)


def test_save_and_load(tmp_path: Path) -> None:
    run_ranks(_save_and_load, 3, str(tmp_path / "graph"))
