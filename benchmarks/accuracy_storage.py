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
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
import torch_geometric
from accuracy import Settings, full, make_model, spread, train
from harness.sections import write_section
from inputs.npz_graphs import NodeGraph, load_npz, to_pyg
from torch import Tensor
from tqdm import tqdm

import peergraph_pyg
from peergraph.memory import StorageReport

_STORAGES = "float32,bfloat16,float16,float8_e4m3,float8_e5m2,int8,int8:32"


def main() -> None:
    args = parse_arguments()
    settings = Settings(
        epochs=args.epochs,
        eval_every=args.eval_every,
        hidden=args.hidden,
        dropout=args.dropout,
        lr=args.lr,
        weight_decay=args.weight_decay,
        fanouts=[-1, -1],
        device=args.device,
    )
    rows = [measure(load_npz(path), settings, args) for path in args.graphs]
    text = report(rows, settings, args)
    print(text)
    if args.out is not None:
        write_section(args.out, "Accuracy by storage", text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", type=Path, nargs="+", help=".npz files of labelled graphs")
    parser.add_argument("--storages", default=_STORAGES, help="the first is compared with")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--eval-every", type=int, default=2)
    parser.add_argument("--columns", type=int, default=64, help="of the projected features")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="Markdown file whose section is replaced")
    return parser.parse_args()


def measure(graph: NodeGraph, settings: Settings, args: argparse.Namespace) -> dict[str, Any]:
    """Test accuracies in percent of all seeds, and the store's report, by storage."""
    accuracies: dict[str, list[float]] = {}
    reports: dict[str, StorageReport] = {}
    data = to_pyg(graph)
    features = scaled(data.x, args.columns)
    graph = replace(graph, x=features.numpy())
    for storage in args.storages.split(","):
        data.x = features
        shared = peergraph_pyg.share(data, device=settings.device, storage={"x": storage})
        store = peergraph_pyg.store_of(shared)
        for made in store.storage_reports.values():
            reports[storage] = made
        data.x = store.node_table("x").read()
        store.close()
        data = data.to(settings.device)
        accuracies[storage] = []
        for seed in tqdm(range(args.seeds), desc=f"{graph.name}, {storage}", unit=" seeds"):
            torch.manual_seed(seed)
            model = peergraph_pyg.accelerate(make_model(graph, settings))
            step, predict = full(data, model, settings)
            accuracies[storage].append(100 * train(data, settings, step, predict))
    return {"graph": graph, "accuracies": accuracies, "reports": reports}


def scaled(x: Tensor, columns: int) -> Tensor:
    """At most so many columns of mean 0 and deviation 1."""
    if x.shape[1] > columns:
        drawn = torch.randn(x.shape[1], columns, generator=torch.Generator().manual_seed(0))
        x = torch.cat([part.float() @ drawn for part in x.split(4096)])
    x = x.float()
    return (x - x.mean(0)) / x.std(0).clamp_min(1e-12)


def report(rows: list[dict[str, Any]], settings: Settings, args: argparse.Namespace) -> str:
    """Markdown tables with what was run."""
    storages = args.storages.split(",")
    first = storages[0]
    question = (
        f"Test accuracy in percent at the best validation epoch, mean and standard deviation of "
        f"{args.seeds} seeds; below it the mean difference of each seed's accuracies from those of "
        f"{first}, with its standard error:"
    )
    head = ["graph", "features", *storages]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    for row in rows:
        found, graph = row["accuracies"], row["graph"]
        lines.append(
            f"| {graph.name} | {graph.x.shape[1]:,} | "
            + " | ".join(spread(found[storage]) for storage in storages)
            + " |"
        )
        apart = [difference(found[first], found[storage]) for storage in storages[1:]]
        lines.append(f"| | | | {' | '.join(apart)} |")
    losses = [
        "| graph | " + " | ".join(storages[1:]) + " |",
        "| --- |" + " ---: |" * (len(storages) - 1),
    ]
    for row in rows:
        cells = [
            f"{r.worst_error:.2%}, {r.mean_error:.3%}"
            for r in (row["reports"][storage] for storage in storages[1:])
        ]
        losses.append(f"| {row['graph'].name} | {' | '.join(cells)} |")
    errors = (
        "What the stores reported: worst and mean error of the values, relative to the largest "
        "value of their row:"
    )
    method = (
        f"2-layer GraphSAGE (mean), hidden {settings.hidden}, dropout {settings.dropout}, Adam "
        f"with learning rate {settings.lr} and weight decay {settings.weight_decay}, "
        f"{settings.epochs} epochs over the whole graph, evaluated every {settings.eval_every}; "
        f"features of more than {args.columns} columns are projected at random to so many, and "
        "each column has mean 0 and deviation 1. "
        f"All columns start from the same weights. Device: {settings.device}; torch "
        f"{torch.__version__}, PyG {torch_geometric.__version__}."
    )
    origin = (
        "Made by `python benchmarks/accuracy_storage.py GRAPH.npz ... --out "
        "docs/benchmarks/accuracy.md`; the files are in the format of "
        "`benchmarks/inputs/npz_graphs.py`."
    )
    return "\n\n".join([question, "\n".join(lines), errors, "\n".join(losses), method, origin])


def difference(exact: list[float], narrow: list[float]) -> str:
    """Of paired seeds: the mean, and its standard error."""
    apart = [b - a for a, b in zip(exact, narrow, strict=True)]
    error = stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else 0.0
    return f"{mean(apart):+.2f} ± {error:.2f}"


if __name__ == "__main__":
    main()
