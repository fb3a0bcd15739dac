"""Training of graphs larger than GPU memory, beside HongTu's tables.

    python benchmarks/offload.py --parts duplication --graphs it-2004,papers100m,friendster
    python benchmarks/offload.py --parts epochs --graphs papers100m/4 --models GCN:0-128-128-0
        --budgets 35G --host 32G --worlds 1 --figures pictures

Graphs are synthetic, of published sizes and with published duplication factors
(`inputs/local_graphs.py`); NAME/D has 1/D of the nodes and edges. An epoch is forward, cross
entropy over the training nodes, backward and Adam, in float32 without TF32.

- `duplication`: how many parts need the same row, and what deduplication saves (Tables 3 and 8);
  one rank, by counting.
- `epochs`: epochs of each model and budget, as the planner decides; `--resident` adds the same
  without offloading (Tables 5 to 7, Figure 11).
- `switches`: epochs without deduplication, with that between ranks, that between batches too, and
  with chunks in the order that shares most rows (Tables 8 and 9, Figure 9).
- `chunks`: epochs in 1, 2, 3 and 4 times as many chunks (Figure 10).
- `inference`: the rows of all nodes with a GraphSAGE of the widths of each model, trained for
  `--epochs`, beside PyG's layer-wise inference.
- `accuracy`: validation and test accuracy of 100 epochs of each model on the labelled graphs of
  `--data`, beside PyG's (Figure 8); with no other part, `--graphs` is not used.

In `switches` and `chunks` all rows of nodes are on the host, as HongTu's are. `--chunks paper` cuts
a graph in as many chunks as HongTu does, all GPUs together.

`first_s` is the first epoch, which makes what later ones reuse; `build_s` the preparation,
`rows_s` that of the features, `lists_s` that of the lists of rows that travel; `from_host_gb`,
`to_host_gb` and `to_ranks_gb` are counted bytes of rank 0 in an epoch; `peak_gib` is the most that
torch allocates on a rank, `driver_gib` what the driver has given out, context included.
`--parts-of-epoch` adds the milliseconds in which the GPU copies and computes, by torch's profiler.
Runs of the same graph, widths, budget and chunks share one preparation. `--figures FOLDER` writes
the tables as Markdown and SVG pictures beside HongTu's figures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from harness.common import add_worlds, by_world, main, parser, words, words_of
from harness.ranks import Session
from offloading.accuracy import measure_accuracy
from offloading.data import Data
from offloading.duplication import measure_duplication
from offloading.inference import infer
from offloading.models import KINDS
from offloading.published import CHUNKS
from offloading.report import write_report
from offloading.training import SWITCHES, Run, train

from peergraph.cli.arguments import byte_count

_PARTS = ("duplication", "epochs", "switches", "chunks", "inference", "accuracy")
_TIMES_CHUNKS = (1, 2, 3, 4)
_CHUNKS = 8  # of each rank, where nobody says how many
_GPUS = 4  # of HongTu


def models(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """``GCN:0-128-0,GAT:0-128-0``; 0 stands for the graph's features or classes."""
    parsed = []
    for word in words(text):
        kind, _, widths = word.partition(":")
        numbers = widths.split("-")
        if kind not in KINDS or len(numbers) < 2 or not all(n.isdigit() for n in numbers):
            kinds = ", ".join(KINDS)
            raise argparse.ArgumentTypeError(f"{word!r} is not KIND:WIDTH-...-WIDTH, of {kinds}")
        parsed.append((kind, tuple(map(int, numbers))))
    return parsed


def budgets(text: str) -> list[int | None]:
    """``80G,free``."""
    return [None if word == "free" else byte_count(word) for word in words(text)]


def chunks(text: str) -> int | str:
    """Parses `--chunks`: a number of chunks of each rank, or ``paper`` for HongTu's numbers."""
    return text if text == "paper" else int(text)


def num_chunks(args: argparse.Namespace, graph: str, kind: str) -> int | None:
    """Chunks of each rank; None: as planned."""
    if args.chunks != "paper":
        return args.chunks  # type: ignore[no-any-return]
    of_graph = CHUNKS.get(graph.partition("/")[0], {})
    each = of_graph.get("GAT" if kind == "GAT" else "GCN", _CHUNKS)
    return max(1, each * _GPUS // args.world)


def runs(args: argparse.Namespace, graph: str) -> Iterable[Run]:
    """What is trained on a graph."""
    for kind, widths in args.models:
        count = num_chunks(args, graph, kind)
        for budget in args.budgets:
            base = Run(graph, kind, widths, budget=budget, host=args.host, chunks=count,
                       heads=args.heads)  # fmt: skip
            if "epochs" in args.parts:
                if args.resident and budget is args.budgets[0]:
                    yield replace(base, budget=None, chunks=None, offload=False)
                yield replace(base, offload=True if args.offload else None)
            streamed = replace(base, offload=True, streamed=True)
            if "switches" in args.parts:
                for switches in SWITCHES:
                    # One rank passes no rows on.
                    if args.world > 1 or switches != "between ranks":
                        yield replace(streamed, switches=switches, part="switches")
            if "chunks" in args.parts:
                for times in _TIMES_CHUNKS:
                    yield replace(streamed, chunks=times * (count or _CHUNKS), part="chunks")


def run(session: Session) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    args = session.args
    if "accuracy" in args.parts:
        for path in args.data:
            for kind, widths in args.models:
                measure_accuracy(session, Path(path), kind, widths, args.heads)
    for name in args.graphs if args.parts != ["accuracy"] else ():
        if "duplication" in args.parts and session.world == 1:
            with session.section(f"duplication {name}", part="duplication", graph=name):
                measure_duplication(session, name)
        if args.parts == ["duplication"]:
            continue
        data = Data(session, name, args.features)
        train(session, data, runs(args, name), is_last="inference" not in args.parts)
        if "inference" in args.parts:
            for _, widths in args.models:
                for budget in args.budgets:
                    offload = True if args.offload else None
                    infer(
                        session,
                        data,
                        Run(
                            name,
                            "SAGE",
                            widths,
                            offload,
                            budget,
                            args.host,
                            num_chunks(args, name, "SAGE"),
                        ),
                        args.epochs,
                    )
        del data
    if args.figures is not None and session.rank == 0:
        write_report(Path(args.out), Path(args.figures))


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "")
    add = result.add_argument
    add("--parts", type=words_of(_PARTS), default="epochs")
    add("--graphs", type=words, default="it-2004,papers100m,friendster")
    add("--models", type=models, default="GCN:0-128-0", help="KIND:WIDTHS; 0: the graph's")
    add("--budgets", type=budgets, default="free", help="of each rank's device, such as 80G")
    add("--host", type=byte_count, default=None, help="memory of the host for rows")
    add("--chunks", type=chunks, default=None, help="of each rank, or paper; default: as planned")
    add("--heads", type=int, default=4, help="of attention")
    add("--offload", action="store_true", help="also where the graph fits")
    add("--resident", action="store_true", help="the same without offloading, too")
    add("--epochs", type=int, default=3, help="of training before inference")
    add("--data", type=words, default="", help=".npz files of labelled graphs")
    add("--features", type=Path, metavar="FOLDER", help="features are in a file there, mapped")
    add("--parts-of-epoch", action="store_true", help="what the GPU does in an epoch")
    add_worlds(result, worlds="1")
    add("--figures", default=None, metavar="FOLDER", help="for Markdown tables and pictures")
    result.set_defaults(iterations=5, warmup=1)
    return result


if __name__ == "__main__":
    sys.exit(main("offload", run, arguments(), (), by_world))
