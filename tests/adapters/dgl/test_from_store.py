"""A store as DGL's custom graph, against a DGL graph of the same edges."""

from __future__ import annotations

import copy
import pickle
from itertools import product
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.graphs import edges_by_id, random_graph, random_hetero
from tests.named_case import named_case

# isort: split

import dgl
import torch
from dgl.dataloading import (
    ClusterGCNSampler,
    DataLoader,
    LaborSampler,
    MultiLayerFullNeighborSampler,
    NeighborSampler,
    ShaDowKHopSampler,
    as_edge_prediction_sampler,
    negative_sampler,
)

import peergraph_dgl
from peergraph.store import StoreTensor
from peergraph_dgl import StoreGraph, TypedStorage

BUYS = ("user", "buys", "item")


def pair(g: Any, device: torch.device | str = "cpu", edges: bool = False) -> Any:
    """A graph of DGL's and one without a DGL graph inside, of the same edges and data."""
    store = peergraph_dgl.store_of(peergraph_dgl.share(g, device=device))
    return g, peergraph_dgl.from_store(store, edges=edges)


def check_edges(result: Any, g: Any) -> None:
    """Edges and their ids are those of g; the nodes are all nodes or have their ids."""
    for edge_type in g.canonical_etypes:
        source, destination = result.edges(etype=edge_type)
        data = [result.srcnodes[edge_type[0]].data, result.dstnodes[edge_type[2]].data]
        if dgl.NID in data[0]:
            source, destination = data[0][dgl.NID][source], data[1][dgl.NID][destination]
        ids = result.edges[edge_type].data[dgl.EID]
        assert torch.equal(edges_by_id(g, edge_type)[:, ids], torch.stack([source, destination]))


@pytest.mark.parametrize("fanout", [0, 2, -1])
def test_sample_neighbors(fanout: int, device: torch.device) -> None:
    for prob, replace in product([None, "w", "mask"], [False, True]):
        with named_case(prob, "replace", replace):
            check_sampled_neighbors(fanout, prob, replace, device)


def check_sampled_neighbors(
    fanout: int, prob: str | None, replace: bool, device: torch.device
) -> None:
    g = random_graph()
    g.edata["w"][:100] = 0
    g, ours = pair(g, device)
    seeds = torch.tensor([7, 3, 50, 9])
    result = ours.sample_neighbors(seeds, fanout, prob=prob, replace=replace)
    assert type(result) is dgl.DGLGraph
    assert result.num_nodes() == 60
    check_edges(result, g)
    ids = result.edata[dgl.EID]
    possible = torch.ones(400, dtype=torch.bool) if prob is None else g.edata[prob] != 0
    assert bool(possible[ids].all())
    degrees = torch.zeros(60, dtype=torch.int64)
    degrees[seeds] = torch.bincount(g.edges()[1][possible], minlength=60)[seeds]
    if fanout >= 0:
        degrees = (degrees > 0) * fanout if replace else degrees.clamp(max=fanout)
    assert torch.equal(result.in_degrees(), degrees)
    if not replace:
        assert ids.unique().numel() == ids.numel()


def test_excluded_edges_and_fanouts_by_type() -> None:
    g, ours = pair(random_hetero())
    fanouts = {"buys": -1, ("item", "bought", "user"): 2, "knows": 0, "on": 1}
    excluded = {"buys": torch.tensor([4, 17, 100])}
    result = ours.sample_neighbors(
        {"item": torch.arange(50), "user": torch.tensor([3])}, fanouts, exclude_edges=excluded
    )
    check_edges(result, g)
    left = set(range(200)) - {4, 17, 100}
    assert set(result.edges["buys"].data[dgl.EID].tolist()) == left
    assert result.num_edges("knows") == 0


def test_samples_are_uniform_under_a_mask() -> None:
    """Each of the edges that a mask leaves is drawn as often, without and with replacement."""
    g = dgl.graph((torch.arange(8), torch.zeros(8, dtype=torch.int64)))
    g.edata["mask"] = torch.tensor([1, 0, 1, 1, 0, 1, 0, 0], dtype=torch.uint8)
    _, ours = pair(g)
    torch.manual_seed(0)
    for replace in (False, True):
        counts = torch.zeros(8)
        for _ in range(600):
            drawn = ours.sample_neighbors([0], 2, prob="mask", replace=replace)
            counts += torch.bincount(drawn.edata[dgl.EID], minlength=8)
        assert counts[[1, 4, 6, 7]].sum() == 0
        assert counts.sum() == 1200
        assert bool(((counts[[0, 2, 3, 5]] - 300).abs() < 75).all())


def test_full_blocks_are_those_of_dgl() -> None:
    g, ours = pair(random_hetero())
    sampler = MultiLayerFullNeighborSampler(2)
    seeds = {"item": torch.tensor([3, 1]), "user": torch.tensor([5])}
    _, _, blocks = sampler.sample(ours, seeds)
    _, _, expected = sampler.sample(g, seeds)
    for block, other in zip(blocks, expected, strict=True):
        for edge_type in g.canonical_etypes:
            ids = block.edges[edge_type].data[dgl.EID]
            assert sorted(ids.tolist()) == sorted(other.edges[edge_type].data[dgl.EID].tolist())
        check_edges(block, g)


@pytest.mark.parametrize("workers", [0, 2])
def test_neighbor_loader(workers: int) -> None:
    g, ours = pair(random_graph())
    sampler = NeighborSampler(
        [3, 2], prefetch_node_feats=["x"], prefetch_labels=["y"], prefetch_edge_feats=["e"]
    )
    loader = DataLoader(ours, torch.arange(60), sampler, batch_size=16, num_workers=workers)
    ids = []
    for inputs, outputs, blocks in loader:
        ids += outputs.tolist()
        assert torch.equal(blocks[0].srcdata["x"], g.ndata["x"][inputs])
        assert torch.equal(blocks[-1].dstdata["y"], g.ndata["y"][outputs])
        for block in blocks:
            check_edges(block, g)
            assert torch.equal(block.edata["e"], g.edata["e"][block.edata[dgl.EID]])
    assert sorted(ids) == list(range(60))


@pytest.mark.parametrize("workers", [0, 1])
def test_blocks_have_data_that_nothing_prefetched(workers: int) -> None:
    g, ours = pair(random_graph())
    for _, _, (first, second) in DataLoader(
        ours, torch.arange(20), NeighborSampler([3, 2]), batch_size=8, num_workers=workers
    ):
        assert torch.equal(first.srcdata["x"], g.ndata["x"][first.srcdata[dgl.NID]])
        assert torch.equal(second.edata["w"], g.edata["w"][second.edata[dgl.EID]])
    table = torch.arange(g.num_nodes())
    ours.store.add_node_table("late", table)
    (_, _, (first, *_)) = next(
        iter(DataLoader(ours, torch.arange(20), NeighborSampler([3, 2]), batch_size=8))
    )
    assert torch.equal(first.srcdata["late"], table[first.srcdata[dgl.NID]])


@pytest.mark.parametrize("mask", [None, "mask"])
@pytest.mark.parametrize("workers", [0, 1])
def test_edges_and_subgraphs_have_data_that_nothing_prefetched(
    mask: str | None, workers: int
) -> None:
    """As the batches of DGL's graphs; a mask makes hops that the core does not draw at once."""
    g, ours = pair(random_graph(), edges=True)
    base = NeighborSampler([3, 2], mask=mask)
    for _, positive, (first, second) in DataLoader(
        ours, torch.arange(40), as_edge_prediction_sampler(base), batch_size=8, num_workers=workers
    ):
        assert torch.equal(positive.edata["w"], g.edata["w"][positive.edata[dgl.EID]])
        assert torch.equal(positive.ndata["y"], g.ndata["y"][positive.ndata[dgl.NID]])
        assert torch.equal(first.srcdata["x"], g.ndata["x"][first.srcdata[dgl.NID]])
        assert torch.equal(second.edata["e"], g.edata["e"][second.edata[dgl.EID]])
    for inputs, _, subgraph in DataLoader(
        ours, torch.arange(20), ShaDowKHopSampler([3, 2]), batch_size=8, num_workers=workers
    ):
        assert torch.equal(subgraph.ndata["x"], g.ndata["x"][inputs])
        assert torch.equal(subgraph.edata["w"], g.edata["w"][subgraph.edata[dgl.EID]])
    whole = ours.sample_neighbors([3, 4], 2)
    assert torch.equal(whole.ndata["x"], g.ndata["x"])
    whole.nodes[[1]].data["y"] = torch.tensor([9])
    assert torch.equal(ours.ndata["y"].clone(), g.ndata["y"])


def test_columns_as_ids() -> None:
    """What DGL's functions take as ids may be a column of a shared graph."""
    g = random_graph()
    shared = peergraph_dgl.share(g, device="cpu")
    ours = peergraph_dgl.from_store(peergraph_dgl.store_of(shared))
    ids, labels = shared.ndata["y"], g.ndata["y"]
    assert torch.equal(shared.subgraph(ids).ndata["x"], g.subgraph(labels).ndata["x"])
    assert torch.equal(ours.subgraph(ids).ndata["x"], g.subgraph(labels).ndata["x"])
    assert ours.sample_neighbors(ids, -1).num_edges() == int(g.in_degrees(labels).sum())
    for graph in (shared, ours):
        _, _, (block,) = NeighborSampler([-1]).sample(graph, ids)
        assert torch.equal(block.dstdata["x"], g.ndata["x"][labels])
    storage = peergraph_dgl.TableStorage(ours.store, "x")
    assert torch.equal(storage.fetch(ids, "cpu").wait(), g.ndata["x"][labels])


def test_shadow_and_cluster(tmp_path: Any) -> None:
    g, ours = pair(random_graph())
    for inputs, outputs, subgraph in DataLoader(
        ours, torch.arange(20), ShaDowKHopSampler([3, 2], prefetch_node_feats=["x"]), batch_size=8
    ):
        assert torch.equal(subgraph.ndata[dgl.NID], inputs)
        assert torch.equal(inputs[: len(outputs)], outputs)
        assert torch.equal(subgraph.ndata["x"], g.ndata["x"][inputs])
        assert_induced(subgraph, g, inputs)
    cache = str(tmp_path / "partitions")
    ClusterGCNSampler(g, 4, cache_path=cache)
    sampler = ClusterGCNSampler(ours, 4, cache_path=cache, prefetch_ndata=["x"])
    nodes = []
    for subgraph in DataLoader(ours, torch.arange(4), sampler, batch_size=2):
        nodes += subgraph.ndata[dgl.NID].tolist()
        assert_induced(subgraph, g, subgraph.ndata[dgl.NID])
    assert sorted(nodes) == list(range(60))


def assert_induced(result: Any, g: Any, nodes: torch.Tensor) -> None:
    check_edges(result, g)
    expected = dgl.node_subgraph(g, nodes).edata[dgl.EID]
    assert sorted(result.edata[dgl.EID].tolist()) == sorted(expected.tolist())


def test_subgraphs() -> None:
    g, ours = pair(random_hetero(), edges=True)
    nodes = {"user": torch.arange(20).flip(0), "item": torch.rand(50) < 0.5}
    result, expected = ours.subgraph(nodes), dgl.node_subgraph(g, nodes)
    check_edges(result, g)
    for node_type in g.ntypes:
        ids = expected.nodes[node_type].data[dgl.NID]
        assert torch.equal(result.nodes[node_type].data[dgl.NID], ids)
    for edge_type in g.canonical_etypes:
        assert result.num_edges(edge_type) == expected.num_edges(edge_type)
    wide = ours.subgraph(nodes, relabel_nodes=False)
    assert wide.num_nodes("tag") == 4
    check_edges(wide, g)
    chosen = {"buys": torch.tensor([5, 3, 5]), "knows": torch.tensor([99])}
    for relabel in (False, True):
        result = ours.edge_subgraph(chosen, relabel_nodes=relabel)
        expected = g.edge_subgraph(chosen, relabel_nodes=relabel)
        check_edges(result, g)
        assert result.edges["buys"].data[dgl.EID].tolist() == [5, 3, 5]
        assert result.num_nodes("item") == expected.num_nodes("item")
    assert torch.equal(
        torch.stack(ours.find_edges([7, 7], "buys")), edges_by_id(g, BUYS)[:, [7, 7]]
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_edge_prediction(workers: int) -> None:
    """Negatives, and the target edges and their reverses excluded."""
    g = dgl.add_reverse_edges(random_graph(), copy_edata=True, exclude_self=False)
    g, ours = pair(g, edges=True)
    sampler = as_edge_prediction_sampler(
        MultiLayerFullNeighborSampler(1, prefetch_node_feats=["x"]),
        exclude="reverse_id",
        reverse_eids=torch.cat([torch.arange(400, 800), torch.arange(400)]),
        negative_sampler=negative_sampler.Uniform(3),
        prefetch_labels=["w"],
    )
    loader = DataLoader(ours, torch.arange(400), sampler, batch_size=64, num_workers=workers)
    ids = []
    for inputs, positive, negative, blocks in loader:
        edges = positive.edata[dgl.EID]
        ids += edges.tolist()
        check_edges(positive, g)
        assert torch.equal(positive.edata["w"], g.edata["w"][edges])
        assert negative.num_edges() == 3 * len(edges)
        assert torch.equal(blocks[0].srcdata["x"], g.ndata["x"][inputs])
        used = set(blocks[0].edata[dgl.EID].tolist())
        assert not used & (set(edges.tolist()) | set((edges + 400).tolist()))
        seeds = blocks[0].dstdata[dgl.NID]
        assert used == set(g.in_edges(seeds, form="eid").tolist()) - set(
            torch.cat([edges, edges + 400]).tolist()
        )
    assert sorted(ids) == list(range(400))


def test_global_negatives() -> None:
    g, ours = pair(random_graph(), edges=True)
    for replace in (False, True):
        draw = negative_sampler.GlobalUniform(2, exclude_self_loops=True, replace=replace)
        source, destination = draw(ours, torch.arange(100))
        assert 150 < len(source) == len(destination) <= 200
        assert not bool(g.has_edges_between(source, destination).any())
        assert bool((source != destination).all())


def test_everything_else_says_the_way_out() -> None:
    _, ours = pair(random_graph())
    for name in ("update_all", "add_edges", "adj_external", "to", "out_degrees", "local_scope"):
        with pytest.raises(NotImplementedError, match=rf"DGLGraph.{name};.*share\(g\)"):
            getattr(ours, name)
    assert not hasattr(ours, "no_such_method")
    assert not hasattr(ours, "_graph")
    for call in (lambda: ours.find_edges([1]), lambda: ours.edge_subgraph([1])):
        with pytest.raises(NotImplementedError, match="edges=True"):
            call()
    with pytest.raises(NotImplementedError, match="edge_dir='out'"):
        ours.sample_neighbors([1], 2, edge_dir="out")
    with pytest.raises(NotImplementedError, match="add_node_table"):
        ours.ndata["new"] = torch.zeros(60)
    with pytest.raises(NotImplementedError, match="edge_index"):
        ours.edges()
    with pytest.raises(KeyError, match="nothing"):
        ours.sample_neighbors([1], 2, prob="nothing")
    with pytest.raises(IndexError, match="60"):
        ours.sample_neighbors([60], 2)
    _, typed = pair(random_hetero())
    with pytest.raises(dgl.DGLError, match="each edge type"):
        typed.sample_neighbors({"user": [1]}, {"buys": 1})
    with pytest.raises(dgl.DGLError, match="node type"):
        typed.sample_neighbors([1], 2)
    with pytest.raises(dgl.DGLError, match="edge type 'sells'"):
        typed.num_edges("sells")


def test_metis_partitions_are_refused() -> None:
    _, ours = pair(random_graph())
    with pytest.raises(NotImplementedError, match=r"DGLGraph._graph.*share\(g\)"):
        dgl.metis_partition_assignment(ours, 4)


@pytest.mark.parametrize(
    "options",
    [
        {"prob": "w"},
        {"importance_sampling": -1},
        {"batch_dependency": 2},
        {"edge_dir": "out"},
        {"prob": "w", "importance_sampling": 1},
    ],
    ids=str,
)
def test_labor_beyond_the_core_is_refused(options: dict[str, Any]) -> None:
    named = ", ".join(f"{name}={value!r}" for name, value in options.items())
    for make in (random_graph, random_hetero):
        _, ours = pair(make())
        typed = {t: torch.arange(2) for t in ours.ntypes}
        seeds = typed if len(typed) > 1 else torch.arange(2)
        with (
            named_case(make.__name__),
            pytest.raises(NotImplementedError, match=rf"LaborSampler\({named}\).*share\(g\)"),
        ):
            LaborSampler([2, 2], **options).sample(ours, seeds)


def test_sizes_types_and_data() -> None:
    g, ours = pair(random_hetero(), edges=True)
    assert ours.ntypes == g.ntypes
    assert ours.canonical_etypes == g.canonical_etypes
    assert ours.to_canonical_etype("buys") == BUYS
    assert ours.num_nodes() == g.num_nodes()
    assert ours.num_edges("buys") == 200
    assert ours.nodes("item").tolist() == list(range(50))
    assert torch.equal(ours.in_degrees(etype="buys"), g.in_degrees(etype="buys"))
    assert torch.equal(ours.in_degrees([3, 4], "buys"), g.in_degrees([3, 4], "buys"))
    assert ours.in_degrees(3, "buys") == g.in_degrees(3, "buys")
    for wrong in (-1, [50]):
        with pytest.raises(IndexError, match="out of range"):
            ours.in_degrees(wrong, "buys")
    feature = ours.nodes["item"].data["x"]
    assert isinstance(feature, StoreTensor)
    assert torch.equal(feature[[4, 2]], g.nodes["item"].data["x"][[4, 2]])
    assert set(ours.edges["buys"].data) == {"w"}
    sent = ForkingPickler.loads(ForkingPickler.dumps(ours))
    for other in (sent, copy.copy(ours), copy.deepcopy(ours)):
        assert isinstance(other, StoreGraph)
        edges = other.sample_neighbors({"item": [1]}, -1).num_edges("buys")
        assert edges == g.in_degrees(1, "buys")
    with pytest.raises(TypeError, match=r"save the store \(store\.save\(folder\)"):
        pickle.dumps(ours)


def test_attached_features() -> None:
    """Storages of one's own in a loader: of one type, and of several by a dict."""
    g, ours = pair(random_hetero())
    storage = TypedStorage(ours.store, "x")
    ids = {"user": torch.tensor([1, 1]), "item": torch.tensor([], dtype=torch.int64)}
    rows = storage.fetch(ids, "cpu").wait()
    assert torch.equal(rows["user"], g.nodes["user"].data["x"][[1, 1]])
    assert rows["item"].shape == (0, 7)
    with pytest.raises(ValueError, match="'nothing'"):
        TypedStorage(ours.store, "nothing")
