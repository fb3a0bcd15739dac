"""Accuracy of offloaded training whose stored rows are rounded to bfloat16, against exact rows.

    python benchmarks/accuracy_offload.py cora.npz citeseer.npz amazon_photo.npz

The same script, seeds, initial weights and dropout masks on all sides: unmodified models of PyG
over `peergraph_pyg.full_graph(data, offload=True)`. The test accuracy is that of the best
validation epoch; `loss` is how far the last training loss is from that of exact rows; `bytes` are
those that an epoch moves between host and device, over those of exact rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from harness.accuracy import (
    add_graphs,
    best_test,
    optimizer_of,
    paired_difference,
    parser,
    publish,
    spread,
)
from harness.common import words_of
from harness.records import Record, append_records
from inputs.npz_graphs import NodeGraph, load_npz, to_pyg
from torch import Tensor
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
    options = parser(__doc__)
    add_graphs(options)
    options.add_argument("--kinds", type=words_of(_KINDS), default=["exact", "bfloat16"])
    options.add_argument("--models", type=words_of(_MODELS), default=list(_MODELS))
    options.add_argument("--layers", type=int, default=3)
    options.add_argument("--chunks", type=int, default=2)
    options.add_argument("--records", type=Path, help="file that gets a line for each training")
    args = options.parse_args()
    first, *others = args.kinds
    head = ["graph", "nodes", "edges", "model", *args.kinds]
    head += [f"{kind}: {what}" for kind in others for what in ("difference", "loss", "bytes")]
    lines = []
    for graph in map(load_npz, args.graphs):
        for model in args.models:
            row = Row(graph, model, measure(graph, model, args))
            append_records(args.records, records_of(row, args))
            cells = [graph.name, f"{graph.num_nodes:,}", f"{graph.num_edges:,}", model]
            cells += [spread([r.accuracy for r in row.results[kind]]) for kind in args.kinds]
            for kind in others:
                cells += compare(row.results[first], row.results[kind])
            lines.append(cells)
    publish("offload", args, head, lines, "torch-geometric")


def compare(exact: list[Result], rounded: list[Result]) -> list[str]:
    """Differences of accuracies and of losses, and the bytes over those of exact rows."""
    pairs = list(zip(exact, rounded, strict=True))
    losses = [abs(b.loss - a.loss) / a.loss for a, b in pairs]
    moved = sum(b.moved for _, b in pairs) / max(1, sum(a.moved for a, _ in pairs))
    accuracies = ([result.accuracy for result in side] for side in (exact, rounded))
    return [paired_difference(*accuracies), f"{mean(losses):.1e}", f"{moved:.2f}"]


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
    optimizer = optimizer_of(model, args)
    labels = data.y[data.train_mask]
    stores = peergraph_pyg.partition_of(data).offloaded.allocator
    last, moved = 0.0, 0

    def step() -> None:
        nonlocal last, moved
        before = stores.moved.to_device + stores.moved.from_device
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], labels)
        loss.backward()
        optimizer.step()
        last = loss.item()
        moved = stores.moved.to_device + stores.moved.from_device - before

    @torch.no_grad()
    def predict() -> Tensor:
        model.eval()
        classes: Tensor = model(data.x, data.edge_index).argmax(1)
        return classes

    accuracy = best_test(args, step, predict, data)
    return Result(accuracy, last, moved)


def records_of(row: Row, args: argparse.Namespace) -> Iterator[Record]:
    """One for each training."""
    case = {
        "bench": "accuracy_offload",
        "graph": row.graph.name,
        "model": row.model,
        "device": args.device,
        "torch": torch.__version__,
        **{name: getattr(args, name) for name in ("epochs", "layers", "hidden", "dropout", "lr")},
    }
    for kind, results in row.results.items():
        for seed, result in enumerate(results):
            yield {**case, "stored": kind, "seed": seed, **result._asdict()}


if __name__ == "__main__":
    main()
