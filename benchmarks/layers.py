"""PyG's layers, forward and backward: Peergraph's against PyG's COO and CSR paths, and DGL's.

    python benchmarks/layers.py --graph products --blocks papers --peers coo,csr,cusparse,dgl

Each layer has as many features as outputs; `sum` is the sum of neighbours alone, in which cuSPARSE
by its fastest algorithm is a peer, given the transpose of the matrix for the backward pass. It runs
on a whole graph with both directions of each edge, and on one mini-batch, all hops of it, whose
features need gradients as those of a hidden layer do; there Peergraph's structure is made anew at
each step, of what the sampler gave. The parts `communities` and `renumbered` are a graph of
communities whose nodes are numbered at random, and the same as `peergraph.aggregate.reorder`
numbers them:

    python benchmarks/layers.py --parts communities,renumbered --layers SAGE,GCN --peers csr

`--matmul high` lets products of float32 run as TF32, with the layers of all systems.

`peak_gib` is what a step needs beyond features, parameters and structure; OOM stands for more than
there is.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from aggregate import features
from harness.charts import Chart
from harness.common import integers, is_out_of_memory, main, measure, parser, words_of
from harness.drawing import draw_all
from harness.ranks import Session
from harness.records import read_records
from inputs.graphs import get_spec
from inputs.layer_graphs import PARTS, Graph
from systems import cusparse
from torch import Tensor
from torch_geometric.nn import conv as pyg

from peergraph.aggregate import g_spmm
from peergraph_pyg import nn
from peergraph_pyg.data.csc_cache import csc_of

_PEERS = ("coo", "csr", "cusparse", "dgl")
_HEADS = 4
_RELATIONS = 4
_EDGE_WIDTH = 8
_WITH_CSR = ("sum", "SAGE", "GCN", "GIN")
LAYERS = ("sum", "SAGE", "GCN", "GIN", "GAT", "GATv2", "GINE", "RGCN")

Run = Callable[[Tensor], Tensor]


def make_layer(classes: Any, layer: str, dim: int, **options: Any) -> torch.nn.Module:
    """A layer of `dim` features and as many outputs."""
    if layer == "sum":
        return classes.SimpleConv(aggr="sum")
    if layer in ("GAT", "GATv2"):
        return getattr(classes, f"{layer}Conv")(dim, dim // _HEADS, heads=_HEADS)
    if layer in ("GIN", "GINE"):
        options = {"edge_dim": _EDGE_WIDTH} if layer == "GINE" else {}
        return getattr(classes, f"{layer}Conv")(torch.nn.Linear(dim, dim), **options)
    if layer == "RGCN":
        return classes.RGCNConv(dim, dim, _RELATIONS)
    return getattr(classes, f"{layer}Conv")(dim, dim, **options)


def edge_inputs(layer: str, graph: Graph) -> tuple[Tensor, ...]:
    """What a layer takes for edges."""
    count, device = graph.edge_index.shape[1], graph.edge_index.device
    if layer == "RGCN":
        return (torch.arange(count, device=device) % _RELATIONS,)
    if layer == "GINE":
        return (torch.randn(count, _EDGE_WIDTH, device=device),)
    return ()


def by_peergraph(layer: str, dim: int, graph: Graph) -> Run:
    if layer == "sum":
        nodes = graph.num_nodes
        return lambda x: g_spmm(csc_of(graph.for_peergraph(), nodes, nodes), "copy_u", "sum", x)
    conv = make_layer(nn, layer, dim).to(graph.edge_index.device)
    inputs = edge_inputs(layer, graph)
    return lambda x: conv(x, graph.for_peergraph(), *inputs)


def by_coo(layer: str, dim: int, graph: Graph) -> Run:
    conv = make_layer(pyg, layer, dim).to(graph.edge_index.device)
    inputs = edge_inputs(layer, graph)
    return lambda x: conv(x, graph.edge_index, *inputs)


def by_csr(layer: str, dim: int, graph: Graph) -> Run:
    # GCN's weights and self loops are made once, which favours this path: the others make them, or
    # what takes their place, at each step of a mini-batch.
    options = {"normalize": False} if layer == "GCN" else {}
    conv = make_layer(pyg, layer, dim, **options).to(graph.edge_index.device)
    matrix = graph.matrix(layer)
    return lambda x: conv(x, matrix)


def by_cusparse(layer: str, dim: int, graph: Graph) -> Run:
    matrix = graph.matrix(layer)
    values = matrix.values()
    source, order = graph.edge_index[0].sort(stable=True)
    nodes = torch.arange(graph.num_nodes + 1, device=source.device)
    ends = torch.searchsorted(source, nodes).to(graph.indptr.dtype)
    targets = graph.edge_index[1][order].to(graph.indptr.dtype)
    del source, order
    indices = graph.edge_index[0].to(graph.indptr.dtype)
    forth = cusparse.fastest(graph.indptr, indices, values, graph.num_nodes, dim)
    back = cusparse.fastest(ends, targets, values, graph.num_nodes, dim)
    return lambda x: cusparse.with_gradient(forth, back, x)


def by_dgl(layer: str, dim: int, graph: Graph) -> Run:
    import dgl
    from dgl.nn.pytorch import GATConv, GATv2Conv, GINConv, GraphConv, SAGEConv

    device = graph.edge_index.device
    structure = dgl.graph(tuple(graph.edge_index), num_nodes=graph.num_nodes).to(device)
    if layer == "sum":
        return lambda x: dgl.ops.copy_u_sum(structure, x)
    conv = {
        "SAGE": lambda: SAGEConv(dim, dim, "mean"),
        "GCN": lambda: GraphConv(dim, dim, allow_zero_in_degree=True),
        "GIN": lambda: GINConv(torch.nn.Linear(dim, dim), "sum"),
        "GAT": lambda: GATConv(dim, dim // _HEADS, _HEADS, allow_zero_in_degree=True),
        "GATv2": lambda: GATv2Conv(dim, dim // _HEADS, _HEADS, allow_zero_in_degree=True),
    }[layer]().to(device)
    return lambda x: conv(structure, x)


_SYSTEMS = {
    "peergraph": by_peergraph,
    "coo": by_coo,
    "csr": by_csr,
    "cusparse": by_cusparse,
    "dgl": by_dgl,
}
_NOT_IN = {
    "cusparse": set(LAYERS) - {"sum"},
    "csr": set(LAYERS) - set(_WITH_CSR),
    "dgl": {"GINE", "RGCN"},
}


def time_layer(session: Session, system: str, layer: str, dim: int, graph: Graph) -> None:
    """Records time and peak memory of a step, or that it needs more memory than there is."""
    fields = {"system": system, "semantics": graph.name, "layers": layer, "dim": dim}
    fields["edges"] = graph.edge_index.shape[1]
    fields["matmul"] = session.args.matmul
    with session.section(f"{graph.name} {layer} {dim} {system}", **fields):
        try:
            _time(session, _SYSTEMS[system](layer, dim, graph), dim, graph, fields)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            session.recorder.note(**fields, ms="OOM")
            session.note("  OOM")


def _time(session: Session, run: Run, dim: int, graph: Graph, fields: dict[str, Any]) -> None:
    x = features(graph.num_nodes, dim, session.device, grad=True)
    scale = torch.rand(graph.num_nodes, dim, device=session.device)

    def step(*_: object) -> None:
        x.grad = None
        run(x).flatten(1).backward(scale)

    # A structure of Peergraph's that is kept gets its transpose, too.
    is_kept = graph.sample is None and fields["system"] == "peergraph"
    for _ in range(5 if is_kept else 1):
        step()
    more = {}
    if session.device.type == "cuda":
        x.grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        more["peak_gib"] = (torch.cuda.max_memory_allocated() - before) / 2**30
    timing = measure(session, step)
    against = None if fields["system"] == "peergraph" else "peergraph"
    plan = "peergraph" if against is None else None
    session.recorder.add(timing, plan=plan, against=against, **fields, **more)


def why_without_dgl(device: torch.device) -> str | None:
    """Why DGL's own kernels cannot be measured here; None: they can."""
    if importlib.util.find_spec("dgl") is None:
        return "it is not installed"
    import peergraph_dgl  # noqa: F401  # lets DGL import with this torch
    from peergraph_dgl.backend.message_passing import is_unsupported_by_dgl

    return "this build of DGL knows no GPUs" if is_unsupported_by_dgl(device) else None


def why_without_cusparse(device: torch.device) -> str | None:
    """Why cuSPARSE cannot be measured here; None: it can."""
    return None if device.type == "cuda" else "it needs a GPU"


def run(session: Session) -> None:
    torch.set_float32_matmul_precision(session.args.matmul)
    systems = ["peergraph", *session.args.peers]
    for system, why_without in (("dgl", why_without_dgl), ("cusparse", why_without_cusparse)):
        reason = why_without(session.device) if system in systems else None
        if reason is not None:
            systems.remove(system)
            session.recorder.skip(system, reason)
    for name in session.args.parts:
        with session.section(name):
            with session.stage(name):
                graph = PARTS[name](session)
            for layer in session.args.layers:
                for dim in session.args.dims:
                    for system in systems:
                        if layer not in _NOT_IN.get(system, ()):
                            time_layer(session, system, layer, dim, graph)
            del graph


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "", graph="products")
    result.add_argument("--dims", type=integers, default="64,128,256")
    result.add_argument("--layers", type=words_of(LAYERS), default=",".join(LAYERS))
    result.add_argument("--parts", type=words_of(PARTS), default="graph,batch")
    result.add_argument("--community", type=int, default=512, help="nodes of a community")
    result.add_argument("--blocks", type=get_spec, default="papers", help="what batches are of")
    result.add_argument("--fanouts", type=_fanouts, default="30-30-30")
    result.add_argument("--batch", type=int, default=1024)
    result.add_argument("--matmul", choices=["highest", "high"], default="highest")
    result.set_defaults(world=1, warmup=0, iterations=8, budget=0.4)
    return result


def _fanouts(text: str) -> list[int]:
    return [int(fanout) for fanout in text.split("-")]


def draw(out: Path) -> list[Path]:
    """Draws what was recorded, beside the records: a chart for each graph."""
    rows = [
        r for r in read_records(out) if r["bench"] == "layers" and isinstance(r.get("ms"), float)
    ]
    charts = {}
    for where in dict.fromkeys(row["semantics"] for row in rows):
        groups: dict[str, dict[str, float | None]] = {}
        for row in (row for row in rows if row["semantics"] == where):
            case = groups.setdefault(f"{row['layers']}, {row['dim']} features", {})
            case[row["system"]] = row["ms"]
        title = f"One layer on a {where} of {row['edges'] / 1e6:.3g} M edges, {row['device']}"
        charts[f"layers_{where}"] = Chart.of_groups(title, "ms, forward and backward", groups)
    return draw_all(charts, out.parent)


if __name__ == "__main__":
    parsed = arguments()
    code = main("layers", run, parsed, peers=_PEERS)
    out = parsed.parse_args().out
    if out is not None:
        print(*draw(Path(out)), sep="\n")
    sys.exit(code)
