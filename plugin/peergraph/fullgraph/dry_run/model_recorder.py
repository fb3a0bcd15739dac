"""Records the passes and the memory of a model, from epochs on a small graph."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from peergraph.fullgraph.dry_run.small_graph import SmallGraph
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.offloaded_graph import OffloadedGraph
from peergraph.fullgraph.offload.passes.pass_trace import PassTrace
from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
from peergraph.fullgraph.plan.schedule import RecordedModel
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.live_bytes import LiveBytes
from peergraph.memory import Group, collective_call
from peergraph.store import EdgeType, NodeType

_PLENTY = 1 << 50
_CHUNKS = 2
_EPOCHS = 3  # Resident training keeps sums of features that come a second time.

Loss = Callable[[], Tensor]
ModelLoss = Callable[[Any, Any], Tensor]
"""Computes the loss of a model on what an adapter's ``full_graph`` returned."""
Partition = Callable[[Group, "ModelRecorder"], Any]
"""Partitions a small graph over a group, with a recorder in the place of the model."""


class ModelRecorder:
    """Takes the place of the model of a small graph, and records the model that runs on it.

    Args:
        offloads: whether the graph is offloaded, with all rows on the device.
    """

    def __init__(self, *, offloads: bool) -> None:
        self.offloads = offloads
        self._nodes: list[int] = []
        self._trace: PassTrace | None = None

    def offload(
        self,
        group: Group,
        layouts: Mapping[NodeType, RowLayout],
        structures: Mapping[EdgeType, PartitionedCsc],
    ) -> OffloadedGraph:
        """Returns the small graph in chunks, whose passes are recorded."""
        self._nodes = [layout.size for layout in layouts.values()]
        nodes = sum(self._nodes)
        edges = sum(structure.edge_layout.size for structure in structures.values())
        self._trace = PassTrace(nodes, edges)
        allocator = RowAllocator(group, _PLENTY, 0, sequential_device_bytes=_PLENTY)
        allocator.trace = self._trace
        return OffloadedGraph(group, _CHUNKS, layouts, structures, lambda _: allocator)

    def run(self, loss: Loss) -> tuple[PassTrace | None, LiveBytes]:
        """Runs epochs until they are like all others, and records the last one.

        Of resident training, the memory of all of them counts.

        Args:
            loss: runs the model on the small graph.
        """
        trace, live = self._trace, LiveBytes(self._nodes, _local_rows)
        if not self.offloads:
            with live:
                for _ in range(_EPOCHS - 1):
                    _run_epoch(loss, trace)
        else:
            live.parameters = {leaf.shape for leaf in _run_epoch(loss, trace)}
        if trace is not None:
            trace.start_epoch()
            trace.live = live
        with live:
            _run_epoch(loss, trace)
        return trace, live


def record_model(
    model: nn.Module,
    loss: ModelLoss | None,
    group: Group,
    make_small: Callable[[], tuple[SmallGraph, Partition]],
) -> RecordedModel:
    """Returns what an epoch of a user's model does, as rank 0 found it. Collective.

    A copy of the model with the same parameters runs on a small graph: buffers, such as running
    statistics, change in the copy only.

    Args:
        model: the user's.
        loss: of the model on partitioned data.
        group: the ranks, of all machines.
        make_small: returns the sizes of the small graph, and the function that makes it.

    Raises:
        TypeError: there is no `loss`; on all ranks, as any error of the model.
    """

    def record() -> RecordedModel:
        if loss is None:
            raise TypeError(
                "loss must be a function of the model and of what full_graph returns, which "
                "computes what backward() is called of, got None"
            )
        small, partition = make_small()

        def make_loss(alone: Group, recorder: ModelRecorder) -> Loss:
            part = partition(alone, recorder)
            copied = copy.deepcopy(model, {id(p): p for p in model.parameters()})
            return lambda: loss(copied, part)

        return record_epochs(type(model).__name__, group, small, make_loss)

    recorded: RecordedModel = group.broadcast(collective_call(group, record))
    return recorded


def record_epochs(
    name: str,
    group: Group,
    small: SmallGraph,
    make_loss: Callable[[Group, ModelRecorder], Loss],
) -> RecordedModel:
    """Runs a model on a small graph, offloaded and resident, and returns what it did.

    Gradients of parameters and torch's generators stay as they are.

    Args:
        name: of the model, as printed.
        group: the ranks of the large graph, of which this one runs alone on its device.
        small: the graph that the model runs on.
        make_loss: builds that graph with the recorder in the place of the model, and returns the
            function that computes the loss.
    """
    num_nodes = max(1, sum(small.num_nodes.values()))
    alone = Group(0, 1, group.device, 60.0)
    devices = [group.device] if group.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.inference_mode(False), torch.enable_grad():
        recorder = ModelRecorder(offloads=True)
        trace, live = recorder.run(make_loss(alone, recorder))
        assert trace is not None
        recorder = ModelRecorder(offloads=False)
        _, resident = recorder.run(make_loss(alone, recorder))
    gc.collect()  # the small graphs
    schedule = trace.schedule()
    edges = [step.edges for step in schedule.passes if step.share < 1]
    return RecordedModel(
        name,
        schedule,
        resident.peak_of(small.num_nodes.values()) / num_nodes,
        resident.peak_of(small.num_edges.values()) / max(1, sum(small.num_edges.values())),
        live.peak_of(trace.selected) / num_nodes,
        max(edges, default=0.0),
    )


def _local_rows(tensor: Tensor) -> Tensor:
    return tensor._local if type(tensor) is PartitionedTensor else tensor


def _run_epoch(loss: Loss, trace: PassTrace | None) -> list[Tensor]:
    """Runs a forward and a backward pass without leaving gradients; returns the parameters."""
    if trace is not None:
        trace.phase = "forward"
    result = loss()
    if trace is not None:
        trace.phase = "backward"
    leaves = _leaves(result)
    if leaves:
        torch.autograd.grad(result.sum(), leaves, allow_unused=True)
    return leaves


def _leaves(result: Tensor) -> list[Tensor]:
    """The parameters that a tensor is computed from."""
    pending, visited, leaves = [result.grad_fn], set(), []
    while pending:
        node: Any = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        pending.extend(following for following, _ in node.next_functions)
    return leaves
