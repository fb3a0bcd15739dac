"""Samples on the CPU beside NumPy's, for machines that are shared with other work.

    python benchmarks/sampling_cpu.py --graph products/10 --threads 1,2 --rounds 20

Both take turns, batch by batch, so that others disturb both alike. Tables show the least and the
median time of a batch and the least CPU time, of all threads together, which others disturb least.
`ratio` is NumPy's over Peergraph's; `cpu_ratio` that of the CPU times on one core.
"""

from __future__ import annotations

import os
import statistics
from typing import Any

import torch
from harness.common import cases, integers
from harness.turns import in_turns, parser, report
from inputs.arrays import batch_nodes
from inputs.graphs import GraphSpec, get_spec, make_csc
from systems.numpy_sampler import NumpySampler

from peergraph.sampling import NeighborSampler
from peergraph.store import EDGE, EdgeSource, GraphSource, Store

_SEED_SETS = 8
_CASES = "15-10-5:512,15-10-5:1024,15-10-5:6000,10-25:512,10-25:1024,10-25:6000,30-30-30:512"
_COLUMNS = ["graph", "fanout", "batch", "edges", "threads", "ms", "ms_median", "cpu_ms"]
_COLUMNS += ["numpy_ms", "numpy_median", "numpy_cpu", "ratio", "ratio_median", "cpu_ratio"]


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
    own, numpy = times["peergraph"], times["numpy"]
    return {
        "graph": spec.name,
        "fanout": "-".join(map(str, fanouts)),
        "batch": batch,
        "edges": statistics.mean(edges),
        "threads": threads,
        "ms": own.least,
        "ms_median": own.median,
        "cpu_ms": own.least_cpu,
        "numpy_ms": numpy.least,
        "numpy_median": numpy.median,
        "numpy_cpu": numpy.least_cpu,
        "ratio": numpy.least / own.least,
        "ratio_median": numpy.median / own.median,
        "cpu_ratio": numpy.least_cpu / own.least_cpu,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--graph", type=get_spec, default="products/10", help="NAME/DIVISOR")
    options.add_argument("--threads", type=integers, default="1,2", help="of Peergraph")
    options.add_argument("--cases", type=cases, default=_CASES, help="FANOUTS:BATCH,...")
    args = options.parse_args()
    csc = make_csc(args.graph, "cpu")
    source = GraphSource.homogeneous(args.graph.num_nodes, EdgeSource(csc=csc), {})
    with Store.build(source, plan="replicated") as store:
        records = (
            measure_case(args.graph, store, csc, case, threads, args.rounds)
            for case in args.cases
            for threads in args.threads
        )
        report("sampling_cpu", records, _COLUMNS, args.out)


if __name__ == "__main__":
    main()
