"""GraphBolt's temporal sampling, and probabilities of any dtype, against whole lists of edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("peergraph_dgl", exc_type=ImportError)
pytest.importorskip("peergraph_dgl.graphbolt", exc_type=ImportError)

import dgl
from dgl import graphbolt as gb

from peergraph_dgl.graphbolt import FeatureStore, SamplingGraph
from tests.adapters.dgl.served import typed_graph
from tests.named_case import named_case, named_cases
from tests.pairwise import pairwise

Share = Callable[[Any], Any]


def timed() -> Any:
    """Several types; times of nodes and edges, with a good many equal ones."""
    g = typed_graph()
    generator = torch.Generator().manual_seed(8)
    for ntype in g.ntypes:
        g.nodes[ntype].data["t"] = torch.randint(0, 8, (g.num_nodes(ntype),), generator=generator)
    for etype in g.canonical_etypes:
        count = g.num_edges(etype)
        g.edges[etype].data["t"] = torch.randint(0, 8, (count,), generator=generator)
        g.edges[etype].data["w"] = torch.randint(0, 3, (count,), generator=generator).float()
        g.edges[etype].data["half"] = g.edges[etype].data["w"].half()
        g.edges[etype].data["mask"] = g.edges[etype].data["w"] > 0
    return g


def usable(g: Any, etype: Any, node: int, time: int | None, names: Any, probs: Any) -> set[int]:
    """Ids of the edges into a node that may be drawn."""
    of_nodes, of_edges = names
    src, _, ids = g.in_edges([node], form="all", etype=etype)
    is_usable = torch.ones_like(ids, dtype=torch.bool)
    if of_nodes:
        is_usable &= g.nodes[etype[0]].data[of_nodes][src] < time
    if of_edges:
        is_usable &= g.edges[etype].data[of_edges][ids] < time
    if probs:
        is_usable &= g.edges[etype].data[probs][ids] > 0
    return set(ids[is_usable].tolist())


def drawn_by_node(result: Any, key: str) -> list[list[int]]:
    """Edge ids of each node."""
    csc, ids = result.sampled_csc[key], result.original_edge_ids[key]
    return [part.tolist() for part in ids.cpu().split(csc.indptr.cpu().diff().tolist())]


@named_cases(
    ("probs", "fanouts", "names", "replace"),
    pairwise(
        [None, "w", "mask"],
        [[-1], [2], [2, 0, -1, 1]],
        [("t", None), (None, "t"), ("t", "t"), (None, None)],
        [False, True],
    ),
)
def test_only_older_edges(
    share: Share,
    device: torch.device,
    names: Any,
    fanouts: list[int],
    probs: str | None,
    replace: bool,
) -> None:
    g = timed()
    graph = SamplingGraph(share(g))
    nodes = {"game": torch.tensor([2, 0, 2, 5]), "user": torch.tensor([7, 7, 3, 11])}
    times = {"game": torch.tensor([5, 3, 0, 9]), "user": torch.tensor([2, 7, 4, 4])}
    actual = graph.temporal_sample_neighbors(
        {t: ids.to(device) for t, ids in nodes.items()},
        {t: values.to(device) for t, values in times.items()},
        torch.tensor(fanouts),
        replace,
        probs,
        *names,
    )
    totals = {t: [0] * 4 for t in nodes}
    possible = {t: [0] * 4 for t in nodes}
    for number, etype in enumerate(g.canonical_etypes):
        target = etype[2]
        key = ":".join(etype)
        csc = actual.sampled_csc[key]
        assert csc.indices.device == device
        src = g.find_edges(actual.original_edge_ids[key].cpu(), etype=etype)[0]
        assert torch.equal(csc.indices.cpu(), src)
        for i, ids in enumerate(drawn_by_node(actual, key)):
            node, time = int(nodes[target][i]), int(times[target][i])
            expected = usable(g, etype, node, time, names, probs)
            assert set(ids) <= expected
            fanout = fanouts[0] if len(fanouts) == 1 else fanouts[number]
            totals[target][i] += len(ids)
            possible[target][i] += len(expected)
            if fanout == -1:
                assert sorted(ids) == sorted(expected)
            elif len(fanouts) > 1:
                fewest = fanout if replace and expected else min(fanout, len(expected))
                assert len(ids) == fewest
            if not replace:
                assert len(set(ids)) == len(ids)
    if fanouts == [2]:
        for t, counts in possible.items():
            assert totals[t] == [2 if replace and n else min(2, n) for n in counts]


@pytest.mark.parametrize("how", ["plain", "replace", "layer"])
def test_probabilities_of_any_dtype(share: Share, device: torch.device, how: str) -> None:
    g = timed()
    graph = SamplingGraph(share(g))
    for probs in ("half", "mask"):
        with named_case(probs):
            check_probabilities(g, graph, device, how, probs)


def check_probabilities(
    g: Any, graph: SamplingGraph, device: torch.device, how: str, probs: str
) -> None:
    nodes = {"game": torch.arange(7).to(device)}
    sample = graph.sample_layer_neighbors if how == "layer" else graph.sample_neighbors
    actual = sample(nodes, torch.tensor([1, 2, 1, 1]), how == "replace", probs)
    for etype, fanout in zip(g.canonical_etypes, [1, 2, 1, 1], strict=True):
        if etype[2] != "game":
            continue
        for node, ids in enumerate(drawn_by_node(actual, ":".join(etype))):
            expected = usable(g, etype, node, None, (None, None), probs)
            assert set(ids) <= expected
            repeated = how == "replace" and expected
            assert len(ids) == (fanout if repeated else min(fanout, len(expected)))


def test_half_precision_draws_by_weight(share: Share) -> None:
    g = dgl.graph((torch.arange(3), torch.zeros(3).long()))
    g.edata["half"] = torch.tensor([1.0, 0.0, 3.0]).half()
    graph = SamplingGraph(share(g))
    gb.seed(4)
    counts = torch.zeros(3)
    for _ in range(600):
        ids = graph.sample_neighbors(torch.tensor([0]), torch.tensor([1]), False, "half")
        counts[ids.original_edge_ids.cpu()] += 1
    assert counts[1] == 0
    assert abs(float(counts[0]) - 150) < 60


def test_what_is_refused(share: Share, device: torch.device) -> None:
    g = timed()
    g.edges["makes"].data["bad"] = torch.full((9,), -1.0).half()
    graph = SamplingGraph(share(g))
    nodes = {"game": torch.arange(7, device=device)}
    times = {"game": torch.arange(7, device=device)}
    one = torch.tensor([1])
    with pytest.raises(ValueError, match="edge_time: no type has a table 'nothing'"):
        graph.temporal_sample_neighbors(nodes, times, one, False, None, None, "nothing")
    with pytest.raises(ValueError, match="seed_time: expected shape"):
        graph.temporal_sample_neighbors(nodes, {"game": times["game"][:3]}, one, False, None, "t")
    with pytest.raises(ValueError, match="probs_name: no edge type has a table 'nothing'"):
        graph.sample_neighbors(nodes, one, False, "nothing")
    with pytest.raises(ValueError, match="probs_name: expected finite values"):
        graph.sample_neighbors(nodes, one, False, "bad")


def pipeline(graph: Any, items: Any, **names: Any) -> Any:
    """Of seeds on the CPU: GraphBolt's own temporal sampler knows no others of several types."""
    pipe = gb.ItemSampler(items, batch_size=10)
    return pipe.temporal_sample_neighbor(graph, [3, 2], **names)


def test_pipeline_of_nodes(share: Share) -> None:
    generator = torch.Generator().manual_seed(3)
    ends = torch.randint(0, 40, (2, 500), generator=generator)
    g = dgl.graph((ends[0], ends[1]), num_nodes=40)
    g.edata["t"] = torch.randint(0, 9, (500,), generator=generator)
    g.ndata["x"] = torch.randn(40, 4)
    store = share(g)
    graph, features = SamplingGraph(store), FeatureStore(store)
    seeds, times = torch.arange(30), torch.arange(30) % 8
    items = gb.ItemSet((seeds, times), names=("seed_nodes", "timestamp"))
    pipe = pipeline(graph, items, edge_timestamp_attr_name="t")
    pipe = pipe.fetch_feature(features, node_feature_keys=["x"])
    for batch in gb.DataLoader(pipe):
        limits: Tensor = batch.timestamp.cpu()
        for part in reversed(batch.sampled_subgraphs):
            counts = part.sampled_csc.indptr.cpu().diff()
            assert bool((g.edata["t"][part.original_edge_ids.cpu()] <
                         limits.repeat_interleave(counts)).all())  # fmt: skip
            limits = torch.cat([limits, limits.repeat_interleave(counts)])
        assert torch.equal(batch.node_features["x"].cpu(), g.ndata["x"][batch.input_nodes.cpu()])
        assert batch.blocks[-1].num_dst_nodes() == batch.seed_nodes.numel()


def test_pipeline_of_typed_links(share: Share) -> None:
    """The way of the temporal link prediction script: times of nodes and of edges."""
    g = timed()
    for ntype in g.ntypes:
        g.nodes[ntype].data["category"] = torch.arange(g.num_nodes(ntype))[:, None] % 5
    store = share(g)
    key = "node", "game", "category"
    graph, features = SamplingGraph(store), FeatureStore(store, {key: {"num_categories": 5}})
    assert features.metadata(*key) == {"num_categories": 5}
    assert features.metadata("node", "user", "category") == {}
    src, dst = g.edges(etype="plays")
    items = gb.ItemSetDict(
        {
            "user:plays:game": gb.ItemSet(
                (torch.stack([src, dst], dim=1), torch.arange(25) % 9),
                names=("node_pairs", "timestamp"),
            )
        }
    )
    names = {"node_timestamp_attr_name": "t", "edge_timestamp_attr_name": "t"}
    pipe = pipeline(graph, items, **names)
    keys = {t: ["category"] for t in g.ntypes}
    pipe = pipe.fetch_feature(features, node_feature_keys=keys)
    num_links = 0
    for batch in gb.DataLoader(pipe):
        users, games = batch.compacted_node_pairs["user:plays:game"]
        columns = batch.sampled_subgraphs[-1].original_column_node_ids
        at = slice(num_links, num_links + users.numel())
        assert torch.equal(columns["user"][users].cpu(), src[at])
        assert torch.equal(columns["game"][games].cpu(), dst[at])
        for ntype, ids in batch.input_nodes.items():
            got = batch.node_features[ntype, "category"].cpu()
            assert torch.equal(got, g.nodes[ntype].data["category"][ids.cpu()])
        num_links += users.numel()
    assert num_links == 25
