"""Epochs of full-graph training: PyG's models through `peergraph_pyg.full_graph`, and their peers.

    python benchmarks/fullgraph.py --graphs products,reddit --models GCN:2x512,GCN:3x256
        --worlds 1,2,4 --peers csr,broadcast
    python benchmarks/fullgraph.py --graphs products:sorted --orders random,original
        --overlap on,off --worlds 2                          (MG-GCN's Figure 7)
    python benchmarks/fullgraph.py --graphs products:communities --orders random,communities
    python benchmarks/fullgraph.py --models GCN:2x512:0.5                (dropout on the features)

An epoch is forward, cross entropy over all nodes, backward and Adam, in float32 without TF32.
Peers: `csr`, PyG's layers on a CSR matrix on one GPU; `broadcast`, GCN in plain torch with
overlapped NCCL broadcasts and cuSPARSE (`systems/overlapped_broadcast.py`). All of a model begin
with the same parameters; `loss` and `last_loss` are the first and the last epoch's. `order` is that
of the nodes; rows with `setting` have another order than the first, or exchange rows before the
sums instead of under them. `remote_rows` are the rows that the busiest rank needs of others, over
the number of nodes. `ms_spmm`, `ms_exchange`, `ms_gemm` and `ms_rest` are kernels and copies of one
epoch on rank 0: what overlaps is counted in each. `ms_sums` is the time in which sums or copies
run. `peak_gib` is the most that torch allocates on a rank while it trains, `build_peak_gib` before
the second epoch, with the first model of an order. `edge_floor_ms` is the time of memory if each
edge reads its row of features, with matrices at 60 TFLOP/s.

The sum of features that do not change is kept from epoch to epoch, in `peergraph` and `broadcast`.
Dropout on the features changes them in each epoch: nothing is kept then; `broadcast` has none.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import itertools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from harness.common import (
    add_worlds,
    by_world,
    is_out_of_memory,
    main,
    measure,
    parser,
    words,
    words_of,
)
from harness.kernel_times import length_of, spans_by_kind
from harness.ranks import Session
from inputs.arrays import fill_features, label_rows
from inputs.gcn_graph import GcnGraph, make_gcn_graph, parse_name
from inputs.graphs import GraphSpec
from systems.exchange_in_turn import exchange_in_turn
from systems.overlapped_broadcast import BroadcastGcn, SplitProduct, sums_first
from torch import Tensor
from torch_geometric import nn as pyg_nn
from torch_geometric.data import Data

import peergraph_pyg
from peergraph.fullgraph import named_model
from peergraph.fullgraph.exchange.transport import Transport

_RATE = 1e-2
_HEADS = 4
_MEMORY_RATE = 4.0e12
_ARITHMETIC_RATE = 60e12
_KINDS = {"GCN": "GCN", "SAGE": "GraphSAGE", "GAT": "GAT"}
_PARTS = {
    "spmm": ("spmm", "csrmm", "sddmm", "attention", "copy_to_padded", "rows_kernel"),
    "exchange": ("nccl", "ptop", "peer", "flag"),
    "gemm": ("gemm", "cutlass", "xmma", "splitk", "cublas"),
}

Epoch = Callable[[], Tensor]


@dataclass(frozen=True)
class Model:
    """A model of PyG, such as GCN:2x512: two layers, hidden features of 512 columns."""

    kind: str
    layers: int
    hidden: int
    dropout: float = 0.0
    feature_dropout: float = 0.0

    @staticmethod
    def parse(text: str) -> Model:
        match = re.fullmatch(r"(\w+):(\d+)x(\d+)(?::(0?\.\d+))?", text)
        if match is None or match[1] not in _KINDS:
            form = f"KIND:LAYERSxHIDDEN[:DROPOUT], of {', '.join(_KINDS)}"
            raise argparse.ArgumentTypeError(f"{text!r} is not {form}")
        dropout = float(match[4] or 0)
        return Model(match[1], int(match[2]), int(match[3]), feature_dropout=dropout)

    def __str__(self) -> str:
        dropout = f", dropout {self.dropout:g}" if self.dropout else ""
        if self.feature_dropout:
            dropout += f", dropout {self.feature_dropout:g} on features"
        return f"{self.kind} {self.layers} x {self.hidden}{dropout}"

    def widths(self, spec: GraphSpec) -> list[int]:
        return [spec.feature_dim] + [self.hidden] * (self.layers - 1) + [spec.num_classes]

    def make(self, spec: GraphSpec, device: torch.device, **options: object) -> torch.nn.Module:
        """PyG's model, with the same parameters at each call."""
        torch.manual_seed(7)
        options.setdefault("dropout", self.dropout)
        if self.kind == "GAT":
            options["heads"] = _HEADS
        model = getattr(pyg_nn.models, _KINDS[self.kind])(
            spec.feature_dim, self.hidden, self.layers, spec.num_classes, **options
        )
        if self.feature_dropout:
            dropout = torch.nn.Dropout(self.feature_dropout)
            calls = [(dropout, "x -> x"), (model, "x, edges -> x")]
            model = pyg_nn.Sequential("x, edges", calls)
        return model.to(device)


def models(text: str) -> list[Model]:
    return [Model.parse(word) for word in words(text)]


def training(
    model: torch.nn.Module,
    x: Tensor,
    edges: Any,
    y: Tensor,
    mask: Tensor | None = None,
    **options: Any,
) -> Epoch:
    """An epoch over all nodes, or those of a mask; options are those of Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE, **options)

    def epoch() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        out = model(x, edges)
        loss = F.cross_entropy(out, y) if mask is None else F.cross_entropy(out[mask], y[mask])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return epoch


class Case:
    """A graph on this rank's device, its features and labels."""

    def __init__(self, session: Session, name: str) -> None:
        self.session, self.name, self.device = session, name, session.device
        self.spec, arrangement = parse_name(name)
        self.graph = make_gcn_graph(self.spec, session.device, arrangement)
        self.nodes = self.graph.num_nodes
        self.data: Data | None = None
        """Partitioned in one of the orders."""

    def rows(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Features and labels of some nodes."""
        x = torch.empty(last - first, self.spec.feature_dim, device=self.device)
        ids = torch.arange(first, last, device=self.device)
        return fill_features(first, x), label_rows(ids, self.spec.num_classes)

    def partition(self, order: str) -> Data:
        if self.data is None:
            x, y = self.rows(0, self.nodes)
            data = Data(x=x, y=y, edge_index=self.graph.edge_index(False), num_nodes=self.nodes)
            del x, y
            self.data = peergraph_pyg.full_graph(data, order=order, group=self.session.group)
        return self.data

    def by_peergraph(self, model: Model, order: str) -> Epoch:
        data = self.partition(order)
        module = peergraph_pyg.accelerate(model.make(self.spec, self.device))
        return training(module, data.x, data.edge_index, data.y)

    def facts(self, model: Model) -> dict[str, object]:
        """What the plan says of the partition."""
        plan = peergraph_pyg.partition_of(self.data).plan
        plan = plan.with_model(named_model(model.widths(self.spec)))
        received = [sum(v.received[r] for v in plan.facts.volumes.values())
                    for r in range(plan.world_size)]  # fmt: skip
        rows = max(received) / self.nodes
        return {"order": plan.facts.order, "remote_rows": rows, "mode": plan.mode}

    def by_csr(self, model: Model) -> Epoch:
        options = {"normalize": False} if model.kind == "GCN" else {}
        x, y = self.rows(0, self.nodes)
        module = model.make(self.spec, self.device, **options)
        return training(module, x, csr_matrix(self.graph, model.kind), y)

    def by_broadcast(self, model: Model) -> Epoch:
        product = SplitProduct(self.graph, self.session.group)
        x, y = self.rows(product.rank * product.rows, (product.rank + 1) * product.rows)
        state = model.make(self.spec, self.device).state_dict()
        layers = range(model.layers)
        matrices = [state[f"convs.{i}.lin.weight"].t().contiguous() for i in layers]
        biases = [state[f"convs.{i}.bias"] for i in layers]
        return BroadcastGcn(product, x, y, matrices, biases, _RATE).epoch


def csr_matrix(graph: GcnGraph, kind: str) -> Tensor:
    """PyG's CSR matrix: GCN's weights and self loops, or ones."""
    values = graph.weights if kind == "GCN" else torch.ones_like(graph.weights)
    size = (graph.num_nodes, graph.num_nodes)
    return torch.sparse_csr_tensor(
        graph.indptr.int(), graph.indices, values, size=size, check_invariants=False
    )


def edge_floor_ms(model: Model, spec: GraphSpec, graph: GcnGraph, world: int) -> float:
    """Of an epoch of a GCN, each layer in the cheaper of its exact orders."""
    widths, nodes, edges = model.widths(spec), graph.num_nodes, graph.num_edges
    pairs = list(itertools.pairwise(widths))
    moved = operations = 0
    for i, ((first, second), sums) in enumerate(zip(pairs, sums_first(widths), strict=True)):
        for width in ([first] * (1 + (i > 0))) if sums else [second] * 2:
            moved += 8 * edges + 4 * (edges + nodes) * width
        operations += (2 + (i > 0)) * 2 * nodes * first * second
    return (moved / _MEMORY_RATE + operations / _ARITHMETIC_RATE) / world * 1e3


def parts_of(epoch: Epoch) -> dict[str, float]:
    """Milliseconds of the GPU's work in one epoch, by what it is."""
    spans = spans_by_kind(epoch, _PARTS)
    parts = {f"ms_{kind}": sum(b - a for a, b in pairs) / 1e3 for kind, pairs in spans.items()}
    return {**parts, "ms_sums": length_of(spans["spmm"] + spans["exchange"]) / 1e3}


def time_epochs(
    case: Case,
    system: str,
    model: Model,
    make: Callable[[Model], Epoch],
    setting: str | None = None,
) -> None:
    session, cuda = case.session, case.device.type == "cuda"
    fields = {"system": system, "graph": case.name, "layers": str(model), "setting": setting}
    if cuda:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with session.section(" ".join(filter(None, fields.values())), **fields):
        is_built = case.data is None
        try:
            session.note(f"{system}: {model} on {case.name}, {setting or 'first setting'}")
            epoch = session.together(lambda: make(model))
            losses = [epoch()]
            session.barrier()
            build_peak = torch.cuda.max_memory_allocated() if cuda else 0
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            timing = measure(session, lambda *_: losses.append(epoch()))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            session.recorder.failure(system, "out of memory", **fields)
            return
        peak = torch.cuda.max_memory_allocated() if cuda else 0
        peaks = session.group.all_gather((peak, build_peak))
        floor = edge_floor_ms(model, case.spec, case.graph, session.world)
        session.recorder.add(
            timing,
            peak_gib=max(of for of, _ in peaks) / 2**30 if cuda else None,
            build_peak_gib=max(of for _, of in peaks) / 2**30 if cuda and is_built else None,
            edge_floor_ms=floor if model.kind == "GCN" else None,
            loss=float(losses[0]),
            last_loss=float(losses[-1]),
            **fields,
            **(case.facts(model) if system == "peergraph" else {}),
            **(parts_of(epoch) if cuda else {}),
        )


def time_peergraph(case: Case) -> None:
    """All models in each order, with and without overlap, of which one rank has none."""
    args = case.session.args
    overlaps = args.overlap if case.session.world > 1 else args.overlap[:1]
    for number, (order, overlap) in enumerate(itertools.product(args.orders, overlaps)):
        if overlap == args.overlap[0]:
            case.data = None
        setting = None
        if number:
            setting = order if overlap == "on" else f"{order}, no overlap"
        with contextlib.ExitStack() as stack:
            if overlap == "off":
                stack.enter_context(exchange_in_turn(Transport.of(case.session.group)))
            for model in args.models:
                make = functools.partial(case.by_peergraph, order=order)
                time_epochs(case, "peergraph", model, make, setting)
    case.data = None


def run(session: Session) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    for name in session.args.graphs:
        with session.stage(f"graph {name}"):
            case = Case(session, name)
        time_peergraph(case)
        for model in session.args.models:
            if session.wants("broadcast") and model.kind == "GCN" and not model.feature_dropout:
                time_epochs(case, "broadcast", model, case.by_broadcast)
            if session.wants("csr") and session.world == 1:
                time_epochs(case, "pyg csr", model, case.by_csr)
        del case


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "")
    result.add_argument("--graphs", type=words, default="products,reddit")
    result.add_argument("--models", type=models, default="GCN:2x512,GCN:3x256")
    add_worlds(result)
    result.add_argument("--orders", type=words, default="auto", help="of nodes, in turns")
    result.add_argument("--overlap", type=words_of(("on", "off")), default="on")
    result.set_defaults(iterations=8, warmup=2)
    return result


if __name__ == "__main__":
    sys.exit(main("fullgraph", run, arguments(), ("csr", "broadcast"), by_world))
