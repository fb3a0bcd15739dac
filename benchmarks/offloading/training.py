"""Epochs of PyG's models on a graph with locality, resident or offloaded."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from harness.common import is_out_of_memory, measure
from harness.kernel_times import length_of, spans_by_kind
from harness.ranks import Session, synchronize
from inputs.local_graphs import LocalGraphSpec
from torch import Tensor

import peergraph_pyg
from offloading.data import Data
from offloading.models import Gnn
from peergraph.fullgraph import FullGraph, PartitionedEdgeIndex, named_model
from peergraph.fullgraph.offload.chunks.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.chunks.source_transfers import Switches
from peergraph.fullgraph.offload.edges.offloaded_csc import OffloadedCsc
from peergraph.store import EDGE
from peergraph_pyg.fullgraph import utilities

_RATE = 1e-2
# Deduplication between ranks and between batches, and the order of chunks.
_SWITCHES = {
    "no deduplication": (False, False, False),
    "between ranks": (True, False, False),
    "between ranks and batches": (True, True, False),
    "and chunks in order": (True, True, True),
}
SWITCHES = tuple(_SWITCHES)
# Kernels and copies of an epoch by what they do (HongTu, Figure 9); gradients are added on the GPU.
_PARTS = {
    "h2d": ("htod",),
    "d2h": ("dtoh",),
    "rows": ("copy_rows",),
    "d2d": ("nccl", "ptop", "flag"),
    "sums": ("peergraph",),
}

Epoch = Callable[[], Tensor]


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
        streamed: whether all rows of nodes are kept on the host, as HongTu's are, however much room
            the device has.
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
    streamed: bool = False

    def of(self, spec: LocalGraphSpec) -> list[int]:
        """The widths with those of a graph."""
        return [self.widths[0] or spec.feature_dim, *self.widths[1:-1],
                self.widths[-1] or spec.num_classes]  # fmt: skip

    @property
    def attention_heads(self) -> int:
        """Heads of attention; 0: layers that sum."""
        return self.heads if self.kind == "GAT" else 0

    @property
    def prepared(self) -> Run:
        """What must be equal for runs that use the same prepared graph."""
        return replace(self, switches="", part="", heads=self.attention_heads)


def train(session: Session, data: Data, runs: Iterable[Run], is_last: bool = False) -> None:
    """Times epochs of several runs; those that can have the same prepared graph.

    Args:
        is_last: whether nobody needs the edges afterwards: the host gets their memory back.
    """
    waiting = list(runs)
    while waiting:
        key = waiting[0].prepared
        same = [run for run in waiting if run.prepared == key]
        waiting = [run for run in waiting if run.prepared != key]
        _train_together(session, data, same, is_last and not waiting)


def _train_together(session: Session, data: Data, runs: list[Run], is_last: bool) -> None:
    """Prepares a graph, and trains on it; the first run that fails ends it."""
    clear_device(session)
    prepared: Prepared | None = None
    for run in runs:
        with session.section(_title(run, data), **_fields(run, data)):
            try:
                if prepared is None:
                    prepared = session.together(lambda: Prepared(session, data, runs[0], is_last))
                _time_epochs(session, data, run, prepared)
            except (RuntimeError, MemoryError, ValueError) as error:
                if not isinstance(error, MemoryError | ValueError) and not is_out_of_memory(error):
                    raise
                text = str(error).splitlines()[0][:300]
                session.recorder.failure("no memory", text, **_fields(run, data))
    del prepared
    clear_device(session)


class Prepared:
    """A graph, its rows and labels. Collective.

    Args:
        data: the graph.
        run: says in which memory.
        drops_edges: whether `data` has no edges afterwards.
    """

    def __init__(self, session: Session, data: Data, run: Run, drops_edges: bool = False) -> None:
        spec, widths = data.spec, run.of(data.spec)
        y, mask = data.labels()
        self.session = session
        start = time.perf_counter()
        self.graph = FullGraph.build(
            session.group,
            spec.num_nodes,
            data.edges,
            order="original",
            memory_budget=run.budget,
            offload=run.offload,
            num_chunks=run.chunks,
            host_memory=run.host,
            model=named_model(
                widths,
                run.kind.lower(),
                max(1, run.attention_heads),
                spec.train_nodes / spec.num_nodes,
            ),
            row_bytes={"_N": 4 * widths[0] + 9},
        )
        synchronize(session.device)
        self.build_s = time.perf_counter() - start
        """Seconds of the preparation, without rows of nodes."""
        if drops_edges:
            data.drop_edges()
        if run.streamed and self.graph.offloaded is not None:
            self.graph.offloaded.allocator.use["device"].budget = 0
        start = time.perf_counter()
        self.x = data.features(self.graph, widths[0])
        synchronize(session.device)
        self.rows_s = time.perf_counter() - start
        """Seconds in which features are made and stored."""
        labels, self.trained = self.graph.node_rows(y), self.graph.node_rows(mask)
        self.labels = labels[self.trained]
        # As peergraph_pyg.full_graph does: layers that are not accelerated need it.
        utilities.install()
        self._structure = self.graph.structures[EDGE]
        self.is_used = False
        """Whether epochs have been trained."""

    def edge_index(self, switches: str = "") -> PartitionedEdgeIndex:
        """Returns the edges, whose source rows travel as one of `SWITCHES` says."""
        structure = self._structure
        if switches:
            assert self.graph.offloaded is not None
            chunked = ChunkedCsc(
                structure.chunked.resident,
                structure.chunked.chunks,
                Switches(*_SWITCHES[switches]),
            )
            structure = OffloadedCsc(self.graph.offloaded.spaces, chunked)
        return PartitionedEdgeIndex(structure)

    def list_rows(self, edge_index: PartitionedEdgeIndex) -> float:
        """Returns the seconds in which it is found which rows travel when, in both directions."""
        start = time.perf_counter()
        forward = edge_index.structure.chunked
        backward = forward.reversed()
        synchronize(self.session.device)
        reversed_s = time.perf_counter() - start
        forward.transfers()
        backward.transfers()
        synchronize(self.session.device)
        return time.perf_counter() - start - reversed_s

    def epochs_of(self, model: torch.nn.Module, edge_index: PartitionedEdgeIndex) -> Epoch:
        """Returns a function that trains an epoch and returns the loss."""
        optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)

        def epoch() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(self.x, edge_index)[self.trained], self.labels)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return epoch

    def moved(self) -> dict[str, int]:
        """Bytes that this rank has moved so far."""
        if self.graph.offloaded is None:
            return {}
        counts = self.graph.offloaded.allocator.moved
        return {
            "from_host": counts.to_device,
            "to_host": counts.from_device,
            "to_ranks": counts.to_ranks,
            "kept": counts.reused,
        }

    def reset_peaks(self) -> None:
        """Begins to look for the most memory that is used from now on."""
        if self.graph.offloaded is not None:
            for use in self.graph.offloaded.allocator.use.values():
                use.peak = use.used + use.spare
        reset_process_peak()
        if self.session.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def peaks(self) -> dict[str, float | None]:
        """GiB of the busiest rank, by the allocator and by the driver, and of rows by tier.

        `host_gib` is the most physical memory of a rank's process, mapped files included;
        `planned_gib` and `planned_host_gib` are what the plan counts of a rank.
        """
        fields: dict[str, float | None] = {}
        gather, plan = self.session.group.all_gather, self.graph.plan
        fields["host_gib"] = max(gather(process_peak())) / 2**30
        fields["planned_gib"] = max(plan.bytes_by_rank) / 2**30
        if plan.offload is not None:
            fields["planned_host_gib"] = plan.offload.bytes_by_tier["host"] / 2**30
        if self.graph.offloaded is not None:
            use = self.graph.offloaded.allocator.use
            for tier in ("device", "host", "file"):
                fields[f"rows_{tier}_gib"] = max(gather(use[tier].peak)) / 2**30
        if self.session.device.type == "cuda":
            free, total = torch.cuda.mem_get_info()
            cached = torch.cuda.memory_reserved()
            # The context and what libraries take, beside the allocator's largest share.
            driver = total - free - cached + torch.cuda.max_memory_reserved()
            peaks = gather((torch.cuda.max_memory_allocated(), driver))
            fields["peak_gib"] = max(of for of, _ in peaks) / 2**30
            fields["driver_gib"] = max(of for _, of in peaks) / 2**30
        return fields


def reset_process_peak() -> None:
    """Begins to look for the most physical memory of this process, where the kernel can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def process_peak() -> int:
    """The most bytes of physical memory that this process has had; 0: not known."""
    with suppress(OSError):
        match = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        return 1024 * int(match[1]) if match else 0
    return 0


def clear_device(session: Session) -> None:
    """Gives back what earlier runs have left."""
    gc.collect()
    if session.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _time_epochs(session: Session, data: Data, run: Run, prepared: Prepared) -> None:
    if prepared.graph.offloaded is not None:
        # Structures of selected rows hold those of earlier runs.
        prepared.graph.offloaded.spaces.selections.clear()
    clear_device(session)
    torch.manual_seed(7)
    model = Gnn(run.kind, run.of(data.spec), run.heads).to(session.device)
    edge_index = prepared.edge_index(run.switches)
    lists_s = prepared.list_rows(edge_index) if run.switches else None
    epoch = prepared.epochs_of(peergraph_pyg.accelerate(model), edge_index)
    losses: list[Tensor] = []
    start = time.perf_counter()
    losses.append(epoch())
    synchronize(session.device)
    first_s = time.perf_counter() - start
    losses.append(epoch())  # the sum of the features is kept from now on
    moved = prepared.moved()
    prepared.reset_peaks()
    timing = measure(session, lambda *_: losses.append(epoch()))
    epochs = len(losses) - 2
    totals = {name: (count - moved[name]) / epochs for name, count in prepared.moved().items()}
    peaks = prepared.peaks()
    plan = prepared.graph.plan
    if not prepared.is_used:
        session.note(str(plan))
    session.recorder.add(
        timing,
        system="peergraph",
        **_fields(run, data),
        epoch_s=timing.ms / 1e3,
        first_s=None if prepared.is_used else first_s,
        build_s=prepared.build_s,
        rows_s=prepared.rows_s,
        lists_s=lists_s,
        decision=plan.decision.partition(":")[0],
        num_chunks=plan.offload.num_chunks if plan.offload else None,
        budget_gib=run.budget and run.budget / 2**30,
        streamed=run.streamed or None,
        loss=float(losses[0]),
        last_loss=float(losses[-1]),
        **{f"{name}_gb": session.group.all_gather(n)[0] / 1e9 for name, n in totals.items()},
        **peaks,
        **(_parts_of(epoch) if session.args.parts_of_epoch else {}),
    )
    prepared.is_used = True


def _parts_of(epoch: Epoch) -> dict[str, float]:
    """Milliseconds in which a GPU copies from and to the host, from GPUs, and computes.

    `rows_ms` is of kernels that gather or scatter rows in the order of edges, over the host link
    where the rows are on the host; `sums_ms` of Peergraph's other kernels; `gpu_ms` of torch's;
    `busy_ms` is the time in which the GPU does anything.
    """
    spans = spans_by_kind(epoch, _PARTS)
    times = {f"{kind}_ms": length_of(of_kind) / 1e3 for kind, of_kind in spans.items()}
    times["gpu_ms"] = times.pop("rest_ms")
    times["busy_ms"] = length_of([span for of_kind in spans.values() for span in of_kind]) / 1e3
    return times


def _title(run: Run, data: Data) -> str:
    fields = _fields(run, data)
    return f"{run.part} {fields['layers']} on {run.graph}, {fields['setting']}"


def _fields(run: Run, data: Data) -> dict[str, str]:
    names = {None: "auto", True: "offloaded", False: "resident"}
    layers = f"{run.kind} {'-'.join(map(str, run.of(data.spec)))}"
    setting = run.switches or names[run.offload]
    return {"part": run.part, "graph": run.graph, "layers": layers, "kind": run.kind,
            "setting": setting}  # fmt: skip
