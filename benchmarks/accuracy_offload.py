"""Accuracy of offloaded training whose stored rows are rounded to bfloat16, against exact rows.

    python benchmarks/accuracy_offload.py cora.npz citeseer.npz amazon_photo.npz

The same script, seeds, initial weights and dropout masks on all sides: unmodified models of PyG
over `peergraph_pyg.full_graph(data, offload=True)`. The test accuracy is that of the best
validation epoch; `loss` is how far the last training loss is from that of exact rows; `bytes` are
those that an epoch moves between host and device, over those of exact rows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import torch_geometric
from harness.common import words_of
from harness.sections import write_section
from inputs.npz_graphs import NodeGraph, load_npz, to_pyg
from torch_geometric.nn import GAT, GCN, GraphSAGE
from tqdm import tqdm

import peergraph_pyg
from peergraph.fullgraph import named_model
from peergraph.memory import Group

_KINDS = {"exact": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
_HEADS = 4
_MODELS: dict[str, Callable[..., torch.nn.Module]] = {
    "GCN": GCN,
    "SAGE": GraphSAGE,
    "GAT": partial(GAT, heads=_HEADS),
}


class Result(NamedTuple):
    """Of one training."""

    accuracy: float
    loss: float
    moved: int
    """Bytes between host and device in the last epoch."""


class Row(NamedTuple):
    """Results of all seeds on a graph with a model, by kind of stored rows."""

    graph: NodeGraph
    model: str
    results: dict[str, list[Result]]


def main() -> None:
    args = parse_arguments()
    rows = []
    for path in args.graphs:
        graph = load_npz(path)
        for model in args.models:
            rows.append(Row(graph, model, measure(graph, model, args)))
            if args.records is not None:
                write_records(args.records, rows[-1], args)
    text = report(rows, args)
    print(text)
    if args.out is not None:
        write_section(args.out, "Offloaded rows in bfloat16", text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", type=Path, nargs="+", help=".npz files of labelled graphs")
    parser.add_argument("--kinds", type=words_of(_KINDS), default=["exact", "bfloat16"])
    parser.add_argument("--models", type=words_of(_MODELS), default=list(_MODELS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--eval-every", type=int, default=5)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--chunks", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--records", type=Path, help="file that gets a line for each training")
    parser.add_argument("--out", type=Path, help="Markdown file whose section is replaced")
    return parser.parse_args()


def measure(graph: NodeGraph, model: str, args: argparse.Namespace) -> dict[str, list[Result]]:
    """Results of all seeds, by kind of stored rows."""
    group = Group.current(args.device)
    widths = [graph.x.shape[1], *[args.hidden] * (args.layers - 1), graph.num_classes]
    results: dict[str, list[Result]] = {}
    for kind in args.kinds:
        data = to_pyg(graph)
        data.x = data.x.float()
        parts = peergraph_pyg.full_graph(
            data, offload=True, num_chunks=args.chunks, model=named_model(widths),
            hidden_dtype=_KINDS[kind], group=group,
        )  # fmt: skip
        # Without a budget on the device, all stored rows go to the host: transfers are counted.
        full = peergraph_pyg.partition_of(parts)
        assert full.offloaded is not None
        full.offloaded.allocator.use["device"].budget = 0
        parts.x = full.node_rows(data.x)
        seeds = tqdm(range(args.seeds), desc=f"{graph.name}, {model}, {kind}", unit=" seeds")
        results[kind] = [train(parts, graph, model, args, seed) for seed in seeds]
    return results


def train(data: Any, graph: NodeGraph, name: str, args: argparse.Namespace, seed: int) -> Result:
    """Trains a model and evaluates it every few epochs."""
    torch.manual_seed(seed)
    model: Any = _MODELS[name](
        graph.x.shape[1], args.hidden, args.layers, graph.num_classes, args.dropout
    )
    model = peergraph_pyg.accelerate(model.to(args.device))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    labels = data.y[data.train_mask]
    stores = peergraph_pyg.partition_of(data).offloaded.allocator
    best, at_best, last, moved = -1.0, 0.0, 0.0, 0
    for epoch in range(args.epochs):
        before = stores.moved.to_device + stores.moved.from_device
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], labels)
        loss.backward()
        optimizer.step()
        last = loss.item()
        moved = stores.moved.to_device + stores.moved.from_device - before
        if (epoch + 1) % args.eval_every == 0:
            model.eval()
            with torch.no_grad():
                out = model(data.x, data.edge_index)
                val, test = (
                    float((out[mask].argmax(1) == data.y[mask]).float().mean())
                    for mask in (data.val_mask, data.test_mask)
                )
            if val > best:
                best, at_best = val, test
    return Result(100 * at_best, last, moved)


def write_records(path: Path, row: Row, args: argparse.Namespace) -> None:
    """Appends a line for each training."""
    case = {
        "bench": "accuracy_offload",
        "graph": row.graph.name,
        "model": row.model,
        "device": args.device,
        "torch": torch.__version__,
        **{name: getattr(args, name) for name in ("epochs", "layers", "hidden", "dropout", "lr")},
    }
    with path.open("a") as file:
        for kind, results in row.results.items():
            for seed, result in enumerate(results):
                record = {**case, "stored": kind, "seed": seed, **result._asdict()}
                file.write(json.dumps(record) + "\n")


def report(rows: list[Row], args: argparse.Namespace) -> str:
    """A Markdown table with what was run."""
    kinds = args.kinds
    question = (
        "What does it cost to store rows of offloaded layers, their sums and gradients in half the "
        "bytes? Test accuracy in percent at the best validation epoch, mean and standard deviation "
        f"of {args.seeds} seeds, the difference of each seed's accuracies with its standard error, "
        "how far the last training losses are apart, relative to the exact ones, and the bytes "
        "that an epoch moves between host and device over those of exact rows, counted with all "
        "stored rows on the host (features keep their type; GAT and SAGE read them in each epoch):"
    )
    head = ["graph", "nodes", "edges", "model", *kinds]
    head += [f"{kind}: {what}" for kind in kinds[1:] for what in ("difference", "loss", "bytes")]
    lines = [f"| {' | '.join(head)} |", "| --- | ---: | ---: | --- |" + " ---: |" * (len(head) - 4)]
    for graph, model, results in rows:
        cells = [graph.name, f"{graph.num_nodes:,}", f"{graph.num_edges:,}", model]
        cells += [spread([result.accuracy for result in results[kind]]) for kind in kinds]
        for kind in kinds[1:]:
            pairs = list(zip(results[kinds[0]], results[kind], strict=True))
            apart = [b.accuracy - a.accuracy for a, b in pairs]
            error = stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else 0.0
            losses = [abs(b.loss - a.loss) / a.loss for a, b in pairs]
            moved = sum(b.moved for _, b in pairs) / max(1, sum(a.moved for a, _ in pairs))
            cells += [f"{mean(apart):+.2f} ± {error:.2f}", f"{mean(losses):.1e}", f"{moved:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    method = (
        f"{args.layers}-layer models of PyG, hidden {args.hidden}, GAT with {_HEADS} heads, "
        f"dropout {args.dropout}, Adam with "
        f"learning rate {args.lr} and weight decay {args.weight_decay}, {args.epochs} epochs, "
        f"`full_graph(data, offload=True, num_chunks={args.chunks}, hidden_dtype=...)`, the same "
        f"initial weights and dropout masks in all columns. Device: {args.device}; torch "
        f"{torch.__version__}, PyG {torch_geometric.__version__}."
    )
    origin = (
        "Made by `python benchmarks/accuracy_offload.py GRAPH.npz ... --out "
        "docs/benchmarks/accuracy.md`; the files are in the format of "
        "`benchmarks/inputs/npz_graphs.py`."
    )
    return "\n\n".join([question, "\n".join(lines), method, origin])


def spread(values: list[float]) -> str:
    return f"{mean(values):.2f} ± {stdev(values) if len(values) > 1 else 0:.2f}"


if __name__ == "__main__":
    main()
