"""Training on partitioned graphs follows PyG's training in one process, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader

import peergraph_pyg
from peergraph.memory import Group
from tests.adapters.pyg.test_real_data import SHARED_DATA, edge_index, features

from .graphs import CLASSES, RELATIONS, WIDTH, small_graph, small_hetero
from .model_cases import DeepGCN, Hetero, ToHetero
from .ranks import assert_close, copy_of, partition_of_case, shared

# Curves over 50 epochs, and longer, are a benchmark: benchmarks/fullgraph_curves.py.
EPOCHS = 4


class RGCN(nn.Module):
    """Two layers with bases."""

    def __init__(self) -> None:
        super().__init__()
        self.first = pyg.RGCNConv(WIDTH, 8, RELATIONS, num_bases=2)
        self.second = pyg.RGCNConv(8, CLASSES, RELATIONS)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        h = self.first(x, edge_index, edge_type).relu()
        out: Tensor = self.second(h, edge_index, edge_type)
        return out


def curve(
    model: nn.Module,
    data: Any,
    call: Callable[[nn.Module, Any], Tensor],
    *,
    node_type: str | None = None,
    epochs: int = EPOCHS,
    seed: int = 7,
) -> tuple[list[float], float]:
    """Losses of all epochs, and the share of training nodes that are right in the end."""
    nodes = data if node_type is None else data[node_type]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    losses = []
    torch.manual_seed(seed)
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        out = call(model, data)
        loss = F.cross_entropy(out[nodes.train_mask], nodes.y[nodes.train_mask])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, share_right(model, data, call, nodes)


def share_right(
    model: nn.Module, data: Any, call: Callable[[nn.Module, Any], Tensor], nodes: Any
) -> float:
    """Evaluates a model on the training nodes."""
    model.eval()
    with torch.no_grad():
        right = call(model, data).argmax(dim=-1) == nodes.y
    return int(right[nodes.train_mask].sum()) / int(nodes.train_mask.sum())


def check_curve(
    model: nn.Module,
    data: Any,
    call: Callable[[nn.Module, Any], Tensor] = lambda m, d: m(d.x, d.edge_index),
    *,
    tolerance: float = 1e-8,
    **options: Any,
) -> None:
    """Checks that losses are PyG's in one process."""
    group = Group.current("cpu")
    # Computed once, and not by each rank.
    own = curve(copy_of(model), data, call, **options) if group.rank == 0 else None
    expected, expected_share = group.all_gather(own)[0]
    assert expected[-1] < expected[0], "the reference does not learn"
    partitioned = partition_of_case(data)
    ours = peergraph_pyg.accelerate(copy_of(model))
    actual, share = curve(ours, partitioned, call, **options)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
    if tolerance < 1e-6:
        assert share == expected_share
    else:
        # Adam makes steps of rounding in gradients that are zero, of biases before BatchNorm, which
        # show in evaluation alone: evaluation is compared with equal parameters.
        model_of_ours = copy_of(model)
        model_of_ours.load_state_dict(ours.state_dict())
        assert share == share_right(model_of_ours, data, call, data)
    # PyG's own layers are compared step by step by other tests.
    actual, _ = curve(copy_of(model), partitioned, call, **{**options, "epochs": 2})
    np.testing.assert_allclose(actual, expected[:2], rtol=tolerance, atol=tolerance)


def cora() -> Data | None:
    """The real graph; None where the file is not there."""
    path = SHARED_DATA / "cora.npz"
    if not path.exists():
        return None
    arrays = np.load(path, allow_pickle=False)
    return Data(
        x=features(arrays),
        edge_index=edge_index(arrays),
        y=torch.from_numpy(arrays["y"]).long(),
        train_mask=torch.from_numpy(arrays["train_mask"]),
    )


def on_cora() -> None:
    """Float32 on Cora: another order of sums alone makes a difference."""
    data = cora()
    if data is None:
        return
    torch.set_default_dtype(torch.float32)
    try:
        model = pyg.GCN(data.num_features, 16, 2, 7, norm="batch_norm")
        check_curve(model, data, tolerance=3e-4, epochs=6)
    finally:
        torch.set_default_dtype(torch.float64)


def by_ids() -> None:
    """Training nodes as a list of ids, in another order than the rows."""

    def run(data: Any) -> float:
        torch.manual_seed(0)
        model = pyg.GraphSAGE(WIDTH, 8, 2, CLASSES)
        ids = data.train_idx.flip(0)
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[ids], data.y[ids])
        loss.backward()
        grads = [p.grad.abs().sum() for p in model.parameters()]
        return loss.item() + torch.stack(grads).sum().item()

    data = small_graph()
    np.testing.assert_allclose(run(peergraph_pyg.full_graph(data)), run(data), rtol=1e-10)


def few_nodes() -> None:
    """Graphs with fewer nodes than ranks, without edges, and with one training node.

    PyG's layers; test_full_graph_devices.py trains Peergraph's.
    """
    for num_nodes, num_edges in ((1, 0), (2, 3), (4, 5), (9, 0)):
        data = small_graph(num_nodes, num_edges, seed=num_nodes)
        data.train_mask = torch.zeros(num_nodes, dtype=torch.bool)
        data.train_mask[0] = True
        del data.train_idx
        # PyG cannot tell attributes of edges from those of nodes if there are as many.
        for name in ("edge_weight", "edge_attr", "edge_type"):
            del data[name]
        # With one node, [1, heads, depth] of a parameter may be rows of nodes: GAT's step raises.
        for make in (pyg.GCN, pyg.GraphSAGE, pyg.GIN, *([pyg.GAT] if num_nodes > 1 else [])):
            torch.manual_seed(0)
            model = make(WIDTH, 8, 2, CLASSES)
            graph, expected = (
                curve(copy_of(model), graph_data, lambda m, d: m(d.x, d.edge_index), epochs=2)
                for graph_data in (peergraph_pyg.full_graph(data), data)
            )
            np.testing.assert_allclose(graph[0], expected[0], 1e-8, 1e-8)
            assert graph[1] == expected[1]


def dropout() -> list[float]:
    """Losses with dropout of features and attention, which do not depend on the ranks."""
    torch.set_default_dtype(torch.float64)
    data = peergraph_pyg.full_graph(small_graph())
    losses: list[float] = []
    for make, options in ((pyg.GCN, {}), (pyg.GAT, {"heads": 2}), (pyg.GraphSAGE, {})):
        torch.manual_seed(3)
        model = peergraph_pyg.accelerate(make(WIDTH, 8, 2, CLASSES, dropout=0.5, **options))
        losses += curve(model, data, lambda m, d: m(d.x, d.edge_index), epochs=3)[0]
    torch.manual_seed(3)
    layer = pyg.TransformerConv(WIDTH, CLASSES, dropout=0.4)
    losses += curve(layer, data, lambda m, d: m(d.x, d.edge_index), epochs=2)[0]
    return losses


def trained_on_batches() -> None:
    """A model that was trained on mini-batches is evaluated on the whole graph, exactly."""
    data = small_graph()
    data.x = data.x.float()
    model = pyg.GraphSAGE(WIDTH, 8, 2, CLASSES).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    shared = peergraph_pyg.share(data)
    for batch in NeighborLoader(shared, [3, 3], batch_size=8, input_nodes=data.train_mask):
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
        optimizer.step()
    model.eval()
    with torch.inference_mode():
        # Each rank reads its rows. Ranks that sampled otherwise take rank 0's parameters.
        full = peergraph_pyg.full_graph(shared)
        result = model(full.x, full.edge_index)
        assert_close(result, model(data.x, data.edge_index), 1e-5)
    peergraph_pyg.store_of(shared).close()


def _homogeneous(make: Callable[[], nn.Module]) -> Callable[[], None]:
    return lambda: check_curve(make(), shared(small_graph))


def _heterogeneous(make: Callable[[], nn.Module]) -> Callable[[], None]:
    def call(model: nn.Module, data: Any) -> Tensor:
        out: Tensor = model(data.x_dict, data.edge_index_dict)
        return out

    return lambda: check_curve(make(), shared(small_hetero), call, node_type="paper")


HIDDEN = 8

CASES: dict[str, Callable[[], Any]] = {
    "GCN": _homogeneous(lambda: pyg.GCN(WIDTH, HIDDEN, 2, CLASSES, norm="batch_norm")),
    "SAGE": _homogeneous(lambda: pyg.GraphSAGE(WIDTH, HIDDEN, 2, CLASSES, jk="cat")),
    "GAT": _homogeneous(lambda: pyg.GAT(WIDTH, HIDDEN, 2, CLASSES, heads=2)),
    "GIN": _homogeneous(lambda: pyg.GIN(WIDTH, HIDDEN, 2, CLASSES, norm="batch_norm")),
    "RGCN": lambda: check_curve(
        RGCN(), shared(small_graph), lambda m, d: m(d.x, d.edge_index, d.edge_type)
    ),
    "deep": _homogeneous(DeepGCN),
    "HeteroConv": _heterogeneous(Hetero),
    "to_hetero": _heterogeneous(ToHetero),
    "Cora": on_cora,
    "ids": by_ids,
    "few nodes": few_nodes,
    "trained on batches": trained_on_batches,
}
