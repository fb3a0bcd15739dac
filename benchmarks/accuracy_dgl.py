"""Accuracy of DGL's scripts: on a shared graph with Peergraph's layers, against plain DGL.

    python benchmarks/accuracy_dgl.py --data FOLDER --records CPU.json \
        --out docs/benchmarks/accuracy.md
    python benchmarks/accuracy_dgl.py --data FOLDER --device cuda --plain CPU.json --ranks 1,2,4

Each kind of script (nodes, in DDP, links, several types, GraphBolt) runs twice for each seed, with
the same code, hyperparameters and initial weights: on DGL's own graph, sampled and computed by DGL
on the CPU, and on what `peergraph_dgl.share` makes of it. The folder has graphs in the format of
`inputs/npz_graphs.py`, and those of several types likewise, with names before a dot.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peergraph_dgl

# isort: split

import torch
import torch.distributed as dist
from dgl_scripts import graphs as dgl_graphs
from dgl_scripts import tasks as dgl_tasks
from dgl_scripts.tasks import Settings, Side, Training
from harness.accuracy import add_page, difference, publish, spread
from harness.common import integers, words_of

from peergraph.testing import run_ranks

_TIMEOUT = 3600.0


@dataclass(frozen=True)
class Kind:
    """One kind of script; epochs and batch by graph: small ones take more of small batches."""

    title: str
    train: Training
    load: dgl_graphs.Load
    schedules: Mapping[str, tuple[int, int]]
    distributed: bool = False
    dropout: float = 0.5


_NODES = {"cora": (20, 32), "amazon_photo": (6, 256)}
KINDS = {
    "nodes": Kind("nodes", dgl_tasks.nodes, dgl_graphs.labelled, _NODES),
    "ddp": Kind("nodes, DDP", dgl_tasks.nodes, dgl_graphs.labelled, _NODES, distributed=True),
    "links": Kind(
        "links (AUC)",
        dgl_tasks.links,
        dgl_graphs.with_held_out_edges,
        {"cora": (10, 256), "amazon_photo": (2, 4096)},
    ),
    "types": Kind(
        "several types",
        dgl_tasks.types,
        dgl_graphs.typed,
        {"imdb_hetero": (16, 64), "debian_hetero": (2, 512)},
        dropout=0.2,
    ),
    "graphbolt": Kind("GraphBolt", dgl_tasks.graphbolt, dgl_graphs.labelled, _NODES),
}


def main() -> None:
    args = parse_arguments()
    records, plain = _read(args.records), _read(args.plain)
    lines = []
    for name, graph, ranks in cases(args):
        key = f"{name} {graph} {ranks}"
        if key not in records:
            start = time.perf_counter()
            records[key] = measure(name, graph, ranks, args, plain.get(key))
            seconds = time.perf_counter() - start
            print(*line(records[key]), f"{seconds:.0f} s", file=sys.stderr, flush=True)
            if args.records is not None:
                args.records.write_text(json.dumps(records))
        lines.append(line(records[key]))
    head = ["script", "graph", "nodes", "edges", "store", "plain DGL", "difference"]
    publish("dgl" if args.device == "cpu" else "dgl_gpu", args, head, lines, "dgl", texts=2)


def _read(path: Path | None) -> dict[str, Any]:
    return json.loads(path.read_text()) if path is not None and path.exists() else {}


def cases(args: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Kind, graph and ranks of each row."""
    for name in args.kinds:
        for graph in KINDS[name].schedules:
            for ranks in args.ranks if KINDS[name].distributed else [1]:
                yield name, graph, ranks


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the .npz files")
    parser.add_argument("--kinds", type=words_of(KINDS), default=list(KINDS), help=", ".join(KINDS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="of all graphs; default: by graph")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--fanout", type=int, default=10, help="of both hops")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of Peergraph")
    parser.add_argument("--ranks", type=integers, default=[2], help="of DDP")
    parser.add_argument("--records", type=Path, help="rows are kept there, and not made again")
    parser.add_argument(
        "--plain", type=Path, help="records of another run: its scores of plain DGL are taken"
    )
    add_page(parser)
    return parser.parse_args()


def measure(
    name: str, graph: str, ranks: int, args: argparse.Namespace, before: dict[str, Any] | None
) -> dict[str, Any]:
    """Scores of all seeds on both sides; several ranks are processes of their own.

    Plain DGL's are those of the row `known` if there is one of as many seeds.
    """
    kind = KINDS[name]
    epochs, batch = kind.schedules[graph]
    settings = Settings(
        epochs=args.epochs or epochs,
        batch=max(1, batch // ranks),
        hidden=args.hidden,
        fanouts=[args.fanout] * 2,
        lr=0.01,
        dropout=kind.dropout,
    )
    plain = before["plain"] if before is not None and len(before["plain"]) == args.seeds else None
    arguments = (name, args.data / f"{graph}.npz", settings, args.seeds, args.device, plain)
    if kind.distributed:
        measured = run_ranks(scores, ranks, *arguments, timeout_s=_TIMEOUT, device=args.device)[0]
    else:
        measured = scores(*arguments)
    return {"title": kind.title, "graph": graph, "ranks": ranks, **measured}


def scores(
    name: str,
    path: Path,
    settings: Settings,
    seeds: int,
    device: str,
    plain: list[float] | None,
) -> dict[str, Any]:
    """The work of one rank; plain DGL's scores where they are not given."""
    kind = KINDS[name]
    rank = dist.get_rank() if dist.is_initialized() else 0
    own = kind.load(path)
    shared = peergraph_dgl.share(own if rank == 0 else None, device=device)
    where = peergraph_dgl.store_of(shared).device
    sides = {"store": Side(shared, where, shared=True)}
    if plain is None:
        sides["plain"] = Side(own, torch.device("cpu"), shared=False)
    accuracies: dict[str, Any] = {"plain": plain, **{side: [] for side in sides}}
    for seed in range(seeds):
        for side, data in sides.items():
            accuracies[side].append(kind.train(data, settings, seed))
    peergraph_dgl.store_of(shared).close()
    return {**accuracies, "nodes": own.num_nodes(), "edges": own.num_edges()}


def line(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    ranks = f", {row['ranks']} ranks" if row["ranks"] > 1 else ""
    sides = row["store"], row["plain"]
    cells = [row["title"] + ranks, row["graph"], f"{row['nodes']:,}", f"{row['edges']:,}"]
    return [*cells, *map(spread, sides), difference(*sides)]


if __name__ == "__main__":
    main()
