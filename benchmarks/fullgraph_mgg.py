"""MGG's graphs and models: sums over neighbours in every mode, its parameters, its ablations.

    python benchmarks/fullgraph_mgg.py --worlds 2,4 --out mgg.jsonl

Parts, all forward and float32:

- `sums`: one sum over neighbours, at several widths. `blocks` and `halo` stage rows; `in_kernel`
  is tuned in at most 12 probes, `in_kernel untuned` has the defaults; `in_kernel apart` sums local
  edges, then reads a remote row for each edge; `distinct` reads each distinct row once by a kernel
  (`systems/distinct_rows.py`); `no overlap` brings all distinct rows first. `predicted_ms` is the
  cost model's.
- `models`: GCN of one layer (MGG's Table 4) and of two with 16 hidden features, GIN of five with 64
  (its Figure 8). `published_ms` of Table 4 is that of eight A100s.
- `steps`: without neighbour partitioning, without interleaving, with both (its Figure 9), with 16
  columns, two warps a block, untuned.
- `grid`: all settings of the three parameters, and what was tuned (its Figure 10).

Graphs have the published nodes, edges and widths, and no communities; "NAME:communities" has, and
its communities are not cut. A model's own
self loops come on top of the edges.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from harness.common import add_worlds, by_world, integers, main, measure, parser, words, words_of
from harness.ranks import Session
from inputs.arrays import fill_features
from inputs.gcn_graph import communities_of, make_gcn_graph, parse_name
from systems.distinct_rows import DistinctRowSums
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import models as pyg_models

import peergraph_pyg
from peergraph.aggregate.kernels.arguments import Schedule
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.fullgraph import PartitionedCsc, distribute
from peergraph.fullgraph.plan.resident_plan import mode_costs
from peergraph.fullgraph.structure.in_kernel_sum import InKernelSums
from peergraph.fullgraph.structure.interleaving import APART, Interleaving, grid

MODES = ("blocks", "halo", "in_kernel")
PARTS = ("sums", "models", "steps", "grid")
# Table 4: one layer of a GCN with 16 columns on eight A100s, ms.
TABLE_4 = {"reddit": 6.95, "enwiki": 12.79, "mgg-products": 3.35, "proteins": 2.66, "orkut": 17.20}
# MGG's aggregation of 128 columns, the best of 35 settings, on four H200s, ms.
AGGREGATION_128 = {"products": 35.9, "reddit": 34.3}
# Figure 9: 16 columns, partitions of 16, two warps a block.
FIGURE_9 = Interleaving(16, 1, 2)
STEPS_DIM = 16
MODELS = {"GCN 1 x 16": ("GCN", 1, 16), "GCN 2 x 16": ("GCN", 2, 16), "GIN 5 x 64": ("GIN", 5, 64)}


class Case:
    """A graph that is partitioned over the ranks."""

    def __init__(self, session: Session, name: str) -> None:
        self.session, self.name = session, name
        self.spec, arrangement = parse_name(name)
        inputs = make_gcn_graph(self.spec, session.device, arrangement)
        self.num_nodes = inputs.num_nodes
        order: Any = "random"
        if arrangement == "communities":
            order = communities_of(self.spec, self.num_nodes, session.device)
            order = order * session.world // self.num_nodes
        x = torch.empty(self.num_nodes, self.spec.feature_dim, device=session.device)
        edges = inputs.edge_index(with_loops=False)
        data = Data(x=fill_features(0, x), edge_index=edges, num_nodes=self.num_nodes)
        del inputs, x, edges
        self.data = peergraph_pyg.full_graph(data, group=session.group, order=order)
        self.plan = peergraph_pyg.partition_of(self.data).plan
        self.structure: PartitionedCsc = self.data.edge_index.structure
        self.structure.keeps_results = False

    def rows(self, dim: int) -> Tensor:
        x = torch.empty(self.num_nodes, dim, device=self.session.device)
        return distribute(fill_features(0, x), self.structure.source_layout)

    def time(self, part: str, system: str, step: Callable[[], object], **fields: object) -> None:
        session = self.session
        fields = {"part": part, "system": system, "graph": self.name, **fields}
        with session.section(f"{part} {system} {self.name}", **fields):
            timing = measure(session, lambda *_: step())
            session.recorder.add(timing, **fields)  # type: ignore[arg-type]


def tuning_fields(sums: InKernelSums, rows: Tensor) -> dict[str, object]:
    tuning = sums.tuning_of(rows, None)
    if tuning is None:
        return {}
    setting, times = tuning
    return {"setting": str(setting), "probes": len(times)}


def time_sums(case: Case, dim: int) -> None:
    structure, rows = case.structure, case.rows(dim)
    costs = mode_costs(case.plan.facts, 4 * dim, case.plan.topology)
    published = AGGREGATION_128.get(case.name) if dim == 128 else None

    def sum_rows() -> Tensor:
        return structure.spmm("copy_u", "sum", rows)

    for mode in MODES:
        fields: dict[str, object] = {"dim": dim, "published_ms": published}
        if mode in costs:
            fields["predicted_ms"] = 1e3 * costs[mode].seconds
        structure.mode = mode
        if mode == "in_kernel":
            sum_rows()
            fields |= tuning_fields(structure.in_kernel_sums, rows.to_local())
        case.time("sums", mode, sum_rows, **fields)
    sums = structure.in_kernel_sums
    sums.interleaving = Interleaving()
    case.time("sums", "in_kernel untuned", sum_rows, dim=dim, setting=str(Interleaving()))
    sums.interleaving = APART
    case.time("sums", "in_kernel apart", sum_rows, dim=dim)
    sums.interleaving = None
    own, expected = rows.to_local(), sum_rows().to_local()
    distinct, plan = DistinctRowSums(sums), structure.plan
    assert torch.allclose(distinct(own), expected, rtol=1e-4, atol=1e-4), "other sums"
    del expected
    case.time("sums", "distinct", lambda: distinct(own), dim=dim)
    bring_first = partial(structure.local.spmm, "copy_u", "sum")
    case.time("sums", "no overlap", lambda: bring_first(plan.gather(own)), dim=dim)


def time_models(case: Case) -> None:
    session, spec = case.session, case.spec
    data, structure = case.data, case.structure
    for name, (kind, layers, hidden) in MODELS.items():
        torch.manual_seed(7)
        out = spec.num_classes if layers > 1 else None
        plain = getattr(pyg_models, kind)(spec.feature_dim, hidden, layers, out)
        model = peergraph_pyg.accelerate(plain.to(session.device).eval())
        published = TABLE_4.get(case.name) if layers == 1 else None
        for mode in MODES:
            structure.mode = mode
            with torch.no_grad():
                case.time("models", mode, lambda model=model: model(data.x, data.edge_index),
                          layers=name, published_ms=published)  # fmt: skip


def time_steps(case: Case) -> None:
    """Neighbour partitioning and interleaving, one after the other."""
    plan, matrix = case.structure.plan, case.structure.local
    rows = case.rows(STEPS_DIM).to_local()
    whole_rows = EdgeMatrix(
        matrix.indptr,
        matrix.indices,
        matrix.num_sources,
        edge_ids=matrix.edge_ids,
        max_chunks=0,
        schedule=Schedule(long_row=1 << 40),
    )
    uncut = InKernelSums(plan, whole_rows, FIGURE_9)
    apart = InKernelSums(plan, matrix, APART)
    both = InKernelSums(plan, matrix, FIGURE_9)
    for name, step in (
        ("without neighbour partitioning", lambda: uncut(rows, None, False)),
        ("without interleaving", lambda: apart(rows, None, False)),
        ("both", lambda: both(rows, None, False)),
    ):
        case.time("steps", name, step, dim=STEPS_DIM)
    for sums in (uncut, apart, both):
        sums.close()


def time_grid(case: Case, dim: int) -> None:
    session, rows = case.session, case.rows(dim).to_local()
    sums = InKernelSums(case.structure.plan, case.structure.local)
    fields = {"part": "grid", "system": "in_kernel", "graph": case.name, "dim": dim}
    with session.section(f"grid {case.name}", **fields):
        seconds = sums.measure(rows, grid(4 * dim))
        best = min(seconds, key=seconds.__getitem__)
        sums(rows, None, False)
        tuning = sums.tuning_of(rows, None)
        tuned = Interleaving() if tuning is None else tuning[0]
        fields |= tuning_fields(sums, rows)
        times = [[*vars(setting).values(), 1e3 * value] for setting, value in seconds.items()]
        session.recorder.note(
            ms=1e3 * seconds[tuned],
            **{"setting": str(tuned), **fields},
            tuned=list(vars(tuned).values()),
            best_setting=str(best),
            best_ms=1e3 * seconds[best],
            over_best=seconds[tuned] / seconds[best],
            times=times,
        )
    sums.close()


def run(session: Session) -> None:
    args = session.args
    torch.backends.cuda.matmul.allow_tf32 = False
    for name in args.graphs:
        with session.stage(f"graph {name}"):
            case = Case(session, name)
        if "sums" in args.parts:
            for dim in args.dims:
                time_sums(case, dim)
        if "steps" in args.parts and name in args.step_graphs:
            time_steps(case)
        if "grid" in args.parts and name in args.grid_graphs:
            for dim in args.grid_dims:
                time_grid(case, dim)
        if "models" in args.parts and name in args.model_graphs:
            time_models(case)
        case.structure.in_kernel_sums.close()
        del case


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "")
    graphs = "reddit,enwiki,mgg-products,proteins,orkut,products,products*0.08:communities"
    result.add_argument("--graphs", type=words, default=graphs)
    result.add_argument("--parts", type=words_of(PARTS), default=",".join(PARTS))
    result.add_argument("--dims", type=integers, default="16,64,128", help="columns of sums")
    result.add_argument("--step-graphs", type=words, default="reddit,enwiki,mgg-products")
    result.add_argument("--model-graphs", type=words, default=",".join(TABLE_4))
    result.add_argument("--grid-graphs", type=words, default="reddit,products*0.08:communities")
    result.add_argument("--grid-dims", type=integers, default="16,64", help="columns of the grid")
    add_worlds(result, (2, 4))
    result.set_defaults(iterations=10, warmup=2, budget=0.25)
    return result


if __name__ == "__main__":
    sys.exit(main("fullgraph_mgg", run, arguments(), (), by_world))
