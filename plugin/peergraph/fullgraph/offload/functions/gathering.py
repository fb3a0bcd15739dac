"""All rows of offloaded tensors, gathered on the CPU or on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.transport import Transport
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.gradients.segment import row_operand
from peergraph.fullgraph.offload.passes.chunk_pass import PassChunk
from peergraph.fullgraph.offload.programs.program import Place, no_autograd
from peergraph.fullgraph.offload.programs.row_pass import RowPass
from peergraph.fullgraph.offload.tensor.offloaded_function import linear_map
from peergraph.fullgraph.offload.tensor.offloaded_tensor import OffloadedTensor, from_store
from peergraph.fullgraph.offload.tensor.row_space import RowSpace, Undo, rows_first
from peergraph.fullgraph.tensor.conversions import distribute, take_rows
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import method


def visit_rows(x: OffloadedTensor, visit: Callable[[int, Tensor], None]) -> None:
    """Computes this rank's rows chunk by chunk. Collective; not differentiable.

    Args:
        x: of which the first dimension has the rows of its space.
        visit: called with the first local row and the rows of each chunk, on the device; equally
            often on all ranks.
    """
    content = x._content
    if not content.is_storable:
        raise NotImplementedError(
            f"rows of a tensor {tuple(x.shape)} that is partitioned along dimension "
            f"{x.partitioned_dim}: write the rows before they are transposed or merged"
        )
    row_pass = RowPass(content.space, [row_operand(x)])
    [slot] = row_pass.outputs

    def visit_chunk(chunk: PassChunk, place: Place, values: list[Any]) -> None:
        start, _ = content.space.chunks.range(chunk.index)
        visit(start, values[slot].to_local())

    row_pass.run(visit_chunk)


@method("offloaded to_local")
@torch.inference_mode(False)
def local_rows(x: OffloadedTensor, device: torch.device | None = None) -> Tensor:
    """Returns this rank's rows. Collective; not differentiable.

    Args:
        x: any offloaded tensor.
        device: of the result; None: the CPU.
    """
    if not x._content.is_storable:
        rows, undo = _rows_first(x)
        return undo(local_rows(rows, device))
    shape = (x.row_layout.local_count, *x.shape[1:])
    result = torch.empty(shape, dtype=x.dtype, device=device or torch.device("cpu"))

    def visit(start: int, rows: Tensor) -> None:
        result[start : start + len(rows)] = rows

    visit_rows(x, visit)
    return result


def resident_rows(x: OffloadedTensor, layout: RowLayout) -> PartitionedTensor:
    """Returns the rows as a tensor on the device. Collective; not differentiable."""
    return wrap(local_rows(x, x.device), layout, x.partitioned_dim)


@method("offloaded rows on device")
def rows_on_device(x: OffloadedTensor) -> PartitionedTensor:
    """Returns the rows of an index on the device. Collective; not differentiable."""
    return resident_rows(x, x.row_layout)


@method("offloaded values on device")
def on_device(x: OffloadedTensor) -> PartitionedTensor:
    """Returns all rows as a tensor on the device. Collective; differentiable."""
    rows: PartitionedTensor = _move_rows(x, None)
    return rows


def in_graph(x: Any, space: RowSpace) -> Any:
    """Returns offloaded rows of another graph of the same nodes as rows of this graph.

    They are computed at once and stored. Collective; differentiable.

    Args:
        x: any value; what are no such rows is returned as it is.
        space: of this graph.
    """
    if not isinstance(x, OffloadedTensor) or x._content.space.spaces is space.spaces:
        return x
    if not x._content.is_storable or not x.row_layout.same_rows(space.row_layout):
        return x
    return _move_rows(x, space)


def store_resident(space: RowSpace, x: PartitionedTensor) -> OffloadedTensor:
    """Returns rows that are on the device as an offloaded tensor. Differentiable."""
    rows: OffloadedTensor = _move_rows(x, space)
    return rows


def _move_rows(x: PartitionedTensor, space: RowSpace | None) -> Any:
    """Returns the same rows in a store of a space; None: on the device. Differentiable."""
    layout = x.row_layout
    space_before = x._content.space if isinstance(x, OffloadedTensor) else None

    def move(x: Any) -> PartitionedTensor:
        if space is None:
            return resident_rows(x, layout)
        store = space.allocator.allocate(space.row_layout, x.shape[1:], x.dtype, "source")
        if isinstance(x, OffloadedTensor):
            visit_rows(x, store.write)
        else:
            store.write(0, x._local)
        return from_store(space, store)

    def move_back(grad: Tensor) -> Tensor:
        if not isinstance(grad, OffloadedTensor):
            return take_rows(grad, layout, 0)
        with torch.no_grad():
            if space_before is None:
                return resident_rows(grad, layout)
            rows: Tensor = in_graph(grad, space_before)
            return rows

    return linear_map(x, move, move_back)


@method("offloaded full_tensor")
def full_tensor(x: OffloadedTensor) -> Tensor:
    """Returns all rows in the user's order on the CPU. Differentiable; collective.

    The gradient is stored chunk by chunk.
    """
    space, layout, dim = x._content.space, x.row_layout, x.partitioned_dim
    features = x._content.features if x._content.is_storable else None

    def store(grad: Tensor) -> Tensor:
        if features is None:
            return distribute(grad, layout, dim)
        store = space.allocator.allocate(space.row_layout, features, grad.dtype, "source")
        positions = space.row_layout.positions.to(grad.device)
        for chunk in range(space.chunks.count):
            start, stop = space.chunks.range(chunk)
            store.write(start, grad[positions[start:stop]].to(space.rank.device))
        return from_store(space, store)

    rows: Tensor = linear_map(x, all_rows, store)
    return rows


def _rows_first(x: OffloadedTensor) -> tuple[OffloadedTensor, Undo]:
    with no_autograd():
        return rows_first(x, x._content.space.row_layout)


@torch.inference_mode(False)
def all_rows(x: OffloadedTensor) -> Tensor:
    """Returns all rows in the user's order on the CPU. Collective; not differentiable.

    The device holds the rows of one chunk of each rank at a time.
    """
    if not x._content.is_storable:
        rows, undo = _rows_first(x)
        return undo(all_rows(rows))
    layout = x.row_layout
    group, transport = layout.group, Transport.of(layout.group)
    result = torch.empty(tuple(x.shape), dtype=x.dtype, device=torch.device("cpu"))
    order = torch.empty_like(layout.internal_rows)
    order[layout.internal_rows] = torch.arange(layout.size)

    def visit(start: int, rows: Tensor) -> None:
        parts = group.all_gather((start, len(rows)))
        gathered = transport.all_gather_rows(rows.contiguous(), [count for _, count in parts]).cpu()
        ids = [
            order[offset + first : offset + first + count]
            for offset, (first, count) in zip(layout.offsets, parts, strict=True)
        ]
        result[torch.cat(ids)] = gathered

    visit_rows(x, visit)
    return result
