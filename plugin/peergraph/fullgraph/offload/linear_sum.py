"""Sums of source rows with constant weights, whose gradient is the sum over reversed edges."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.fullgraph.offload.edge_program import (
    EdgeRecorder,
    reverse_rows,
    selected_source,
    store_resident,
)
from peergraph.fullgraph.offload.offloaded_tensor import Content, OffloadedTensor, make_shell
from peergraph.fullgraph.offload.recording import record
from peergraph.fullgraph.offload.records import SourceOperand
from peergraph.fullgraph.tensor.conversions import from_local
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor


def linear_sum(
    recorder: EdgeRecorder, reduce: str, x: Tensor, weights: PartitionedTensor | None
) -> OffloadedTensor:
    """Returns sums or means of rows of sources, to be computed.

    Sums are stored when they are first computed, if gradients are on: the backward pass needs them
    and not the rows that were summed (HongTu 4.2).

    Args:
        recorder: the edges.
        reduce: ``sum`` or ``mean``.
        x: [sources, *features].
        weights: a factor of each edge's message, on the device and without gradient; None: 1.
    """
    message = "copy_u" if weights is None else "mul"
    run = functools.partial(Csc.spmm, message=message, reduce=reduce)
    content, needs_grad = recorder.record(
        run, sources={"x": x}, edges={"e": weights}, space=recorder.destinations
    )
    content.keeps = torch.is_grad_enabled()
    if not needs_grad:
        return make_shell(content)
    made = content.record
    assert made is not None
    [source] = [part for part in made.operands if isinstance(part, SourceOperand)]
    result: OffloadedTensor = LinearSum.apply(  # type: ignore[no-untyped-call]
        source.rows.identity, recorder, content, reduce, weights
    )
    return result


class LinearSum(torch.autograd.Function):
    """Sums or means whose gradient is recorded, too."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        recorder: EdgeRecorder,
        content: Content,
        reduce: str,
        weights: PartitionedTensor | None,
    ) -> OffloadedTensor:
        ctx.recorder, ctx.reduce, ctx.weights = recorder, reduce, weights
        ctx.dtype = x.dtype
        return make_shell(content)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        sums = transposed_sum(ctx.recorder, grad, ctx.reduce, ctx.weights)
        if sums.dtype != ctx.dtype:
            sums = record(Tensor.to, (sums, ctx.dtype), {})
        return sums, None, None, None, None


def transposed_sum(
    recorder: EdgeRecorder, grad: Tensor, reduce: str, weights: PartitionedTensor | None
) -> OffloadedTensor:
    """Returns sums of rows of destinations at sources, to be computed. Collective.

    It pulls over the reversed edges, so that each row is added up at once in a fixed order.

    Args:
        recorder: the edges.
        grad: [destinations, *features].
        reduce, weights: as of :func:`linear_sum`.
    """
    structure = recorder.structure
    if not isinstance(grad, OffloadedTensor):
        assert isinstance(grad, PartitionedTensor)
        grad = store_resident(recorder.destinations, grad)
    with torch.no_grad():
        selected = grad._content.selected
        if selected is not None:
            # The edges to selected rows only, whose gradients are on the device.
            structure = selected.selection.structure(structure)
            grad = selected_source(recorder.spaces, structure, selected.tensor)
            if weights is not None:
                rows = structure.edge_layout.parent_rows
                assert rows is not None
                weights = from_local(weights._local[rows], structure.edge_layout)
        if reduce == "mean":
            degrees = structure.resident.in_degrees().clamp_(min=1).to(grad.dtype)
            grad = record(torch.div, (grad, degrees.view([-1, *[1] * (grad.dim() - 1)])), {})
        if selected is None:
            reverse = recorder.reversed()
            edges = None if weights is None else recorder.reversed_weights(weights)
        else:
            reverse = EdgeRecorder(recorder.spaces, structure.reversed(recorder.sources.chunks))
            edges = None if weights is None else reverse_rows(structure, weights)
        message = "copy_u" if edges is None else "mul"
        run = functools.partial(Csc.spmm, message=message, reduce="sum")
        content, _ = reverse.record(
            run, sources={"x": grad}, edges={"e": edges}, space=reverse.destinations
        )
    return make_shell(content)
