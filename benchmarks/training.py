"""Trains a 3-layer GraphSAGE with DDP on all ranks, and times the stages of a step.

    python benchmarks/training.py --world 4 --graph products --plans sharded --peers wholegraph
    python benchmarks/training.py --world 1 --graph papers --plans replicated --budget 1 \\
        --cases 30-30-30:1024 --ways lazy,captured,loader,csr --peers wholegraph \\
        --precisions float32,tf32,bfloat16 --storages float32,bfloat16

Seven ways: `csr` and `coo` make mini-batches with a system's sampler and table and run PyG's
SAGEConv on them as a CSR matrix or as COO; `blocks` (Peergraph only) aggregates over the sampler's
blocks, and the first layer reads features from the store where that costs less than a gather;
`loader` is an unmodified PyG NeighborLoader over the shared store (Peergraph only; it samples with
PyG's semantics, so its batches are smaller), `accelerated` the same with Peergraph's layers in
PyG's model, and `lazy` that without gathers of features, which the first layer reads from the
store, and of labels that no step reads; `captured` is `lazy` with `peergraph_pyg.capture`, whose
steps have no stages that could be timed. The other loaders make each batch when it is asked for, to
tell the stages apart: end_to_end.py has prefetching.

All run with each of --precisions: `tf32` is ``torch.set_float32_matmul_precision("high")``, the
last ones are ``torch.autocast``. With `--storages float32,bfloat16`, Peergraph's ways also run on
features that the store keeps in bfloat16; `ratio` is their time over that with float32. With
--kernels N, the N kernels and copies that keep the GPU busy longest in one step are printed, too.
The host limits fast steps on a machine with slow cores: with --hold, the stages after the gather
are the GPU's time alone.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from harness.common import PLANS, Mark, again_and_again, main, measure, parser, words, words_of
from harness.kernel_times import busiest_kernels
from harness.ranks import Session
from harness.records import Timing
from inputs.arrays import label_rows
from inputs.feature_tables import FULL
from systems.systems import (
    Case,
    CaseRunner,
    Layer,
    PeergraphSystem,
    System,
    add_arguments,
    systems,
)
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GAT, GCN, GraphSAGE, SAGEConv

from peergraph.aggregate import Csc, spmm_linear
from peergraph.memory import TableRows
from peergraph.store import EDGE, NODE, Store

# How the samples of each way expand; with "pyg", a layer's edges are those of several hops.
_SEMANTICS_OF = {
    "csr": "dgl",
    "coo": "dgl",
    "blocks": "dgl",
    "loader": "pyg",
    "accelerated": "pyg",
    "lazy": "pyg",
    "captured": "pyg",
}
WAYS = tuple(_SEMANTICS_OF)
# PyG's models by name. GAT has 4 heads, as in WholeGraph's evaluation (IV).
MODELS = {"sage": GraphSAGE, "gcn": GCN, "gat": partial(GAT, heads=4)}
_DROPOUT = 0.5
PRECISIONS = {
    "float32": None,
    "tf32": None,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_PROFILED_STEPS = 4
# Captured training makes its graphs in the first steps.
_STEPS_BEFORE_REPLAYS = 8
_HOLD_CYCLES = 60_000_000

Run = Callable[[int, Mark], None]


class Sage(torch.nn.Module):
    """GraphSAGE on a system's samples; `aggregate` says how a layer reads its edges."""

    def __init__(self, widths: list[int], aggregate: Callable[..., Tensor]) -> None:
        super().__init__()
        pairs = itertools.pairwise(widths)
        self.convs = torch.nn.ModuleList(SAGEConv(fan_in, fan_out) for fan_in, fan_out in pairs)
        self._aggregate = aggregate

    def forward(self, x: Any, layers: list[Layer]) -> Tensor:
        for i, (conv, layer) in enumerate(zip(self.convs, layers, strict=True)):
            x = self._aggregate(conv, layer, x)
            if i < len(layers) - 1:
                x = F.dropout(F.relu(x), _DROPOUT, self.training)
        return x


def by_csr(conv: SAGEConv, layer: Layer, x: Tensor) -> Tensor:
    ones = torch.ones(layer.indices.numel(), dtype=x.dtype, device=x.device)
    size = (layer.num_destinations, x.shape[0])
    matrix = torch.sparse_csr_tensor(
        layer.indptr, layer.indices, ones, size=size, check_invariants=False
    )
    return conv((x, x[: layer.num_destinations]), matrix)


def by_coo(conv: SAGEConv, layer: Layer, x: Tensor) -> Tensor:
    edge_index = torch.stack([layer.indices, layer.destinations]).long()
    size = (x.shape[0], layer.num_destinations)
    return conv((x, x[: layer.num_destinations]), edge_index, size=size)


def by_blocks(conv: SAGEConv, layer: Layer, x: Tensor | TableRows) -> Tensor:
    csc = Csc(layer.indptr, layer.indices, x.shape[0], transient=True, check=False)
    if isinstance(x, TableRows) and not x.pays_to_read(csc.num_edges):
        x = x.gather()
    return spmm_linear(csc, "mean", x, conv.lin_l.weight, conv.lin_r.weight, conv.lin_l.bias)


class LoaderModel(torch.nn.Module):
    """A model of PyG on the batches of its loader."""

    def __init__(self, widths: list[int], kind: str) -> None:
        super().__init__()
        self.gnn = MODELS[kind](
            widths[0], widths[1], len(widths) - 1, out_channels=widths[-1], dropout=_DROPOUT
        )

    def forward(self, x: Tensor, batch: Any) -> Tensor:
        return self.gnn(
            x,
            batch.edge_index,
            num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
        )


def make_model(widths: list[int], way: str, kind: str = "sage") -> torch.nn.Module:
    """Returns a new model.

    Args:
        widths: the columns of the input and of each layer's output.
        way: how the training makes mini-batches and sums over neighbours, one of `WAYS`.
        kind: the name of the model in `MODELS`, for the ways with PyG's loader; the others train
            GraphSAGE.
    """
    if way == "loader":
        return LoaderModel(widths, kind)
    if way in ("accelerated", "lazy", "captured"):
        # Only the ways of the loader need the adapter.
        from peergraph_pyg import accelerate

        return accelerate(LoaderModel(widths, kind))
    if kind != "sage":
        raise NotImplementedError(f"kind={kind!r}: the way {way!r} trains GraphSAGE only")
    return Sage(widths, {"csr": by_csr, "coo": by_coo, "blocks": by_blocks}[way])


class Trainer:
    """A model and its optimiser on one rank; the gradients are averaged over all ranks.

    Args:
        make: returns the model for widths and a way.
        precision: one of `PRECISIONS`; the caller chooses TF32.
        hold: whether the GPU waits in each step until the step is queued.
    """

    def __init__(
        self,
        session: Session,
        num_layers: int,
        way: str,
        make: Callable[[list[int], str], torch.nn.Module] = make_model,
        precision: str = "float32",
        hold: bool = False,
    ) -> None:
        args, device = session.args, session.device
        torch.manual_seed(1)
        hidden = [args.hidden] * (num_layers - 1)
        widths = [args.feature_dim, *hidden, args.graph.num_classes]
        self.model = make(widths, way).to(device)
        if session.world > 1:
            ids = [device.index] if device.type == "cuda" else None
            self.model = DistributedDataParallel(self.model, device_ids=ids)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.loss = torch.zeros(())
        self._device, self._dtype = device, PRECISIONS[precision]
        self._hold = hold and device.type == "cuda"
        scales = precision == "float16" and device.type == "cuda"
        self._scaler = torch.amp.GradScaler(device.type, enabled=scales)

    def casts(self) -> contextlib.AbstractContextManager[object]:
        """Autocast of the precision."""
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, self._dtype)

    def step(self, x: Any, edges: Any, labels: Tensor, mark: Mark = lambda _: None) -> None:
        """Trains on a batch, with a mark after each stage."""
        if self._hold:
            torch.cuda._sleep(_HOLD_CYCLES)
            mark("held")
        with self.casts():
            loss = F.cross_entropy(self.model(x, edges)[: labels.numel()], labels)
        mark("forward")
        self.optimizer.zero_grad(set_to_none=True)
        self._scaler.scale(loss).backward()
        mark("backward")
        self._scaler.step(self.optimizer)
        self._scaler.update()
        mark("optimizer")
        self.loss = loss.detach()

    def finish(self, session: Session, timing: Timing, case: Case) -> None:
        """Records what was measured. Collective."""
        loss = float(self.loss)
        if not math.isfinite(loss):
            raise AssertionError(f"the loss is {loss}")
        args = session.args
        session.recorder.add(
            timing,
            hidden=args.hidden,
            feature_dim=args.feature_dim,
            loss=loss,
            steps_per_epoch=-(-args.graph.train_nodes // (case.batch * session.world)),
            **case.fields,
        )


def train_on(session: Session, system: System, case: Case, trainer: Trainer, way: str) -> Run:
    """Steps on mini-batches from a system's own sampler and table."""
    labels = [label_rows(seeds, session.args.graph.num_classes) for seeds in case.seeds]

    def step(i: int, mark: Mark) -> None:
        sample = system.sample(case.seeds_of(i), i)
        mark("sample")
        x = system.rows(sample) if way == "blocks" else system.gather(sample)
        mark("gather")
        trainer.step(x, system.layers(sample), labels[i % len(labels)], mark)

    return step


def train_on_loader(system: System, case: Case, trainer: Trainer, way: str) -> Run:
    """Steps on mini-batches from PyG's NeighborLoader, which are made in two calls of it."""
    # Only the ways of the loader need the adapter.
    from peergraph_pyg import capture, lazy

    data = data_of(system.store)
    loader = NeighborLoader(
        lazy(data, "x", "y") if way in ("lazy", "captured") else data,
        num_neighbors=case.fanouts,
        batch_size=case.batch,
        input_nodes=torch.cat(case.seeds).cpu(),
        filter_per_worker=False,
    )
    if way == "captured":
        losses = again_and_again(capture(loader, trainer.model, trainer.optimizer, loss_of))

        def replay(_: int, mark: Mark) -> None:
            with trainer.casts():
                trainer.loss = next(losses)
            mark("step")

        for i in range(_STEPS_BEFORE_REPLAYS):
            replay(i, lambda _: None)
        return replay
    indices = again_and_again(loader.batch_sampler)

    def step(_: int, mark: Mark) -> None:
        sample = loader.collate_fn(next(indices))
        mark("sample")
        batch = loader.filter_fn(sample)
        mark("gather")
        trainer.step(batch.x, batch, batch.y[: batch.batch_size], mark)

    return step


def loss_of(model: torch.nn.Module, batch: Any) -> Tensor:
    """The loss of a batch of PyG's loader, as `peergraph_pyg.capture` takes it."""
    size = batch.batch_size
    return F.cross_entropy(model(batch.x, batch)[:size], batch.y[:size])


def data_of(store: Store) -> Any:
    """What peergraph_pyg.share returns, over a store that was not made from one rank's tensors."""
    # Only the ways of the loader need the adapter.
    from peergraph_pyg import EdgeIndexTensor, TableTensor

    return Data(
        x=TableTensor(store, NODE, "x"),
        y=TableTensor(store, NODE, "y"),
        edge_index=EdgeIndexTensor(store, EDGE),
    )


def run(session: Session) -> None:
    args = session.args
    args.semantics = sorted({_SEMANTICS_OF[way] for way in args.ways})
    runner = CaseRunner(session)
    labels = "pyg" in args.semantics
    for system in systems(session, args.feature_dim, labels=labels, storages=args.storages):
        for way in args.ways:
            if way == "blocks" and not isinstance(system, PeergraphSystem):
                continue
            if system.semantics == _SEMANTICS_OF[way]:
                runner.run(system, way, partial(_time_way, session, system, way))


def _time_way(session: Session, system: System, way: str, case: Case) -> None:
    """Times a way in each precision."""
    args = session.args
    for precision in args.precisions:
        with session.section(f"{way} {precision}", **case.fields), _products(precision):
            trainer = Trainer(session, len(case.fanouts), way, precision=precision, hold=args.hold)
            if _SEMANTICS_OF[way] == "pyg":
                step = train_on_loader(system, case, trainer, way)
            else:
                step = train_on(session, system, case, trainer, way)
            case.fields["setting"] = precision
            trainer.finish(session, measure(session, step), case)
            _print_kernels(session, f"{way} {precision}", step)


@contextlib.contextmanager
def _products(precision: str) -> Iterator[None]:
    """Products of float32 matrices in TF32, or not."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _print_kernels(session: Session, name: str, step: Run) -> None:
    """Prints the kernels of rank 0 that take most time. Collective."""
    count = session.args.kernels
    if count == 0 or session.device.type != "cuda":
        return

    def steps() -> None:
        for i in range(_PROFILED_STEPS):
            step(i, lambda _: None)

    kernels = busiest_kernels(steps)
    if session.rank != 0:
        return
    print(f"{name}: microseconds and calls of a step")
    for kernel, us, calls in kernels[:count]:
        print(f"{us / _PROFILED_STEPS:10.0f} {calls / _PROFILED_STEPS:6.2f}  {kernel[:110]}")
    sys.stdout.flush()


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], PLANS, "sharded", graph="products")
    add_arguments(result, case_list="30-30-30:1024,15-10-5:6000")
    result.add_argument("--feature-dim", type=int, default=128, help="float32 a node")
    result.add_argument("--hidden", type=int, default=256)
    result.add_argument(
        "--ways", type=words_of(WAYS), default="csr,loader", help=f"of {', '.join(WAYS)}"
    )
    result.add_argument("--storages", type=words, default=FULL, help="float32, bfloat16 and so on")
    result.add_argument(
        "--precisions",
        type=words_of(PRECISIONS),
        default="float32",
        help=f"of {', '.join(PRECISIONS)}",
    )
    result.add_argument(
        "--hold",
        action="store_true",
        help="hold the GPU back until all calls after the gather are queued: stages are its alone",
    )
    result.add_argument("--kernels", type=int, default=0, help="printed for each way and precision")
    return result


if __name__ == "__main__":
    sys.exit(main("training", run, arguments(), peers=("wholegraph",)))
