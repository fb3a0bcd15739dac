"""Trains R-GAT on the shape of MLPerf's R-GAT (IGBH): PyG's model and unmodified NeighborLoader.

    python benchmarks/rgat.py --world 4 --graph full.371 --batches 512,1024 --deadline 1500
    python benchmarks/rgat.py --world 2 --batches 512,2048 --captured
    python benchmarks/rgat.py --relations 1,8,40,237 --fanouts 15,10 --batches 512

The graph is made on the GPUs (rgat_shape/graph.py): node and edge types, their numbers and 1024
columns as in IGBH, or a share of it; features, labels and edges are random. Times of the loader
alone, of training on batches in memory, and of both together, with Peergraph's layers and PyG's;
and of captured steps.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import torch
from harness.common import integers, main, parser
from harness.ranks import Session
from rgat_shape.graph import GRAPHS, TypedGraph, of_relations
from rgat_shape.measuring import DTYPES, WAYS, run_batch
from rgat_shape.models import LAYERS, MODELS
from rgat_shape.source import make_source

from peergraph.memory import measure_topology
from peergraph.store import PlacementOptions, Store

# What --placement means: rows spread evenly over the GPUs; those that are read most on every GPU,
# by measured links, in the memory that --reserve-gib leaves; what users get who choose nothing.
PLACEMENTS = ("uniform", "hot", "auto")
ROWS = ("int8", "float8_e4m3", "float16", "bfloat16", "float32")

RECORD = """\
the record, of MLPerf Training v4.1 (closed, R-GAT on IGBH-full, float8 rows, from the logs):
  Dell,   4 x H100, 2048 seeds a GPU, rows in host memory: 111.8 ms a step,  73,257 seeds/s
  NVIDIA, 8 x H200, 2048 seeds a GPU, rows in GPU memory:   78.9 ms a step, 207,751 seeds/s
The lines above are times on the shape of MLPerf's R-GAT: the same model, fanouts and widths on a
random graph with the numbers of a part of IGBH. They are no result of MLPerf."""


def build(session: Session, graph: TypedGraph) -> Store:
    """Generates the graph on the GPUs and builds its store. Collective."""
    args = session.args
    dtype = torch.float32 if args.rows == "float32" else DTYPES[args.precision]
    with session.stage(f"edges of {graph.name}"):
        source = make_source(graph, session.rank, session.world, session.device, dtype, args.rows)
    if session.device.type == "cuda":
        torch.cuda.empty_cache()
    options: PlacementOptions = {"plan": "sharded" if args.placement == "uniform" else "auto"}
    if session.device.type == "cuda" and args.placement == "hot":
        with session.stage("links measured"):
            options["topology"] = measure_topology(session.group)
        free, _ = torch.cuda.mem_get_info(session.device)
        options["memory_budget"] = max(0, free - int(args.reserve_gib * 2**30))
    with session.stage("store built"):
        store = Store.build(source, group=session.group, progress=False, **options)
        del source
    if session.device.type == "cuda":
        torch.cuda.empty_cache()
    if session.rank == 0:
        print(store.plan, flush=True)
        device = sum(store.memory().device_bytes(r) for r in range(session.world))
        print(f"store: {device / 2**30:.1f} GiB on the GPUs", flush=True)
    return store


def run(session: Session) -> None:
    args = session.args
    graphs = [GRAPHS[args.graph]] if args.relations is None else map(of_relations, args.relations)
    for whole in graphs:
        graph = whole.scaled(args.scale)
        if args.columns is not None:
            graph = replace(graph, columns=args.columns)
        with session.section(graph.name), build(session, graph) as store:
            for batch in args.batches:
                with session.section(f"{batch} seeds", batch=batch):
                    run_batch(session, store, graph, batch)


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "")
    result.add_argument("--graph", choices=list(GRAPHS), default="half-medium")
    result.add_argument("--scale", type=float, default=1.0, help="of nodes and edges")
    result.add_argument("--columns", type=int, help="of the features; default: the graph's")
    result.add_argument("--relations", type=integers, help="the loader on graphs of N relations")
    result.add_argument("--batches", type=integers, default="1024", help="seeds on each GPU")
    result.add_argument("--fanouts", type=integers, default="15,10,5", help="by edge type")
    result.add_argument("--model", choices=list(MODELS), default="rgat")
    result.add_argument("--hidden", type=int, default=512)
    result.add_argument("--layers", choices=list(LAYERS), default="accelerated")
    result.add_argument("--placement", choices=PLACEMENTS, default="uniform")
    result.add_argument("--reserve-gib", type=float, default=30.0, help="for the model, with hot")
    result.add_argument("--rows", choices=ROWS, default="int8", help="storage of the features")
    result.add_argument("--precision", choices=list(DTYPES), default="bfloat16")
    direction = result.add_mutually_exclusive_group()
    direction.add_argument("--backward", dest="inference", action="store_false", help="train")
    direction.add_argument("--inference", action="store_true", help="evaluate, without gradients")
    result.add_argument(
        "--features",
        choices=WAYS,
        default="stored",
        help="of batches: decoded by the loader, gathered as they are stored, or left in the store",
    )
    result.add_argument("--held", type=int, default=2, help="batches in memory")
    result.add_argument("--prefetch", type=int, help="batches ahead; default: the loader's")
    result.add_argument("--captured", action="store_true", help="also train in CUDA graphs")
    result.add_argument("--profile", action="store_true", help="kernels of one step")
    result.add_argument("--verbose", action="store_true", help="rows and edges by type")
    result.set_defaults(inference=False)
    return result


if __name__ == "__main__":
    code = main("rgat", run, arguments(), peers=())
    print(RECORD)
    sys.exit(code)
