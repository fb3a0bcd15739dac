"""The full-batch script of one process, over PyG's data or DGL's graph, partitioned or not."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from inputs.real_graphs import RealGraph

from peergraph.fullgraph import keyed_random
from peergraph.memory import Group

FRAMEWORKS = ("pyg", "dgl")
DTYPES = {"float64": torch.float64, "float32": torch.float32}
MODELS = ("GCN", "SAGE", "GAT", "GIN", "RGCN", "deep", "to_hetero")
_RATE, _SEED = 0.01, 7


@dataclass(frozen=True)
class Curve:
    """What is trained, and how."""

    framework: str
    model: str
    dtype: str
    dropout: float
    epochs: int


def applies(model: str, graph: RealGraph) -> bool:
    """Whether a model is one for such a graph."""
    if graph.is_typed:
        return model == "to_hetero"
    return model != "to_hetero" and (model == "RGCN") <= (graph.edge_type is not None)


def plain_losses(curve: Curve, graph: RealGraph, device: torch.device) -> list[float]:
    """The losses of the framework itself, in one process, with the masks of partitioned tensors."""
    # The CPU build of DGL trains on the CPU.
    device = torch.device("cpu") if curve.framework == "dgl" else device
    data, model = _make(curve, graph)
    with keyed_random() if curve.dropout else nullcontext():
        return _train(curve, model.to(device), data.to(device))


def partitioned_losses(curve: Curve, graph: RealGraph, group: Group) -> list[float]:
    """The losses on the ranks of a group. Collective."""
    adapter = importlib.import_module(f"peergraph_{curve.framework}")
    data, model = _make(curve, graph)
    data = adapter.full_graph(data, group=group)
    return _train(curve, adapter.accelerate(model.to(group.device)), data)


def _make(curve: Curve, graph: RealGraph) -> tuple[Any, Any]:
    module = importlib.import_module(f"curves.{curve.framework}_models")
    make_data = module.data_of if curve.framework == "pyg" else module.graph_of
    dtype = DTYPES[curve.dtype]
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        torch.manual_seed(_SEED)
        model = module.MODELS[curve.model](graph, curve.dropout)
        data = make_data(graph, dtype)
        with torch.no_grad():
            model.eval()(data)  # Lazy layers get their parameters.
    finally:
        torch.set_default_dtype(before)
    return data, model


def _train(curve: Curve, model: Any, data: Any) -> list[float]:
    labels, mask = _labels(curve, data)
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE, weight_decay=5e-4)
    torch.manual_seed(_SEED)
    losses = []
    for _ in range(curve.epochs):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data)[mask], labels[mask])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _labels(curve: Curve, data: Any) -> tuple[Any, Any]:
    if curve.framework == "dgl":
        target = next(t for t in data.ntypes if "label" in data.nodes[t].data)
        rows = data.nodes[target].data
        return rows["label"], rows["train"]
    stores = data.node_stores
    nodes = next(store for store in stores if "train_mask" in store)
    return nodes.y, nodes.train_mask
