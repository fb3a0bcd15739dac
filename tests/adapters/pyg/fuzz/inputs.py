"""The inputs of a layer, and the random edits that scripts make to them."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from .graphs import RELATIONS, Draw, one_of

Key = Any
ONE = ""
"""The type of nodes, and in the keys of edges, of a graph of one type."""


@dataclass
class Inputs:
    """A layer and its inputs by type."""

    layer: nn.Module
    x: dict[str, Tensor]
    edges: dict[Key, Tensor]
    of_edges: dict[str, dict[Key, Tensor]]
    """Weights, features and types of edges."""
    hops: Any = None
    """Numbers of sampled nodes and edges, as long as they fit."""
    mode: str = "grad"
    changes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, layer: nn.Module, batch: Any, *, copies: bool) -> Inputs:
        """Returns the inputs of a batch, or copies of them as plain tensors of the CPU."""

        def tensor(value: Tensor) -> Tensor:
            return value.cpu().clone() if copies else value

        one = isinstance(batch, Data)
        nodes = {ONE: batch} if one else {t: batch[t] for t in batch.node_types}
        edges = {(ONE, ONE, ONE): batch} if one else {t: batch[t] for t in batch.edge_types}
        hops = None
        if "num_sampled_edges" in (batch if one else next(iter(edges.values()))):
            prefix = "" if one else "_dict"
            hops = [
                copy.deepcopy(getattr(batch, f"num_sampled_{kind}{prefix}"))
                for kind in ("nodes", "edges")
            ]
        return cls(
            layer,
            {t: tensor(storage.x) for t, storage in nodes.items()},
            {t: tensor(storage.edge_index) for t, storage in edges.items()},
            {
                name: {t: tensor(storage[name]) for t, storage in edges.items()}
                for name in ("edge_weight", "edge_attr", "edge_type")
            },
            hops,
        )


def send(batch: Any, way: str) -> Any:
    """Returns a batch that has been copied, or moved, as scripts do."""
    ways: dict[str, Callable[[], Any]] = {
        "clone": batch.clone,
        "to": lambda: batch.to(batch_device(batch)),
        "deepcopy": lambda: copy.deepcopy(batch),
        "pickle": lambda: pickle.loads(pickle.dumps(batch)),
        "contiguous": batch.contiguous,
    }
    return ways[way]() if way else batch


def batch_device(batch: Any) -> torch.device:
    """Returns the device of a batch."""
    storage = batch if isinstance(batch, Data) else batch[batch.node_types[0]]
    device: torch.device = storage.x.device
    return device


WAYS = [*[""] * 8, "clone", "to", "deepcopy", "pickle", "contiguous"]


def change(inputs: Inputs, name: str, draw: Draw) -> None:
    """Changes the inputs; the same draws give the same change."""
    inputs.changes.append(name)
    kind, _, what = name.partition(": ")
    if kind == "x":
        _change_x(inputs, what, draw)
    elif kind == "edges":
        _change_edges(inputs, what, draw)
    elif kind == "weights":
        _change_weights(inputs, what)
    else:
        _change_layer(inputs, what, draw)


CHANGES = [
    *(f"x: {what}" for what in ("scale", "data", "numpy", "strided", "wide", "grad", "order")),
    *(f"edges: {what}" for what in ("write", "data", "numpy", "swap") for _ in range(3)),
    *(f"edges: {what}" for what in ("flip", "permute")),
    *(f"edges: {what}" for what in ("first", "hop", "last", "steps", "mask", "twice", "none")),
    *(f"edges: {what}" for what in ("strided", "clone", "pickle", "EdgeIndex", "set", "order")),
    *(f"weights: {what}" for what in ("scale", "numpy", "column", "grad", "types")),
    *(f"layer: {what}" for what in ("data", "numpy", "deepcopy", "save", "mode", "state")),
    *(f"layer: {what}" for what in ("adam", "fused adam", "freeze", "run otherwise")),
]


def changes_on(device: str) -> list[str]:
    """Returns the names of changes to tensors on a device.

    NumPy has no memory of GPUs. What is written there without a version is seen afterwards only,
    and raises an error: `tests/adapters/pyg/test_changed_edges_on_gpus.py`.
    """
    if device == "cpu":
        return CHANGES
    return [name for name in CHANGES if name != "edges: data" and not name.endswith(": numpy")]


def _change_x(inputs: Inputs, what: str, draw: Draw) -> None:
    key = one_of(draw, *inputs.x)
    x = inputs.x[key]
    if what == "scale" and not x.requires_grad:
        x.mul_(1.5)
    elif what == "data":
        x.data.add_(0.5)
    elif what == "numpy" and len(x) and x.is_cpu:
        x.detach().numpy()[-1] = 2
    elif what == "strided":
        inputs.x[key] = x.detach().t().contiguous().t()
    elif what == "wide":
        inputs.x[key] = torch.cat([x.detach()] * 2, 1)[:, : x.shape[1]]
    elif what == "grad":
        inputs.x[key] = x.detach().requires_grad_()
    elif what == "order":
        inputs.x = dict(reversed(inputs.x.items()))


def _change_edges(inputs: Inputs, what: str, draw: Draw) -> None:
    keys = [key for key, edges in inputs.edges.items() if edges.shape[1]]
    if not keys:
        return
    key = one_of(draw, *keys)
    edges, count = inputs.edges[key], inputs.edges[key].shape[1]
    place, other = (int(i) for i in draw.integers(0, count, 2))
    if what not in ("clone", "pickle", "strided", "order"):
        first = 0 if inputs.hops is None else _first_hop(inputs, key)
        inputs.hops = None
    if what == "write":
        edges[:, place] = 0
    elif what == "data":
        edges.data[0, place] = 0
    elif what == "numpy" and edges.is_cpu:
        edges.numpy()[:, place] = 0
    elif what == "swap":
        edges[:, [place, other]] = edges[:, [other, place]]
    elif what == "flip" and key[0] == key[2]:
        inputs.edges[key] = edges.flip(0)
    elif what == "strided":
        inputs.edges[key] = edges.t().contiguous().t()
    elif what == "clone":
        inputs.edges[key] = edges.clone()
    elif what == "pickle":
        inputs.edges[key] = pickle.loads(pickle.dumps(edges))
    elif what == "EdgeIndex":
        sizes = len(inputs.x[key[0]]), len(inputs.x[key[2]])
        inputs.edges[key] = EdgeIndex(edges.clone(), sparse_size=sizes)
    elif what == "set":
        edges.data = edges.flip(1).contiguous()
    elif what == "order":
        inputs.edges = dict(reversed(inputs.edges.items()))
    else:
        chosen: dict[str, Callable[[], Any]] = {
            "first": lambda: slice(0, count // 2),
            "hop": lambda: slice(0, first),
            "last": lambda: slice(count // 2, None),
            "steps": lambda: slice(None, None, 2),
            "none": lambda: slice(0, 0),
            "mask": lambda: torch.tensor(draw.random(count) < 0.6),
            "permute": lambda: torch.tensor(draw.permutation(count)),
            "twice": lambda: torch.arange(count).repeat(2),
        }
        if what in chosen:
            positions = chosen[what]()
            inputs.edges[key] = edges[:, positions]
            for values in inputs.of_edges.values():
                values[key] = values[key][positions]


def _first_hop(inputs: Inputs, key: Key) -> int:
    counts = inputs.hops[1] if key[0] == ONE else inputs.hops[1][key]
    return int(counts[0])


def _change_weights(inputs: Inputs, what: str) -> None:
    values = inputs.of_edges
    for key in list(inputs.edges):
        weights, features, types = (values[k] for k in ("edge_weight", "edge_attr", "edge_type"))
        if what == "scale":
            weights[key].data.mul_(2)
            features[key].data.neg_()
        elif what == "numpy" and weights[key].is_cpu:
            weights[key].detach().numpy()[...] *= 0.5
        elif what == "column":
            weights[key] = weights[key].view(-1, 1)
        elif what == "grad":
            weights[key] = weights[key].detach().requires_grad_()
            features[key] = features[key].detach().requires_grad_()
        elif what == "types":
            types[key].add_(1).remainder_(RELATIONS)


def _change_layer(inputs: Inputs, what: str, draw: Draw) -> None:
    layer = inputs.layer
    parameters = list(layer.parameters())
    if what == "data":
        for parameter in parameters:
            parameter.data.mul_(1.1)
    elif what == "numpy":
        for parameter in parameters:
            if parameter.is_cpu:
                parameter.detach().numpy()[...] *= 0.9
    elif what == "deepcopy":
        inputs.layer = copy.deepcopy(layer)
    elif what == "save":
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        inputs.layer = torch.load(file, weights_only=False)
    elif what == "mode":
        layer.train(not layer.training)
    elif what == "state":
        state = {k: v * 0.5 for k, v in layer.state_dict().items() if v.is_floating_point()}
        layer.load_state_dict(state, strict=False)
    elif what == "freeze" and parameters:
        parameter = one_of(draw, *parameters)
        parameter.requires_grad_(not parameter.requires_grad)
    elif what == "run otherwise":
        inputs.mode = one_of(draw, "grad", "no_grad", "inference")
    elif "adam" in what and any(p.requires_grad for p in parameters):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        torch.optim.Adam(parameters, 0.1, fused=what == "fused adam").step()
