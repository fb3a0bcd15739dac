"""Times the loader, training on batches in memory, both together, and captured steps."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from harness.common import Mark, again_and_again, measure
from harness.kernel_times import busiest_kernels
from harness.ranks import Session
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader

from peergraph.store import Store
from peergraph_pyg import EdgeIndexTensor, TableTensor, accelerate, capture, lazy, prefetch
from rgat_shape.graph import TypedGraph
from rgat_shape.models import LAYERS, TypedModel, loss_of
from rgat_shape.source import seed_nodes

# Batches of an epoch of the benchmark's loaders.
_EPOCH = 64
_LEARNING_RATE = 1e-3
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
"""The dtype of the model's products by the option; parameters are float32."""


WAYS = ("decoded", "stored", "lazy")
"""What the loader does with the features of a batch; `lazy`: layers read them from the store."""


def data_of(store: Store, graph: TypedGraph, way: str) -> HeteroData:
    """What peergraph_pyg.share returns, over a store that was made from parts of all ranks."""
    data = HeteroData()
    for node_type in graph.nodes:
        data[node_type].x = TableTensor(store, node_type, "x")
    data[graph.target].y = TableTensor(store, graph.target, "y")
    for edge_type in graph.edge_types:
        data[edge_type].edge_index = EdgeIndexTensor(store, edge_type)
    return data if way == "decoded" else lazy(data, as_stored=way == "stored")


def loader_of(session: Session, graph: TypedGraph, data: HeteroData, batch: int) -> NeighborLoader:
    """Returns PyG's NeighborLoader over this rank's seeds."""
    seeds = seed_nodes(graph, range(_EPOCH), batch, session.rank, session.world)
    return NeighborLoader(
        data,
        num_neighbors=session.args.fanouts,
        batch_size=batch,
        input_nodes=(graph.target, seeds),
    )


class BatchSizes:
    """Mean numbers of rows and edges of a rank's batches, by type."""

    def __init__(self) -> None:
        self._batches = 0
        self._rows: Counter[str] = Counter()
        self._edges: Counter[tuple[str, str, str]] = Counter()

    def add(self, batch: Any) -> None:
        """Counts a batch."""
        self._batches += 1
        self._rows.update({t: batch[t].num_nodes for t in batch.node_types})
        self._edges.update({t: batch[t].edge_index.shape[1] for t in batch.edge_types})

    @property
    def fields(self) -> dict[str, int]:
        """The sums over types, for records."""
        return {
            "nodes": self._rows.total() // self._batches,
            "edges": self._edges.total() // self._batches,
        }

    def __str__(self) -> str:
        rows = [f"  {n // self._batches:12,} {t}" for t, n in self._rows.most_common()]
        edges = [f"  {n // self._batches:12,} {' '.join(t)}" for t, n in self._edges.most_common()]
        return "\n".join(["rows of a batch:", *rows, "edges of a batch:", *edges])


class Trainer:
    """A model on one rank, and its optimizer."""

    def __init__(self, session: Session, graph: TypedGraph, layers: str) -> None:
        args, device = session.args, session.device
        self._device, self._target = device, graph.target
        self._dtype = DTYPES[args.precision]
        torch.manual_seed(1)
        model = TypedModel(graph, args.model, args.hidden, len(args.fanouts)).to(device)
        self.model: torch.nn.Module = accelerate(model) if layers == "accelerated" else model
        self._optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE, fused=True)
        self.inference = args.inference
        self.model.train(not args.inference)

    def _autocast(self) -> torch.autocast:
        mixed = self._dtype != torch.float32
        return torch.autocast(self._device.type, self._dtype, enabled=mixed)

    def _loss(self, batch: Any) -> Tensor:
        with self._autocast():
            return loss_of(self.model, self._target, batch)

    def step(self, batch: Any) -> None:
        """Trains on a batch, or evaluates it."""
        if self.inference:
            with torch.no_grad():
                self._loss(batch)
            return
        self._optimizer.zero_grad(set_to_none=True)
        self._loss(batch).backward()
        self._optimizer.step()

    def captured(self, loader: NeighborLoader) -> Iterator[Tensor]:
        """Yields the losses of steps that run as CUDA graphs, without end."""
        training = capture(
            loader,
            self.model,
            self._optimizer,
            lambda model, batch: loss_of(model, self._target, batch),
        )
        with self._autocast():
            yield from again_and_again(training)

    def connect(self) -> None:
        """From now on, gradients are averaged over all ranks. Collective."""
        ids = [self._device.index] if self._device.type == "cuda" else None
        # Layers to types from which nothing reaches the seeds, as in the reference model, are the
        # same in every step. To look for them (`find_unused_parameters`) waits for the GPU.
        self.model = DistributedDataParallel(
            self.model, device_ids=ids, static_graph=True, gradient_as_bucket_view=True
        )

    def probe(self, batch: Any) -> float:
        """Computes the loss and its gradients before :meth:`connect`; raises what a step raises.

        DDP would count parameters as used that only this batch uses, also in `no_sync`.

        Returns:
            The loss.
        """
        with torch.set_grad_enabled(not self.inference):
            loss = self._loss(batch)
            if not self.inference:
                loss.backward()
        self._optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())


def run_batch(session: Session, store: Store, graph: TypedGraph, batch: int) -> None:
    """Measures everything with one number of seeds on each rank. Collective."""
    args = session.args
    fields = {
        "system": "peergraph",
        "plan": args.placement,
        "graph": graph.name,
        "dim": graph.columns,
        "fanout": "-".join(map(str, args.fanouts)),
        "batch": batch,
        "rows": args.rows,
        "way": args.features,
    }
    loader = loader_of(session, graph, data_of(store, graph, args.features), batch)
    batches = again_and_again(loader if args.prefetch is None else prefetch(loader, args.prefetch))
    with contextlib.closing(batches):
        sizes = BatchSizes()
        for _ in range(3):
            sizes.add(next(batches))
        fields |= sizes.fields
        if args.verbose and session.rank == 0:
            print(sizes, flush=True)
        with session.section("loader", batch=batch):
            _record(session, lambda *_: next(batches), "loader", **fields)
        with session.section("bytes by link", batch=batch):
            _count_bytes(session, store, batches)
        if args.relations is None:
            _run_models(session, graph, batches, fields | {"kind": args.model})
    if args.captured and not args.inference:
        with session.section("captured steps", batch=batch):
            _run_captured(session, graph, loader, fields | {"kind": args.model})


def _run_models(
    session: Session, graph: TypedGraph, batches: Iterator[Any], fields: dict[str, Any]
) -> None:
    """Times each model with the loader, before any other batch takes memory, and without it."""
    args, batch = session.args, fields["batch"]
    what = "inference" if args.inference else "training"
    trainers: dict[str, Trainer] = {}
    losses = {}
    first = [next(batches)]
    for layers in LAYERS[args.layers]:
        with session.section(f"first batch, {layers} layers", batch=batch):
            trainer = Trainer(session, graph, layers)
            # All ranks learn of an error before they wait for each other's gradients.
            losses[layers] = session.together(lambda one=trainer: one.probe(first[0]))
            if session.world > 1 and not args.inference:
                trainer.connect()
            trainers[layers] = trainer
    if len(losses) == 2 and session.rank == 0:
        print(f"losses of the first batch, {args.precision}: {losses}", flush=True)
    first.clear()
    for layers, trainer in trainers.items():

        def whole(_: int, mark: Mark, trainer: Trainer = trainer) -> None:
            first_batch = next(batches)
            mark("loader")
            trainer.step(first_batch)
            mark("train")

        with session.section(f"loader and {what}, {layers} layers", batch=batch):
            record = _record(session, whole, f"loader and {what}", layers=layers, **fields)
            session.note(f"  {record['seeds_per_s']:,.0f} seeds/s on {session.world} ranks")
            if args.profile and session.device.type == "cuda":
                loop_step = partial(whole, 0, lambda _: None)
                _print_kernels(session, loop_step, f"{layers} layers, loader and {what}")
    resident = [next(batches) for _ in range(args.held)]
    for layers, trainer in trainers.items():

        def in_memory(i: int, _: Mark, trainer: Trainer = trainer) -> None:
            trainer.step(resident[i % len(resident)])

        with session.section(f"{what} in memory, {layers} layers", batch=batch):
            _record(session, in_memory, f"{what} in memory", layers=layers, **fields)
            if args.profile and session.device.type == "cuda":
                step = partial(trainer.step, resident[0])
                _print_kernels(session, step, f"{layers} layers, {what}")


def _run_captured(
    session: Session, graph: TypedGraph, loader: NeighborLoader, fields: dict[str, Any]
) -> None:
    """Times steps as CUDA graphs, with Peergraph's layers. Collective."""
    trainer = Trainer(session, graph, "accelerated")
    if session.world > 1:
        trainer.connect()
    steps = trainer.captured(loader)
    with contextlib.closing(steps):
        record = _record(
            session, lambda *_: next(steps), "captured", layers="accelerated", **fields
        )
        session.note(f"  {record['seeds_per_s']:,.0f} seeds/s on {session.world} ranks")


def _record(
    session: Session, step: Callable[[int, Mark], object], op: str, **fields: Any
) -> dict[str, Any]:
    """Times steps; records the times and the peak of torch's allocator. Collective."""
    device, memory = session.device, {}
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    timing = measure(session, step)
    if device.type == "cuda":
        memory["peak_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
        memory["reserved_gib"] = torch.cuda.max_memory_reserved(device) / 2**30
    assert timing.wall_ms is not None
    slowest = max(session.group.all_gather(timing.wall_ms))
    rate = fields["batch"] * session.world / slowest * 1e3
    return session.recorder.add(timing, op=op, seeds_per_s=rate, **memory, **fields)


def _count_bytes(session: Session, store: Store, batches: Iterator[Any]) -> None:
    """Prints what a mini-batch reads from each GPU and from the host. Collective."""
    next(batches)
    with store.measure() as measured:
        for _ in range(3):
            next(batches)
    report = measured.of_all_ranks(session.group)
    if session.rank == 0:
        print(report, flush=True)


def _print_kernels(session: Session, step: Callable[[], None], title: str) -> None:
    """Prints the kernels of one step of rank 0 that take most time. Collective."""
    rows: list[tuple[str, float, int]] = []
    if session.rank == 0:
        rows = busiest_kernels(step)
    else:
        step()
    session.barrier()
    total = sum(us for _, us, _ in rows)
    if session.rank == 0:
        print(f"kernels of one step, {title}: {total / 1e3:.2f} ms")
        for name, us, calls in rows[:30]:
            print(f"  {us / 1e3:9.3f} ms {calls:5d} x  {name[:120]}", flush=True)
