"""Accuracy by epoch of offloaded training and of PyG, on a graph with labels (HongTu, Figure 8)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness.ranks import Session
from inputs.npz_graphs import load_npz, to_pyg
from torch_geometric.utils import add_remaining_self_loops, to_undirected

import peergraph_pyg
from offloading.models import Gnn
from peergraph.fullgraph import named_model

_EPOCHS, _CHUNKS, _RATE = 100, 4, 1e-2
_NOTED = 5  # epochs


def measure_accuracy(
    session: Session, path: Path, kind: str, widths: Sequence[int], heads: int
) -> None:
    """Trains a model on a graph in a file, and records accuracies of each epoch.

    Edges go both ways, and for attention each node has a self loop.

    Args:
        path: a file of :func:`inputs.npz_graphs.load_npz`.
        kind: one of `KINDS`.
        widths: of the input and of the outputs of layers; an input or output of 0 columns is as
            wide as the graph's features or classes.
        heads: of attention.
    """
    graph = load_npz(path)
    plain = to_pyg(graph)
    plain.x = plain.x.float()
    plain.edge_index = to_undirected(plain.edge_index, num_nodes=plain.num_nodes)
    if kind == "GAT":
        loops = add_remaining_self_loops(plain.edge_index, num_nodes=plain.num_nodes)
        plain.edge_index = loops[0]
    columns = [widths[0] or graph.x.shape[1], *widths[1:-1], widths[-1] or graph.num_classes]
    partitioned = peergraph_pyg.full_graph(
        plain.clone(),
        offload=True,
        num_chunks=_CHUNKS,
        model=named_model(columns),
        group=session.group,
    )
    layers = f"{kind} {'-'.join(map(str, columns))}"
    for system, data in (("PyG", plain.to(session.device)), ("Peergraph, offloaded", partitioned)):
        torch.manual_seed(7)
        model: Any = Gnn(kind, columns, heads).to(session.device)
        if data is partitioned:
            model = peergraph_pyg.accelerate(model)
        curves = _train(session, model, data)
        fields = {"part": "accuracy", "graph": graph.name, "layers": layers, "kind": kind}
        session.recorder.note(system=system, **fields, **curves)
        session.note(f"{graph.name}, {layers}, {system}: test {curves['test'][-1]:.4f}")


def _train(session: Session, model: Any, data: Any) -> dict[str, list[float]]:
    """Losses, and accuracies after each epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    curves: dict[str, list[float]] = {"losses": [], "validation": [], "test": []}
    labels = data.y[data.train_mask]
    for epoch in range(_EPOCHS):
        if epoch % _NOTED == 0:
            session.note(f"  epoch {epoch}")
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], labels)
        loss.backward()
        optimizer.step()
        curves["losses"].append(float(loss.detach()))
        model.eval()
        with torch.no_grad():
            out = model(data.x, data.edge_index)
            for what, mask in (("validation", data.val_mask), ("test", data.test_mask)):
                right = out[mask].argmax(1) == data.y[mask]
                curves[what].append(float(right.float().mean()))
    return curves
