"""The kinds of samples beside the plain one: weighted, by time, disjoint, walks, PinSAGE.

    python benchmarks/kinds.py --world 4 --graph products --plans replicated,sharded --peers torch

`torch` is what one would write in tensor operations: keys for all neighbours of a hop and a sort,
walks by indexing. `floor_ms` is the time for the bytes that have to be read, at the rate of an
H200's memory (4.3 TB/s): whole lists and their weights or times, or a sector a random access.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch
from harness.common import PLANS, cases, main, measure, parser, words_of
from harness.ranks import Session
from inputs.counter_hash import hash_range, shift_right, stream_key
from inputs.graphs import make_csc
from systems.systems import seed_sets
from torch import Tensor

from peergraph.sampling import NeighborSampler, PinSageSampler, RandomWalker
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, RowSource, Store

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "replace": {"replace": True},
    "disjoint": {"disjoint": True},
    "weighted": {"weights": "w"},
    "temporal": {"edge_time": "t"},
    "last": {"edge_time": "t", "temporal_strategy": "last"},
    "induced": {"subgraph": "induced"},
}
WALKS = ("walk", "node2vec", "pinsage")
_LENGTH = 10  # of walks
_BYTES_PER_MS = 4.3e9
_SECTOR = 32
_NOW = 1 << 23  # times are below 2^24: half of the edges come after the seeds


def _weights(begin: int, end: int, device: torch.device) -> Tensor:
    hashed = shift_right(hash_range(stream_key(55, 1), begin, end, device), 40)
    return (hashed + 1).to(torch.float32)


def _times(begin: int, end: int, device: torch.device) -> Tensor:
    return shift_right(hash_range(stream_key(55, 2), begin, end, device), 40).int()


def build(session: Session, plan: str) -> Store:
    """The graph with a weight and a time for each edge; every rank makes its share. Collective."""
    spec, device = session.args.graph, session.device
    nodes = spec.node_range(session.rank, session.world)
    csc = make_csc(spec, device, nodes)
    count = csc[1].numel()
    first = sum(session.group.all_gather(count)[: session.rank])
    tables = {
        "w": RowSource(
            (count,), torch.float32, lambda a, b: _weights(first + a, first + b, device)
        ),
        "t": RowSource((count,), torch.int32, lambda a, b: _times(first + a, first + b, device)),
    }
    source = GraphSource.homogeneous(
        spec.num_nodes, EdgeSource(csc=csc), edge_tables=tables, node_range=nodes
    )
    return Store.build(source, plan=plan, group=session.group)


class TorchKinds:
    """Samples in tensor operations, from a graph of its own."""

    def __init__(self, session: Session) -> None:
        self.indptr, self.indices = make_csc(session.args.graph, session.device)
        edges, device = self.indices.numel(), session.device
        self.columns = {"w": _weights(0, edges, device), "t": _times(0, edges, device)}

    def sampler(self, kind: str, fanouts: list[int]) -> Callable[[Tensor], Tensor] | None:
        """What samples so; None for kinds that are not here."""
        if kind == "walk":
            return self.walk
        if kind in ("plain", "weighted", "temporal", "last"):
            return lambda seeds: self.khop(seeds, fanouts, kind)
        return None

    def khop(self, seeds: Tensor, fanouts: list[int], kind: str) -> Tensor:
        nodes = frontier = seeds
        for fanout in fanouts:
            edges, targets = self._all_edges(frontier)
            keys = torch.rand(edges.numel(), device=edges.device)
            if kind == "weighted":
                keys = -keys.log() / self.columns["w"][edges]
            elif kind in ("temporal", "last"):
                times = self.columns["t"][edges]
                admitted = times <= _NOW
                edges, targets = edges[admitted], targets[admitted]
                keys = -times[admitted].float() if kind == "last" else keys[admitted]
            order = keys.argsort()
            order = order[targets[order].argsort(stable=True)]
            targets, edges = targets[order], edges[order]
            counts = torch.bincount(targets, minlength=frontier.numel())
            begins = counts.cumsum(0) - counts
            rank = torch.arange(targets.numel(), device=targets.device) - begins[targets]
            neighbors = self.indices[edges[rank < fanout]].long().unique()
            frontier = neighbors[~torch.isin(neighbors, nodes)]
            nodes = torch.cat([nodes, frontier])
        return nodes

    def walk(self, start: Tensor) -> Tensor:
        nodes = [start]
        for _ in range(_LENGTH):
            begin, end = self.indptr[nodes[-1]], self.indptr[nodes[-1] + 1]
            drawn = begin + (torch.rand(begin.shape, device=start.device) * (end - begin)).long()
            stays = drawn >= end
            steps = self.indices[drawn.masked_fill(stays, 0)].long()
            nodes.append(torch.where(stays, nodes[-1], steps))
        return torch.stack(nodes, 1)

    def _all_edges(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        begins, counts = self.indptr[nodes], self.indptr[nodes + 1] - self.indptr[nodes]
        targets = torch.arange(nodes.numel(), device=nodes.device).repeat_interleave(counts)
        ends = counts.cumsum(0)
        within = torch.arange(targets.numel(), device=nodes.device) - (ends - counts)[targets]
        return begins[targets] + within, targets


def _sampler(store: Store, kind: str, fanouts: list[int]) -> Callable[[Tensor, int], Any]:
    if kind == "walk" or kind == "node2vec":
        walker, bias = RandomWalker(store), {"p": 0.5, "q": 2.0} if kind == "node2vec" else {}
        return lambda seeds, i: walker.walk(seeds, _LENGTH, i, **bias)
    if kind == "pinsage":
        pinsage = PinSageSampler(store, num_walks=10, walk_length=3, num_neighbors=fanouts[0])
        return pinsage.sample
    sampler = NeighborSampler(store, fanouts, **OPTIONS[kind])
    if not sampler.options.timed:
        return sampler.sample
    return lambda seeds, i: sampler.sample(seeds, i, seed_time=torch.full_like(seeds, _NOW))


def _floor_ms(store: Store, kind: str, sample: Any, batch: int, fanouts: list[int]) -> float:
    """By the bytes that must be read of the graph; outputs are not counted."""
    if kind in WALKS:
        steps = batch * (30 if kind == "pinsage" else _LENGTH)
        return 2 * _SECTOR * steps / _BYTES_PER_MS
    edges = sum(sample.num_sampled_edges[EDGE])
    if kind in ("plain", "replace", "disjoint"):
        return _SECTOR * (edges + sample.nodes[NODE].numel()) / _BYTES_PER_MS
    counts = sample.num_sampled_nodes[NODE]
    expanded = sum(counts) if kind == "induced" else sum(counts[:-1])
    degrees = store.in_degree()[sample.nodes[NODE][:expanded].to("cpu")]
    per_neighbour = 4 if kind == "induced" else 8
    return per_neighbour * int(degrees.sum()) / _BYTES_PER_MS


def run(session: Session) -> None:
    args = session.args
    for plan in args.plans:
        with session.section(f"{plan} store", system="peergraph", plan=plan):
            store = build(session, plan)
            for fanouts, batch in args.cases:
                seeds = seed_sets(session, args.graph, batch, torch.int64)
                for kind in args.kinds:
                    fields = _fields(session, kind, fanouts, batch)
                    with session.section(f"{plan} {kind}", system="peergraph", **fields):
                        draw = _sampler(store, kind, fanouts)
                        floor = _floor_ms(store, kind, draw(seeds[0], 0), batch, fanouts)
                        timing = measure(session, lambda i, _, d=draw, s=seeds: d(s[i % len(s)], i))
                        session.recorder.add(
                            timing, system="peergraph", plan=plan, floor_ms=floor, **fields
                        )
            store.close()
    if session.wants("torch"):
        with session.section("torch", system="torch"):
            _run_torch(session)


def _run_torch(session: Session) -> None:
    peer, args = TorchKinds(session), session.args
    for fanouts, batch in args.cases:
        seeds = seed_sets(session, args.graph, batch, torch.int64)
        for kind in args.kinds:
            draw = peer.sampler(kind, fanouts)
            if draw is None:
                continue
            fields = _fields(session, kind, fanouts, batch)
            with session.section(f"torch {kind}", system="torch", **fields):
                timing = measure(session, lambda i, _, d=draw, s=seeds: d(s[i % len(s)]))
                session.recorder.add(timing, system="torch", against=args.plans[0], **fields)


def _fields(session: Session, kind: str, fanouts: list[int], batch: int) -> dict[str, Any]:
    return {
        "graph": session.args.graph.name,
        "fanout": "-".join(map(str, fanouts)),
        "batch": batch,
        "kind": kind,
    }


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], PLANS, "replicated", graph="products")
    names = [*OPTIONS, *WALKS]
    result.add_argument("--kinds", type=words_of(names), default=",".join(names))
    result.add_argument("--cases", type=cases, default="15-10:1024", help="FANOUTS:BATCH,...")
    return result


if __name__ == "__main__":
    sys.exit(main("kinds", run, arguments(), peers=("torch",)))
