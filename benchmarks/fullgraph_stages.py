"""One sum over neighbours, by stage: balance, and copies under sums (MG-GCN's Figures 6 and 8).

    python benchmarks/fullgraph_stages.py --graphs products,products:sorted --dims 128
        --orders random,original --worlds 2,4

Forward sums of features that are not kept. Rows are staged in whole blocks, or as `--mode` says:
`overlap` as in training; `no overlap` with each exchange before the sums that follow it; `sums`
with exchanges that move nothing; `copies` without sums. `hidden` is the share of the copies' time
that overlap saves, `edge_imbalance` the most edges of a rank and stage over their mean, and
`predicted_ms` what the cost model says of `overlap`. `timeline` has, for each rank, ["sum" or
"copy", stage, begin, end] in milliseconds since the ranks met.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from harness.common import add_worlds, by_world, integers, main, measure, parser, words
from harness.ranks import Session
from inputs.arrays import fill_features
from inputs.gcn_graph import make_gcn_graph, parse_name
from systems.exchange_in_turn import exchange_in_turn, no_exchange
from systems.stage_times import StageTimes, staged_spmm
from torch import Tensor

from peergraph.fullgraph import FullGraph, distribute
from peergraph.fullgraph.exchange.block_stages import BlockStages
from peergraph.fullgraph.exchange.transport import Transport
from peergraph.fullgraph.plan.resident_plan import mode_costs
from peergraph.fullgraph.structure.staged_sum import SourceBlocks


def time_stages(session: Session, graph: FullGraph, name: str, order: str, dim: int) -> None:
    args = session.args
    structure = next(iter(graph.structures.values()))
    layout = structure.source_layout
    x = torch.empty(layout.size, dim, device=session.device)
    rows = distribute(fill_features(0, x), layout).to_local()
    del x
    stages = BlockStages(structure.plan, args.mode)
    blocks = SourceBlocks(structure.local, stages)
    transport = Transport.of(session.group)
    slowest: dict[str, float] = {}

    def sums(_: object, __: object) -> Tensor:
        return staged_spmm(blocks, rows)

    def copies(_: object, __: object) -> None:
        for _ in stages.gather(rows):
            pass

    ways: Iterator[tuple[str, Callable[..., object], AbstractContextManager[None]]] = iter(
        (
            ("sums", sums, no_exchange(transport)),
            ("copies", copies, nullcontext()),
            ("no overlap", sums, exchange_in_turn(transport)),
            ("overlap", sums, nullcontext()),
        )
    )
    for way, run, context in ways:
        fields = {"graph": name, "dim": dim, "setting": order, "way": way}
        with session.section(" ".join(map(str, fields.values())), **fields), context:
            timing = measure(session, run)
            slowest[way] = max(session.group.all_gather(timing.ms))
            more: dict[str, object] = {}
            if run is sums:
                more["timeline"] = session.group.all_gather(_timeline(session, blocks, rows))
            if way == "overlap":
                costs = mode_costs(graph.plan.facts, 4 * dim, graph.plan.topology)
                more["hidden"] = (slowest["no overlap"] - slowest["overlap"]) / slowest["copies"]
                more["predicted_ms"] = 1e3 * costs[args.mode].seconds
                more["edge_imbalance"] = _edge_imbalance(graph)
            session.recorder.add(timing, system="peergraph", **fields, **more)


def _timeline(session: Session, blocks: SourceBlocks, rows: Tensor) -> list[list[object]]:
    with StageTimes(Transport.of(session.group)) as times:
        session.barrier()
        times.begin()
        staged_spmm(blocks, rows, times)
    return times.spans()


def _edge_imbalance(graph: FullGraph) -> float:
    edges = [e for v in graph.plan.facts.volumes.values() for row in v.edges for e in row]
    return max(edges) * len(edges) / max(1, sum(edges))


def run(session: Session) -> None:
    for name in session.args.graphs:
        with session.stage(f"graph {name}"):
            spec, arrangement = parse_name(name)
            inputs = make_gcn_graph(spec, session.device, arrangement)
            edges, count = inputs.edge_index(), inputs.num_nodes
            del inputs
        for order in session.args.orders:
            with session.stage(f"order {order}"):
                graph = FullGraph.build(
                    session.group, {"_N": count}, {("_N", "_E", "_N"): edges}, order=order
                )
            for dim in session.args.dims:
                time_stages(session, graph, name, order, dim)
            del graph


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "")
    result.add_argument("--graphs", type=words, default="products,products:sorted")
    result.add_argument("--dims", type=integers, default="128", help="columns of features")
    result.add_argument("--orders", type=words, default="random,original", help="of nodes")
    result.add_argument("--mode", choices=["blocks", "halo"], default="blocks")
    add_worlds(result, (2, 4))
    return result


if __name__ == "__main__":
    sys.exit(main("fullgraph_stages", run, arguments(), (), by_world))
