"""Accuracy of PyG's loaders of subgraphs: on shared data, against plain PyG with torch-sparse.

    python benchmarks/accuracy_loaders.py --data FOLDER --records OUT.jsonl \
        --out docs/benchmarks/accuracy.md

Each training runs twice for each seed, with the same unmodified loader, model, initial weights and
number of steps: on data, sampled by torch-sparse (no wheels for most versions of torch; pip builds
it from source), and on what `peergraph_pyg.share` makes of it, sampled by the store. After some
epochs both are evaluated on the whole graph, ShaDow on the subgraphs of all nodes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric
from accuracy import Predict, Step, training
from harness.accuracy import best_test, difference, parser, publish, spread
from harness.common import words, words_of
from harness.records import append_records
from inputs.npz_graphs import load_npz, to_pyg
from inputs.real_graphs import read_typed
from torch import Tensor, nn
from torch_geometric import loader as pyg
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphConv, GraphSAGE, HGTConv, global_mean_pool
from torch_geometric.utils import degree

import peergraph_pyg

_WALK_LENGTH = 2


class SaintNet(nn.Module):
    """The model of PyG's example of GraphSAINT, of two layers."""

    def __init__(self, columns: int, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.convs = nn.ModuleList([GraphConv(columns, hidden), GraphConv(hidden, hidden)])
        self.lin = nn.Linear(2 * hidden, classes)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        parts = []
        for conv in self.convs:
            x = F.dropout(conv(x, edge_index, edge_weight).relu(), self.dropout, self.training)
            parts.append(x)
        return self.lin(torch.cat(parts, 1))


class ShadowNet(nn.Module):
    """The model of PyG's example of ShaDow: the root's row beside the mean of its subgraph."""

    def __init__(self, columns: int, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.sage = GraphSAGE(columns, hidden, num_layers=3, dropout=dropout)
        self.lin = nn.Linear(2 * hidden, classes)

    def forward(self, batch: Any) -> Tensor:
        x = self.sage(batch.x, batch.edge_index)
        pooled = global_mean_pool(x, batch.batch)
        return self.lin(torch.cat([x[batch.root_n_id], pooled], 1).relu())


class HgtNet(nn.Module):
    """Two layers of HGTConv over a projection of each type."""

    def __init__(
        self, data: HeteroData, target: str, hidden: int, classes: int, dropout: float
    ) -> None:
        super().__init__()
        self.target, self.dropout = target, dropout
        self.first = nn.ModuleDict(
            {t: nn.Linear(x.shape[1], hidden) for t, x in data.x_dict.items()}
        )
        self.convs = nn.ModuleList(
            HGTConv(hidden, hidden, data.metadata(), heads=2) for _ in range(2)
        )
        self.lin = nn.Linear(hidden, classes)

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> Tensor:
        rows = {
            t: F.dropout(self.first[t](columns).relu(), self.dropout, self.training)
            for t, columns in x.items()
        }
        for conv in self.convs:
            rows = conv(rows, edges)
        return self.lin(rows[self.target])


@dataclass(frozen=True)
class Side:
    """A graph to train on, plain or shared; `whole` is the plain one."""

    data: Any
    whole: Any
    classes: int
    folder: Path  # of partitions, the same on both sides
    target: str = ""


Start = Callable[[Side, argparse.Namespace], tuple[Step, Predict]]


def cluster(parts: int, at_once: int) -> Start:
    """Cluster-GCN: ClusterLoader's batches of `at_once` of the parts that both sides share."""

    def start(side: Side, args: argparse.Namespace) -> tuple[Step, Predict]:
        model = GraphSAGE(
            side.whole.x.shape[1],
            args.hidden,
            num_layers=2,
            out_channels=side.classes,
            dropout=args.dropout,
        )
        clusters = pyg.ClusterData(side.data, parts, save_dir=str(side.folder), log=False)
        batches = pyg.ClusterLoader(clusters, batch_size=at_once, shuffle=True)

        def loss(batch: Any) -> Tensor:
            out = model(batch.x, batch.edge_index)
            return F.cross_entropy(out[batch.train_mask], batch.y[batch.train_mask])

        def logits() -> Tensor:
            return model(side.whole.x, side.whole.edge_index)

        return training(model, args, lambda: map(loss, with_labels(batches)), logits)

    return start


def saint(kind: str, batch_size: int, steps: int, **options: Any) -> Start:
    """GraphSAINT with its normalisation, as PyG's example."""

    def start(side: Side, args: argparse.Namespace) -> tuple[Step, Predict]:
        model = SaintNet(side.whole.x.shape[1], args.hidden, side.classes, args.dropout)
        sampler = getattr(pyg, kind)
        batches = sampler(
            side.data, batch_size, num_steps=steps, sample_coverage=20, log=False, **options
        )

        def loss(batch: Any) -> Tensor:
            weight = batch.edge_norm * batch.edge_weight
            out = model(batch.x, batch.edge_index, weight)
            mask = batch.train_mask
            losses = F.cross_entropy(out[mask], batch.y[mask], reduction="none")
            return (losses * batch.node_norm[mask]).sum()

        def logits() -> Tensor:
            return model(side.whole.x, side.whole.edge_index, side.whole.edge_weight)

        return training(model, args, lambda: map(loss, with_labels(batches)), logits)

    return start


def shadow(side: Side, args: argparse.Namespace) -> tuple[Step, Predict]:
    """ShaDow: a subgraph for each training node."""
    model = ShadowNet(side.whole.x.shape[1], args.hidden, side.classes, args.dropout)
    options: dict[str, Any] = {"depth": 2, "num_neighbors": 5}
    size = max(32, int(side.whole.train_mask.sum()) // 16)
    batches = pyg.ShaDowKHopSampler(
        side.data, node_idx=side.whole.train_mask, batch_size=size, shuffle=True, **options
    )
    everything = pyg.ShaDowKHopSampler(side.data, batch_size=1024, **options)

    def loss(batch: Any) -> Tensor:
        return F.cross_entropy(model(batch), batch.y)

    def logits() -> Tensor:
        return torch.cat([model(batch) for batch in everything])

    return training(model, args, lambda: map(loss, batches), logits)


def hgt(side: Side, args: argparse.Namespace) -> tuple[Step, Predict]:
    """HGTLoader and HGTConv."""
    target, whole = side.target, side.whole
    model = HgtNet(whole, target, args.hidden, side.classes, args.dropout)
    size = max(32, int(whole[target].train_mask.sum()) // 16)
    batches = pyg.HGTLoader(
        side.data, [size] * 2, (target, whole[target].train_mask), batch_size=size, shuffle=True
    )

    def loss(batch: Any) -> Tensor:
        seeds = batch[target].batch_size
        out = model(batch.x_dict, batch.edge_index_dict)[:seeds]
        return F.cross_entropy(out, batch[target].y[:seeds])

    def logits() -> Tensor:
        return model(whole.x_dict, whole.edge_index_dict)

    return training(model, args, lambda: map(loss, batches), logits)


def with_labels(batches: Iterable[Any]) -> Iterable[Any]:
    """Batches in which a node of the training set is."""
    return (batch for batch in batches if batch.train_mask.any())


@dataclass(frozen=True)
class Kind:
    """A loader with its arguments and epochs by graph."""

    title: str
    starts: dict[str, Start]
    epochs: int


def _saint(kind: str, *arguments: int, **options: Any) -> Kind:
    start = saint(kind, *arguments, **options)
    return Kind(kind, dict.fromkeys(("cora", "citeseer"), start), 12)


KINDS = {
    "cluster": Kind("ClusterLoader", {"cora": cluster(50, 10), "citeseer": cluster(50, 10)}, 12),
    "node": _saint("GraphSAINTNodeSampler", 800, 6),
    "edge": _saint("GraphSAINTEdgeSampler", 400, 6),
    "walk": _saint("GraphSAINTRandomWalkSampler", 300, 6, walk_length=_WALK_LENGTH),
    "shadow": Kind("ShaDowKHopSampler", {"cora": shadow, "citeseer": shadow}, 8),
    "hgt": Kind("HGTLoader", {"imdb_hetero": hgt}, 6),
}


def read(path: Path) -> tuple[Any, int, str]:
    """Data of a file, the number of its classes, and the type of its labels."""
    if not path.stem.endswith("_hetero"):
        graph = load_npz(path)
        data = to_pyg(graph)
        data.x = data.x.float()
        target = data.edge_index[1]
        data.edge_weight = 1.0 / degree(target, data.num_nodes)[target]
        return data, graph.num_classes, ""
    typed, data = read_typed(path), HeteroData()
    for node_type, x in typed.x.items():
        data[node_type].x = x
    for edge_type, ends in typed.edges.items():
        data[edge_type].edge_index = ends
    data[typed.target].y = typed.y
    for part, mask in typed.masks.items():
        data[typed.target][f"{part}_mask"] = mask
    return data, typed.classes, typed.target


def measure(name: str, graph: str, args: argparse.Namespace) -> dict[str, Any]:
    """Test accuracies in percent of all seeds on both sides."""
    kind = KINDS[name]
    whole, classes, target = read(args.data / f"{graph}.npz")
    labels: Data = whole[target] if target else whole
    shared = peergraph_pyg.share(read(args.data / f"{graph}.npz")[0], device="cpu")
    settings = argparse.Namespace(**{**vars(args), "epochs": args.epochs or kind.epochs})
    row: dict[str, Any] = {"loader": kind.title, "graph": graph, "store": [], "pyg": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.seeds):
            for side, data in (("store", shared), ("pyg", whole)):
                torch.manual_seed(seed)
                step, predict = kind.starts[graph](
                    Side(data, whole, classes, Path(folder), target), settings
                )
                row[side].append(best_test(settings, step, predict, labels))
    peergraph_pyg.store_of(shared).close()
    return row


def main() -> None:
    options = parser(__doc__, seeds=10, epochs=None, eval_every=3)
    options.add_argument("--data", type=Path, required=True, help="folder of the .npz files")
    options.add_argument(
        "--kinds", type=words_of(KINDS), default=list(KINDS), help=", ".join(KINDS)
    )
    options.add_argument("--graphs", type=words, help="default: all")
    options.add_argument("--records", type=Path, help="JSON lines are appended there")
    args = options.parse_args()
    if not torch_geometric.typing.WITH_TORCH_SPARSE:
        options.error("plain PyG needs torch-sparse: pip install torch-scatter torch-sparse")
    lines = []
    for name in args.kinds:
        for graph in KINDS[name].starts:
            if args.graphs is not None and graph not in args.graphs:
                continue
            start = time.perf_counter()
            row = measure(name, graph, args)
            seconds = round(time.perf_counter() - start)
            print(json.dumps({**row, "seconds": seconds}), file=sys.stderr, flush=True)
            append_records(args.records, [row])
            sides = row["store"], row["pyg"]
            lines.append([f"`{row['loader']}`", graph, *map(spread, sides), difference(*sides)])
    head = ["loader", "graph", "store", "plain PyG", "difference"]
    publish("loaders", args, head, lines, "torch-geometric", texts=2)


if __name__ == "__main__":
    main()
