"""GraphBolt's pipelines over a store, with or without its native library."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

pytest.importorskip("peergraph_dgl", exc_type=ImportError)
pytest.importorskip("peergraph_dgl.graphbolt", exc_type=ImportError)

import dgl
from dgl import graphbolt as gb

from peergraph_dgl.graphbolt import FeatureStore, SamplingGraph
from tests.adapters.dgl.served import typed_graph
from tests.named_case import named_cases

NODES, EDGES = 120, 900


def plain() -> Any:
    generator = torch.Generator().manual_seed(1)
    ends = torch.randint(0, NODES, (2, EDGES), generator=generator)
    g = dgl.graph((ends[0], ends[1]), num_nodes=NODES)
    g.ndata["x"] = torch.randn(NODES, 5, generator=generator)
    g.ndata["y"] = torch.arange(NODES) % 3
    g.edata["w"] = (torch.arange(EDGES) % 3).float()
    g.edata["half"] = torch.ones(EDGES).half()
    g.edata["mask"] = torch.arange(EDGES) % 2 == 0
    return g


def check_edges(g: Any, part: Any, nodes: torch.Tensor, etype: Any = None) -> None:
    """The sampled edges are those of the graph, into the nodes in their order."""
    csc, ids = part
    dst = nodes.cpu().repeat_interleave(csc.indptr.cpu().diff())
    src, expected = g.find_edges(ids.cpu(), etype=etype)
    assert torch.equal(csc.indices.cpu(), src)
    assert torch.equal(dst, expected)


def test_neighbours(share: Any, device: torch.device) -> None:
    g = plain()
    graph = SamplingGraph(share(g))
    assert (graph.num_nodes, graph.num_edges) == (NODES, EDGES)
    assert graph.node_type_to_id is None
    nodes = torch.tensor([5, 90, 3, 44], device=device)
    for name in ("sample_neighbors", "sample_layer_neighbors"):
        actual = getattr(graph, name)(nodes, torch.tensor([3]))
        assert actual.sampled_csc.indptr.device == device
        check_edges(g, (actual.sampled_csc, actual.original_edge_ids), nodes)
        expected = g.in_degrees(nodes.cpu()).clamp(max=3)
        assert torch.equal(actual.sampled_csc.indptr.cpu().diff(), expected)
    whole = graph.in_subgraph(nodes)
    assert torch.equal(whole.sampled_csc.indptr.cpu().diff(), g.in_degrees(nodes.cpu()))
    many = graph.sample_neighbors(nodes, torch.tensor([40]), replace=True)
    assert int(many.sampled_csc.indptr[-1]) == 160
    weighted = graph.sample_neighbors(nodes, torch.tensor([-1]), probs_name="w")
    check_edges(g, (weighted.sampled_csc, weighted.original_edge_ids), nodes)
    assert bool((g.edata["w"][weighted.original_edge_ids.cpu()] > 0).all())
    # Nodes on another device than the store get their sample there.
    near = graph.sample_neighbors(nodes.cpu(), torch.tensor([2]))
    assert near.sampled_csc.indices.device.type == "cpu"


def test_seeds(share: Any) -> None:
    graph = SamplingGraph(share(plain()))
    nodes, fanout = torch.arange(50), torch.tensor([2])

    def draw() -> torch.Tensor:
        ids: torch.Tensor = graph.sample_neighbors(nodes, fanout).original_edge_ids
        return ids

    gb.seed(7)
    first, second = draw(), draw()
    gb.seed(7)
    assert torch.equal(draw(), first)
    assert not torch.equal(first, second)


def test_types(share: Any, device: torch.device) -> None:
    g = typed_graph()
    for ntype in g.ntypes:
        g.nodes[ntype].data["x"] = torch.randn(g.num_nodes(ntype), 2)
    g.edges["plays"].data["w"] = torch.rand(25)
    store = share(g)
    graph, features = SamplingGraph(store), FeatureStore(store)
    assert graph.num_nodes == {t: g.num_nodes(t) for t in g.ntypes}
    assert graph.edge_type_to_id is not None
    assert set(graph.edge_type_to_id) == {":".join(t) for t in g.canonical_etypes}
    nodes = {"game": torch.tensor([2, 0]).to(device), "user": torch.tensor([7]).to(device)}
    result = graph.sample_neighbors(nodes, torch.tensor([2, 2, 2, 2]))
    empty = torch.tensor([], dtype=torch.int64)
    for source, name, destination in g.canonical_etypes:
        key = f"{source}:{name}:{destination}"
        part = result.sampled_csc[key], result.original_edge_ids[key]
        check_edges(g, part, nodes.get(destination, empty), (source, name, destination))
    with pytest.raises(ValueError, match="fanouts: expected 4"):
        graph.sample_neighbors(nodes, torch.tensor([2, 2]))

    assert ("node", "game", "x") in features
    assert ("edge", "user:plays:game", "w") in features
    ids = torch.tensor([6, 1]).to(device)
    assert torch.equal(
        features.read("node", "game", "x", ids).cpu(), g.nodes["game"].data["x"][[6, 1]]
    )
    assert torch.equal(
        features.read("edge", "user:plays:game", "w").cpu(), g.edges["plays"].data["w"]
    )

    items = gb.ItemSetDict(
        {"game": gb.ItemSet(torch.arange(7), names="seed_nodes"),
         "user": gb.ItemSet(torch.arange(4), names="seed_nodes")}
    )  # fmt: skip
    pipe = gb.ItemSampler(items, batch_size=4).copy_to(device, extra_attrs=["seed_nodes"])
    pipe = pipe.sample_neighbor(graph, [torch.full((4,), 2), 3])
    pipe = pipe.fetch_feature(features, node_feature_keys={"user": ["x"], "maker": ["x"]})
    for batch in gb.DataLoader(pipe):
        assert all(block.device == device for block in batch.blocks)
        ids = batch.input_nodes["user"].cpu()
        got = batch.node_features[("user", "x")].cpu()
        assert torch.equal(got, g.nodes["user"].data["x"][ids])


@named_cases("probs", [None, "w"])
@named_cases("how", ["plain", "replace", "layer"])
def test_one_fanout_for_all_types(
    share: Any, device: torch.device, how: str, probs: str | None
) -> None:
    """It counts the edges of a node, whatever their types, as GraphBolt's own graph has it."""
    g = typed_graph()
    for etype in g.canonical_etypes:
        g.edges[etype].data["w"] = (torch.arange(g.num_edges(etype)) % 3).float()
    graph = SamplingGraph(share(g))
    nodes = {"game": torch.tensor([2, 0, 5]).to(device), "user": torch.tensor([7, 3]).to(device)}
    sample = graph.sample_layer_neighbors if how == "layer" else graph.sample_neighbors
    gb.seed(3)
    actual = sample(nodes, torch.tensor([3]), how == "replace", probs)
    gb.seed(3)
    again = sample(nodes, torch.tensor([3]), how == "replace", probs)
    drawn = {t: torch.zeros(len(ids), dtype=torch.int64) for t, ids in nodes.items()}
    possible = {t: torch.zeros(len(ids), dtype=torch.int64) for t, ids in nodes.items()}
    for etype in g.canonical_etypes:
        key, target = ":".join(etype), etype[2]
        csc, ids = actual.sampled_csc[key], actual.original_edge_ids[key]
        assert csc.indptr.device == csc.indices.device == ids.device == device
        assert torch.equal(ids, again.original_edge_ids[key])
        check_edges(g, (csc, ids), nodes[target], etype)
        weights = g.edges[etype].data["w"]
        assert probs is None or bool((weights[ids.cpu()] > 0).all())
        assert how == "replace" or ids.unique().numel() == ids.numel()
        drawn[target] += csc.indptr.cpu().diff()
        usable = (weights > 0) | (probs is None)
        ends = g.edges(etype=etype)[1][usable]
        counts = torch.bincount(ends, minlength=g.num_nodes(target))
        possible[target] += counts[nodes[target].cpu()]
    for target, count in drawn.items():
        expected = possible[target].clamp(max=3)
        assert torch.equal(count, (expected > 0) * 3 if how == "replace" else expected)


@pytest.mark.parametrize("how", ["plain", "replace", "layer"])
def test_one_fanout_draws_by_weight(share: Any, how: str) -> None:
    """Among edges of two types, each is drawn as often as its weight says."""
    g = dgl.heterograph(
        {
            ("a", "r", "b"): (torch.arange(3), torch.zeros(3).long()),
            ("c", "s", "b"): (torch.arange(1), torch.zeros(1).long()),
        }
    )
    g.edges["r"].data["w"] = torch.tensor([1.0, 2.0, 1.0])
    g.edges["s"].data["w"] = torch.tensor([4.0])
    graph = SamplingGraph(share(g))
    sample = graph.sample_layer_neighbors if how == "layer" else graph.sample_neighbors
    gb.seed(0)
    for probs, shares in ((None, [1, 1, 1, 1]), ("w", [1, 2, 1, 4])):
        counts = torch.zeros(4)
        for _ in range(300):
            actual = sample({"b": torch.tensor([0])}, torch.tensor([1]), how == "replace", probs)
            ids = actual.original_edge_ids
            counts[ids["a:r:b"]] += 1
            counts[3 + ids["c:s:b"]] += 1
        expected = torch.tensor(shares) / sum(shares) * 300
        assert bool(((counts - expected).abs() < 46).all()), counts


def test_layer_sampling_of_all_types_shares_sources(share: Any, device: torch.device) -> None:
    """LABOR: nodes with the same neighbours choose the same of them."""
    ends = torch.arange(20).repeat(5), torch.arange(5).repeat_interleave(20)
    g = dgl.heterograph({("a", "r", "b"): ends, ("c", "s", "b"): ends})
    graph = SamplingGraph(share(g))
    nodes = {"b": torch.arange(5, device=device)}
    result = graph.sample_layer_neighbors(nodes, torch.tensor([6])).sampled_csc
    chosen = [[part.indices[part.indptr[i] : part.indptr[i + 1]].sort().values.tolist()
               for part in result.values()] for i in range(5)]  # fmt: skip
    assert chosen == [chosen[0]] * 5
    assert sum(map(len, chosen[0])) == 6


@pytest.mark.parametrize("sampler", ["sample_neighbor", "sample_layer_neighbor"])
@pytest.mark.parametrize("workers", [0, 2])
def test_pipeline(share: Any, device: torch.device, sampler: str, workers: int) -> None:
    if workers and device.type != "cpu":
        pytest.skip("a GPU store is read by the process that owns it")
    g = plain()
    store = share(g)
    graph, features = SamplingGraph(store), FeatureStore(store)
    items = gb.ItemSet((torch.arange(60), g.ndata["y"][:60]), names=("seed_nodes", "labels"))
    pipe = gb.ItemSampler(items, batch_size=16, shuffle=True)
    if not workers:
        pipe = pipe.copy_to(device, extra_attrs=["seed_nodes"])
    pipe = getattr(pipe, sampler)(graph, [4, 3])
    pipe = pipe.fetch_feature(features, node_feature_keys=["x"], edge_feature_keys=["w"])
    if workers:
        pipe = pipe.copy_to(device)
    seed_batches = []
    for batch in gb.DataLoader(pipe, num_workers=workers):
        seeds = batch.seed_nodes.cpu()
        assert torch.equal(batch.node_features["x"].cpu(), g.ndata["x"][batch.input_nodes.cpu()])
        assert torch.equal(batch.labels.cpu(), g.ndata["y"][seeds])
        assert [block.device for block in batch.blocks] == [device] * 2
        for i, (block, part) in enumerate(zip(batch.blocks, batch.sampled_subgraphs, strict=True)):
            rows, columns = part.original_row_node_ids.cpu(), part.original_column_node_ids.cpu()
            u, v = block.edges()
            src, dst = g.find_edges(part.original_edge_ids.cpu())
            assert torch.equal(rows[u.long().cpu()], src)
            assert torch.equal(columns[v.long().cpu()], dst)
            got = batch.edge_features[i]["w"].cpu()
            assert torch.equal(got, g.edata["w"][part.original_edge_ids.cpu()])
        seed_batches.append(seeds)
    assert torch.equal(torch.cat(seed_batches).sort().values, torch.arange(60))


def test_negatives(share: Any, device: torch.device) -> None:
    g = plain()
    store = share(g)
    graph, features = SamplingGraph(store), FeatureStore(store)
    src, dst = g.edges()
    pairs = torch.stack([src, dst], dim=1)[:48]
    pipe = gb.ItemSampler(gb.ItemSet(pairs, names="node_pairs"), batch_size=16)
    pipe = pipe.copy_to(device, extra_attrs=["node_pairs"])
    pipe = pipe.sample_uniform_negative(graph, 2).sample_neighbor(graph, [3])
    pipe = pipe.transform(gb.exclude_seed_edges)
    pipe = pipe.fetch_feature(features, node_feature_keys=["x"])
    count = 0
    for batch in gb.DataLoader(pipe):
        positive, negative = batch.compacted_node_pairs, batch.compacted_negative_dsts
        assert negative.shape == (16, 2)
        nodes = batch.sampled_subgraphs[-1].original_column_node_ids.cpu()
        pairs_of_batch = torch.stack([nodes[ends.cpu()] for ends in positive], dim=1)
        assert torch.equal(pairs_of_batch, pairs[count : count + 16])
        assert torch.equal(batch.node_features["x"].cpu(), g.ndata["x"][batch.input_nodes.cpu()])
        count += 16
    seeds = graph.sample_negative_edges_uniform_2(None, pairs, 3)
    assert seeds.shape == (48 * 4, 2)
    assert torch.equal(seeds[48:, 0], pairs[:, 0].repeat_interleave(3))


def test_pickles_as_a_handle(share: Any, device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("GPU memory is not mapped twice by one process")
    graph = SamplingGraph(share(plain()))
    graph.sample_neighbors(torch.arange(3), torch.tensor([2]))
    again = pickle.loads(pickle.dumps(graph))
    gb.seed(1)
    expected = graph.sample_neighbors(torch.arange(30), torch.tensor([2])).original_edge_ids
    gb.seed(1)
    got = again.sample_neighbors(torch.arange(30), torch.tensor([2])).original_edge_ids
    assert torch.equal(got, expected)
