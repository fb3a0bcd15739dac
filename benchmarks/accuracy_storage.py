"""Accuracy of GraphSAGE by how the store keeps the features (docs/benchmarks/accuracy.md).

    python benchmarks/accuracy_storage.py cora.npz tolokers.npz --out docs/benchmarks/accuracy.md

Every column has the same model, initial weights, dropout masks and number of steps: PyG's model
over the whole graph, with the features as `peergraph_pyg.share(data, storage=...)` returns them.
Features of many columns are projected at random to a few, since word counts of 0 and 1 would lose
nothing; then each column has mean 0 and deviation 1. The test accuracy is that of the best
validation epoch.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from accuracy import full, make_model
from harness.accuracy import (
    add_graphs,
    best_test,
    paired_difference,
    parser,
    publish,
    spread,
)
from inputs.npz_graphs import NodeGraph, load_npz, to_pyg
from torch import Tensor
from tqdm import tqdm

import peergraph_pyg
from peergraph.memory import StorageReport

_STORAGES = "float32,bfloat16,float16,float8_e4m3,float8_e5m2,int8,int8:32"
_LAYERS = 2


def main() -> None:
    options = parser(__doc__, epochs=20, eval_every=2)
    add_graphs(options)
    options.add_argument("--storages", default=_STORAGES, help="the first is compared with")
    options.add_argument("--columns", type=int, default=64, help="of the projected features")
    args = options.parse_args()
    first, *others = storages = args.storages.split(",")
    scores, errors = [], []
    for graph in map(load_npz, args.graphs):
        accuracies, reports = measure(graph, args)
        width = min(graph.x.shape[1], args.columns)
        scores.append([graph.name, f"{width:,}", *(spread(accuracies[s]) for s in storages)])
        apart = [paired_difference(accuracies[first], accuracies[s]) for s in others]
        scores.append(["", "", "", *apart])
        lost = (reports[storage] for storage in others)
        errors.append([graph.name, *(f"{r.worst_error:.2%}, {r.mean_error:.3%}" for r in lost)])
    publish("storage", args, ["graph", "features", *storages], scores, "torch-geometric")
    publish("storage_errors", args, ["graph", *others], errors, "torch-geometric")


def measure(
    graph: NodeGraph, args: argparse.Namespace
) -> tuple[dict[str, list[float]], dict[str, StorageReport]]:
    """Test accuracies in percent of all seeds, and the store's report, by storage."""
    accuracies: dict[str, list[float]] = {}
    reports: dict[str, StorageReport] = {}
    data = to_pyg(graph)
    features = scaled(data.x, args.columns)
    graph = replace(graph, x=features.numpy())
    for storage in args.storages.split(","):
        data.x = features
        shared = peergraph_pyg.share(data, device=args.device, storage={"x": storage})
        store = peergraph_pyg.store_of(shared)
        for report in store.storage_reports.values():
            reports[storage] = report
        data.x = store.node_table("x").read()
        store.close()
        data = data.to(args.device)
        accuracies[storage] = []
        for seed in tqdm(range(args.seeds), desc=f"{graph.name}, {storage}", unit=" seeds"):
            torch.manual_seed(seed)
            model = peergraph_pyg.accelerate(make_model(graph, _LAYERS, args))
            step, predict = full(data, model, args)
            test = best_test(args, step, predict, data)
            accuracies[storage].append(test)
    return accuracies, reports


def scaled(x: Tensor, columns: int) -> Tensor:
    """At most so many columns of mean 0 and deviation 1."""
    if x.shape[1] > columns:
        drawn = torch.randn(x.shape[1], columns, generator=torch.Generator().manual_seed(0))
        x = torch.cat([part.float() @ drawn for part in x.split(4096)])
    x = x.float()
    return (x - x.mean(0)) / x.std(0).clamp_min(1e-12)


if __name__ == "__main__":
    main()
