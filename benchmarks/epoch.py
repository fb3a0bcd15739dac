"""Epochs of training scripts: plain DGL on the CPU, and Peergraph on CPU and GPU ranks, in one run.

    python benchmarks/epoch.py --graph products
    python benchmarks/epoch.py --graph papers --runs dgl:cuda:4,pyg:cuda:4

A run is SCRIPT:DEVICE:RANKS. `plain` is a DGL script on DGL's own graph: its samplers and kernels,
on all cores. `dgl` is the same script on a graph in the store, with Peergraph's layers in the
model; `pyg` is that of PyG's NeighborLoader over the same store. A step has three stages: sampling,
reading features and labels, training. Samples of `pyg` have fewer edges (see `semantics`).
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peergraph_dgl

# isort: split

import dgl
import torch
from dgl.dataloading import DataLoader, NeighborSampler
from dgl_scripts.tasks import Sage
from harness.common import PLANS, Mark, again_and_again, main, measure, parser
from harness.ranks import Session
from harness.records import read_records
from inputs.arrays import batch_nodes, fill_features, label_rows
from inputs.graphs import make_csc
from systems.systems import Case, add_arguments, build_store
from torch import Tensor
from training import Trainer, data_of, make_model

SCRIPTS = {"plain": "plain dgl", "dgl": "peergraph, dgl", "pyg": "peergraph, pyg"}
_DROPOUT = 0.5
_COUNTED = 3  # batches whose edges are counted

Next = Callable[[Mark], tuple[Any, Tensor, Tensor]]


class OfBlocks(torch.nn.Module):
    """DGL's layers over blocks, as `Trainer` calls a model."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.sage = Sage(widths, _DROPOUT)

    def forward(self, x: Tensor, blocks: list[Any]) -> Tensor:
        return self.sage(blocks, x)


def make(widths: list[int], script: str) -> torch.nn.Module:
    """The model of a script."""
    if script == "pyg":
        return make_model(widths, "accelerated")
    model = OfBlocks(widths)
    return peergraph_dgl.accelerate(model) if script == "dgl" else model


def dgl_batches(session: Session, g: Any, case: Case) -> Next:
    """Batches of DGL's loader; it is one script, whatever the graph is."""
    nodes = _training_nodes(session, 0, 1)
    loader = DataLoader(
        g,
        nodes,
        NeighborSampler(case.fanouts[::-1]),
        device=session.device,
        batch_size=min(case.batch, nodes.numel() // session.world),
        shuffle=True,
        drop_last=True,
        use_ddp=session.world > 1,
        num_workers=session.args.workers,
    )
    batches = again_and_again(loader)

    def following(mark: Mark) -> tuple[Any, Tensor, Tensor]:
        _, _, blocks = next(batches)
        mark("sample")
        x, y = blocks[0].srcdata["x"], blocks[-1].dstdata["y"]
        mark("gather")
        return blocks, x, y

    return following


def pyg_batches(session: Session, data: Any, case: Case) -> Next:
    """Batches of PyG's loader, made in two calls of it."""
    # DGL's scripts do without PyG.
    from torch_geometric.loader import NeighborLoader

    nodes = _training_nodes(session, session.rank, session.world)
    loader = NeighborLoader(
        data,
        num_neighbors=case.fanouts,
        batch_size=min(case.batch, nodes.numel()),
        input_nodes=nodes,
        shuffle=True,
        drop_last=True,
        filter_per_worker=False,
    )
    indices = again_and_again(loader.batch_sampler)

    def following(mark: Mark) -> tuple[Any, Tensor, Tensor]:
        sample = loader.collate_fn(next(indices))
        mark("sample")
        batch = loader.filter_fn(sample)
        mark("gather")
        return batch, batch.x, batch.y[: batch.batch_size]

    return following


def _training_nodes(session: Session, rank: int, world: int) -> Tensor:
    spec = session.args.graph
    return batch_nodes(spec, 0, spec.train_nodes // world, rank, world, torch.device("cpu"))


def plain_graph(session: Session) -> Any:
    """The benchmark's graph as DGL's own, with all data, on the CPU."""
    spec = session.args.graph
    with session.stage(f"{spec.name}: DGL graph made"):
        indptr, indices = make_csc(spec, "cpu", index_dtype=torch.int64)
        g = dgl.graph(("csc", (indptr, indices, [])), num_nodes=spec.num_nodes)
        rows = torch.empty(spec.num_nodes, session.args.feature_dim)
        g.ndata["x"] = fill_features(0, rows)
        g.ndata["y"] = label_rows(torch.arange(spec.num_nodes), spec.num_classes)
    return g


def time_case(session: Session, following: Next, case: Case) -> None:
    """Times steps of a script and records them. Collective."""
    trainer = Trainer(session, len(case.fanouts), session.args.script, make)

    def step(_: int, mark: Mark) -> None:
        batch, x, y = following(mark)
        trainer.step(x, batch, y)
        mark("train")

    timing = measure(session, step)
    edges = [_num_edges(following(lambda _: None)[0]) for _ in range(_COUNTED)]
    case.fields["edges"] = sum(edges) / len(edges)
    reference = session.args.plain_epoch_s.get(case.fields["fanout"], {}).get(case.batch)
    if reference is not None:
        wall_ms = max(session.group.all_gather(timing.wall_ms))
        steps = -(-session.args.graph.train_nodes // (case.batch * session.world))
        case.fields["over_plain"] = steps * wall_ms / 1e3 / reference
    trainer.finish(session, timing, case)


def _num_edges(batch: Any) -> int:
    if isinstance(batch, list):
        return sum(block.num_edges() for block in batch)
    return int(batch.num_edges)


def run(session: Session) -> None:
    """One run on its ranks."""
    args = session.args
    dgl.utils.set_num_threads(max(1, (os.cpu_count() or 1) // session.world))
    plan = None if args.script == "plain" else args.plans[0]
    with session.section(f"{args.script} {args.device}", system=SCRIPTS[args.script], plan=plan):
        store = None
        if plan is None:
            source, batches = plain_graph(session), dgl_batches
        else:
            store = build_store(session, plan, args.feature_dim, labels=True)
            if args.script == "pyg":
                source, batches = data_of(store), pyg_batches
            else:
                source, batches = peergraph_dgl.from_store(store), dgl_batches
        for fanouts, batch in args.cases:
            fields = {
                "system": SCRIPTS[args.script],
                "plan": plan,
                "semantics": "pyg" if args.script == "pyg" else "dgl",
                "graph": args.graph.name,
                "fanout": "-".join(map(str, fanouts)),
                "batch": batch,
            }
            case = Case(fanouts, batch, [], fields)
            with session.section(" ".join(map(str, fields.values())), **fields):
                time_case(session, batches(session, source, case), case)
        if store is not None:
            store.close()


def launches(args: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """The arguments of each run; later ones know how long plain DGL's epoch took."""
    start = time.perf_counter()
    path = Path(args.out)
    offset = path.stat().st_size
    for script, device, world in args.runs or _all_runs(args.world):
        options = copy.copy(args)
        options.script, options.device, options.world = script, device, world
        options.deadline = args.deadline - (time.perf_counter() - start)
        options.plain_epoch_s = {}
        for record in read_records(path, offset):
            if record["system"] == SCRIPTS["plain"] and "epoch_s" in record:
                cases = options.plain_epoch_s.setdefault(record["fanout"], {})
                cases[record["batch"]] = record["epoch_s"]
        yield options


def _all_runs(most: int) -> list[tuple[str, str, int]]:
    gpus = min(most, torch.cuda.device_count())
    counts = [count for count in (1, 2, 4, 8) if count <= gpus]
    on_gpus = itertools.product(("dgl",), ("cuda",), counts)
    return [("plain", "cpu", 1), ("dgl", "cpu", 1), ("dgl", "cpu", 2), *on_gpus]


def _runs(text: str) -> list[tuple[str, str, int]]:
    runs = []
    for word in text.split(","):
        script, device, world = word.split(":")
        if script not in SCRIPTS or device not in ("cpu", "cuda") or int(world) < 1:
            raise argparse.ArgumentTypeError(f"{word}: expected plain|dgl|pyg:cpu|cuda:RANKS")
        if script == "plain" and (device, world) != ("cpu", "1"):
            raise argparse.ArgumentTypeError("plain DGL runs as plain:cpu:1")
        if device == "cuda" and int(world) > torch.cuda.device_count():
            raise argparse.ArgumentTypeError(f"{word}: {torch.cuda.device_count()} GPUs are there")
        runs.append((script, device, int(world)))
    return runs


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], PLANS, "sharded", graph="products")
    add_arguments(result, case_list="15-10-5:1024")
    result.add_argument(
        "--runs",
        type=_runs,
        help="SCRIPT:DEVICE:RANKS,...; default: plain DGL, 1 and 2 CPU ranks, up to --world GPUs",
    )
    result.add_argument("--feature-dim", type=int, default=128, help="float32 a node")
    result.add_argument("--hidden", type=int, default=256)
    result.add_argument("--workers", type=int, default=0, help="of DGL's loaders")
    result.set_defaults(iterations=100_000, budget=8.0)
    return result


if __name__ == "__main__":
    sys.exit(main("epoch", run, arguments(), peers=(), launches=launches))
