"""Runs a model on rows on the device and on offloaded rows, and compares losses and gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from peergraph.fullgraph import PartitionedCsc, PartitionedTensor, RowLayout, distribute
from peergraph.fullgraph.offload.chunks.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.edges.offloaded_csc import OffloadedCsc
from peergraph.fullgraph.offload.functions.gathering import store_resident
from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
from peergraph.fullgraph.offload.tensor.offloaded_tensor import OffloadedTensor
from peergraph.fullgraph.offload.tensor.row_space import RowSpaces
from peergraph.memory import Group
from tests.fullgraph.partitioned import partition, shuffled_layout

NODES, EDGES, FEATURES, CLASSES = 49, 170, 6, 3
PLENTY = 1 << 30


@dataclass
class Data:
    """A graph of one kind of nodes."""

    structure: Any
    x: Tensor  # [n, features]
    y: Tensor  # [n] int64
    mask: Tensor  # [n] bool
    weights: Tensor  # [edges]
    allocator: RowAllocator | None = None


@dataclass
class Trace:
    """What training gave."""

    losses: list[float] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    buffers: list[Tensor] = field(default_factory=list)
    evaluated: Tensor | None = None


Loss = Callable[[nn.Module, Data], Tensor]


def make_graph(group: Group, dtype: torch.dtype = torch.float64) -> tuple[Data, RowLayout]:
    """Returns the graph on the device; some nodes have no edges, one of three ranks no nodes."""
    generator = torch.Generator().manual_seed(3)

    def draw(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    edge_index = torch.stack([draw(NODES - 3, EDGES), draw(NODES - 5, EDGES)])
    edge_index[0, :20] = edge_index[1, :20]
    layout = shuffled_layout(group, NODES)
    structure = partition(edge_index, layout, layout, grouped=True)
    x = torch.randn(NODES, FEATURES, generator=generator, dtype=dtype)
    weights = torch.rand(EDGES, generator=generator, dtype=dtype)
    data = Data(
        structure,
        distribute(x, layout),
        distribute(draw(CLASSES, NODES), layout),
        distribute(torch.rand(NODES, generator=generator) < 0.4, layout),
        distribute(weights, structure.edge_layout),
    )
    return data, layout


def offload(data: Data, layout: RowLayout, chunks: Chunks, device_bytes: int) -> Data:
    """Returns the graph with features that are stored outside of the device."""
    resident: PartitionedCsc = data.structure
    allocator = RowAllocator(layout.group, device_bytes, PLENTY)
    spaces = RowSpaces(allocator)
    space = spaces.add(layout, chunks)
    assert isinstance(data.x, PartitionedTensor)
    return Data(
        OffloadedCsc(spaces, ChunkedCsc(resident, chunks)),
        store_resident(space, data.x),
        data.y,
        data.mask,
        data.weights,
        allocator,
    )


def train(make: Callable[[], nn.Module], loss_of: Loss, data: Data, steps: int = 3) -> Trace:
    """Trains a model and evaluates it."""
    torch.manual_seed(1)
    model = make().double().to(data.x.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    trace = Trace()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, data)
        loss.backward()
        trace.losses.append(loss.item())
        trace.gradients += [
            torch.zeros(()) if p.grad is None else p.grad.clone() for p in model.parameters()
        ]
        optimizer.step()
    trace.buffers = [buffer.clone() for buffer in model.buffers()]
    model.eval()
    with torch.no_grad():
        out = model(data)
    trace.evaluated = out.full_tensor().cpu()
    return trace


def compare(actual: Trace, expected: Trace) -> None:
    """Asserts that two trainings gave the same."""
    torch.testing.assert_close(actual.losses, expected.losses, rtol=1e-9, atol=1e-9)
    for name in ("gradients", "buffers"):
        pairs = zip(getattr(actual, name), getattr(expected, name), strict=True)
        for place, (a, b) in enumerate(pairs):
            torch.testing.assert_close(
                a, b, rtol=1e-8, atol=1e-9, msg=lambda m, p=place, n=name: f"{n} {p}: {m}"
            )
    torch.testing.assert_close(actual.evaluated, expected.evaluated, rtol=1e-8, atol=1e-9)


def is_offloaded(x: Any) -> bool:
    """Whether the rows are not on the device."""
    return isinstance(x, OffloadedTensor)
