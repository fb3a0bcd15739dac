"""Small graphs, where Python's share counts: the host's time of operations, and whole epochs.

    python benchmarks/fullgraph_small.py --parts ops,epochs --graphs cora,arxiv

Part `ops`: microseconds of the host for one operation on a partitioned tensor of one rank, and for
the same on a plain tensor, with few rows; `+ backward` is with its gradients. Part `epochs`:
forward, loss of the training nodes, backward and Adam, by PyG's models: `peergraph`, the same with
each epoch as a CUDA graph, and PyG with its edge list (`pyg`) or its CSR matrix (`pyg csr`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from fullgraph import Case, Model, csr_matrix, training
from harness.common import main, measure, parser, words, words_of
from harness.ranks import Session, synchronize
from torch import Tensor
from torch_geometric.data import Data

import peergraph_pyg
from peergraph.aggregate import Csc, layers
from peergraph.fullgraph import FullGraph, PartitionedTensor, capture, distribute

PARTS = ("ops", "epochs")
# GCN:2x16, ... as `fullgraph.py` takes them; `+bn` adds batch normalisation, dropout is 0.5.
MODELS = "GCN:2x16,GCN:3x256+bn,SAGE:2x16,SAGE:3x256+bn,GAT:2x8,GAT:3x64+bn"
_ROWS, _WIDTH, _CLASSES, _EDGES = 256, 16, 7, 1024
_ROUNDS = 40


@dataclass
class Operands:
    """What operations take: rows of nodes, which may be partitioned, and parameters."""

    x: Tensor  # [n, width], needs a gradient
    y: Tensor  # [n] classes
    mask: Tensor  # [n] bool
    scale: Tensor  # [n, 1]
    structure: Any
    weight: Tensor  # [width, width]
    bias: Tensor  # [width]
    heads: Tensor  # [heads, width / heads]
    norm: torch.nn.Module

    @property
    def parameters(self) -> list[Tensor]:
        return [self.weight, self.bias, self.heads, *self.norm.parameters()]


Op = Callable[[Operands], Tensor]


def _gat(o: Operands) -> Tensor:
    h = F.linear(o.x, o.weight).view(-1, *o.heads.shape)
    return layers.gat(o.structure, h, o.heads, o.heads, add_self_loops=True)


OPS: dict[str, Op] = {
    "relu": lambda o: o.x.relu(),
    "x + x": lambda o: o.x + o.x,
    "x * column": lambda o: o.x * o.scale,
    "x + bias": lambda o: o.x + o.bias,
    "view": lambda o: o.x.view(-1, 4, _WIDTH // 4),
    "linear": lambda o: F.linear(o.x, o.weight, o.bias),
    "dropout": lambda o: F.dropout(o.x, 0.5),
    "log_softmax": lambda o: F.log_softmax(o.x, dim=-1),
    "batch norm": lambda o: o.norm(o.x),
    "x[mask]": lambda o: o.x[o.mask],
    "cross entropy": lambda o: F.cross_entropy(o.x, o.y),
    "loss of a mask": lambda o: F.cross_entropy(o.x[o.mask], o.y[o.mask]),
    "accuracy": lambda o: (o.x.detach().argmax(-1) == o.y)[o.mask].sum(),
    "sum of neighbours": lambda o: o.structure.spmm("copy_u", "sum", o.x),
    "gcn": lambda o: layers.gcn(o.structure, o.x, weight=o.weight, bias=o.bias),
    "sage": lambda o: layers.sage(o.structure, o.x, o.weight, self_weight=o.weight, bias=o.bias),
    "gat": _gat,
    "x.shape": lambda o: o.x if o.x.shape[0] else o.bias,
}


def operands(session: Session) -> tuple[Operands, Operands]:
    """The same for plain tensors and for partitioned ones."""
    device = session.device
    torch.manual_seed(1)
    edges = torch.randint(_ROWS, (2, _EDGES))
    graph = FullGraph.build(session.group, {"_N": _ROWS}, {("_N", "_E", "_N"): edges})
    layout = graph.node_layouts["_N"]
    norm = torch.nn.BatchNorm1d(_WIDTH).to(device)
    plain = Operands(
        x=torch.randn(_ROWS, _WIDTH, device=device).requires_grad_(),
        y=torch.randint(_CLASSES, (_ROWS,), device=device),
        mask=torch.rand(_ROWS, device=device) < 0.5,
        scale=torch.rand(_ROWS, 1, device=device),
        structure=Csc.from_edge_index(edges.to(device), _ROWS, _ROWS),
        weight=torch.randn(_WIDTH, _WIDTH, device=device).requires_grad_(),
        bias=torch.zeros(_WIDTH, device=device).requires_grad_(),
        heads=torch.randn(4, _WIDTH // 4, device=device).requires_grad_(),
        norm=norm,
    )
    rows = {
        name: distribute(getattr(plain, name).detach(), layout) for name in ("y", "mask", "scale")
    }
    x = distribute(plain.x.detach(), layout).requires_grad_()
    structure = next(iter(graph.structures.values()))
    return plain, replace(plain, x=x, structure=structure, **rows)


def time_calls(session: Session, runs: list[Callable[[], object]]) -> list[float]:
    """The host's milliseconds of a call of each: the least of rounds in which they take turns."""
    calls = []
    for run in runs:
        for _ in range(20):
            run()
        synchronize(session.device)
        start = time.perf_counter()
        run()
        share = session.args.op_seconds / _ROUNDS / len(runs)
        calls.append(max(3, int(share / (time.perf_counter() - start))))
    least = [float("inf")] * len(runs)
    for _ in range(_ROUNDS):
        for i, run in enumerate(runs):
            synchronize(session.device)
            start = time.perf_counter()
            for _ in range(calls[i]):
                run()
            least[i] = min(least[i], (time.perf_counter() - start) / calls[i] * 1e3)
    return least


def with_backward(op: Op, o: Operands) -> Callable[[], object] | None:
    """The operation and the gradients of all that it depends on, or None if it has no gradient."""
    out = op(o)
    if not out.requires_grad or out is o.x:
        return None
    inputs = [o.x, *o.parameters]
    grads = torch.autograd.grad(out.sum(), inputs, allow_unused=True)
    used = [t for t, gradient in zip(inputs, grads, strict=True) if gradient is not None]
    gradient = torch.ones_like(out.detach())
    return lambda: torch.autograd.grad(op(o), used, gradient)


def time_ops(session: Session) -> None:
    plain, partitioned = operands(session)
    assert isinstance(partitioned.x, PartitionedTensor)
    for name, op in OPS.items():
        with session.section(name):
            calls = {name: [partial(op, x) for x in (partitioned, plain)]}
            gradients = [with_backward(op, x) for x in (partitioned, plain)]
            if None not in gradients:
                calls[f"{name} + backward"] = [run for run in gradients if run is not None]
            for call, runs in calls.items():
                ms, torch_ms = time_calls(session, runs)
                session.recorder.note(
                    part="ops",
                    op=call,
                    ms=ms,
                    us=ms * 1e3,
                    us_torch=torch_ms * 1e3,
                    us_more=(ms - torch_ms) * 1e3,
                )


class SmallCase(Case):
    """A graph with training nodes."""

    def __init__(self, session: Session, name: str) -> None:
        super().__init__(session, name)
        x, y = self.rows(0, self.nodes)
        drawn = torch.rand(self.nodes, generator=torch.Generator().manual_seed(5))
        mask = (drawn < self.spec.train_nodes / self.nodes).to(self.device)
        edges = self.graph.edge_index(False)
        self.plain = Data(x=x, y=y, edge_index=edges, train_mask=mask, num_nodes=self.nodes)

    def epoch(self, system: str, text: str) -> Callable[[], Tensor]:
        name, _, extra = text.partition("+")
        kind = Model.parse(name)
        options: dict[str, Any] = {"dropout": 0.0 if kind.kind == "GAT" else 0.5}
        if extra == "bn":
            options["norm"] = "batch_norm"
        data, by_csr = self.plain, system == "pyg csr"
        if by_csr and kind.kind == "GCN":
            options["normalize"] = False
        model = kind.make(self.spec, self.device, **options)
        edges: Any = csr_matrix(self.graph, kind.kind) if by_csr else data.edge_index
        if system.startswith("peergraph"):
            model = peergraph_pyg.accelerate(model)
            data = peergraph_pyg.full_graph(data, group=self.session.group)
            edges = data.edge_index
        captured = system == "peergraph captured"
        on_gpu = self.device.type == "cuda"
        torch.manual_seed(11)
        epoch = training(
            model, data.x, edges, data.y, data.train_mask, capturable=captured and on_gpu
        )
        return capture(epoch, group=self.session.group) if captured else epoch


def time_epochs(case: SmallCase, system: str, model: str) -> None:
    session, cuda = case.session, case.device.type == "cuda"
    fields = {"part": "epochs", "system": system, "graph": case.spec.name, "layers": model}
    with session.section(f"{system} {model} {case.spec.name}", **fields):
        epoch = case.epoch(system, model)
        losses = [epoch()]
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        timing = measure(session, lambda *_: losses.append(epoch()))
        session.recorder.add(
            timing,
            peak_gib=torch.cuda.max_memory_allocated() / 2**30 if cuda else None,
            loss=float(losses[0]),
            last_loss=float(losses[min(len(losses) - 1, 8)]),
            **fields,
        )


def run(session: Session) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    if "ops" in session.args.parts:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        time_ops(session)
        torch.set_num_threads(threads)
    if "epochs" not in session.args.parts:
        return
    for name in session.args.graphs:
        with session.stage(f"graph {name}"):
            case = SmallCase(session, name)
        for model in session.args.models:
            for system in ("peergraph", "peergraph captured", *session.args.peers):
                time_epochs(case, system, model)


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "")
    result.add_argument("--parts", type=words_of(PARTS), default="ops,epochs")
    result.add_argument("--graphs", type=words, default="cora,arxiv")
    result.add_argument("--models", type=words, default=MODELS, help="as of fullgraph.py, or +bn")
    result.add_argument("--op-seconds", type=float, default=0.3, help="for each operation")
    result.set_defaults(world=1, iterations=40, warmup=8, budget=1.0)
    return result


if __name__ == "__main__":
    sys.exit(main("fullgraph_small", run, arguments(), ("pyg", "pyg csr")))
