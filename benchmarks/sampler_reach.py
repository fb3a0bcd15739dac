"""Samplers on a GPU over the same ones of DGL, torch-sparse and torch on a core, in three steps.

    python benchmarks/sampler_reach.py --device cuda --graphs products,papers --out gpu.jsonl
    OMP_NUM_THREADS=1 python benchmarks/sampler_reach.py --peer --graphs products/4 --out cpu.jsonl
    python benchmarks/sampler_reach.py --join gpu.jsonl cpu.jsonl

On one H200 the first takes about ten seconds for products and half a minute more for papers.

Peergraph's samplers of the core run alone, on any device, and the peers alone, on a CPU, on the
same generated graph and batches: the machine with the GPU needs neither DGL nor torch-sparse. A
batch is the indices of a subgraph, without features. A peer that lacks the memory for a graph takes
one with fewer nodes and the same degrees (NAME/DIVISOR); caches hold it better. The tables
show a peer's least processor time of a batch over Peergraph's median: "per core", and the same
divided by 16, as if the peer used 16 cores without loss.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from harness.common import words, words_of
from harness.records import append_records, read_records, render
from harness.turns import in_turns
from inputs.arrays import batch_nodes
from inputs.graphs import GraphSpec, get_spec, make_csc
from ppr import torch_pushes
from torch import Tensor

from peergraph.sampling import (
    HgtSampler,
    NegativeSampler,
    NeighborSampler,
    PinSageSampler,
    PprSampler,
    RandomWalker,
    SaintSampler,
)
from peergraph.store import EdgeSource, GraphSource, Store

Call = Callable[[int], object]
_SEEDS, _BATCHES = 1024, 8
_CLUSTER = 49_152  # nodes of the parts of a batch of ClusterLoader
_RELATIONS = [("a", "cites", "a"), ("a", "to", "b"), ("b", "from", "a")]
_METAPATH = [_RELATIONS[2], _RELATIONS[1]]  # from a along in-edges, and back


class Graph:
    """A generated graph for each system, made when it is first read, and the batches of seeds.

    Peers walk along out-edges, so they get the graph with its edges reversed.
    """

    def __init__(self, spec: GraphSpec, device: str) -> None:
        self.spec, self.device = spec, torch.device(device)
        self._batches: dict[int, list[Tensor]] = {}

    def seeds(self, step: int, count: int = _SEEDS) -> Tensor:
        if count not in self._batches:
            self._batches[count] = [
                batch_nodes(self.spec, i, count, 0, 1, self.device) for i in range(_BATCHES)
            ]
        return self._batches[count][step % _BATCHES]

    def csc(self, relation: int | None = None) -> tuple[Tensor, Tensor]:
        """Of all edges, or of a relation, which has a third of them."""
        if relation is None:
            return make_csc(self.spec, self.device)
        return make_csc(replace(self.spec.denser(1 / 3), seed=relation), self.device)

    @cached_property
    def store(self) -> Store:
        source = GraphSource.homogeneous(self.spec.num_nodes, EdgeSource(csc=self.csc()), {})
        return Store.build(source, device=self.device, plan="replicated")

    @cached_property
    def reversed(self) -> Store:
        """Of the edges in the other direction, sorted on the device: `Store.reversed` sorts on the
        host, minutes for papers.
        """
        indptr, indices = self.csc()
        sources, order = indices.sort(stable=True)
        ends = torch.arange(self.spec.num_nodes + 1, device=sources.device, dtype=sources.dtype)
        begins = torch.searchsorted(sources, ends)
        del indices, sources
        rows = torch.arange(self.spec.num_nodes, device=order.device, dtype=torch.int32)
        destinations = rows.repeat_interleave(indptr.diff(), output_size=order.numel())
        edges = EdgeSource(csc=(begins, destinations[order]))
        del order, destinations
        source = GraphSource.homogeneous(self.spec.num_nodes, edges, {})
        return Store.build(source, device=self.device, plan="replicated")

    @cached_property
    def typed(self) -> Store:
        counts = dict.fromkeys("ab", self.spec.num_nodes)
        edges = {t: EdgeSource(csc=self.csc(i)) for i, t in enumerate(_RELATIONS)}
        return Store.build(GraphSource(counts, edges), device=self.device, plan="replicated")

    @cached_property
    def wide(self) -> tuple[Tensor, Tensor]:
        """In-neighbours as torch-sparse reads them."""
        indptr, indices = self.csc()
        return indptr, indices.long()

    @cached_property
    def dgl(self) -> Any:
        return self._dgl("csc")

    @cached_property
    def dgl_reversed(self) -> Any:
        return self._dgl("csr")

    def _dgl(self, kind: str) -> Any:
        indptr, indices = self.csc()
        arrays = (indptr, indices.long(), torch.arange(0))
        return peers().graph((kind, arrays), num_nodes=self.spec.num_nodes)

    @cached_property
    def dgl_typed(self) -> Any:
        edges = {}
        for i, (source, name, target) in enumerate(_RELATIONS):
            indptr, indices = self.csc(i)
            edges[target, name, source] = ("csr", (indptr, indices.long(), torch.arange(0)))
        return peers().heterograph(edges, dict.fromkeys("ab", self.spec.num_nodes))


def peers() -> Any:
    """The module dgl; peergraph_dgl makes it importable."""
    import peergraph_dgl  # noqa: F401

    import dgl  # isort: skip

    return dgl


def sparse() -> Any:
    """The operators of torch-sparse."""
    import torch_sparse  # noqa: F401

    return torch.ops.torch_sparse


def hops(g: Graph) -> Call:
    sampler = NeighborSampler(g.store, [15, 10], frontier="all")
    return lambda i: sampler.sample(g.seeds(i), i)


def dgl_hops(g: Graph) -> Call:
    sampler = peers().dataloading.NeighborSampler([10, 15])
    return lambda i: sampler.sample(g.dgl, g.seeds(i))


def shadow(g: Graph) -> Call:
    sampler = NeighborSampler(g.store, [5, 5], disjoint=True, subgraph="induced")
    return lambda i: sampler.sample(g.seeds(i), i)


def sparse_shadow(g: Graph) -> Call:
    sample = sparse().ego_k_hop_sample_adj
    return lambda i: sample(*g.wide, g.seeds(i), 2, 5, False)


def joint_shadow(g: Graph) -> Call:
    sampler = NeighborSampler(g.store, [5, 5], frontier="all", subgraph="induced")
    return lambda i: sampler.sample(g.seeds(i), i)


def dgl_joint_shadow(g: Graph) -> Call:
    sampler = peers().dataloading.ShaDowKHopSampler([5, 5])
    return lambda i: sampler.sample(g.dgl, g.seeds(i))


def cluster(g: Graph) -> Call:
    sampler = NeighborSampler(g.store, [], subgraph="induced")
    return lambda i: sampler.sample(g.seeds(i, _CLUSTER), i)


def dgl_cluster(g: Graph) -> Call:
    return lambda i: g.dgl_reversed.subgraph(g.seeds(i, _CLUSTER))


def sparse_cluster(g: Graph) -> Call:
    indptr, indices = g.wide
    rows = torch.arange(len(indptr) - 1).repeat_interleave(indptr.diff())
    return lambda i: sparse().saint_subgraph(g.seeds(i, _CLUSTER), indptr, rows, indices)


def saint(mode: Any, size: int) -> Callable[[Graph], Call]:
    def make(g: Graph) -> Call:
        if mode != "node":
            g.store._reversed = g.reversed
        return SaintSampler(g.store, mode, size, walk_length=2).sample

    return make


def dgl_saint(mode: str, budget: Any) -> Callable[[Graph], Call]:
    def make(g: Graph) -> Call:
        sampler = peers().dataloading.SAINTSampler(mode, budget)
        return lambda i: sampler.sample(g.dgl_reversed, None)

    return make


def hgt(g: Graph) -> Call:
    sampler = HgtSampler(g.typed, dict.fromkeys("ab", [_SEEDS] * 2))
    return lambda i: sampler.sample({"a": g.seeds(i)}, i)


def sparse_hgt(g: Graph) -> Call:
    names = ["__".join(t) for t in _RELATIONS]
    parts = {name: g.csc(i) for i, name in enumerate(names)}
    indptr = {name: part[0] for name, part in parts.items()}
    indices = {name: part[1].long() for name, part in parts.items()}
    sizes = dict.fromkeys("ab", [_SEEDS] * 2)
    return lambda i: sparse().hgt_sample(indptr, indices, {"a": g.seeds(i)}, sizes, 2)


def ppr(g: Graph) -> Call:
    sampler = PprSampler(g.store, num_neighbors=64, alpha=0.15, eps=1e-4)
    return lambda i: sampler.neighbors(g.seeds(i))


def torch_ppr(g: Graph) -> Call:
    return lambda i: torch_pushes(*g.wide, g.seeds(i), 64, 0.15, 1e-4)


def walks(g: Graph) -> Call:
    walker = RandomWalker(g.store)
    return lambda i: walker.walk(g.seeds(i), 20, i)


def dgl_walks(g: Graph) -> Call:
    return lambda i: peers().sampling.random_walk(g.dgl_reversed, g.seeds(i), length=20)


def sparse_walks(g: Graph) -> Call:
    return lambda i: sparse().random_walk(*g.wide, g.seeds(i), 20)


def node2vec(g: Graph) -> Call:
    walker = RandomWalker(g.store)
    return lambda i: walker.walk(g.seeds(i), 20, i, p=0.5, q=2.0)


def dgl_node2vec(g: Graph) -> Call:
    walk = peers().sampling.node2vec_random_walk
    return lambda i: walk(g.dgl_reversed, g.seeds(i), 0.5, 2.0, 20)


def metapath(g: Graph) -> Call:
    walker = RandomWalker(g.typed, _METAPATH)
    return lambda i: walker.walk(g.seeds(i), 20, i, dead_end="pad")


def dgl_metapath(g: Graph) -> Call:
    path = [name for _, name, _ in _METAPATH] * 10
    walk = peers().sampling.random_walk
    return lambda i: walk(g.dgl_typed, g.seeds(i), metapath=path)


def pinsage(g: Graph) -> Call:
    sampler = PinSageSampler(
        g.store, num_walks=10, walk_length=3, num_neighbors=5, restart_prob=0.5
    )
    return lambda i: sampler.sample(g.seeds(i), i)


def dgl_pinsage(g: Graph) -> Call:
    sampler = peers().sampling.RandomWalkNeighborSampler(g.dgl_reversed, 3, 0.5, 10, 5)
    return lambda i: sampler(g.seeds(i))


def negatives(g: Graph) -> Call:
    sampler = NegativeSampler(g.store, amount=5, avoid_edges=True)
    return lambda i: sampler.sample(_SEEDS, i)


def dgl_negatives(g: Graph) -> Call:
    draw = peers().sampling.global_uniform_negative_sampling
    return lambda i: draw(g.dgl_reversed, 5 * _SEEDS, replace=True)


# Peergraph's need the edges in the other direction.
_REVERSED, _MOST_SORTED = ("SAINT walks", "SAINT edges"), 2**31 - 1
# The batch, Peergraph's sampler and the peers'.
SAMPLERS: dict[str, tuple[str, dict[str, Callable[[Graph], Call]]]] = {
    "NeighborSampler": ("1024 seeds, 15-10", {"peergraph": hops, "dgl": dgl_hops}),
    "ShaDow": ("1024 seeds, 5-5", {"peergraph": shadow, "torch-sparse": sparse_shadow}),
    "joint ShaDow": ("1024 seeds, 5-5", {"peergraph": joint_shadow, "dgl": dgl_joint_shadow}),
    "Cluster": (
        f"{_CLUSTER} nodes",
        {"peergraph": cluster, "dgl": dgl_cluster, "torch-sparse": sparse_cluster},
    ),
    "PPR": ("1024 seeds, top 64", {"peergraph": ppr, "torch": torch_ppr}),
    "random walks": (
        "1024 walks of 20 steps",
        {"peergraph": walks, "dgl": dgl_walks, "torch-sparse": sparse_walks},
    ),
    "Node2Vec": ("1024 walks of 20 steps", {"peergraph": node2vec, "dgl": dgl_node2vec}),
    "PinSAGE": ("1024 seeds, 10 walks", {"peergraph": pinsage, "dgl": dgl_pinsage}),
    "negatives": ("5120 pairs", {"peergraph": negatives, "dgl": dgl_negatives}),
    "SAINT nodes": (
        "6000 nodes",
        {"peergraph": saint("node", 6000), "dgl": dgl_saint("node", 6000)},
    ),
    "HGT": ("1024 seeds, 1024 of a type x 2", {"peergraph": hgt, "torch-sparse": sparse_hgt}),
    "MetaPath2Vec": ("1024 walks of 20 steps", {"peergraph": metapath, "dgl": dgl_metapath}),
    "SAINT walks": (
        "3000 roots, 2 steps",
        {"peergraph": saint("walk", 3000), "dgl": dgl_saint("walk", (3000, 2))},
    ),
    "SAINT edges": (
        "4000 edges",
        {"peergraph": saint("edge", 4000), "dgl": dgl_saint("edge", 4000)},
    ),
}


def measure(graph: Graph, name: str, system: str, rounds: int) -> dict[str, Any]:
    """Times of a batch; `error` or `skipped` where there are none."""
    batch, systems = SAMPLERS[name]
    row = {"graph": graph.spec.name, "sampler": name, "batch": batch, "system": system}
    row["device"] = graph.device.type
    if system == "peergraph" and name in _REVERSED and graph.spec.num_edges > _MOST_SORTED:
        return {**row, "skipped": f"more than {_MOST_SORTED:,} edges, which torch does not sort"}
    start = time.perf_counter()
    try:
        sample = systems[system](graph)

        def waited(step: int) -> None:
            sample(step)
            if graph.device.type == "cuda":
                torch.cuda.synchronize()

        turns = in_turns({system: waited}, rounds)[system]
    except Exception as error:  # a row says so, and the others run
        return {**row, "error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    times = {"ms": turns.least, "ms_median": turns.median, "cpu_ms": turns.least_cpu}
    return {**row, **times, "seconds": time.perf_counter() - start}


def join(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pairs Peergraph's rows with those of the peers, by sampler and graph."""
    own = [row for row in rows if row["system"] == "peergraph"]
    joined = []
    for row in own:
        for peer in rows:
            same_graph = base(peer) == base(row) and peer["sampler"] == row["sampler"]
            is_timed = "ms" in row and "ms" in peer
            if peer["system"] == "peergraph" or not same_graph or not is_timed:
                continue
            ratio = peer["cpu_ms"] / row["ms_median"]
            joined.append(
                {
                    **{key: row[key] for key in ("graph", "sampler", "batch", "device")},
                    "ms_median": row["ms_median"],
                    "peer": peer["system"],
                    "peer_graph": peer["graph"],
                    "peer_cpu_ms": peer["cpu_ms"],
                    "per_core": ratio,
                    "over_16_cores": ratio / 16,
                }
            )
    return joined


def base(row: dict[str, Any]) -> str:
    """The name of the graph whose degrees a graph has."""
    return str(row["graph"]).split("/")[0]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graphs", type=words, default="products", help="NAME/DIVISOR,...")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the store")
    parser.add_argument("--peer", action="store_true", help="the peers alone, on the CPU")
    parser.add_argument("--samplers", type=words_of(SAMPLERS), default=list(SAMPLERS))
    parser.add_argument("--rounds", type=int, default=21, help="batches of each system")
    parser.add_argument("--seconds", type=float, help="no sampler is begun later")
    parser.add_argument("--out", type=Path, help="file that JSON lines are appended to")
    parser.add_argument("--join", type=Path, nargs="+", help="prints ratios of these files")
    args = parser.parse_args()
    if args.join:
        rows = [row for path in args.join for row in read_records(path)]
        joined = join(rows)
        print(render("sampler_reach", joined, list(joined[0])))
        return 0
    start = time.perf_counter()
    for graph_name in args.graphs:
        graph = Graph(get_spec(graph_name), "cpu" if args.peer else args.device)
        for name in args.samplers:
            for system in SAMPLERS[name][1]:
                if (system == "peergraph") is args.peer:
                    continue
                if args.seconds is not None and time.perf_counter() - start > args.seconds:
                    continue
                row = measure(graph, name, system, args.rounds)
                print(json.dumps(row), flush=True)
                append_records(args.out, [row])
    return 0


if __name__ == "__main__":
    sys.exit(main())
