"""Products of a graph's normalised adjacency with features of the widths of full-graph training.

    python benchmarks/spmm.py --graphs products,reddit --peers torch,cusparse

`sum` adds neighbours, `weighted sum` multiplies each by GCN's weight of its edge. Peergraph has
these rows:

- `peergraph`: one product with the features as they lie;
- `peergraph, padded`: rows of features are copied to multiples of 64 bytes first, in the time;
- `peergraph, already padded`: the same without the copy;
- `peergraph, N blocks`: the sources in N blocks of columns, one accumulating product for each, so
  that a block's features stay in the L2 cache.

`floor_ms` is the time of memory for structure, weights and the features once; `edge_floor_ms` if
each edge reads its row of features from memory. Peers: `torch` (torch.sparse, which calls
cuSPARSE), `cusparse` (its fastest algorithm).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from itertools import pairwise

import torch
from harness.common import integers, main, measure, parser, words
from harness.ranks import Session
from inputs.arrays import fill_features
from inputs.gcn_graph import GcnGraph, make_gcn_graph
from inputs.graphs import get_spec
from systems import cusparse
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.aggregate.kernels.arguments import CsrTensors
from peergraph.aggregate.sparse.column_blocks import add_in_blocks

# Bytes per second that an H200's memory gives to a kernel.
_MEMORY_RATE = 4.0e12
_ROW_BYTES = 64
_NAMES = {"copy_u": "sum", "mul": "weighted sum"}


def column_blocks(csc: Csc, count: int) -> list[CsrTensors]:
    """Cuts the sources into blocks."""
    cuts = [csc.num_sources * block // count for block in range(count + 1)]
    return [csc.take_columns(first, last).tensors for first, last in pairwise(cuts)]


class Products:
    """The products of one graph at one width."""

    def __init__(self, session: Session, name: str, graph: GcnGraph, csc: Csc, dim: int) -> None:
        self.session, self.name, self.graph, self.csc, self.dim = session, name, graph, csc, dim
        self.x = fill_features(0, torch.empty(graph.num_nodes, dim, device=session.device))
        self.weights = graph.weights[:, None]
        self._expected: dict[str, Tensor] = {}

    def time(self, system: str, message: str, run: Callable[[], Tensor]) -> None:
        session, edges, nodes = self.session, self.graph.num_edges, self.graph.num_nodes
        fields = {"system": system, "dim": self.dim, "graph": self.name}
        with session.section(f"{self.name} {self.dim} {_NAMES[message]} {system}", **fields):
            self._check(message, run())
            structure = 4 * (edges * (2 if message == "mul" else 1) + nodes)
            once = structure + 8 * nodes * self.dim
            by_edge = structure + 4 * (edges + nodes) * self.dim
            session.recorder.add(
                measure(session, lambda *_: run()),
                semantics=_NAMES[message],
                floor_ms=once / _MEMORY_RATE * 1e3,
                edge_floor_ms=by_edge / _MEMORY_RATE * 1e3,
                bytes=by_edge,
                **fields,
            )

    def _check(self, message: str, out: Tensor) -> None:
        """The first result of a message is the reference of those that follow."""
        expected = self._expected.setdefault(message, out)
        error = torch.linalg.vector_norm(out - expected) / torch.linalg.vector_norm(expected)
        if not error < 1e-5:
            raise AssertionError(f"the product differs from the first one by {float(error):.2g}")

    def plain(self, message: str) -> Callable[[], Tensor]:
        e = self.weights if message == "mul" else None
        return lambda: self.csc.sum_messages(self.x, e, message)

    def padded(self, message: str, copies: bool) -> Callable[[], Tensor]:
        width = -(-self.dim * 4 // _ROW_BYTES) * _ROW_BYTES // 4
        rows = self.x.new_zeros(self.x.shape[0], width)
        rows[:, : self.dim] = self.x
        e = self.weights if message == "mul" else None

        def run() -> Tensor:
            if copies:
                rows[:, : self.dim] = self.x
            return self.csc.sum_messages(rows, e, message)[:, : self.dim]

        return run

    def in_blocks(self, message: str, blocks: list[CsrTensors]) -> Callable[[], Tensor]:
        e = self.weights if message == "mul" else None
        return lambda: add_in_blocks(None, blocks, self.x, e, message)

    def peers(self) -> None:
        graph, session = self.graph, self.session
        indptr, size = graph.indptr.int(), (graph.num_nodes, graph.num_nodes)
        parts = indptr, graph.indices, graph.weights
        if session.wants("torch"):
            matrix = torch.sparse_csr_tensor(*parts, size=size, check_invariants=False)
            self.time("torch csr", "mul", lambda: matrix @ self.x)
        if session.wants("cusparse") and session.device.type == "cuda":
            product = cusparse.fastest(*parts, graph.num_nodes, self.dim)
            self.time(f"cusparse {product.algorithm}", "mul", lambda: product(self.x))


def run_graph(session: Session, name: str) -> None:
    args = session.args
    with session.stage(f"graph {name}"):
        graph = make_gcn_graph(get_spec(name), session.device)
        csc = Csc(graph.indptr.int(), graph.indices, graph.num_nodes)
    session.note(f"  {graph.num_nodes} nodes, {graph.num_edges} edges")
    with session.stage("blocks of columns"):
        blocks = {count: column_blocks(csc, count) for count in args.blocks}
    for dim in args.dims:
        products = Products(session, name, graph, csc, dim)
        for message in args.messages:
            products.time("peergraph", message, products.plain(message))
            if dim * 4 % _ROW_BYTES:
                products.time("peergraph, padded", message, products.padded(message, True))
                already = products.padded(message, False)
                products.time("peergraph, already padded", message, already)
            for count in args.blocks:
                run = products.in_blocks(message, blocks[count])
                products.time(f"peergraph, {count} blocks", message, run)
        products.peers()
        del products


def run(session: Session) -> None:
    if session.wants("cusparse") and session.device.type != "cuda":
        session.recorder.skip("cusparse", "it needs a GPU")
    for name in session.args.graphs:
        run_graph(session, name)


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "")
    result.add_argument("--graphs", type=words, default="products,reddit")
    result.add_argument("--dims", type=integers, default="41,47,64,100,128,256,512,602")
    result.add_argument("--blocks", type=integers, default="2,4,8", help="of the sources")
    result.add_argument("--messages", type=words, default="copy_u,mul")
    result.set_defaults(world=1, budget=0.4)
    return result


if __name__ == "__main__":
    sys.exit(main("spmm", run, arguments(), peers=("torch", "cusparse")))
