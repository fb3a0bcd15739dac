"""DGL's message passing and layers: DGL's kernels, Peergraph's, and Peergraph's layers.

    python benchmarks/dgl_layers.py --device cpu --graph products/20 --dims 64,128

Operations run forward, layers forward and backward, on a whole graph with both directions of each
edge. `peergraph` is Peergraph's kernels, and the layers of ``peergraph_dgl.nn``; `kernels` is DGL's
layers on Peergraph's kernels; `dgl` runs where DGL's C library knows the device.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from aggregate import features, symmetric_graph
from harness.common import integers, main, measure, parser, words
from harness.ranks import Session
from torch import Tensor

_HEADS = 4
OPERATIONS = ("copy_u_sum", "copy_u_mean", "copy_u_max", "u_mul_e_sum", "u_add_v", "u_dot_v")
OPERATIONS += ("edge_softmax",)
LAYERS = ("SAGE", "GCN", "GIN", "GAT", "GATv2")

Step = Callable[[], object]


def make_layer(layers: Any, name: str, dim: int) -> torch.nn.Module:
    """A layer of `dim` features and as many outputs."""
    if name == "SAGE":
        return layers.SAGEConv(dim, dim, "mean")
    if name == "GCN":
        return layers.GraphConv(dim, dim, allow_zero_in_degree=True)
    if name == "GIN":
        return layers.GINConv(torch.nn.Linear(dim, dim), "sum")
    kind = getattr(layers, f"{name}Conv")
    return kind(dim, dim // _HEADS, _HEADS, allow_zero_in_degree=True)


def operation(name: str, g: Any, dim: int) -> Step:
    """A call of dgl.ops; attention has a number for each head, or features by head."""
    import dgl

    x = features(g.num_nodes(), dim, g.device)
    heads = x.view(g.num_nodes(), _HEADS, dim // _HEADS)
    call = getattr(dgl.ops, name)
    if name.startswith("copy_u"):
        return lambda: call(g, x)
    if name in ("u_mul_e_sum", "edge_softmax"):
        weights = torch.rand(g.num_edges(), _HEADS, 1, device=g.device)
        given = (heads, weights) if name == "u_mul_e_sum" else (weights,)
        return lambda: call(g, *given)
    ends = heads[..., :1].contiguous() if name == "u_add_v" else heads
    return lambda: call(g, ends, ends)


def layer(name: str, g: Any, dim: int, layers: Any) -> Step:
    """Forward and backward."""
    conv = make_layer(layers, name, dim).to(g.device)
    x: Tensor = features(g.num_nodes(), dim, g.device, grad=True)
    scale = torch.rand(g.num_nodes(), dim, device=g.device)

    def step() -> None:
        x.grad = None
        conv(g, x).flatten(1).backward(scale)

    return step


def time_step(session: Session, system: str, name: str, dim: int, g: Any, layers: Any) -> None:
    """Records the time of a step."""
    import peergraph_dgl

    peergraph_dgl.use_kernels("auto" if system == "dgl" else "always")
    fields = {"system": system, "layers": name, "dim": dim, "edges": g.num_edges()}
    with session.section(f"{name} {dim} {system}", **fields):
        make = functools.partial(layer, layers=layers) if name in LAYERS else operation
        step = make(name, g, dim)
        # Structures are kept, and get their transpose.
        for _ in range(5):
            step()
        timing = measure(session, lambda *_: step())
        against = None if system == "peergraph" else "peergraph"
        plan = "peergraph" if against is None else None
        session.recorder.add(timing, plan=plan, against=against, **fields)


def run(session: Session) -> None:
    import peergraph_dgl

    # isort: split
    import dgl
    import dgl.nn

    import peergraph_dgl.nn
    from peergraph_dgl.message_passing import is_foreign

    args = session.args
    csc = symmetric_graph(args.graph, session.device, by_hotness=False)
    indptr, indices = csc.rows.indptr.long(), csc.rows.indices.long()
    ids = torch.arange(csc.num_edges, device=session.device)
    g = dgl.graph(("csc", (indptr, indices, ids)), num_nodes=csc.num_destinations)
    has_own = not is_foreign(session.device)
    if not has_own:
        session.recorder.skip("dgl", "this build of DGL knows no GPUs")
    for dim in args.dims:
        for name in args.layers:
            # Peergraph comes first: the others are compared with it.
            time_step(session, "peergraph", name, dim, g, peergraph_dgl.nn)
            if name in LAYERS:
                time_step(session, "kernels", name, dim, g, dgl.nn)
            if has_own:
                time_step(session, "dgl", name, dim, g, dgl.nn)


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "", graph="products")
    result.add_argument("--dims", type=integers, default="64,128")
    result.add_argument("--layers", type=words, default=",".join((*OPERATIONS, *LAYERS)))
    result.set_defaults(world=1, warmup=0, iterations=8, budget=0.4)
    return result


if __name__ == "__main__":
    sys.exit(main("dgl_layers", run, arguments(), peers=()))
