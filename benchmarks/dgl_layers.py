"""DGL's message passing and layers: DGL's kernels, Peergraph's, and Peergraph's layers.

    python benchmarks/dgl_layers.py --device cpu --graph products/20 --dims 64,128

Operations run forward, layers forward and backward, on a whole graph with both directions of each
edge, or (``--kinds block``) on a block of a mini-batch that no call has seen before: 4096
destinations with 10 neighbours each. The systems are:

- `peergraph`: the layers of ``peergraph_dgl.nn`` with fused kernels, or Peergraph's operations
- `steps`: the same layers on Peergraph's kernels step by step, without DGL's frames
- `kernels`: DGL's own layers on Peergraph's kernels
- `dgl`: DGL's own layers and kernels, if DGL's C library supports the device

All have the same number of threads. The systems take turns, and the best round of each counts,
because other work on the machine disturbs some rounds. OOM means out of memory.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from aggregate import features
from harness.common import integers, is_out_of_memory, main, measure, parser, words_of
from harness.ranks import Session
from harness.records import Timing
from inputs.layer_graphs import symmetric_graph
from torch import Tensor

_HEADS = 4
OPERATIONS = ("copy_u_sum", "copy_u_mean", "copy_u_max", "u_mul_e_sum", "u_add_v", "u_dot_v")
OPERATIONS += ("edge_softmax",)
KINDS = ("whole", "block")
_BLOCK_ROWS, _BLOCK_FANOUT = 4096, 10
LAYERS = ("SAGE", "SAGE-pool", "GCN", "GIN", "GAT", "GATv2")
_NAMES = (*OPERATIONS, *LAYERS)

Step = Callable[[], object]
Make = Callable[[], Any]


def make_layer(layers: Any, name: str, dim: int) -> torch.nn.Module:
    """A layer of `dim` features and as many outputs."""
    if name.startswith("SAGE"):
        return layers.SAGEConv(dim, dim, "pool" if name == "SAGE-pool" else "mean")
    if name == "GCN":
        return layers.GraphConv(dim, dim, allow_zero_in_degree=True)
    if name == "GIN":
        return layers.GINConv(torch.nn.Linear(dim, dim), "sum")
    kind = getattr(layers, f"{name}Conv")
    return kind(dim, dim // _HEADS, _HEADS, allow_zero_in_degree=True)


def operation(name: str, make: Make, dim: int) -> Step:
    """A call of dgl.ops; attention has a number for each head, or features by head."""
    import dgl

    g = make()
    x = features(g.num_src_nodes(), dim, g.device)
    heads = x.view(-1, _HEADS, dim // _HEADS)
    call = getattr(dgl.ops, name)
    if name.startswith("copy_u"):
        return lambda: call(make(), x)
    if name in ("u_mul_e_sum", "edge_softmax"):
        weights = torch.rand(g.num_edges(), _HEADS, 1, device=g.device)
        arguments = (heads, weights) if name == "u_mul_e_sum" else (weights,)
        return lambda: call(make(), *arguments)
    ends = heads[..., :1].contiguous() if name == "u_add_v" else heads
    return lambda: call(make(), ends, ends[: g.num_dst_nodes()])


def refuse_fused(*args: Any, **kwargs: Any) -> None:
    """Replaces a layer's fused code, so that it takes DGL's steps on Peergraph's kernels."""
    from peergraph.integration import Unsupported

    raise Unsupported("the benchmark times the steps")


def layer(name: str, make: Make, dim: int, layers: Any, steps: bool = False) -> Step:
    """Forward and backward."""
    g = make()
    conv = make_layer(layers, name, dim).to(g.device)
    if steps:
        conv.fused = refuse_fused  # type: ignore[assignment]
    x: Tensor = features(g.num_src_nodes(), dim, g.device, grad=True)
    scale = torch.rand(g.num_dst_nodes(), dim, device=g.device)

    def step() -> None:
        x.grad = None
        conv(make(), x).flatten(1).backward(scale)

    return step


def best_of(timings: list[Timing]) -> Timing:
    return min(timings, key=lambda timing: timing.ms)


def time_case(session: Session, name: str, dim: int, kind: str, make: Make, own: bool) -> None:
    """Records the times of an operation or a layer, of all systems that take part."""
    import dgl.nn

    import peergraph_dgl.nn

    ours = peergraph_dgl.nn
    systems = {"peergraph": ours, "steps": ours, "kernels": dgl.nn, "dgl": dgl.nn}
    if name not in LAYERS:
        del systems["steps"], systems["kernels"]
    if not own:
        del systems["dgl"]
    g = make()
    fields = {"layers": name, "dim": dim, "kind": kind, "edges": g.num_edges()}
    fields["threads"] = torch.get_num_threads()
    with session.section(f"{name} {dim} {kind}", **fields):
        timings: dict[str, list[Timing]] = {system: [] for system in systems}
        steps: dict[str, Step] = {}
        for turn in range(session.args.rounds):
            for system, layers in systems.items():
                if system not in timings:
                    continue
                peergraph_dgl.use_kernels("auto" if system == "dgl" else "always")
                session.note(f"{name} {dim} {kind} {system}")
                try:
                    if turn == 0:
                        make_step = functools.partial(layer, layers=layers, steps=system == "steps")
                        timed = (make_step if name in LAYERS else operation)(name, make, dim)
                        # Structures are kept, and get their transpose.
                        for _ in range(5):
                            timed()
                        steps[system] = timed
                    step = steps[system]
                    timings[system].append(measure(session, lambda *_, step=step: step()))
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                    del timings[system]
                    session.recorder.note(**fields, system=system, ms="OOM")
                    session.note("  OOM")
        for system, times in timings.items():
            against = None if system == "peergraph" else "peergraph"
            plan = "peergraph" if against is None else None
            timing = best_of(times)
            session.recorder.add(timing, system=system, plan=plan, against=against, **fields)


def make_block(g: Any) -> Make:
    """Makes blocks of the same edges, whose structure nothing is known of yet."""
    import dgl

    seeds = torch.arange(0, g.num_nodes(), max(1, g.num_nodes() // _BLOCK_ROWS))[:_BLOCK_ROWS]
    sampled = dgl.sampling.sample_neighbors(g.to("cpu"), seeds, _BLOCK_FANOUT)
    block = dgl.to_block(sampled, seeds)
    indptr, indices, _ = (part.to(g.device) for part in block.adj_tensors("csc"))
    ids = torch.arange(indices.numel(), device=g.device)
    ends = {"num_src_nodes": block.num_src_nodes(), "num_dst_nodes": block.num_dst_nodes()}
    return lambda: dgl.create_block(("csc", (indptr, indices, ids)), **ends)


def run(session: Session) -> None:
    # First, so that DGL imports.
    from peergraph_dgl.backend.message_passing import is_unsupported_by_dgl

    # isort: split
    import dgl

    args = session.args
    # Its OpenMP is not torch's.
    dgl.utils.set_num_threads(torch.get_num_threads())
    threads = torch.get_num_threads(), dgl.utils.get_num_threads()
    session.note(f"threads: {threads[0]} of torch and Peergraph, {threads[1]} of DGL")
    csc = symmetric_graph(args.graph, session.device, by_hotness=False)
    indptr, indices = csc.indptr.long(), csc.indices.long()
    ids = torch.arange(csc.num_edges, device=session.device)
    g = dgl.graph(("csc", (indptr, indices, ids)), num_nodes=csc.num_destinations)
    makes: dict[str, Make] = {"whole": lambda: g}
    if "block" in args.kinds:
        makes["block"] = make_block(g)
    has_own = not is_unsupported_by_dgl(session.device)
    if not has_own:
        session.recorder.skip("dgl", "this build of DGL knows no GPUs")
    for kind in args.kinds:
        for dim in args.dims:
            for name in args.layers:
                time_case(session, name, dim, kind, makes[kind], has_own)


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "", graph="products")
    result.add_argument("--dims", type=integers, default="64,128")
    result.add_argument("--layers", type=words_of(_NAMES), default=",".join(_NAMES))
    result.add_argument(
        "--kinds", type=words_of(KINDS), default="whole", help=f"of {', '.join(KINDS)}"
    )
    result.add_argument(
        "--rounds", type=int, default=3, help="turns of each system; the best counts"
    )
    result.set_defaults(world=1, warmup=0, iterations=8, budget=0.4)
    return result


if __name__ == "__main__":
    sys.exit(main("dgl_layers", run, arguments(), peers=()))
