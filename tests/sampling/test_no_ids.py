"""No ids: `torch.tensor([])` is float32, and counts as no ids wherever ids are taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from peergraph.aggregate import Csc
from peergraph.memory import TableRows
from peergraph.sampling import (
    NegativeSampler,
    NeighborSampler,
    PinSageSampler,
    RandomWalker,
    StaticShapeSampler,
    exclude_edges,
)
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Store, TableTensor
from tests.named_case import named_case, named_cases
from tests.store.graphs import homogeneous_source

DTYPES = [torch.float32, torch.float64, torch.bool, torch.int16, torch.int32]


def sample(store: Store, none: torch.Tensor) -> Any:
    drawn = NeighborSampler(store, [2, 2]).sample(none, 0)
    assert drawn.nodes[NODE].dtype == drawn.row[EDGE].dtype == torch.int64
    return drawn.nodes[NODE]


def timed_sample(store: Store, none: torch.Tensor) -> Any:
    sampler = NeighborSampler(store, [2], edge_time="stamp")
    return sampler.sample(none, 0, seed_time=none).nodes[NODE]


def fixed_sample(store: Store, none: torch.Tensor) -> Any:
    sampler = StaticShapeSampler(NeighborSampler(store, [2]), 0, max_nodes=[0], max_edges=[0])
    return sampler.sample(none, 0).compact().nodes[NODE]


def excluded(store: Store, none: torch.Tensor) -> Any:
    drawn = NeighborSampler(store, [2]).sample(torch.tensor([0, 1, 2]), 0)
    rest = exclude_edges(drawn, none, pairs=none.reshape(2, 0), reverse=torch.arange(300))
    assert torch.equal(rest.row[EDGE], drawn.row[EDGE])
    return none


def written(store: Store, none: torch.Tensor) -> Any:
    table = store.node_table("x")
    before = table.read()
    table.scatter(none, torch.empty(0, *table.shape[1:], device=store.device))
    assert torch.equal(table.read(), before)
    return none


USES: dict[str, Callable[[Store, torch.Tensor], Any]] = {
    "sample": sample,
    "timed sample": timed_sample,
    "fixed sample": fixed_sample,
    "exclude_edges": excluded,
    "scatter": written,
    "gather": lambda store, none: store.node_table("x").gather(none),
    "rows of a table": lambda store, none: TableRows(store.node_table("x"), none).gather(),
    "rows of a tensor": lambda store, none: TableTensor(store, NODE, "x").index_select(0, none),
    "walk": lambda store, none: RandomWalker(store).walk(none, 3, 0).nodes,
    "PinSAGE": lambda store, none: (
        PinSageSampler(store, num_walks=2, walk_length=2, num_neighbors=2).sample(none, 0).nodes
    ),
    "negatives": lambda store, none: NegativeSampler(store).sample(none, 0).destination,
    "triplets": lambda store, none: (
        NegativeSampler(store, mode="triplet").sample(none, 0).destination
    ),
}


@named_cases("use", USES)
def test_no_ids_of_any_dtype(use: str, device: torch.device) -> None:
    for dtype in DTYPES if use in ("sample", "gather", "walk") else DTYPES[:1]:
        with named_case(dtype), Store.build(homogeneous_source(50, 300), device=device) as store:
            store.add_edge_table("stamp", torch.arange(300))
            near = store.device if use == "fixed sample" else "cpu"
            result = USES[use](store, torch.empty(0, dtype=dtype, device=near))
            assert result.shape[0] == 0


def test_an_empty_list_selects_no_rows(device: torch.device) -> None:
    with Store.build(homogeneous_source(50, 300), device=device) as store:
        x = TableTensor(store, NODE, "x")
        plain = x.clone()
        none: list[int] = []
        assert x[none].shape == plain[none].shape
        x[none] = 3.0
        assert torch.equal(x.clone(), plain)


def test_no_edges_of_any_dtype(device: torch.device) -> None:
    for dtype in DTYPES:
        with named_case(dtype):
            none = torch.empty(0, dtype=dtype)
            indptr = torch.zeros(6, dtype=torch.int64)
            for edges in (
                EdgeSource(coo=none.reshape(2, 0)),
                EdgeSource(csc=(indptr, none), edge_ids=none),
            ):
                with Store.build(GraphSource({NODE: 5}, {EDGE: edges}), device=device) as store:
                    assert store.num_edges() == 0
                    assert store.edge_index().dtype == torch.int64
            assert Csc(indptr, none, 5, edge_ids=none).num_edges == 0
            assert Csc.from_edge_index(none.reshape(2, 0), 5, 5).num_edges == 0


def test_some_ids_of_other_dtypes_are_refused() -> None:
    some = torch.tensor([1.0])
    with Store.build(homogeneous_source(50, 300), device="cpu") as store:
        for use in set(USES) - {"exclude_edges", "scatter", "timed sample", "fixed sample"}:
            with pytest.raises(TypeError, match="float32"):
                USES[use](store, some)
