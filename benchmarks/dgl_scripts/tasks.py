"""The trainings of accuracy_dgl.py: scripts of DGL's kinds, each for any graph and either side.

A training takes a graph and says how well the model does; whether the graph is DGL's own or a
shared one is no concern of its code.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import peergraph_dgl

# isort: split

import dgl
import dgl.nn
import torch
import torch.distributed as dist
import torch.nn.functional as F
from dgl.dataloading import (
    DataLoader,
    MultiLayerFullNeighborSampler,
    NeighborSampler,
    as_edge_prediction_sampler,
    negative_sampler,
)
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

_EVALUATED = 4096  # nodes a batch of the evaluation


@dataclass(frozen=True)
class Settings:
    """What both sides share."""

    epochs: int
    batch: int
    hidden: int
    fanouts: list[int]
    lr: float
    dropout: float


@dataclass(frozen=True)
class Side:
    """A graph to train on, and how: DGL's own with its layers, or a shared one with ours."""

    g: Any
    device: torch.device
    shared: bool

    def finish(self, model: nn.Module) -> nn.Module:
        model = model.to(self.device)
        return peergraph_dgl.accelerate(model) if self.shared else model


class Sage(nn.Module):
    """GraphSAGE (mean) over blocks."""

    def __init__(self, widths: list[int], dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            dgl.nn.SAGEConv(fan_in, fan_out, "mean")
            for fan_in, fan_out in itertools.pairwise(widths)
        )
        self.dropout = dropout

    def forward(self, blocks: list[Any], h: Tensor) -> Tensor:
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            h = layer(block, F.dropout(h, self.dropout, self.training))
            if i < len(self.layers) - 1:
                h = h.relu()
        return h


class TypedSage(nn.Module):
    """A projection for each node type, then a SAGE layer for each relation and hop."""

    def __init__(self, g: Any, hidden: int, classes: int, hops: int, dropout: float) -> None:
        super().__init__()
        self.inputs = nn.ModuleDict(
            {t: nn.Linear(g.nodes[t].data["feat"].shape[1], hidden) for t in g.ntypes}
        )
        self.layers = nn.ModuleList(
            dgl.nn.HeteroGraphConv({t: dgl.nn.SAGEConv(hidden, hidden, "mean") for t in g.etypes})
            for _ in range(hops)
        )
        self.output = nn.Linear(hidden, classes)
        self.dropout = dropout
        self.target = g.target

    def forward(self, blocks: list[Any], x: dict[str, Tensor]) -> Tensor:
        h = {t: self.inputs[t](rows).relu() for t, rows in x.items()}
        for layer, block in zip(self.layers, blocks, strict=True):
            h = {t: F.dropout(rows, self.dropout, self.training) for t, rows in h.items()}
            h = {t: rows.relu() for t, rows in layer(block, h).items()}
        return self.output(h[self.target])


def nodes(side: Side, settings: Settings, seed: int) -> float:
    """Classes of nodes of one type, by NeighborSampler; in DDP where there are several ranks.

    Returns:
        test accuracy at the best validation accuracy, of rank 0.
    """
    g = side.g
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    model = _start(side, lambda: Sage(_widths(g, settings, g.classes), settings.dropout), seed)
    wrapped = DistributedDataParallel(model) if ranks > 1 else model
    sampler = NeighborSampler(
        settings.fanouts, prefetch_node_feats=["feat"], prefetch_labels=["label"]
    )
    batches = DataLoader(
        g,
        _masked(g.ndata, "train"),
        sampler,
        device=side.device,
        batch_size=settings.batch,
        shuffle=True,
        use_ddp=ranks > 1,
    )

    def losses() -> Iterable[Tensor]:
        for _, _, blocks in batches:
            out = wrapped(blocks, blocks[0].srcdata["feat"])
            yield F.cross_entropy(out, blocks[-1].dstdata["label"])

    def right(part: str) -> float:
        whole = MultiLayerFullNeighborSampler(
            len(settings.fanouts), prefetch_node_feats=["feat"], prefetch_labels=["label"]
        )
        loader = DataLoader(
            g, _masked(g.ndata, part), whole, device=side.device, batch_size=_EVALUATED
        )
        return _share_of(
            (model(blocks, blocks[0].srcdata["feat"]), blocks[-1].dstdata["label"])
            for _, _, blocks in loader
        )

    return _train(model, losses, right, settings)


def types(side: Side, settings: Settings, seed: int) -> float:
    """Classes of nodes of the target type in a graph of several types; as :func:`nodes`."""
    g, target = side.g, side.g.target
    data = g.nodes[target].data

    def loader(part: str, sampler: Any, batch: int, shuffle: bool = False) -> Any:
        return DataLoader(
            g,
            {target: _masked(data, part)},
            sampler,
            device=side.device,
            batch_size=batch,
            shuffle=shuffle,
        )

    hops = len(settings.fanouts)
    model = _start(
        side, lambda: TypedSage(g, settings.hidden, g.classes, hops, settings.dropout), seed
    )
    fetched = {
        "prefetch_node_feats": {t: ["feat"] for t in g.ntypes},
        "prefetch_labels": {target: ["label"]},
    }
    batches = loader(
        "train", NeighborSampler(settings.fanouts, **fetched), settings.batch, shuffle=True
    )

    def output(blocks: list[Any]) -> tuple[Tensor, Tensor]:
        out = model(blocks, blocks[0].srcdata["feat"])
        return out, blocks[-1].dstnodes[target].data["label"]

    def losses() -> Iterable[Tensor]:
        return (F.cross_entropy(*output(blocks)) for _, _, blocks in batches)

    def right(part: str) -> float:
        whole = MultiLayerFullNeighborSampler(hops, **fetched)
        return _share_of(output(blocks) for _, _, blocks in loader(part, whole, _EVALUATED))

    return _train(model, losses, right, settings)


def links(side: Side, settings: Settings, seed: int) -> float:
    """Edges against random pairs: each edge and its reverse are hidden from its prediction.

    Returns:
        the area under the ROC curve, for edges that are not in the graph, after the last epoch.
    """
    g = side.g
    model = _start(side, lambda: Sage(_widths(g, settings, settings.hidden), 0.0), seed)
    half = g.num_edges() // 2
    sampler = as_edge_prediction_sampler(
        NeighborSampler(settings.fanouts, prefetch_node_feats=["feat"]),
        exclude="reverse_id",
        reverse_eids=torch.cat([torch.arange(half, 2 * half), torch.arange(half)]),
        negative_sampler=negative_sampler.Uniform(1),
    )
    batches = DataLoader(
        g,
        torch.arange(half),
        sampler,
        device=side.device,
        batch_size=settings.batch,
        shuffle=True,
    )

    def losses() -> Iterable[Tensor]:
        for _, positive, negative, blocks in batches:
            h = model(blocks, blocks[0].srcdata["feat"])
            logits = [_dots(h, *graph.edges()) for graph in (positive, negative)]
            labels = [torch.ones_like(logits[0]), torch.zeros_like(logits[1])]
            yield F.binary_cross_entropy_with_logits(torch.cat(logits), torch.cat(labels))

    def area(part: str) -> float:
        whole = MultiLayerFullNeighborSampler(len(settings.fanouts), prefetch_node_feats=["feat"])
        loader = DataLoader(g, g.nodes(), whole, device=side.device, batch_size=_EVALUATED)
        h = torch.cat([model(blocks, blocks[0].srcdata["feat"]) for _, _, blocks in loader])
        pairs = g.pairs[part].to(h.device)
        scores = _dots(h, pairs[0], pairs[1])
        return _area(*scores.chunk(2))

    return _train(model, losses, area, settings)


def graphbolt(side: Side, settings: Settings, seed: int) -> float:
    """As :func:`nodes`, by GraphBolt's pipeline; DGL's own graph is sampled by DGL's C library,
    for GraphBolt's is missing with today's torch."""
    from dgl import graphbolt as gb

    from dgl_scripts.library_sampling import LibrarySamplingGraph
    from peergraph_dgl.graphbolt import FeatureStore, SamplingGraph

    g = side.g
    if side.shared:
        store = peergraph_dgl.store_of(g)
        graph, features = SamplingGraph(store), FeatureStore(store)
    else:
        graph = LibrarySamplingGraph(g)
        feature = gb.TorchBasedFeature(g.ndata["feat"])
        features = gb.BasicFeatureStore({("node", None, "feat"): feature})
    model = _start(side, lambda: Sage(_widths(g, settings, g.classes), settings.dropout), seed)
    labels = g.ndata["label"][:]

    def outputs(part: str, batch: int, fanouts: list[int], shuffle: bool) -> Any:
        ids = _masked(g.ndata, part)
        items = gb.ItemSet((ids, labels[ids]), names=("seed_nodes", "labels"))
        pipe = gb.ItemSampler(items, batch_size=batch, shuffle=shuffle)
        pipe = pipe.copy_to(side.device, extra_attrs=["seed_nodes"])
        pipe = pipe.sample_neighbor(graph, fanouts)
        pipe = pipe.fetch_feature(features, node_feature_keys=["feat"])
        for minibatch in gb.DataLoader(pipe):
            yield model(minibatch.blocks, minibatch.node_features["feat"]), minibatch.labels

    def losses() -> Iterable[Tensor]:
        for out, label in outputs("train", settings.batch, settings.fanouts, True):
            yield F.cross_entropy(out, label)

    def right(part: str) -> float:
        return _share_of(outputs(part, _EVALUATED, [-1] * len(settings.fanouts), False))

    return _train(model, losses, right, settings)


Training = Callable[[Side, Settings, int], float]


def _widths(g: Any, settings: Settings, out: int) -> list[int]:
    hidden = [settings.hidden] * (len(settings.fanouts) - 1)
    return [g.ndata["feat"].shape[1], *hidden, out]


def _start(side: Side, make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The same weights on both sides."""
    torch.manual_seed(seed)
    dgl.seed(seed)
    return side.finish(make())


def _train(
    model: nn.Module,
    losses: Callable[[], Iterable[Tensor]],
    score: Callable[[str], float],
    settings: Settings,
) -> float:
    """The test score at the best validation score."""
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=5e-4)
    best, at_best = -1.0, 0.0
    for _ in range(settings.epochs):
        model.train()
        for loss in losses():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        # One rank looks, at its own pace: reading is one-sided.
        if dist.is_initialized() and dist.get_rank() > 0:
            continue
        model.eval()
        with torch.no_grad():
            validation = score("val")
            if validation > best:
                best, at_best = validation, score("test")
    return 100 * at_best


def _masked(data: Any, part: str) -> Tensor:
    return data[f"{part}_mask"].nonzero().view(-1)


def _share_of(outputs: Iterable[tuple[Tensor, Tensor]]) -> float:
    right = [out.argmax(1) == labels for out, labels in outputs]
    return float(torch.cat(right).float().mean())


def _dots(h: Tensor, source: Tensor, destination: Tensor) -> Tensor:
    unit = F.normalize(h)
    return 8 * (unit[source] * unit[destination]).sum(-1) - 4


def _area(positive: Tensor, negative: Tensor) -> float:
    """How often a positive has the higher score; ties count half."""
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive).double()
    not_above = torch.searchsorted(ordered, positive, right=True).double()
    return float(((below + not_above) / 2).mean() / negative.numel())
