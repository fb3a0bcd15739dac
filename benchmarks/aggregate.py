"""Aggregation over a whole graph and over the blocks of mini-batches: forward, and with backward.

    python benchmarks/aggregate.py --graph products --peers torch,cusparse

The graph has both directions of each edge. Peers: `torch` (torch.sparse, which calls cuSPARSE),
`scatter` (every message written, then index_add_, as PyG does for a list of edges), `cupy`
(cuSPARSE by way of CuPy). `gbs` counts every edge's row as read from memory: more than the memory
gives means that caches caught repeated rows. `peak_gib` is what a call needs beyond its inputs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from harness.common import integers, main, measure, parser, words_of
from harness.ranks import Session
from inputs.arrays import fill_features, random_ids
from inputs.layer_graphs import community_graph, symmetric_graph
from systems import cusparse
from torch import Tensor

from peergraph.aggregate import Csc, edge_softmax, g_sddmm, g_spmm, reorder

_HEADS = 4
_BLOCK_FANOUT = 20
_PARTS_OF = {
    "torch": ("forward", "locality"),
    "scatter": ("training",),
    "cupy": ("forward",),
    "cusparse": ("forward", "hotness"),
}
_PARTS = ("forward", "hotness", "locality", "training", "blocks", "edges")


@dataclass
class Case:
    """An operation: what runs it, what it reads if no row is ever found in a cache."""

    name: str
    dim: int
    run: Callable[[], object]
    num_bytes: int


def random_block(args: argparse.Namespace, device: torch.device) -> tuple[Tensor, Tensor, int]:
    """Offsets, sources and their number: as of a hop, most sources occur once or twice."""
    sources = args.block * _BLOCK_FANOUT * 3 // 4
    edges = args.block * _BLOCK_FANOUT
    indptr = torch.arange(0, edges + 1, _BLOCK_FANOUT, dtype=torch.int32, device=device)
    return indptr, random_ids(3, edges, sources, device, torch.int32), sources


def spmm_bytes(csc: Csc, dim: int, edge_values: int = 0) -> int:
    edges, rows = csc.num_edges, csc.num_destinations
    return 4 * (edges * (1 + dim + edge_values) + rows * (1 + dim))


def with_backward(run: Callable[[], Tensor], inputs: list[Tensor]) -> Callable[[], object]:
    def step() -> object:
        out = run()
        return torch.autograd.grad(out, inputs, out.detach())

    return step


def features(rows: int, dim: int, device: torch.device, grad: bool = False) -> Tensor:
    return fill_features(0, torch.empty(rows, dim, device=device)).requires_grad_(grad)


def time_case(session: Session, case: Case, system: str, **fields: object) -> None:
    """Times a case and records its peak memory."""
    with session.section(f"{case.name} {case.dim} {system}", system=system, dim=case.dim):
        cuda = session.device.type == "cuda"
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            case.run()
            fields["peak_gib"] = (torch.cuda.max_memory_allocated() - before) / 2**30
        timing = measure(session, lambda *_: case.run())
        session.recorder.add(
            timing,
            system=system,
            semantics=case.name,
            dim=case.dim,
            bytes=case.num_bytes,
            **fields,
        )


def by_hotness(session: Session, csc: Csc, dim: int) -> None:
    """A sum of neighbours where the most frequent have the first rows."""
    x = features(csc.num_sources, dim, session.device)
    case = Case("sum", dim, lambda: g_spmm(csc, "copy_u", "sum", x), spmm_bytes(csc, dim))
    time_case(session, case, "peergraph, by hotness")
    ones = torch.ones(csc.num_edges, device=session.device)
    run_cusparse(session, csc, x, ones, ["sum"], ", by hotness")


def locality(session: Session) -> None:
    """A sum of neighbours in a graph with communities, before and after it is renumbered."""
    args = session.args
    with session.stage(f"graph with communities of {args.community}"):
        csc = community_graph(args.graph, args.community, session.device)
    with session.stage("nodes renumbered by communities"):
        renumbered, _ = reorder(csc)
    for dim in args.dims:
        x = features(csc.num_sources, dim, session.device)
        num_bytes = spmm_bytes(csc, dim)

        def case(of: Csc, x: Tensor = x, num_bytes: int = num_bytes) -> Case:
            run = partial(g_spmm, of, "copy_u", "sum", x)
            return Case("sum, communities", x.shape[1], run, num_bytes)

        time_case(session, case(csc), "peergraph")
        if session.wants("torch"):
            shape = (csc.num_destinations, csc.num_sources)
            ones = torch.ones(csc.num_edges, device=session.device)
            matrix = torch.sparse_csr_tensor(csc.indptr, csc.indices, ones, shape)
            run = partial(torch.matmul, matrix, x)
            time_case(session, Case("sum, communities", dim, run, num_bytes), "torch csr")
            del matrix, ones
        time_case(session, case(renumbered), "peergraph, renumbered")


def forward(session: Session, csc: Csc, dim: int) -> None:
    """A sum of neighbours, without and with weights, and its peers."""
    x = features(csc.num_sources, dim, session.device)
    weights = torch.rand(csc.num_edges, device=session.device)
    plain = Case("sum", dim, lambda: g_spmm(csc, "copy_u", "sum", x), spmm_bytes(csc, dim))
    time_case(session, plain, "peergraph")
    for half in (torch.float16, torch.bfloat16):
        narrow = x.to(half)
        name = f"sum {str(half).removeprefix('torch.')}"
        num_bytes = spmm_bytes(csc, dim // 2)
        time_case(
            session, Case(name, dim, lambda n=narrow: g_spmm(csc, "copy_u", "sum", n), num_bytes),
            "peergraph",
        )  # fmt: skip
        del narrow
    weighted = spmm_bytes(csc, dim, 1)
    time_case(
        session,
        Case("weighted sum", dim, lambda: g_spmm(csc, "mul", "sum", x, weights), weighted),
        "peergraph",
    )
    run_peers(session, csc, x, weights)


def run_peers(session: Session, csc: Csc, x: Tensor, weights: Tensor) -> None:
    dim, num_bytes = x.shape[1], spmm_bytes(csc, x.shape[1], 1)
    shape = (csc.num_destinations, csc.num_sources)
    if session.wants("torch"):
        matrix = torch.sparse_csr_tensor(csc.indptr, csc.indices, weights, shape)
        for name in ("sum", "weighted sum"):
            time_case(session, Case(name, dim, lambda: matrix @ x, num_bytes), "torch csr")
        del matrix
    run_cusparse(session, csc, x, weights, ["sum", "weighted sum"])
    if session.wants("cupy") and session.device.type == "cuda":
        with session.section("cupy", system="cupy", dim=dim):
            import cupy
            from cupyx.scipy.sparse import csr_matrix

            parts = [cupy.asarray(t) for t in (weights, csc.indices, csc.indptr)]
            sparse, dense = csr_matrix(tuple(parts), shape=shape), cupy.asarray(x)
            stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
            with stream:
                time_case(session, Case("sum", dim, lambda: sparse @ dense, num_bytes), "cupy")


def run_cusparse(
    session: Session, csc: Csc, x: Tensor, weights: Tensor, cases: list[str], of: str = ""
) -> None:
    """The product by the fastest of cuSPARSE's algorithms, on GPUs where it is asked for."""
    if not session.wants("cusparse") or session.device.type != "cuda":
        return
    dim, num_bytes = x.shape[1], spmm_bytes(csc, x.shape[1], 1)
    with session.section(f"cusparse{of}", system="cusparse", dim=dim):
        parts = csc.indptr, csc.indices, weights
        product = cusparse.fastest(*parts, csc.num_sources, dim)
        for case in cases:
            name = f"cusparse {product.algorithm}{of}"
            time_case(session, Case(case, dim, lambda: product(x), num_bytes), name)


def training(session: Session, csc: Csc, dim: int) -> None:
    """Forward and backward of what layers are made of."""
    device = session.device
    x = features(csc.num_sources, dim, device, grad=True)
    num_bytes = 2 * spmm_bytes(csc, dim)
    for reduce in ("mean", "max"):
        run = with_backward(lambda r=reduce: g_spmm(csc, "copy_u", r, x), [x])
        time_case(session, Case(f"{reduce} + backward", dim, run, num_bytes), "peergraph")
    if session.wants("scatter"):
        destination = torch.arange(csc.num_destinations, dtype=torch.int32, device=device)
        destination = destination.repeat_interleave(csc.indptr.diff())

        def scatter() -> Tensor:
            zeros = x.new_zeros(csc.num_destinations, dim)
            return zeros.index_add(0, destination, x.index_select(0, csc.indices))

        run = with_backward(scatter, [x])
        time_case(session, Case("mean + backward", dim, run, num_bytes), "scatter")
        del destination
    heads = x.detach().view(-1, _HEADS, dim // _HEADS).requires_grad_()
    left, right = (torch.randn(1, *heads.shape[1:], device=device) for _ in range(2))

    def attention() -> Tensor:
        score = g_sddmm(csc, "add", (heads * left).sum(-1), (heads * right).sum(-1))
        weight = edge_softmax(csc, torch.nn.functional.leaky_relu(score, 0.2))
        return g_spmm(csc, "mul", "sum", heads, weight)

    run = with_backward(attention, [heads])
    time_case(session, Case("attention + backward", dim, run, 3 * num_bytes // 2), "peergraph")


def edges(session: Session, csc: Csc) -> None:
    """What is written by edge, for --heads heads."""
    scores = torch.randn(csc.num_edges, _HEADS, device=session.device, requires_grad=True)
    run = with_backward(lambda: edge_softmax(csc, scores), [scores])
    num_bytes = csc.num_edges * _HEADS * 4 * 5
    time_case(session, Case("edge softmax + backward", _HEADS, run, num_bytes), "peergraph")
    for dim in session.args.dims:
        x = features(csc.num_sources, dim, session.device)
        num_bytes = csc.num_edges * 4 * (dim + 2)
        case = Case("dot", dim, lambda x=x: g_sddmm(csc, "dot", x, x), num_bytes)
        time_case(session, case, "peergraph")


def blocks(session: Session, dim: int) -> None:
    """A mini-batch's hop: both ways of the backward, and plain stores where sources occur once."""
    indptr, indices, sources = random_block(session.args, session.device)
    x = features(sources, dim, session.device, grad=True)
    counts = torch.bincount(indices, minlength=sources).int()
    for number, (name, backward, count) in enumerate(
        [("atomics, counts known", "atomic", counts), ("atomics", "atomic", None),
         ("transpose", "transpose", None)]
    ):  # fmt: skip

        def layer(backward: str = backward, count: Tensor | None = count) -> Tensor:
            csc = Csc(indptr, indices, sources, duplicate_counts=count, transient=True, check=False)
            return g_spmm(csc, "copy_u", "mean", x, backward=backward)

        num_bytes = 4 * indices.numel() * (2 * dim + 2)
        case = Case("block, mean + backward", dim, with_backward(layer, [x]), num_bytes)
        time_case(session, case, "peergraph" if number == 0 else f"peergraph, {name}")


def skip_peers(session: Session) -> None:
    """Says which peers have no part in what is measured."""
    for peer in session.args.peers:
        if peer in ("cupy", "cusparse") and session.device.type != "cuda":
            session.recorder.skip(peer, "it needs a GPU")
        elif not set(_PARTS_OF[peer]) & set(session.args.parts):
            session.recorder.skip(peer, f"it is a peer of the parts {', '.join(_PARTS_OF[peer])}")


def run(session: Session) -> None:
    skip_peers(session)
    dims, parts = session.args.dims, session.args.parts
    with session.stage("graph"):
        csc = symmetric_graph(session.args.graph, session.device, by_hotness=False)
    if "forward" in parts:
        for dim in dims:
            forward(session, csc, dim)
    if "hotness" in parts:
        with session.stage("graph, nodes renumbered"):
            renumbered = symmetric_graph(session.args.graph, session.device, by_hotness=True)
        for dim in dims:
            by_hotness(session, renumbered, dim)
        del renumbered
    if "locality" in parts:
        locality(session)
    for dim in dims:
        if "training" in parts:
            training(session, csc, dim)
        if "blocks" in parts:
            blocks(session, dim)
    if "edges" in parts:
        edges(session, csc)


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "", graph="products")
    result.add_argument("--dims", type=integers, default="64,128,256")
    result.add_argument("--community", type=int, default=512, help="nodes of a community")
    result.add_argument(
        "--parts", type=words_of(_PARTS), default=",".join(_PARTS), help=f"of {', '.join(_PARTS)}"
    )
    result.add_argument("--block", type=int, default=50_000, help="destinations of a block")
    result.set_defaults(world=1)
    return result


if __name__ == "__main__":
    sys.exit(main("aggregate", run, arguments(), peers=tuple(_PARTS_OF)))
