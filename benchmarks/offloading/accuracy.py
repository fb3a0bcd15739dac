"""Accuracy by epoch of offloaded training and of PyG, on a graph with labels (HongTu, Figure 8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness.ranks import Session
from torch_geometric.nn import GCN

import peergraph_pyg
from peergraph_demo.inputs import to_pyg
from peergraph_demo.npz_file import load_npz

_EPOCHS, _HIDDEN, _CHUNKS, _RATE = 100, 256, 4, 1e-2
_NOTED = 10  # epochs


def measure_accuracy(session: Session, path: Path) -> None:
    """Trains a GCN of two layers on a graph in a file, and records accuracies of each epoch.

    Args:
        path: a file of :func:`peergraph_demo.npz_file.load_npz`.
    """
    graph = load_npz(path)
    plain = to_pyg(graph)
    plain.x = plain.x.float()
    widths = [graph.x.shape[1], _HIDDEN, graph.num_classes]
    partitioned = peergraph_pyg.full_graph(
        plain.clone(), offload=True, num_chunks=_CHUNKS, widths=widths, group=session.group
    )
    for system, data in (("PyG", plain.to(session.device)), ("Peergraph, offloaded", partitioned)):
        torch.manual_seed(7)
        model: Any = GCN(widths[0], _HIDDEN, 2, widths[-1]).to(session.device)
        if data is partitioned:
            model = peergraph_pyg.accelerate(model)
        found = _train(session, model, data)
        fields = {"part": "accuracy", "graph": graph.name, "layers": "-".join(map(str, widths))}
        session.recorder.note(system=system, **fields, **found)
        session.note(f"{graph.name}, {system}: test {found['test'][-1]:.4f}")


def _train(session: Session, model: Any, data: Any) -> dict[str, list[float]]:
    """Losses, and accuracies after each epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    found: dict[str, list[float]] = {"losses": [], "validation": [], "test": []}
    labels = data.y[data.train_mask]
    for epoch in range(_EPOCHS):
        if epoch % _NOTED == 0:
            session.note(f"  epoch {epoch}")
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], labels)
        loss.backward()
        optimizer.step()
        found["losses"].append(float(loss.detach()))
        model.eval()
        with torch.no_grad():
            out = model(data.x, data.edge_index)
            for what, mask in (("validation", data.val_mask), ("test", data.test_mask)):
                right = out[mask].argmax(1) == data.y[mask]
                found[what].append(float(right.float().mean()))
    return found
