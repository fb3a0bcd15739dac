"""Sums of source rows with constant weights, whose gradient is the sum over reversed edges."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.fullgraph.offload.edges.edge_recorder import (
    EdgeRecorder,
    reverse_rows,
    selected_source,
    store_resident,
)
from peergraph.fullgraph.offload.functions.recording import record
from peergraph.fullgraph.offload.programs.record import SourceOperand
from peergraph.fullgraph.offload.tensor.offloaded_tensor import Content, OffloadedTensor, make_shell
from peergraph.fullgraph.tensor.conversions import from_local
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor


def linear_sum(
    recorder: EdgeRecorder,
    reduce: str,
    x: Tensor,
    weights: PartitionedTensor | None,
    self_weight: Tensor | None = None,
) -> OffloadedTensor:
    """Returns sums or means of rows of sources, to be computed.

    Sums are stored when they are first computed, if gradients are on: the backward pass needs them
    and not the rows that were summed (HongTu 4.2).

    Args:
        recorder: the edges.
        reduce: ``sum`` or ``mean``.
        x: [sources, *features].
        weights: a factor of each edge's message, on the device and without gradient; None: 1.
        self_weight: a factor of each destination's own row of `x`, which is added to its sum, on
            the device and without gradient; sources and destinations are the same nodes then. None:
            no such row is added.
    """
    own = None if self_weight is None else x
    content, needs_grad = _record_sum(recorder, reduce, x, weights, own, self_weight)
    content.keeps = torch.is_grad_enabled()
    if not needs_grad:
        return make_shell(content)
    made = content.record
    assert made is not None
    [source] = [part for part in made.operands if isinstance(part, SourceOperand)]
    result: OffloadedTensor = LinearSum.apply(  # type: ignore[no-untyped-call]
        source.rows.identity, recorder, content, reduce, weights, self_weight
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
        self_weight: Tensor | None,
    ) -> OffloadedTensor:
        ctx.recorder, ctx.reduce, ctx.weights = recorder, reduce, weights
        ctx.self_weight, ctx.dtype = self_weight, x.dtype
        return make_shell(content)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        sums = transposed_sum(ctx.recorder, grad, ctx.reduce, ctx.weights, ctx.self_weight)
        if sums.dtype != ctx.dtype:
            sums = record(Tensor.to, (sums, ctx.dtype), {})
        return sums, None, None, None, None, None


def transposed_sum(
    recorder: EdgeRecorder,
    grad: Tensor,
    reduce: str,
    weights: PartitionedTensor | None,
    self_weight: Tensor | None = None,
) -> OffloadedTensor:
    """Returns sums of rows of destinations at sources, to be computed. Collective.

    It pulls over the reversed edges, so that each row is added up at once in a fixed order.

    Args:
        recorder: the edges.
        grad: [destinations, *features].
        reduce, weights, self_weight: as of :func:`linear_sum`.
    """
    structure = recorder.structure
    if not isinstance(grad, OffloadedTensor):
        assert isinstance(grad, PartitionedTensor)
        grad = store_resident(recorder.destinations, grad)
    own = None if self_weight is None else grad
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
        reverse = recorder.reversed(structure)
        if weights is None:
            edges = None
        elif selected is None:
            edges = recorder.reversed_weights(weights)
        else:
            edges = reverse_rows(structure, weights)
        content, _ = _record_sum(reverse, "sum", grad, edges, own, self_weight)
    return make_shell(content)


def _record_sum(
    recorder: EdgeRecorder,
    reduce: str,
    x: Tensor,
    weights: PartitionedTensor | None,
    own: Tensor | None,
    self_weight: Tensor | None,
) -> tuple[Content, bool]:
    """Records a sum over edges, to which rows of destinations times a factor are added.

    Args:
        recorder, reduce, x, weights: as of :func:`linear_sum`.
        own: [destinations, *features]; None: nothing is added.
        self_weight: the factor.
    """
    run = functools.partial(
        _sum_chunk, message="copy_u" if weights is None else "mul", reduce=reduce
    )
    destinations: dict[str, Tensor | None] = {} if own is None else {"own": own}
    parameters: dict[str, Tensor | None] = {}
    if self_weight is not None:
        has_rows = isinstance(self_weight, PartitionedTensor)
        (destinations if has_rows else parameters)["self_weight"] = self_weight
    return recorder.record(
        run,
        sources={"x": x},
        destinations=destinations,
        edges={"e": weights},
        parameters=parameters,
        space=recorder.destinations,
        row_type=(x.shape[1:], x.dtype),
    )


def _sum_chunk(
    csc: Csc,
    *,
    message: str,
    reduce: str,
    x: Tensor,
    e: Tensor | None,
    own: Tensor | None = None,
    self_weight: Tensor | None = None,
) -> Tensor:
    """Returns the sums at the destinations of a chunk."""
    sums = csc.spmm(message, reduce, x, e)
    return sums if own is None or self_weight is None else sums.addcmul_(own, self_weight)
