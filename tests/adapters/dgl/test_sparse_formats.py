"""Sparse formats and id types of shared graphs, and of graphs over their stores."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.graphs import assert_same_graph, random_graph, random_hetero

# isort: split

import dgl
import torch
from dgl.dataloading import DataLoader, NeighborSampler, as_edge_prediction_sampler
from dgl.dataloading.negative_sampler import Uniform

import peergraph_dgl
from tests.named_case import named_case

FORMATS = [
    list(some)
    for count in (1, 2, 3)
    for some in itertools.combinations(("coo", "csr", "csc"), count)
]
GRAPHS: dict[str, Callable[[], Any]] = {
    "homogeneous": random_graph,
    "int32": lambda: random_graph().int(),
    "heterogeneous": random_hetero,
    "heterogeneous int32": lambda: random_hetero().int(),
    "bipartite": lambda: dgl.heterograph(
        {("a", "r", "b"): (torch.tensor([3, 0, 1]), torch.tensor([2, 2, 0]))}
    ),
    "batched": lambda: dgl.batch([random_graph(), random_graph(seed=1)]),
    "reversed": lambda: dgl.reverse(random_graph(), copy_ndata=True, copy_edata=True),
    "no edges": lambda: dgl.graph(([], []), num_nodes=3),
    "empty": lambda: dgl.graph(([], [])),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_any_formats(name: str) -> None:
    for formats in FORMATS:
        with named_case(*formats):
            check_formats(name, formats)


def check_formats(name: str, formats: list[str]) -> None:
    g = GRAPHS[name]().formats(formats)
    result = peergraph_dgl.share(g, device="cpu")
    assert_same_graph(result, g)
    store = peergraph_dgl.store_of(result)
    for etype in g.canonical_etypes:
        # As Peergraph's sampler has them, too.
        src, dst, ids = g.edges(form="all", order=None, etype=etype)
        assert torch.equal(store.edge_index(etype)[:, ids.long()], torch.stack([src, dst]).long())
    store.close()


@pytest.mark.parametrize("make", [random_graph, random_hetero])
def test_blocks_say_what_they_are(make: Callable[[], Any]) -> None:
    g = make()
    seeds = {g.ntypes[0]: [1, 2]}
    with pytest.raises(TypeError, match="got a block"):
        peergraph_dgl.share(dgl.to_block(dgl.in_subgraph(g, seeds), seeds), device="cpu")


def test_id_types_of_graphs_over_stores() -> None:
    g = random_graph().int()
    result = peergraph_dgl.share(g, device="cpu")
    store = peergraph_dgl.store_of(result)
    over = peergraph_dgl.from_store(store, edges=True)
    assert over.idtype == result.idtype == torch.int32
    assert ForkingPickler.loads(ForkingPickler.dumps(over)).idtype == torch.int32
    assert over.long().idtype == peergraph_dgl.from_store(store, idtype=torch.int64).idtype
    assert over.long().idtype == torch.int64
    assert over.long().int().idtype == torch.int32
    assert result.long().idtype == torch.int64
    assert peergraph_dgl.store_of(result.long()) is store
    with pytest.raises(ValueError, match="idtype: expected torch.int32 or torch.int64"):
        peergraph_dgl.from_store(store, idtype=torch.int16)
    store.close()


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("make", [random_graph, random_hetero])
def test_results_have_the_id_type_of_the_graph(
    make: Callable[[], Any], idtype: torch.dtype
) -> None:
    """Of a shared graph and of one over its store, those of DGL's own."""
    g = make()
    g = g.int() if idtype == torch.int32 else g
    result = peergraph_dgl.share(g, device="cpu")
    over = peergraph_dgl.from_store(peergraph_dgl.store_of(result), edges=True)
    ntype, etype = g.ntypes[0], g.canonical_etypes[0]
    nodes = {ntype: torch.tensor([1, 5], dtype=idtype)}
    some: dict[str, Callable[[Any], Any]] = {
        "nodes": lambda x: x.nodes(ntype),
        "degrees": lambda x: x.in_degrees(etype=etype),
        "some degrees": lambda x: x.in_degrees(torch.tensor([1, 3], dtype=idtype), etype=etype),
        "ends": lambda x: torch.stack(x.find_edges(torch.tensor([0, 3], dtype=idtype), etype)),
        "sampled": lambda x: x.sample_neighbors(nodes, 2),
        "subgraph": lambda x: x.subgraph(nodes),
        "edges": lambda x: x.edge_subgraph({etype: torch.tensor([0, 3], dtype=idtype)}),
        "global": lambda x: torch.stack(x.global_uniform_negative_sampling(5, etype=etype)),
    }
    for name, method in some.items():
        expected, *got = (method(x) for x in (g, result, over))
        for actual in got:
            if isinstance(expected, torch.Tensor):
                assert actual.dtype == expected.dtype == idtype, name
                continue
            assert actual.idtype == expected.idtype == idtype, name
            for frames in ("_node_frames", "_edge_frames"):
                pairs = zip(getattr(expected, frames), getattr(actual, frames), strict=True)
                for ours, theirs in pairs:
                    for key in (dgl.NID, dgl.EID):
                        assert (key in ours) == (key in theirs), name
                        assert key not in ours or theirs[key].dtype == ours[key].dtype, name


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_batches_have_the_id_type_of_the_graph(idtype: torch.dtype) -> None:
    g = random_graph()
    g = g.int() if idtype == torch.int32 else g
    result = peergraph_dgl.share(g, device="cpu")
    over = peergraph_dgl.from_store(peergraph_dgl.store_of(result), edges=True)
    sampler = as_edge_prediction_sampler(
        NeighborSampler([2, 2]), exclude="self", negative_sampler=Uniform(2)
    )
    seeds = torch.arange(20, dtype=idtype)
    for graph in (g, result, over):
        inputs, _, blocks = next(iter(DataLoader(graph, seeds, NeighborSampler([2, 2]))))
        assert {inputs.dtype, *(block.idtype for block in blocks)} == {idtype}
        inputs, pairs, negatives, blocks = next(iter(DataLoader(graph, seeds, sampler)))
        assert {inputs.dtype, pairs.idtype, negatives.idtype} == {idtype}
        assert {block.edata[dgl.EID].dtype for block in blocks} == {idtype}
