"""Samples on the CPU beside NumPy's, for machines that are shared with other work.

    python benchmarks/sampling_cpu.py --graph products/10 --threads 1,2 --rounds 20

Both take turns, batch by batch, so that others disturb both alike. Tables show the least and the
median time of a batch and the least CPU time, of all threads together, which others disturb least.
`ratio` is NumPy's over Peergraph's; `cpu_ratio` that of the CPU times on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness.common import cases, integers
from harness.records import render
from inputs.arrays import batch_nodes
from inputs.graphs import GraphSpec, get_spec, make_csc
from systems.numpy_sampler import NumpySampler

from peergraph.sampling import NeighborSampler
from peergraph.store import EDGE, EdgeSource, GraphSource, Store

_SEED_SETS = 8
_WARMUP = 2
_CASES = "15-10-5:512,15-10-5:1024,15-10-5:6000,10-25:512,10-25:1024,10-25:6000,30-30-30:512"
_COLUMNS = ["graph", "fanout", "batch", "edges", "threads", "ms", "ms_median", "cpu_ms"]
_COLUMNS += ["numpy_ms", "numpy_median", "numpy_cpu", "ratio", "ratio_median", "cpu_ratio"]


def cpu_seconds() -> float:
    """Of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def in_turns(
    systems: dict[str, Callable[[int], object]], rounds: int
) -> dict[str, tuple[float, float, float]]:
    """Least and median milliseconds of a call, and least CPU milliseconds."""
    wall: dict[str, list[float]] = {name: [] for name in systems}
    cpu: dict[str, list[float]] = {name: [] for name in systems}
    for step in range(_WARMUP + rounds):
        for name, call in systems.items():
            cpu_before, before = cpu_seconds(), time.perf_counter()
            call(step)
            if step >= _WARMUP:
                wall[name].append(1e3 * (time.perf_counter() - before))
                cpu[name].append(1e3 * (cpu_seconds() - cpu_before))
    return {
        name: (min(wall[name]), statistics.median(wall[name]), min(cpu[name])) for name in systems
    }


def measure_case(
    spec: GraphSpec,
    store: Store,
    csc: tuple[torch.Tensor, torch.Tensor],
    case: tuple[list[int], int],
    threads: int,
    rounds: int,
) -> dict[str, Any]:
    """One fanout and batch size, with PyG's kind of samples on both sides."""
    fanouts, batch = case
    device = torch.device("cpu")
    seeds = [batch_nodes(spec, i, batch, 0, 1, device).to(torch.int64) for i in range(_SEED_SETS)]
    ours = NeighborSampler(store, fanouts)
    peer = NumpySampler(csc[0].numpy(), csc[1].numpy(), fanouts)
    torch.set_num_threads(threads)
    times = in_turns(
        {
            "peergraph": lambda i: ours.sample(seeds[i % _SEED_SETS], seed=i),
            "numpy": lambda i: peer.sample(seeds[i % _SEED_SETS].numpy(), i),
        },
        rounds,
    )
    edges = [ours.sample(ids, seed=i).row[EDGE].numel() for i, ids in enumerate(seeds)]
    least, median, cpu = times["peergraph"]
    peer_least, peer_median, peer_cpu = times["numpy"]
    return {
        "graph": spec.name,
        "fanout": "-".join(map(str, fanouts)),
        "batch": batch,
        "edges": statistics.mean(edges),
        "threads": threads,
        "ms": least,
        "ms_median": median,
        "cpu_ms": cpu,
        "numpy_ms": peer_least,
        "numpy_median": peer_median,
        "numpy_cpu": peer_cpu,
        "ratio": peer_least / least,
        "ratio_median": peer_median / median,
        "cpu_ratio": peer_cpu / cpu,
        "load": os.getloadavg()[0],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--graph", type=get_spec, default="products/10", help="NAME/DIVISOR")
    parser.add_argument("--threads", type=integers, default="1,2", help="of Peergraph")
    parser.add_argument("--cases", type=cases, default=_CASES, help="FANOUTS:BATCH,...")
    parser.add_argument("--rounds", type=int, default=20, help="batches of each system")
    parser.add_argument("--out", default=None, help="file that JSON lines are appended to")
    args = parser.parse_args()
    csc = make_csc(args.graph, "cpu")
    source = GraphSource.homogeneous(args.graph.num_nodes, EdgeSource(csc=csc), {})
    rows = []
    with Store.build(source, plan="replicated") as store:
        for case in args.cases:
            for threads in args.threads:
                row = measure_case(args.graph, store, csc, case, threads, args.rounds)
                print(json.dumps(row), file=sys.stderr, flush=True)
                rows.append(row)
    print(render("sampling_cpu", rows, _COLUMNS))
    if args.out:
        with Path(args.out).open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
