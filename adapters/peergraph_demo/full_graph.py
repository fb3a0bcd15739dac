"""GraphSAGE on the whole graph in every step: full-graph training."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from peergraph_demo.options import Training
from peergraph_demo.result import DemoResult, Epoch
from peergraph_demo.team import Team


def train_full_graph(team: Team, training: Training, data: Any, result: DemoResult) -> None:
    """Trains without sampling, and fills in the result's epochs and accuracies. Collective.

    Every rank runs the steps of one process; an epoch is one step on all training nodes.

    Args:
        data: what `peergraph_pyg.share` returned, with `x`, `y` and masks.
    """
    from torch_geometric.nn import GraphSAGE

    import peergraph_pyg

    start = perf_counter()
    whole = peergraph_pyg.full_graph(data)
    widths = [whole.x.size(1), *[training.hidden] * (len(training.fanouts) - 1), result.num_classes]
    plan = peergraph_pyg.partition_of(whole).plan.with_widths(widths)
    team.say(f"partitioned in {perf_counter() - start:.1f} s\n\n{plan}\n")
    result.plan = plan.to_dict()
    x, edge_index = whole.x.float(), whole.edge_index
    torch.manual_seed(training.seed)
    model = GraphSAGE(
        widths[0],
        training.hidden,
        num_layers=len(training.fanouts),
        out_channels=result.num_classes,
        dropout=training.dropout,
        norm="layer_norm",
        norm_kwargs={"mode": "node"},
    ).to(team.device)
    model = peergraph_pyg.accelerate(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=training.lr)
    with team.bar(training.epochs, "full graph", "epochs") as bar:
        for _ in range(training.epochs):
            start = perf_counter()
            model.train()
            optimizer.zero_grad()
            out = model(x, edge_index)
            loss = F.cross_entropy(out[whole.train_mask], whole.y[whole.train_mask])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            value = loss.item()  # Waits for the GPU.
            seconds = perf_counter() - start
            [accuracy] = _accuracies(model, whole, x, ["val"])
            result.epochs.append(Epoch(value, accuracy, seconds, 0.0, 0.0, seconds))
            bar.update()
    last = result.epochs[-1]
    result.val_accuracy, result.test_accuracy = _accuracies(model, whole, x, ["val", "test"])
    team.say(
        f"epoch {len(result.epochs)}: loss {last.loss:.4f}, "
        f"validation accuracy {last.val_accuracy:.4f}"
    )
    team.say(f"test accuracy {result.test_accuracy:.4f}")


@torch.no_grad()
def _accuracies(model: nn.Module, data: Any, x: Any, names: list[str]) -> list[float]:
    """With all neighbours, of the nodes of these splits."""
    model.eval()
    right = model(x, data.edge_index).argmax(dim=-1) == data.y
    masks = [data[f"{name}_mask"] for name in names]
    return [int(right[mask].sum()) / max(int(mask.sum()), 1) for mask in masks]
