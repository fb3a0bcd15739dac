"""Times the loader, training on batches that are in memory, and both together."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from harness.common import Mark, measure
from harness.kernel_times import busiest_kernels
from harness.ranks import Session
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader

from peergraph.store import Store
from peergraph_pyg import EdgeIndexTensor, TableTensor, accelerate, prefetch
from rgat_shape.graph import TypedGraph
from rgat_shape.models import LAYERS, TypedModel, loss_of
from rgat_shape.source import seed_nodes

# Batches of an epoch of the benchmark's loaders.
_EPOCH = 64
_LEARNING_RATE = 1e-3
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def data_of(store: Store, graph: TypedGraph) -> HeteroData:
    """What peergraph_pyg.share returns, over a store that was made from parts of all ranks."""
    data = HeteroData()
    for node_type in graph.nodes:
        data[node_type].x = TableTensor(store, node_type, "x")
    data[graph.target].y = TableTensor(store, graph.target, "y")
    for edge_type in graph.edge_types:
        data[edge_type].edge_index = EdgeIndexTensor(store, edge_type)
    return data


def batches_of(session: Session, graph: TypedGraph, data: HeteroData, batch: int) -> Iterator[Any]:
    """Yields the batches of PyG's NeighborLoader on this rank, epoch after epoch, without end."""
    args = session.args
    seeds = seed_nodes(graph, range(_EPOCH), batch, session.rank, session.world)
    loader = NeighborLoader(
        data, num_neighbors=args.fanouts, batch_size=batch, input_nodes=(graph.target, seeds)
    )
    made = loader if args.prefetch is None else prefetch(loader, args.prefetch)
    while True:
        yield from made


@dataclass
class BatchSizes:
    """Means over some batches, of this rank."""

    rows: Counter[str]
    edges: Counter[tuple[str, str, str]]

    @classmethod
    def of(cls, batches: list[Any]) -> BatchSizes:
        rows: Counter[str] = Counter()
        edges: Counter[tuple[str, str, str]] = Counter()
        for batch in batches:
            rows.update({t: batch[t].num_nodes for t in batch.node_types})
            edges.update({t: batch[t].edge_index.shape[1] for t in batch.edge_types})
        for counts in (rows, edges):
            for name in counts:
                counts[name] //= len(batches)
        return cls(rows, edges)

    def lines(self) -> list[str]:
        """The sizes by type, as text."""
        rows = [f"{t}: {n:,}" for t, n in self.rows.most_common()]
        edges = [f"{' '.join(t)}: {n:,}" for t, n in self.edges.most_common()]
        return ["rows of a batch: " + ", ".join(rows), "edges of a batch: " + ", ".join(edges)]


class Trainer:
    """A model on one rank, and its optimizer; gradients are averaged over all ranks."""

    def __init__(self, session: Session, graph: TypedGraph, layers: str) -> None:
        args, device = session.args, session.device
        self._device, self._target = device, graph.target
        self._dtype = DTYPES[args.precision]
        torch.manual_seed(1)
        model = TypedModel(graph, args.model, args.hidden, len(args.fanouts)).to(device)
        self.model: torch.nn.Module = accelerate(model) if layers == "accelerated" else model
        if session.world > 1 and not args.inference:
            ids = [device.index] if device.type == "cuda" else None
            # Layers to types from which nothing reaches the seeds, as in the reference model.
            self.model = DistributedDataParallel(
                self.model, device_ids=ids, find_unused_parameters=True
            )
        self._optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE, fused=True)
        self.inference = args.inference
        self.model.train(not args.inference)
        self.loss = torch.zeros(())

    def _loss(self, batch: Any) -> Tensor:
        mixed = self._dtype != torch.float32
        with torch.autocast(self._device.type, self._dtype, enabled=mixed):
            return loss_of(self.model, self._target, batch)

    def step(self, batch: Any) -> None:
        """Trains on a batch, or evaluates it."""
        if self.inference:
            with torch.no_grad():
                self.loss = self._loss(batch)
            return
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(batch)
        loss.backward()
        self._optimizer.step()
        self.loss = loss.detach()

    def probe(self, batch: Any) -> float:
        """Computes the loss and its gradients without the other ranks; raises what a step raises.

        Returns:
            The loss.
        """
        alone = getattr(self.model, "no_sync", contextlib.nullcontext)
        with alone(), torch.set_grad_enabled(not self.inference):
            loss = self._loss(batch)
            if not self.inference:
                loss.backward()
        self._optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())


def run_batch(session: Session, store: Store, graph: TypedGraph, batch: int) -> None:
    """Measures everything with one number of seeds on each rank. Collective."""
    args = session.args
    data = data_of(store, graph)
    fields = {
        "system": "peergraph",
        "plan": args.placement,
        "graph": graph.name,
        "dim": graph.columns,
        "fanout": "-".join(map(str, args.fanouts)),
        "batch": batch,
        "rows": args.rows,
    }
    batches = batches_of(session, graph, data, batch)
    held = [next(batches) for _ in range(args.held)]
    sizes = BatchSizes.of(held)
    fields |= {"nodes": sum(sizes.rows.values()), "edges": sum(sizes.edges.values())}
    if args.verbose and session.rank == 0:
        print("\n".join(sizes.lines()), flush=True)
    with session.section("loader", batch=batch):
        timing = measure(session, lambda _, mark: next(batches))
        session.recorder.add(timing, op="loader", **fields)
    with session.section("bytes by link", batch=batch):
        _count_bytes(session, store, batches)
    if args.relations is not None:
        return
    fields["kind"] = args.model
    losses = {}
    for layers in LAYERS[args.layers]:
        with session.section(f"{layers} layers", batch=batch):
            losses[layers] = _run_layers(session, graph, batches, held, layers, fields)
    if len(losses) == 2 and session.rank == 0:
        print(f"losses of the first batch, {args.precision}: {losses}", flush=True)


def _run_layers(
    session: Session,
    graph: TypedGraph,
    batches: Iterator[Any],
    held: list[Any],
    layers: str,
    fields: dict[str, Any],
) -> float:
    """Returns the loss of the first held batch before training."""
    args, device = session.args, session.device
    trainer = Trainer(session, graph, layers)
    what = "inference" if args.inference else "training"
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    # All ranks learn of an error before they wait for each other's gradients.
    loss = session.together(lambda: trainer.probe(held[0]))
    session.together(lambda: [trainer.probe(batch) for batch in held[1:]])

    def in_memory(i: int, _: Mark) -> None:
        trainer.step(held[i % len(held)])

    def whole(_: int, mark: Mark) -> None:
        batch = next(batches)
        mark("loader")
        trainer.step(batch)
        mark("train")

    steps: list[tuple[str, Callable[[int, Mark], None]]] = [
        (f"{what} in memory", in_memory),
        (f"loader and {what}", whole),
    ]
    for op, step in steps:
        timing = measure(session, step)
        assert timing.wall_ms is not None
        slowest = max(session.group.all_gather(timing.wall_ms))
        more = {"seeds_per_s": fields["batch"] * session.world / slowest * 1e3}
        if on_gpu:
            more["peak_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
            more["reserved_gib"] = torch.cuda.max_memory_reserved(device) / 2**30
        session.recorder.add(
            timing, op=op, layers=layers, loss=float(trainer.loss), **more, **fields
        )
    if args.profile and on_gpu:
        _print_kernels(session, lambda: trainer.step(held[0]), f"{layers} layers, {what}")
    return loss


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
