"""Epochs of PyG's models on a graph with locality, resident or offloaded."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from harness.common import is_out_of_memory, measure
from harness.ranks import Session, synchronize
from inputs.arrays import fill_features, label_rows
from inputs.counter_hash import hash_ids, shift_right, stream_key
from inputs.local_graphs import LocalGraphSpec, get_local_spec, make_local_csc
from torch import Tensor
from torch_geometric.nn import GATConv, GatedGraphConv, GCNConv, GINConv, SAGEConv

import peergraph_pyg
from peergraph.fullgraph import FullGraph, PartitionedEdgeIndex
from peergraph.fullgraph.offload.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.offloaded_csc import OffloadedCsc
from peergraph.store import EDGE
from peergraph_pyg.fullgraph import utilities

_RATE = 1e-2
_PIECE = 1 << 24  # features that are made at once
KINDS = ("GCN", "SAGE", "GIN", "GAT", "GGNN")
_SWITCHES = {
    "no deduplication": (False, False),
    "between ranks": (True, False),
    "between ranks and batches": (True, True),
}
SWITCHES = tuple(_SWITCHES)


class Gnn(torch.nn.Module):
    """Layers of one kind, with ReLU between them."""

    def __init__(self, kind: str, widths: list[int], heads: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList()
        pairs = list(pairwise(widths))
        for number, (before, after) in enumerate(pairs):
            last = number == len(pairs) - 1
            if kind == "GCN":
                layer = GCNConv(before, after)
            elif kind == "SAGE":
                layer = SAGEConv(before, after)
            elif kind == "GIN":
                layer = GINConv(torch.nn.Linear(before, after))
            elif kind == "GAT":
                layer = GATConv(before, after if last else after // heads, 1 if last else heads)
            else:
                layer = torch.nn.ModuleList(
                    [torch.nn.Linear(before, after), GatedGraphConv(after, 1)]
                )
            self.layers.append(layer)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            if number:
                x = F.relu(x)
            if isinstance(layer, torch.nn.ModuleList):
                linear, gated = layer
                x = gated(linear(x), edge_index)
            else:
                x = layer(x, edge_index)
        return x


@dataclass(frozen=True)
class Run:
    """What is trained, and in which memory.

    Args:
        graph: name of the graph.
        kind: one of `KINDS`.
        widths: of the input and of the outputs of layers; an input or output of 0 columns is as
            wide as the graph's features or classes.
        offload: as of :meth:`FullGraph.build`.
        budget: bytes of each rank's device; None: what is free.
        host: bytes of the host for all ranks; None: what is free.
        chunks: of each rank; None: as planned.
        switches: one of `SWITCHES`, or "" for the default.
    """

    graph: str
    kind: str
    widths: tuple[int, ...]
    offload: bool | None = None
    budget: int | None = None
    host: int | None = None
    chunks: int | None = None
    switches: str = ""
    heads: int = 4
    part: str = "epochs"

    def of(self, spec: LocalGraphSpec) -> list[int]:
        """The widths with those of a graph."""
        return [self.widths[0] or spec.feature_dim, *self.widths[1:-1],
                self.widths[-1] or spec.num_classes]  # fmt: skip


class Data:
    """A graph on this rank, as :meth:`FullGraph.build` takes it, and rows of nodes."""

    def __init__(self, session: Session, name: str) -> None:
        self.spec = get_local_spec(name)
        self.session, self.device = session, session.device
        with session.stage(f"graph {name}"):
            indptr, indices = make_local_csc(self.spec, session.device)
            # The device is for training.
            self.edges = indptr.cpu(), indices.cpu()
        del indptr, indices

    def features(self, columns: int) -> Tensor:
        """[nodes, columns] float32 on the CPU, in pinned memory where there is a GPU."""
        nodes, cuda = self.spec.num_nodes, self.device.type == "cuda"
        x = torch.empty(nodes, columns, pin_memory=cuda) if cuda else torch.empty(nodes, columns)
        step = max(1, _PIECE // columns)
        for first in range(0, nodes, step):
            rows = min(step, nodes - first)
            piece = torch.empty(rows, columns, device=self.device)
            x[first : first + rows].copy_(fill_features(first, piece))
        return x

    def labels(self) -> tuple[Tensor, Tensor]:
        """Classes, and which nodes are trained on, [nodes] each."""
        ids = torch.arange(self.spec.num_nodes)
        chance = self.spec.train_nodes / self.spec.num_nodes
        drawn = shift_right(hash_ids(stream_key(5, 1), ids), 40).double() / (1 << 24)
        return label_rows(ids, self.spec.num_classes), drawn < chance


def train(session: Session, data: Data, run: Run) -> None:
    """Builds the graph, times epochs, and records times, bytes and memory."""
    cuda, spec = session.device.type == "cuda", data.spec
    layers = f"{run.kind} {'-'.join(map(str, run.of(spec)))}"
    fields = {"part": run.part, "graph": run.graph, "layers": layers, "kind": run.kind}
    fields["setting"] = (
        run.switches or {None: "auto", True: "offloaded", False: "resident"}[run.offload]
    )
    if cuda:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with session.section(f"{run.part} {layers} on {run.graph}, {fields['setting']}", **fields):
        try:
            made = session.together(lambda: _prepare(session, data, run))
            graph, epoch, seconds = made
            losses: list[Tensor] = []
            first = time.perf_counter()
            losses.append(epoch())
            synchronize(session.device)
            first = time.perf_counter() - first
            moved = _moved(graph)
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            timing = measure(session, lambda *_: losses.append(epoch()))
        except (RuntimeError, MemoryError, ValueError) as error:
            if not isinstance(error, MemoryError | ValueError) and not is_out_of_memory(error):
                raise
            session.recorder.failure("no memory", str(error).splitlines()[0][:300], **fields)
            return
        plan = graph.plan
        session.note(str(plan))
        epochs = len(losses) - 1
        totals = {name: (count - moved[name]) / epochs for name, count in _moved(graph).items()}
        session.recorder.add(
            timing,
            system="peergraph",
            **fields,
            epoch_s=timing.ms / 1e3,
            first_s=first,
            build_s=seconds,
            decision=plan.decision.partition(":")[0],
            num_chunks=plan.offload.num_chunks if plan.offload else None,
            predicted_ms=1e3 * plan.seconds or None,
            budget_gib=run.budget and run.budget / 2**30,
            loss=float(losses[0]),
            last_loss=float(losses[-1]),
            **{f"{name}_gb": session.group.all_gather(n)[0] / 1e9 for name, n in totals.items()},
            **_memory(session, graph),
        )


def _prepare(
    session: Session, data: Data, run: Run
) -> tuple[FullGraph, Callable[[], Tensor], float]:
    """Returns the graph, a function that trains an epoch, and the seconds of the preparation."""
    spec, widths = data.spec, run.of(data.spec)
    x = data.features(widths[0])
    y, mask = data.labels()
    synchronize(session.device)
    begin = time.perf_counter()
    graph = FullGraph.build(
        session.group,
        spec.num_nodes,
        data.edges,
        order="original",
        memory_budget=run.budget,
        offload=run.offload,
        num_chunks=run.chunks,
        host_memory=run.host,
        widths=widths,
        row_bytes={"_N": 4 * widths[0] + 9},
    )
    if run.switches:
        _switch(graph, *_SWITCHES[run.switches])
    rows, labels, trained = graph.node_rows(x), graph.node_rows(y), graph.node_rows(mask)
    del x, y, mask
    # As peergraph_pyg.full_graph does: layers that are not accelerated need it.
    utilities.install()
    edge_index = PartitionedEdgeIndex(graph.structures[EDGE])
    synchronize(session.device)
    seconds = time.perf_counter() - begin
    torch.manual_seed(7)
    model = peergraph_pyg.accelerate(Gnn(run.kind, widths, run.heads).to(session.device))
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    labels = labels[trained]

    def epoch() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(rows, edge_index)[trained], labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return graph, epoch, seconds


def _switch(graph: FullGraph, deduplicate_ranks: bool, reuse_chunks: bool) -> None:
    """Lets the rows of chunks travel in another way."""
    assert graph.offloaded is not None
    for edge_type, structure in graph.structures.items():
        chunked = ChunkedCsc(
            structure.chunked.resident,
            structure.chunked.chunks,
            deduplicate_ranks=deduplicate_ranks,
            reuse_chunks=reuse_chunks,
        )
        graph.structures[edge_type] = OffloadedCsc(graph.offloaded.spaces, chunked)


def _moved(graph: FullGraph) -> dict[str, int]:
    """Bytes that this rank has moved so far."""
    if graph.offloaded is None:
        return {}
    counts = graph.offloaded.stores.moved
    return {
        "from_host": counts.to_device,
        "to_host": counts.from_device,
        "to_ranks": counts.to_ranks,
        "kept": counts.kept,
    }


def _memory(session: Session, graph: FullGraph) -> dict[str, float | None]:
    """GiB of the busiest rank, by the allocator and by the driver, and of rows on the host."""
    found: dict[str, float | None] = {}
    if graph.offloaded is not None:
        use = graph.offloaded.stores.use
        for tier in ("device", "host", "file"):
            found[f"rows_{tier}_gib"] = max(session.group.all_gather(use[tier].peak)) / 2**30
    if session.device.type == "cuda":
        free, total = torch.cuda.mem_get_info()
        cached = torch.cuda.memory_reserved()
        # The context and what libraries take, beside the allocator's largest share.
        driver = total - free - cached + torch.cuda.max_memory_reserved()
        peak = torch.cuda.max_memory_allocated()
        peaks = session.group.all_gather((peak, driver))
        found["peak_gib"] = max(of for of, _ in peaks) / 2**30
        found["driver_gib"] = max(of for _, of in peaks) / 2**30
    return found
