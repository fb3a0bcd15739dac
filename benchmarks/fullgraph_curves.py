"""Losses of full-graph training beside those of PyG and DGL in one process, epoch by epoch.

    python benchmarks/fullgraph_curves.py --data FOLDER --worlds 1,2,3,4 --device cpu
        --graphs cora,imdb,imdb_merged --out curves.jsonl --table curves.md

The script of one process trains each model with plain PyG or DGL, then on ranks, on the graph that
`full_graph` has partitioned, with layers that `accelerate` has swapped. The table has the greatest
difference of any epoch's loss, relative to that loss, by number of ranks. Dropout, where there is
any, has the same masks in both: plain tensors get them within `keyed_random`. `other order` is
plain training with its edges in another order, so what rounding alone does. A difference above
1e-6 in float64 or 3e-4 in float32 fails, unless rounding alone does a fourth of it, as it does
where losses go to zero. What `--out` has is not trained again: a run that was cut off goes on
where it ended. Graphs: `made` and `made_typed`, small ones of hashed numbers; others are
files of `--data`: `NAME` of one type, `NAME` of several, and `NAME_merged`, the same with types of
edges alone. DGL trains on the CPU where its build knows no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import torch
from curves.training import (
    DTYPES,
    FRAMEWORKS,
    MODELS,
    Curve,
    applies,
    partitioned_losses,
    plain_losses,
)
from harness.common import add_worlds, by_world, parser, words, words_of
from harness.markdown import table
from harness.ranks import Session, launch
from harness.records import Record, read_records
from inputs.real_graphs import (
    RealGraph,
    make_labelled,
    make_typed,
    merge_types,
    read_labelled,
    read_typed,
)

TOLERANCES = {"float64": 1e-6, "float32": 3e-4}
_ROUNDINGS = 4
PLAIN, OTHER_ORDER = "plain", "plain, other order"
_MADE = {"made": make_labelled, "made_typed": make_typed}


def read_graph(name: str, folder: Path | None) -> RealGraph:
    """A graph by name; see the module."""
    if name in _MADE:
        return _MADE[name]()
    if folder is None:
        raise ValueError(f"graph {name!r} needs --data; without it there are {', '.join(_MADE)}")
    base = name.removesuffix("_merged")
    paths = [folder / f"{base}.npz", folder / f"{base}_hetero.npz"]
    if paths[0].exists():
        return read_labelled(paths[0])
    graph = read_typed(paths[1])
    return graph if base == name else merge_types(graph)


def cases(args: argparse.Namespace) -> list[tuple[str, RealGraph, Curve]]:
    """All that is trained: float64 and float32 without dropout, float64 with it."""
    curves = []
    for name in args.graphs:
        graph = read_graph(name, args.data)
        for framework in args.frameworks:
            for model in args.models:
                if not applies(model, graph):
                    continue
                for dtype in args.dtypes:
                    for dropout in (0.0, args.dropout)[: 1 + (dtype == "float64")]:
                        curve = Curve(framework, model, dtype, dropout, args.epochs)
                        curves.append((name, graph, curve))
    return curves


def run(session: Session) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    is_plain = session.args.is_plain
    for name, graph, curve in cases(session.args):
        fields = {**vars(curve), "graph": name}
        last = session.world if not is_plain else OTHER_ORDER
        if is_plain and curve.dtype != "float32":
            last = PLAIN
        if (*(fields[key] for key in _CASE), last) in session.args.recorded:
            continue
        with session.section(" ".join(map(str, fields.values())), **fields):
            if not is_plain:
                losses = partitioned_losses(curve, graph, session.group)
                session.recorder.note(system="peergraph", losses=losses, **fields)
                continue
            losses = plain_losses(curve, graph, session.device)
            session.recorder.note(system=PLAIN, losses=losses, **fields)
            if curve.dtype == "float32":
                losses = plain_losses(curve, graph.shuffled(), session.device)
                session.recorder.note(system=OTHER_ORDER, losses=losses, **fields)


_CASE = ("framework", "model", "graph", "dtype", "dropout", "epochs")


def _way(record: Record) -> object:
    """The number of ranks, or which plain training."""
    return record["world"] if record["system"] == "peergraph" else record["system"]


def summarise(records: list[Record]) -> tuple[str, list[str]]:
    """Returns a table in Markdown, and what is out of tolerance."""
    curves: dict[tuple[object, ...], dict[object, list[float]]] = {}
    for record in records:
        case = tuple(record[key] for key in _CASE)
        curves.setdefault(case, {})[_way(record)] = record["losses"]
    worlds = sorted({way for of_case in curves.values() for way in of_case if isinstance(way, int)})
    heads = [*_CASE, "loss", "other order"]
    heads += [f"{world} rank{'s' if world > 1 else ''}" for world in worlds]
    lines, faults = [], []
    for case, of_case in curves.items():
        if PLAIN not in of_case:
            continue
        plain = of_case[PLAIN]
        cells = [*map(str, case), f"{plain[0]:.4f} to {plain[-1]:.4f}"]
        rounding = greatest_difference(of_case.get(OTHER_ORDER, plain), plain)
        allowed = max(TOLERANCES[str(case[3])], _ROUNDINGS * rounding)
        for way in (OTHER_ORDER, *worlds):
            losses = of_case.get(way)
            if losses is None:
                cells.append("")
                continue
            difference = greatest_difference(losses, plain)
            cells.append(f"{difference:.1e}")
            if way != OTHER_ORDER and not difference <= allowed:
                faults.append(f"{case} on {way} ranks: {difference:.1e}")
        lines.append(cells)
    return "\n".join(table(heads, lines, texts=5)), faults


def greatest_difference(losses: list[float], plain: list[float]) -> float:
    """Of any epoch, relative to plain training's loss."""
    return max(abs(a - b) / abs(b) for a, b in zip(losses, plain, strict=True))


def launches(args: argparse.Namespace) -> Iterable[argparse.Namespace]:
    """Plain training, then one launch for each number of ranks."""
    args.is_plain = True
    yield argparse.Namespace(**{**vars(args), "world": 1})
    args.is_plain = False
    yield from by_world(args)


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "")
    result.add_argument("--data", type=Path, help="folder of files of labelled graphs")
    result.add_argument("--graphs", type=words, default="made,made_typed")
    result.add_argument("--frameworks", type=words_of(FRAMEWORKS), default="pyg,dgl")
    result.add_argument("--models", type=words_of(MODELS), default=",".join(MODELS))
    result.add_argument("--dtypes", type=words_of(DTYPES), default="float64,float32")
    result.add_argument("--dropout", type=float, default=0.5)
    result.add_argument("--epochs", type=int, default=50)
    add_worlds(result, (1, 2, 3, 4), worlds="" if torch.cuda.is_available() else "1,2,3,4")
    result.add_argument("--table", type=Path, help="file for the table, Markdown")
    return result


def main() -> int:
    args = arguments().parse_args()
    args.bench = "fullgraph_curves"
    if args.out is None:
        arguments().error("--out: needed, a file for the losses")
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.touch()
    before = [record for record in read_records(out) if "losses" in record]
    args.recorded = {(*(record[key] for key in _CASE), _way(record)) for record in before}
    offset = out.stat().st_size
    code = max(launch(run, launched) for launched in launches(args))
    records = [*before, *read_records(out, offset)]
    errors = [record["error"] for record in records if "error" in record]
    text, faults = summarise([record for record in records if "losses" in record])
    print(text)
    if args.table is not None:
        args.table.write_text(text)
    for fault in (*errors, *faults):
        print("FAILED:", fault, file=sys.stderr)
    return code or int(bool(errors or faults))


if __name__ == "__main__":
    sys.exit(main())
