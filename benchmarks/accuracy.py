"""Accuracy of GraphSAGE: batches sampled from the store against PyG's full-neighbour training.

    python benchmarks/accuracy.py cora.npz amazon_photo.npz --out docs/benchmarks/accuracy.md

Both trainings have the same model, hyperparameters, initial weights and number of steps; one uses
an unmodified `NeighborLoader` over `peergraph_pyg.share(data)`, the other no Peergraph at all:
PyG's model over the whole graph with all neighbours. Every few epochs both are evaluated with all
neighbours; the test accuracy is that of the best validation epoch. The files are in the format of
`inputs/npz_graphs.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from harness.accuracy import (
    add_graphs,
    best_test,
    optimizer_of,
    parser,
    publish,
    spread,
)
from inputs.npz_graphs import NodeGraph, load_npz, to_pyg
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE
from tqdm import tqdm

import peergraph_pyg

# One epoch of training, and predictions for all nodes.
Step = Callable[[], None]
Predict = Callable[[], Tensor]


def main() -> None:
    options = parser(__doc__)
    add_graphs(options)
    options.add_argument("--fanouts", default="10,10", help="one a layer")
    args = options.parse_args()
    lines = []
    for graph in map(load_npz, args.graphs):
        store, pyg = measure(graph, args)
        counts = (f"{graph.num_nodes:,}", f"{graph.num_edges:,}")
        apart = f"{mean(store) - mean(pyg):+.2f}"
        lines.append([graph.name, *counts, spread(store), spread(pyg), apart])
    head = ["graph", "nodes", "edges", "`NeighborLoader`, store", "PyG, all neighbours"]
    publish("pyg", args, [*head, "difference"], lines, "torch-geometric")


def measure(graph: NodeGraph, args: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Test accuracies in percent of all seeds, with the store and with PyG alone."""
    data = to_pyg(graph).to(args.device)
    shared = peergraph_pyg.share(to_pyg(graph), device=args.device)
    fanouts = [int(fanout) for fanout in args.fanouts.split(",")]
    accuracies: tuple[list[float], list[float]] = ([], [])
    for seed in tqdm(range(args.seeds), desc=graph.name, unit=" seeds"):
        for of_side, is_shared in zip(accuracies, (True, False), strict=True):
            torch.manual_seed(seed)
            model = make_model(graph, len(fanouts), args)
            step, predict = (
                sampled(shared, model, fanouts, args) if is_shared else full(data, model, args)
            )
            of_side.append(best_test(args, step, predict, data))
    peergraph_pyg.store_of(shared).close()
    return accuracies


def make_model(graph: NodeGraph, num_layers: int, args: argparse.Namespace) -> GraphSAGE:
    return GraphSAGE(
        graph.x.shape[1], args.hidden, num_layers, graph.num_classes, dropout=args.dropout
    ).to(args.device)


def training(
    model: torch.nn.Module,
    args: argparse.Namespace,
    losses: Callable[[], Any],
    logits: Callable[[], Tensor],
) -> tuple[Step, Predict]:
    """A step for each of an epoch's losses, and the classes of all nodes."""
    optimizer = optimizer_of(model, args)

    def step() -> None:
        model.train()
        for loss in losses():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    @torch.no_grad()
    def predict() -> Tensor:
        model.eval()
        return logits().argmax(1)

    return step, predict


def sampled(
    data: Data, model: GraphSAGE, fanouts: list[int], args: argparse.Namespace
) -> tuple[Step, Predict]:
    """Training on the store: PyG's loader; all training nodes are one batch, as in `full`."""
    nodes = data.train_mask.nonzero().view(-1).cpu()
    batches = NeighborLoader(data, fanouts, nodes, batch_size=len(nodes), shuffle=True)
    all_nodes = NeighborLoader(data, [-1] * len(fanouts), batch_size=4096)

    def output(batch: Data) -> Tensor:
        out: Tensor = model(batch.x.float(), batch.edge_index)[: batch.batch_size]
        return out

    return training(
        model,
        args,
        lambda: (F.cross_entropy(output(b), b.y[: b.batch_size]) for b in batches),
        lambda: torch.cat([output(batch) for batch in all_nodes]),
    )


def full(data: Data, model: GraphSAGE, args: argparse.Namespace) -> tuple[Step, Predict]:
    """Training with PyG alone on the whole graph, every node with all its neighbours."""

    def logits() -> Tensor:
        out: Tensor = model(data.x.float(), data.edge_index)
        return out

    mask = data.train_mask
    return training(model, args, lambda: [F.cross_entropy(logits()[mask], data.y[mask])], logits)


if __name__ == "__main__":
    main()
