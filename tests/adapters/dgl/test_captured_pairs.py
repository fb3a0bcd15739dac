"""`peergraph_dgl.capture` of edge prediction: pairs, negatives and losses of a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("peergraph_dgl", exc_type=ImportError)

import dgl
import dgl.function as fn
import dgl.nn as dglnn
from dgl.dataloading import NeighborSampler, as_edge_prediction_sampler, negative_sampler

import peergraph_dgl
from tests.adapters.captured_results import adam, loop_results
from tests.adapters.dgl.captured_training import (
    BATCH,
    EDGES,
    NODES,
    SEEDS,
    WIDTH,
    check,
    make_loader,
    make_model,
    plain,
)


def scores_of(graph: Any, h: Any, edge_type: Any = None) -> Tensor:
    """The products of the ends' rows, as in DGL's examples."""
    with graph.local_scope():
        graph.ndata["h"] = h
        graph.apply_edges(fn.u_dot_v("h", "h", "score"), etype=edge_type)
        scores: Tensor = graph.edges[edge_type or graph.etypes[0]].data["score"][:, 0]
    return scores


def loss_of(model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
    """The loss, and the ids of pairs, of their ends and of those of negatives."""
    _, pairs, *negatives, blocks = batch
    graphs = [pairs, *negatives]
    h = model(blocks, blocks[0].srcdata["x"])
    scores = torch.cat([scores_of(graph, h) for graph in graphs])
    targets = (torch.arange(len(scores), device=h.device) < pairs.num_edges()).float()
    loss = F.binary_cross_entropy_with_logits(scores, targets, weight=None)
    weights = pairs.edata["w"]
    ends = [graph.ndata[dgl.NID][end.long()] for graph in graphs for end in graph.edges()]
    return loss + (scores[: len(weights)] * weights).mean(), pairs.edata[dgl.EID], *ends


def weighted_negatives(g: Any, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Negatives of a script: by degrees, and with numbers of NumPy."""
    source, _ = g.find_edges(edges)
    weights = g.in_degrees().float() ** 0.75
    shift = int(np.random.randint(1000))  # noqa: NPY002
    return source, (weights.multinomial(len(source), replacement=True) + shift) % g.num_nodes()


REVERSE = torch.arange(EDGES).flip(0)
SAMPLERS: dict[str, dict[str, Any]] = {
    "edges": {},
    "self": {"exclude": "self", "negative_sampler": negative_sampler.Uniform(2)},
    "reverse_id": {
        "exclude": "reverse_id",
        "reverse_eids": REVERSE,
        "negative_sampler": negative_sampler.Uniform(1),
    },
    "global": {"negative_sampler": negative_sampler.GlobalUniform(1, replace=True)},
    "script": {"exclude": REVERSE[:50], "negative_sampler": weighted_negatives},
    "prefetch": {"prefetch_labels": ["w"], "negative_sampler": negative_sampler.Uniform(1)},
}


@pytest.mark.parametrize("kind", [kind for kind in SAMPLERS if kind != "global"])
def test_losses_are_those_of_the_loop(
    shared: Any, device: torch.device, made_of: str, kind: str
) -> None:
    sampler = as_edge_prediction_sampler(NeighborSampler([6, 5]), **SAMPLERS[kind])
    loader = make_loader(shared(plain()), device, sampler)
    training = check(loader, lambda: make_model("weights", device), loss_of)
    # The last batches; the number of distinct ends, which differs, has room.
    assert training.num_eager == 2
    assert training.num_captured == (10 - 3 if device.type == "cuda" else 0)


@pytest.mark.parametrize("kind", ["self", "global"])
def test_a_graph_without_dgl_inside(shared: Any, device: torch.device, kind: str) -> None:
    store = peergraph_dgl.store_of(shared(plain(torch.int32)))
    g = peergraph_dgl.from_store(store, edges=True, idtype=torch.int32)
    sampler = as_edge_prediction_sampler(NeighborSampler([6, 5], prob="p"), **SAMPLERS[kind])
    training = check(make_loader(g, device, sampler), lambda: make_model("sage", device), loss_of)
    assert training.num_eager == 2


def test_excluded_edges_are_not_in_the_blocks(shared: Any, device: torch.device) -> None:
    """With all neighbours, each positive edge would be in the last block."""
    sampler = as_edge_prediction_sampler(
        NeighborSampler([-1]), exclude="reverse_id", reverse_eids=REVERSE
    )
    edge_counts = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        _, pairs, blocks = batch
        if device.type == "cpu":
            ids, targets = blocks[0].edata[dgl.EID], pairs.edata[dgl.EID]
            # Padding has the id 0, and ends at padding.
            is_edge = blocks[0].edges()[1] < len(torch.unique(torch.cat(pairs.edges())))
            gone = torch.cat([targets, EDGES - 1 - targets])
            edge_counts.append(int((torch.isin(ids, gone) & is_edge).sum()))
            edge_counts.append(-int(is_edge.sum()))
        return scores_of(pairs, model(blocks, blocks[0].srcdata["x"])).mean()

    loader = make_loader(shared(plain()), device, sampler, shuffle=False)
    model = make_model("sage", device, hops=1)
    list(peergraph_dgl.capture(loader, model, adam(model), loss))
    assert not any(edge_counts[::2])
    assert all(edge_counts[1::2])


def test_losses_that_depend_on_padding(shared: Any, device: torch.device) -> None:
    sampler = as_edge_prediction_sampler(NeighborSampler([4, 5]), **SAMPLERS["self"])
    loader, model = make_loader(shared(plain()), device, sampler), make_model("sage", device)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return loss_of(model, batch)[0] + batch[1].ndata["x"].mean()

    training = peergraph_dgl.capture(loader, model, adam(model), loss)
    with pytest.raises(ValueError, match="depends on rows of padding"):
        next(iter(training))


class Typed(nn.Module):
    """A layer for each relation."""

    def __init__(self, relations: list[str]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            dglnn.HeteroGraphConv({r: dglnn.SAGEConv(size, 12, "mean") for r in relations})
            for size in (WIDTH, 12)
        )

    def forward(self, blocks: Any, x: dict[str, Tensor]) -> dict[str, Tensor]:
        for block, conv in zip(blocks, self.convs, strict=True):
            x = {t: rows.relu() for t, rows in conv(block, x).items()}
        return x


@pytest.mark.parametrize("relation", ["buys", "knows"])
def test_types(shared: Any, device: torch.device, relation: str) -> None:
    """Pairs between two types have ends of both; the reverse relation is excluded, too."""
    random = torch.Generator().manual_seed(1)
    sizes = {"user": NODES, "item": 150}

    def ends(source: str, destination: str) -> Any:
        return tuple(
            torch.randint(sizes[t], (2500,), generator=random) for t in (source, destination)
        )

    buys = ends("user", "item")
    relations = {
        ("user", "buys", "item"): buys,
        ("item", "bought", "user"): buys[::-1],
        ("user", "knows", "user"): ends("user", "user"),
    }
    g = dgl.heterograph(relations, num_nodes_dict=sizes)
    for node_type, count in sizes.items():
        g.nodes[node_type].data["x"] = torch.randn(count, WIDTH, generator=random)
    g.edges["buys"].data["w"] = torch.rand(2500, generator=random)
    edge_type = g.to_canonical_etype(relation)
    sampler = as_edge_prediction_sampler(
        NeighborSampler([4, 5]),
        exclude="reverse_types",
        reverse_etypes={"buys": "bought", "bought": "buys", "knows": "knows"},
        negative_sampler=negative_sampler.Uniform(2),
    )
    loader = make_loader(shared(g), device, sampler, indices={relation: SEEDS})
    etypes = g.etypes

    def make() -> nn.Module:
        torch.manual_seed(5)
        return peergraph_dgl.accelerate(Typed(etypes).to(device))

    def loss(model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        _, pairs, negatives, blocks = batch
        h = model(blocks, blocks[0].srcdata["x"])
        scores = torch.cat([scores_of(graph, h, edge_type) for graph in (pairs, negatives)])
        targets = (torch.arange(len(scores), device=device) < pairs.num_edges(relation)).float()
        value = F.binary_cross_entropy_with_logits(scores, targets)
        if relation == "buys":
            value = value + pairs.edges["buys"].data["w"].mean()
        return value, pairs.edges[relation].data[dgl.EID]

    training = check(loader, make, loss)
    assert training.num_eager == 2


def test_negatives_that_change(shared: Any, device: torch.device) -> None:
    """The next epoch has another shape."""
    negatives = negative_sampler.Uniform(1)
    sampler = as_edge_prediction_sampler(NeighborSampler([4, 5]), negative_sampler=negatives)
    loader = make_loader(shared(plain()), device, sampler, shuffle=False, drop_last=True)

    def epochs(epoch: Any) -> list[Any]:
        results = []
        torch.manual_seed(9)
        for negatives.k in (1, 3):
            results += epoch()
        return results

    model = make_model("sage", device)
    expected = epochs(lambda: loop_results(loader, model, loss_of, epochs=1))
    model = make_model("sage", device)
    training = peergraph_dgl.capture(loader, model, adam(model), loss_of)
    results = epochs(lambda: list(training))
    assert training.num_eager == 0
    assert len(results) == 2 * (len(SEEDS) // BATCH)
    for (_, *others), (_, *of_loop) in zip(results, expected, strict=True):
        assert all(map(torch.equal, others, of_loop))
