"""One sum over neighbours of a partitioned graph, by how rows of other ranks come (MGG, Figure 8).

    python benchmarks/fullgraph_modes.py --graphs products,reddit --dims 16,64,128 --worlds 2,4

`halo` and `blocks` stage rows under the sums, `in_kernel` reads each edge's row where it lies, and
`distinct` reads each distinct row once by a kernel (`systems/distinct_rows.py`). `no overlap`
brings all distinct rows first. `predicted_ms` is the cost model's. Sums run forward, features are
not kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

import torch
from harness.common import integers, main, measure, parser, words
from harness.ranks import Session
from inputs.arrays import fill_features
from inputs.gcn_graph import make_gcn_graph, parse_name
from systems.distinct_rows import DistinctRowSums

from peergraph.fullgraph import FullGraph, distribute
from peergraph.fullgraph.plan.sum_cost import mode_costs

MODES = ("halo", "blocks", "in_kernel")


def time_modes(session: Session, graph: FullGraph, name: str, dim: int) -> None:
    structure = next(iter(graph.structures.values()))
    layout = structure.source_layout
    structure.keeps_results = False
    x = torch.empty(layout.size, dim, device=session.device)
    rows = distribute(fill_features(0, x), layout)
    del x
    fields = {"graph": name, "dim": dim}
    costs = mode_costs(graph.plan.facts, 4 * dim, graph.plan.topology)
    for mode in MODES:
        with session.section(f"{mode} {name} {dim}", system=mode, **fields):
            structure.mode = mode
            timing = measure(session, lambda *_: structure.spmm("copy_u", "sum", rows))
            predicted = 1e3 * costs[mode].seconds if mode in costs else None
            session.recorder.add(timing, system=mode, predicted_ms=predicted, **fields)
    with session.section(f"distinct {name} {dim}", system="distinct", **fields):
        own, sums = rows.to_local(), DistinctRowSums(structure.in_kernel_sums)
        found, expected = sums(own), structure.spmm("copy_u", "sum", rows).to_local()
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4), "other sums"
        del found, expected
        timing = measure(session, lambda *_: sums(own))
        session.recorder.add(timing, system="distinct", **fields)
    with session.section(f"no overlap {name} {dim}", system="no overlap", **fields):
        plan, local = structure.plan, structure.local
        own = rows.to_local()
        timing = measure(session, lambda *_: local.spmm("copy_u", "sum", plan.gather(own)))
        session.recorder.add(timing, system="no overlap", **fields)


def run(session: Session) -> None:
    for name in session.args.graphs:
        with session.stage(f"graph {name}"):
            spec, arrangement = parse_name(name)
            made = make_gcn_graph(spec, session.device, arrangement)
            nodes = torch.arange(made.num_nodes, device=session.device)
            target = nodes.repeat_interleave(made.indptr.diff(), output_size=made.num_edges)
            edges = torch.stack([made.indices.long(), target])
            count = made.num_nodes
            del made, nodes, target
            graph = FullGraph.build(
                session.group, {"_N": count}, {("_N", "_E", "_N"): edges}, order="random"
            )
            del edges
        for dim in session.args.dims:
            time_modes(session, graph, name, dim)


def launches(args: argparse.Namespace) -> Iterable[argparse.Namespace]:
    """One for each number of ranks."""
    for world in args.worlds:
        yield argparse.Namespace(**{**vars(args), "world": world})


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "")
    gpus = torch.cuda.device_count()
    worlds = ",".join(str(world) for world in (2, 4) if world <= max(gpus, 2))
    result.add_argument("--graphs", type=words, default="products,reddit")
    result.add_argument("--dims", type=integers, default="16,64,128", help="columns of features")
    result.add_argument("--worlds", type=integers, default=worlds, help="ranks of each launch")
    result.set_defaults(world=2)
    return result


if __name__ == "__main__":
    sys.exit(main("fullgraph_modes", run, arguments(), (), launches))
