"""Captured training with random options, compared with the loop of a script with PyG's layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import nn as gnn
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.sampler import NegativeSampling
from torch_geometric.utils import degree

import peergraph_pyg
from tests.adapters.captured_results import loop

from .graphs import CHANNELS, EDGE_WIDTH, RELATIONS, WIDTH, Draw, ends, numbers, one_of

NODES, STEPS = 120, 10

LAYERS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "SAGE": (lambda: gnn.SAGEConv(WIDTH, WIDTH), ""),
    "SAGE of a maximum": (lambda: gnn.SAGEConv(WIDTH, WIDTH, "max"), ""),
    "SAGE of several": (lambda: gnn.SAGEConv(WIDTH, WIDTH, ["mean", "std"], normalize=True), ""),
    "GCN": (lambda: gnn.GCNConv(WIDTH, WIDTH), ""),
    "GCN of weights": (lambda: gnn.GCNConv(WIDTH, WIDTH), "edge_weight"),
    "GAT": (lambda: gnn.GATConv(WIDTH, WIDTH), ""),
    "GAT of features": (lambda: gnn.GATConv(WIDTH, WIDTH, edge_dim=EDGE_WIDTH), "edge_attr"),
    "GATv2": (lambda: gnn.GATv2Conv(WIDTH, WIDTH, add_self_loops=False), ""),
    "GIN": (lambda: gnn.GINConv(nn.Linear(WIDTH, WIDTH)), ""),
    "GINE": (lambda: gnn.GINEConv(nn.Linear(WIDTH, WIDTH), edge_dim=EDGE_WIDTH), "edge_attr"),
    "Graph": (lambda: gnn.GraphConv(WIDTH, WIDTH), "edge_weight"),
    "RGCN": (lambda: gnn.RGCNConv(WIDTH, WIDTH, RELATIONS), "edge_type"),
    "Transformer": (lambda: gnn.TransformerConv(WIDTH, WIDTH), ""),
    "Cheb": (lambda: gnn.ChebConv(WIDTH, WIDTH, K=2), ""),
    "Cluster": (lambda: gnn.ClusterGCNConv(WIDTH, WIDTH), ""),
}


class _Model(nn.Module):
    def __init__(self, name: str, depth: int, embeds: bool, norm: bool) -> None:
        super().__init__()
        make, self.of_edges = LAYERS[name]
        self.layers = nn.ModuleList(make() for _ in range(depth))
        self.embedding = nn.Embedding(NODES, WIDTH) if embeds else None
        self.norm = nn.LayerNorm(WIDTH) if norm else nn.Identity()

    def forward(self, batch: Any) -> Tensor:
        x: Tensor = batch.x
        if self.embedding is not None:
            x = x + self.embedding(batch.n_id)
        values = [batch[self.of_edges]] if self.of_edges else []
        for layer in self.layers:
            x = self.norm(layer(x, batch.edge_index, *values).tanh())
        return x


def _of_labels(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch)[: batch.batch_size], batch.y[: batch.batch_size])


def _of_degrees(model: nn.Module, batch: Any) -> Tensor:
    degrees = degree(batch.edge_index[1], batch.num_nodes)[: batch.batch_size]
    return (model(batch)[: batch.batch_size].square().mean(1) * degrees).mean()


def _of_all_rows(model: nn.Module, batch: Any) -> Tensor:
    return model(batch).square().mean()


def _of_sizes(model: nn.Module, batch: Any) -> Tensor:
    total: Tensor = model(batch)[: batch.batch_size].square().sum()
    return total / batch.num_nodes


def _of_links(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch)
    if "edge_label_index" in batch:
        source, target = batch.edge_label_index
        scores = (out[source] * out[target]).sum(1)
        labels = batch.edge_label.to(scores) if "edge_label" in batch else torch.ones_like(scores)
        return F.binary_cross_entropy_with_logits(scores, labels.clamp(max=1))
    negatives = out[batch.dst_neg_index].view(len(batch.src_index), -1, WIDTH).mean(1)
    return -F.logsigmoid(
        (out[batch.src_index] * (out[batch.dst_pos_index] - negatives)).sum(1)
    ).mean()


_REFUSED = (_of_all_rows, _of_sizes)
"""Losses that depend on padding."""


def _loader(draw: Draw, shared: Data) -> tuple[Any, Any]:
    """Returns a loader, and a loss of its batches."""
    options: dict[str, Any] = {
        "num_neighbors": [int(one_of(draw, -1, 1, 3, 5)) for _ in range(int(draw.integers(1, 3)))],
        "batch_size": int(one_of(draw, 1, 2, 7, 16)),
        "shuffle": bool(draw.random() < 0.5),
        "drop_last": bool(draw.random() < 0.3),
    }
    times = one_of(draw, None, None, "time", "edge_time")
    if times is None:
        options |= {"replace": bool(draw.random() < 0.2), "disjoint": bool(draw.random() < 0.3)}
    else:
        options |= {"time_attr": times, "temporal_strategy": one_of(draw, "uniform", "last")}
    count = 40
    of_inputs = torch.tensor(draw.integers(10, 50, count))
    if draw.random() < 0.35:
        modes = [NegativeSampling("binary", a) for a in (1, 0.5)] + [NegativeSampling("triplet", 2)]
        links = torch.tensor(draw.integers(0, NODES, (2, count)))
        options |= {"edge_label_index": links, "neg_sampling": one_of(draw, None, *modes)}
        if times:
            options["edge_label_time"] = of_inputs
        return LinkNeighborLoader(shared, **options), _of_links
    options["input_nodes"] = torch.tensor(draw.integers(0, NODES, count))
    if times:
        options["input_time"] = of_inputs
    loss = one_of(draw, _of_labels, _of_labels, _of_degrees, _of_all_rows, _of_sizes)
    return NeighborLoader(shared, **options), loss


def _graph(draw: Draw) -> Data:
    count = int(one_of(draw, 200, 600, 1500))
    return Data(
        x=numbers(draw, NODES, WIDTH),
        y=torch.tensor(draw.integers(0, CHANNELS, NODES)),
        time=torch.tensor(draw.integers(0, 50, NODES)),
        edge_index=ends(draw, NODES, NODES - 5, count),
        edge_attr=numbers(draw, count, EDGE_WIDTH),
        edge_weight=torch.tensor(draw.random(count)),
        edge_type=torch.tensor(draw.integers(0, RELATIONS, count)),
        edge_time=torch.tensor(draw.integers(0, 50, count)),
    )


def run_captured(draw: Draw, seed: int, device: str) -> str:
    """Trains for two epochs both ways; returns what differs, in words, or ""."""
    shared = peergraph_pyg.share(_graph(draw), device=device)
    loader, loss = _loader(draw, shared)
    name, depth = one_of(draw, *LAYERS), int(draw.integers(1, 4))
    plain = _Model(name, depth, bool(draw.random() < 0.3), bool(draw.random() < 0.3))
    plain = plain.double().to(device)
    model = copy.deepcopy(plain)
    if draw.random() < 0.6:
        peergraph_pyg.accelerate(model)
    optimizers: list[Callable[..., torch.optim.Optimizer]] = [
        lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
        lambda parameters: torch.optim.AdamW(parameters, 0.01),
    ]
    optimizer = one_of(draw, *optimizers)
    training = peergraph_pyg.capture(loader, model, optimizer(model.parameters()), loss)
    text = f"{name}, {depth} layers, {loss.__name__}, {vars(loader)}"
    try:
        losses = _epochs(lambda: iter(training), seed)
    except ValueError as error:
        is_refused = "depends on rows of padding" in str(error) and loss in _REFUSED
        return "" if is_refused else f"{text}: {error}"
    except RuntimeError as error:  # layers of PyG that read sizes on the host
        return "" if "could not be captured as a CUDA graph" in str(error) else f"{text}: {error}"
    plain_optimizer = optimizer(plain.parameters())
    right = _epochs(lambda: loop(loader, plain, plain_optimizer, loss, 1), seed)
    peergraph_pyg.store_of(shared).close()
    if len(losses) != len(right):
        return f"{text}: {len(losses)} steps, right are {len(right)}"
    close = torch.isclose(torch.stack(losses), torch.stack(right), rtol=1e-6, atol=1e-8)
    return "" if bool(close.all()) else f"{text}: losses are {losses}, right are {right}"


def _epochs(epoch: Callable[[], Iterator[Tensor]], seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    return [value for _ in range(2) for value in islice(epoch(), STEPS)]
