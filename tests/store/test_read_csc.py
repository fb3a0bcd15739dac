"""`Store.read_csc`: ranges of a relation's structure, copied to a rank's device from any tier."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from peergraph.store import EDGE, CscRange, EdgeSource, EdgeType, GraphSource, Store
from peergraph.testing import run_ranks
from tests.named_case import named_case
from tests.store.graphs import PLANS, build, heterogeneous_source, homogeneous_source


def expected(coo: Tensor, start: int, stop: int) -> CscRange:
    """The range of a COO whose edge ids are positions."""
    order = torch.argsort(coo[1], stable=True)
    order = order[(coo[1][order] >= start) & (coo[1][order] < stop)]
    degrees = torch.bincount(coo[1][order] - start, minlength=stop - start)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    return CscRange(indptr, coo[0][order], order)


def assert_range(
    store: Store, coo: Tensor, start: int, stop: int, edge_type: EdgeType = EDGE
) -> None:
    read = store.read_csc(edge_type, start, stop)
    assert (read.indptr.dtype, read.indices.dtype, read.edge_ids.dtype) == (
        torch.int64,
        torch.int32,
        torch.int64,
    )
    for actual, expected_result in zip(read, expected(coo, start, stop), strict=True):
        assert actual.device == store.device
        assert torch.equal(actual.cpu().long(), expected_result)


@pytest.mark.parametrize("plan", PLANS)
def test_ranges(device: torch.device, plan: str) -> None:
    source = homogeneous_source()
    coo = source.edges[EDGE].coo
    assert coo is not None
    with build(source, plan, device=device, memory_budget=1 << 20) as store:
        for start, stop in ((7, 41), (0, 60), (0, 0), (60, 60), (30, 31), (58, 60)):
            with named_case(start, stop):
                assert_range(store, coo, start, stop)


@pytest.mark.parametrize("plan", ["mixed", "sharded"])
def test_every_relation(device: torch.device, plan: str) -> None:
    source = heterogeneous_source()
    with build(source, plan, device=device) as store:
        for edge_type, edges in source.edges.items():
            assert edges.coo is not None
            count = store.num_nodes(edge_type[2])
            assert_range(store, edges.coo, 0, count, edge_type)
            assert_range(store, edges.coo, count // 3, count - 2, edge_type)


def test_edge_ids_that_users_give(device: torch.device) -> None:
    indptr, indices = torch.tensor([0, 2, 2, 5]), torch.tensor([2, 0, 1, 1, 0])
    ids = torch.tensor([4, 0, 3, 1, 2])
    source = GraphSource.homogeneous(3, EdgeSource(csc=(indptr, indices), edge_ids=ids))
    with Store.build(source, plan="sharded", device=device) as store:
        read = store.read_csc(start=1)
        assert read.indptr.tolist() == [0, 0, 3]
        assert read.indices.tolist() == [1, 1, 0]
        assert read.edge_ids.tolist() == [3, 1, 2]


def test_structure_on_disk(tmp_path: Path) -> None:
    source = homogeneous_source(2000, 40000)
    coo = source.edges[EDGE].coo
    assert coo is not None
    budget = 1 << 16
    with Store.build(
        source, device="cpu", spill=tmp_path, host_budget=budget, progress=False
    ) as store:
        assert store.plan.tiers("structure", "_N-_E-_N").disk > 0
        assert_range(store, coo, 500, 1700)


def read_own_range() -> None:
    source = homogeneous_source()
    coo = source.edges[EDGE].coo
    assert coo is not None
    with build(source, "mixed", device="cpu") as store:
        assert store.group is not None
        rank, world = store.group.rank, store.group.world_size
        assert_range(store, coo, 60 * rank // world, 60 * (rank + 1) // world)


def test_ranks_read_their_ranges() -> None:
    run_ranks(read_own_range, 3)


def test_bad_ranges() -> None:
    with build(homogeneous_source(), "host", device="cpu") as store:
        for start, stop in ((-1, 3), (4, 3), (0, 61)):
            with pytest.raises(ValueError, match="within the 60 destinations, got"):
                store.read_csc(start=start, stop=stop)
        with pytest.raises(KeyError):
            store.read_csc(("a", "b", "c"))
