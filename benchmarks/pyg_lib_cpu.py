"""Samples on the CPU beside those of pyg-lib, the library with which PyG samples.

    python benchmarks/pyg_lib_cpu.py --edges 50e6 --rounds 20

Both sample the same graph of random edges in one process, and take turns batch by batch, so that
other work disturbs both alike. Tables show medians of the CPU time of a batch, of all threads
together, and the time on the clock. pyg-lib samples one relation on one thread; `threads` are those
of Peergraph. Neighbours of a node are sorted by time, as pyg-lib asks for.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from harness.common import integers
from harness.turns import in_turns, parser, report
from torch import Tensor

from peergraph.sampling import NeighborSampler
from peergraph.store import EDGE, EdgeSource, GraphSource, Store

_SEED_SETS = 16
_COLUMNS = ["times", "strategy", "degree", "fanout", "batch", "replace", "disjoint", "threads"]
_COLUMNS += ["edges", "pyg_lib_edges", "cpu_ms", "pyg_lib_cpu_ms", "cpu_ratio", "ms", "pyg_lib_ms"]
_COLUMNS += ["ratio", "load"]


@dataclass(frozen=True)
class Case:
    """What is sampled."""

    degree: int = 25
    fanout: str = "15-10-5"
    batch: int = 1024
    times: str = "none"
    """Of "edges", of "nodes", or "none"."""
    strategy: str = "uniform"
    replace: bool = False
    disjoint: bool = False

    @property
    def fanouts(self) -> list[int]:
        """Neighbours a node, by hop."""
        return [int(count) for count in self.fanout.split("-")]


def all_cases() -> Iterator[Case]:
    """Cases with and without times, on lists of two lengths."""
    for degree in (25, 200):
        yield Case(degree)
        yield Case(degree, fanout="10-25")
        yield Case(degree, replace=True)
        yield Case(degree, batch=256, disjoint=True)
        temporal = Case(degree, fanout="10-5", batch=256, disjoint=True)
        for times in ("edges", "nodes"):
            for strategy in ("uniform", "last"):
                yield replace(temporal, times=times, strategy=strategy)


class Graph:
    """Random edges; times of edges and nodes are distinct and random, lists are sorted by them.

    Args:
        num_edges: the number of edges.
        degree: the mean degree.
        times: as in :class:`Case`.
        device: of the store.
    """

    def __init__(self, num_edges: int, degree: int, times: str, device: str = "cpu") -> None:
        random = torch.Generator(device).manual_seed(0)  # a GPU draws other edges
        options: Any = {"generator": random, "device": device}
        self.num_nodes = max(1, num_edges // degree)
        source, destination = torch.randint(self.num_nodes, (2, num_edges), **options)
        count = num_edges if times == "edges" else self.num_nodes
        stamp = torch.randperm(count, **options)
        order = (stamp if times == "edges" else stamp[source]).argsort()
        order = order[destination[order].argsort(stable=True)]
        self.indices = source[order].contiguous()
        degrees = destination.bincount(minlength=self.num_nodes)
        self.indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
        self.stamp = stamp[order] if times == "edges" else stamp
        self.latest = count * 3 // 4
        tables = {} if times == "none" else {f"{times[:-1]}_tables": {"t": self.stamp}}
        edges = EdgeSource(csc=(self.indptr, self.indices))
        graph = GraphSource.homogeneous(self.num_nodes, edges, **tables)
        self.store = Store.build(graph, device=device)


def samplers(graph: Graph, case: Case) -> dict[str, Callable[[Tensor, int], int]]:
    """Functions of seeds and a number that sample a batch and return its number of edges."""
    time_of = {} if case.times == "none" else {f"{case.times[:-1]}_time": "t"}
    ours = NeighborSampler(
        graph.store,
        case.fanouts,
        replace=case.replace,
        disjoint=case.disjoint,
        temporal_strategy=case.strategy,
        **time_of,
    )
    stamps = dict.fromkeys(time_of, graph.stamp)

    def latest(seeds: Tensor) -> Tensor | None:
        return torch.full_like(seeds, graph.latest) if time_of else None

    def peergraph(seeds: Tensor, number: int) -> int:
        options = {} if latest(seeds) is None else {"seed_time": latest(seeds)}
        return ours.sample(seeds, number, **options).row[EDGE].numel()

    def pyg_lib(seeds: Tensor, number: int) -> int:
        torch.manual_seed(number)
        row, *_ = torch.ops.pyg.neighbor_sample(
            graph.indptr,
            graph.indices,
            seeds,
            case.fanouts,
            stamps.get("node_time"),
            stamps.get("edge_time"),
            latest(seeds),
            None,  # edge_weight
            True,  # csc
            case.replace,
            True,  # directed
            case.disjoint,
            case.strategy,
            True,  # return_edge_id
        )
        return int(row.numel())

    return {"peergraph": peergraph, "pyg_lib": pyg_lib}


def measure(graph: Graph, case: Case, threads: int, rounds: int) -> dict[str, Any]:
    """One record."""
    torch.set_num_threads(threads)
    random = torch.Generator().manual_seed(1)
    seeds = torch.randint(graph.num_nodes, (_SEED_SETS, case.batch), generator=random)
    calls = {
        name: lambda i, call=call: call(seeds[i % _SEED_SETS].unique(), i)
        for name, call in samplers(graph, case).items()
    }
    turns = in_turns(calls, rounds)
    own, peer = turns["peergraph"], turns["pyg_lib"]
    return {
        "bench": "pyg_lib_cpu",
        **asdict(case),
        "threads": threads,
        "edges": statistics.mean(own.results),
        "pyg_lib_edges": statistics.mean(peer.results),
        "cpu_ms": own.median_cpu,
        "pyg_lib_cpu_ms": peer.median_cpu,
        "cpu_ratio": peer.median_cpu / own.median_cpu,
        "ms": own.median,
        "pyg_lib_ms": peer.median,
        "ratio": peer.median / own.median,
        "load": os.getloadavg()[0],
    }


def measure_all(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A record for each case and number of threads; cases of one graph follow each other."""
    last: tuple[tuple[int, str], Graph] | None = None
    for case in sorted(all_cases(), key=lambda case: (case.degree, case.times)):
        key = case.degree, case.times
        if last is None or last[0] != key:
            last = key, Graph(int(args.edges), *key)
        for threads in args.threads:
            yield measure(last[1], case, threads, args.rounds)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--edges", type=float, default=50e6, help="of the graph")
    options.add_argument("--threads", type=integers, default="1", help="of Peergraph")
    args = options.parse_args()
    try:
        __import__("pyg_lib")
    except ImportError:
        options.error("pyg-lib is not installed")
    report("pyg_lib_cpu", measure_all(args), _COLUMNS, args.out)


if __name__ == "__main__":
    main()
