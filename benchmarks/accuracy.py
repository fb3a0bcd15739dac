"""Accuracy of GraphSAGE: batches sampled from the store against PyG's full-neighbour training.

Both trainings have the same model, hyperparameters, initial weights and number of steps; one uses
an unmodified `NeighborLoader` over `peergraph_pyg.share(data)`, the other no Peergraph at all:
PyG's model over the whole graph with all neighbours. Every few epochs both are evaluated with all
neighbours; the test accuracy is that of the best validation epoch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric
from harness.sections import write_section
from inputs.npz_graphs import NodeGraph, load_npz, to_pyg
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE
from tqdm import tqdm

import peergraph_pyg


@dataclass(frozen=True)
class Settings:
    """What both trainings share; `fanouts` is of the sampled one."""

    epochs: int
    eval_every: int
    hidden: int
    dropout: float
    lr: float
    weight_decay: float
    fanouts: list[int]
    device: str


# Predictions for all nodes, and one epoch of training.
Predict = Callable[[], Tensor]
Step = Callable[[], None]


def main() -> None:
    args = parse_arguments()
    settings = Settings(
        epochs=args.epochs,
        eval_every=args.eval_every,
        hidden=args.hidden,
        dropout=args.dropout,
        lr=args.lr,
        weight_decay=args.weight_decay,
        fanouts=[int(f) for f in args.fanouts.split(",")],
        device=args.device,
    )
    rows = [measure(load_npz(path), settings, args.seeds) for path in args.graphs]
    text = report(rows, settings, args.seeds)
    print(text)
    if args.out is not None:
        write_section(args.out, "PyG", text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", type=Path, nargs="+", help=".npz files of labelled graphs")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--eval-every", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--fanouts", default="10,10", help="one a layer")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="Markdown file whose section is replaced")
    return parser.parse_args()


def measure(graph: NodeGraph, settings: Settings, seeds: int) -> dict[str, Any]:
    """Test accuracies in percent of all seeds, with the store and with PyG alone."""
    data = to_pyg(graph)
    shared = peergraph_pyg.share(to_pyg(graph), device=settings.device)
    accuracies: dict[str, list[float]] = {"store": [], "pyg": []}
    for seed in tqdm(range(seeds), desc=graph.name, unit=" seeds"):
        for name, start in (("store", sampled), ("pyg", full)):
            torch.manual_seed(seed)
            model = make_model(graph, settings)
            source = shared if name == "store" else data.to(settings.device)
            step, predict = start(source, model, settings)
            accuracies[name].append(100 * train(data, settings, step, predict))
    peergraph_pyg.store_of(shared).close()
    return {"graph": graph, **accuracies}


def make_model(graph: NodeGraph, settings: Settings) -> GraphSAGE:
    return GraphSAGE(
        graph.x.shape[1],
        settings.hidden,
        num_layers=len(settings.fanouts),
        out_channels=graph.num_classes,
        dropout=settings.dropout,
    ).to(settings.device)


def train(data: Data, settings: Settings, step: Step, predict: Predict) -> float:
    """The test accuracy at the best validation accuracy."""
    best, at_best = -1.0, 0.0
    for epoch in range(settings.epochs):
        step()
        if (epoch + 1) % settings.eval_every == 0:
            right = predict().cpu() == data.y.cpu()
            val, test = (
                float(right[m.cpu()].float().mean()) for m in (data.val_mask, data.test_mask)
            )
            if val > best:
                best, at_best = val, test
    return at_best


def sampled(data: Data, model: GraphSAGE, settings: Settings) -> tuple[Step, Predict]:
    """Training on the store: PyG's loader; all training nodes are one batch, as in `full`."""
    nodes = data.train_mask.nonzero().view(-1).cpu()
    batches = NeighborLoader(data, settings.fanouts, nodes, batch_size=len(nodes), shuffle=True)
    everything = [-1] * len(settings.fanouts)
    all_nodes = NeighborLoader(data, everything, batch_size=4096)
    optimizer = make_optimizer(model, settings)

    def step() -> None:
        model.train()
        for batch in batches:
            optimizer.zero_grad()
            out = model(batch.x.float(), batch.edge_index)[: batch.batch_size]
            F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()

    @torch.no_grad()
    def predict() -> Tensor:
        model.eval()
        parts = [model(b.x.float(), b.edge_index)[: b.batch_size].argmax(1) for b in all_nodes]
        return torch.cat(parts)

    return step, predict


def full(data: Data, model: GraphSAGE, settings: Settings) -> tuple[Step, Predict]:
    """Training with PyG alone on the whole graph, every node with all its neighbours."""
    optimizer = make_optimizer(model, settings)

    def step() -> None:
        model.train()
        optimizer.zero_grad()
        out = model(data.x.float(), data.edge_index)[data.train_mask]
        F.cross_entropy(out, data.y[data.train_mask]).backward()
        optimizer.step()

    @torch.no_grad()
    def predict() -> Tensor:
        model.eval()
        guess: Tensor = model(data.x.float(), data.edge_index).argmax(1)
        return guess

    return step, predict


def make_optimizer(model: GraphSAGE, settings: Settings) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)


def report(rows: list[dict[str, Any]], settings: Settings, seeds: int) -> str:
    """A Markdown table with what was run."""
    fanouts = ", ".join(map(str, settings.fanouts))
    question = (
        "Does training on batches sampled from the store reach the accuracy of PyG's own training "
        "with all neighbours? Test accuracy in percent at the best validation epoch, mean and "
        f"standard deviation of {seeds} seeds:"
    )
    method = (
        f"{len(settings.fanouts)}-layer GraphSAGE (mean), hidden {settings.hidden}, dropout "
        f"{settings.dropout}, Adam with learning rate {settings.lr} and weight decay "
        f"{settings.weight_decay}, {settings.epochs} epochs of one step over all training nodes, "
        f"fanouts {fanouts} on the store. Both columns start from the same weights and are "
        f"evaluated every {settings.eval_every} epochs with all neighbours of every node, which "
        f"the left one also reads from the store. Device: {settings.device}; torch "
        f"{torch.__version__}, PyG {torch_geometric.__version__}."
    )
    origin = (
        "Made by `python benchmarks/accuracy.py GRAPH.npz ... --out docs/benchmarks/accuracy.md`; "
        "the files are in the format of `benchmarks/inputs/npz_graphs.py`."
    )
    table = [
        "| graph | nodes | edges | `NeighborLoader`, store | PyG, all neighbours | difference |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        graph = row["graph"]
        difference = mean(row["store"]) - mean(row["pyg"])
        table.append(
            f"| {graph.name} | {graph.num_nodes:,} | {graph.num_edges:,} | {spread(row['store'])} "
            f"| {spread(row['pyg'])} | {difference:+.2f} |"
        )
    return "\n\n".join([question, "\n".join(table), method, origin])


def spread(values: list[float]) -> str:
    return f"{mean(values):.2f} ± {stdev(values) if len(values) > 1 else 0:.2f}"


if __name__ == "__main__":
    main()
