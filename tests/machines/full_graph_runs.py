"""Training on whole graphs, for comparing ranks of several machines with one process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, GCNConv, HeteroConv, SAGEConv

import peergraph_pyg
from peergraph.fullgraph import PartitionedTensor
from tests.adapters.pyg.graphs import random_data, random_hetero

Results = dict[str, list[Tensor]]


class Layers(nn.Module):
    """Two layers, with dropout and BatchNorm between them."""

    def __init__(self, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.norm, self.second = make(5, 8), nn.BatchNorm1d(8), make(8, 4)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        h = F.relu(self.norm(self.first(x, edge_index)))
        out: Tensor = self.second(F.dropout(h, 0.3, self.training), edge_index)
        return out


class Relations(nn.Module):
    """A layer with convolutions for three relations, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = HeteroConv(
            {
                ("author", "writes", "paper"): SAGEConv((3, 4), 6),
                ("paper", "cites", "paper"): GCNConv(4, 6, add_self_loops=False),
                ("paper", "rev_writes", "author"): SAGEConv((4, 3), 6, aggr="max"),
            }
        )
        self.last = nn.Linear(6, 3)

    def forward(self, data: HeteroData) -> Tensor:
        result = self.conv(data.x_dict, data.edge_index_dict)
        out: Tensor = self.last(result["paper"].relu()) + result["author"].mean()
        return out


MODELS: dict[str, Callable[[], nn.Module]] = {
    "GCN": lambda: Layers(GCNConv),
    "GAT": lambda: Layers(lambda i, o: GATConv(i, o, heads=2, concat=False)),
    "SAGE": lambda: Layers(SAGEConv),
    "SAGE max": lambda: Layers(lambda i, o: SAGEConv(i, o, aggr="max")),
}


def _trained(model: nn.Module, forward: Callable[[], Tensor], y: Tensor, mask: Tensor) -> Any:
    """Losses of two steps, the gradients of the second, running statistics, exact inference."""
    results: list[Tensor] = []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = F.cross_entropy(forward()[mask], y[mask])
        loss.backward()
        optimizer.step()
        results.append(loss.detach())
    results += [p.grad for p in model.parameters() if p.grad is not None]
    model.eval()
    with torch.no_grad():
        out = forward()
    results += [out.full_tensor() if isinstance(out, PartitionedTensor) else out]
    results += list(model.buffers())
    return [tensor.detach().cpu().clone() for tensor in results]


def pyg_runs(device: torch.device, hosts: str = "") -> Results:
    """Of models of PyG on this rank's part of the graphs. Collective.

    Machines of different sizes, as in "abbb", train all models. Of other `hosts`, those that are
    next to each other, as in "aabb", train one half, and others the other half.
    """
    cases = _pyg_cases(device)
    turns = {"aabb": slice(0, None, 2), "abab": slice(1, None, 2)}
    results: Results = {}
    for name in list(cases)[turns.get(hosts, slice(None))]:
        torch.manual_seed(3)
        results[name] = cases[name]()
    return results


def _pyg_cases(device: torch.device) -> dict[str, Callable[[], list[Tensor]]]:
    modes = [("GCN", "blocks"), *((name, "halo") for name in MODELS)]
    return {
        **{f"{n}, {mode}": functools.partial(_resident, device, n, mode) for n, mode in modes},
        "hetero": functools.partial(_hetero, device),
        "reversed": functools.partial(_reversed, device),
        **{f"{n}, offloaded": functools.partial(_offloaded, device, n) for n in ("GCN", "GAT")},
    }


def _graph(device: torch.device, **options: Any) -> Any:
    data = random_data()
    data.x = data.x.double()
    return peergraph_pyg.full_graph(data, order="random", device=device, **options)


def _resident(device: torch.device, name: str, mode: Any) -> list[Tensor]:
    data = _graph(device)
    for relation in peergraph_pyg.partition_of(data).structures.values():
        relation.resident.mode = mode
    return _train_model(name, data, device)


def _offloaded(device: torch.device, name: str) -> list[Tensor]:
    return _train_model(name, _graph(device, offload=True, num_chunks=3), device)


def _train_model(name: str, data: Any, device: torch.device) -> list[Tensor]:
    model = peergraph_pyg.accelerate(MODELS[name]().double().to(device))
    forward = functools.partial(model, data.x, data.edge_index)
    return _trained(model, forward, data.y, data.train_mask)


def _hetero(device: torch.device) -> list[Tensor]:
    hetero = random_hetero()
    for node_type in ("paper", "author"):
        hetero[node_type].x = hetero[node_type].x.double()
    hetero = peergraph_pyg.full_graph(hetero, order="original", device=device)
    model = Relations().double().to(device)
    paper = hetero["paper"]
    return _trained(model, lambda: model(hetero), paper.y, paper.train_mask)


def _reversed(device: torch.device) -> list[Tensor]:
    data = _graph(device)
    conv = SAGEConv(5, 4).double().to(device)
    forward = functools.partial(conv, data.x, data.edge_index.flip(0))
    return _trained(conv, forward, data.y, data.train_mask)


def dgl_runs() -> Results:
    """Of models of DGL on this rank's part of the graphs. Collective."""
    import peergraph_dgl
    from tests.adapters.dgl.full_graph_models import GRAPHS, MODELS, train

    results: Results = {}
    for name in ("GAT", "hetero"):
        make, graph = MODELS[name]
        losses = train(make, peergraph_dgl.full_graph(GRAPHS[graph]()), 2)
        results[f"DGL {name}"] = [torch.tensor(losses, dtype=torch.float64)]
    return results
