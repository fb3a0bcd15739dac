"""Sums of source rows with constant weights, whose gradient is the sum over reversed edges."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.fullgraph.layout.content_digest import PendingDigest
from peergraph.fullgraph.offload.edges.edge_recorder import (
    EdgeRecorder,
    reverse_rows,
    selected_source,
)
from peergraph.fullgraph.offload.functions.gathering import store_resident
from peergraph.fullgraph.offload.functions.recording import record
from peergraph.fullgraph.offload.programs.record import (
    PlainOperand,
    ResidentOperand,
    SourceOperand,
    UnchangedCheck,
)
from peergraph.fullgraph.offload.tensor.offloaded_function import linear_map
from peergraph.fullgraph.offload.tensor.offloaded_tensor import Content, OffloadedTensor, make_shell
from peergraph.fullgraph.structure.edge_call import EdgeCall
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
    if self_weight is not None and not isinstance(self_weight, PartitionedTensor):
        self_weight = PlainOperand.of(self_weight).values  # also those of the gradient
    content, needs_grad = _record_sum(recorder, reduce, x, weights, own, self_weight)
    content.keeps = torch.is_grad_enabled()
    if not needs_grad:
        return make_shell(content)
    recorded = content.record
    assert recorded is not None
    [source] = [part for part in recorded.operands if isinstance(part, SourceOperand)]
    factors = [part for part in recorded.operands if isinstance(part, ResidentOperand)]
    digest = next((factor.digest for factor in factors if factor.tensor is weights), None)
    rows = source.rows.identity
    assert rows is not None
    dtype = rows.dtype

    def gradient(grad: Tensor) -> Tensor:
        # The next pass raises RuntimeError if a factor has other values than at the record.
        recorder.spaces.checks.append(UnchangedCheck(factors))
        sums: Tensor = transposed_sum(recorder, grad, reduce, weights, self_weight, digest)
        return sums if sums.dtype == dtype else record(Tensor.to, (sums, dtype), {})

    result: OffloadedTensor = linear_map(rows, lambda _: make_shell(content), gradient)
    return result


def transposed_sum(
    recorder: EdgeRecorder,
    grad: Tensor,
    reduce: str,
    weights: PartitionedTensor | None,
    self_weight: Tensor | None,
    digest: PendingDigest | None,
) -> OffloadedTensor:
    """Returns sums of rows of destinations at sources, to be computed. Collective.

    It pulls over the reversed edges, so that each row is added up at once in a fixed order.

    Args:
        recorder: the edges.
        grad: [destinations, *features].
        reduce, weights, self_weight: as of :func:`linear_sum`.
        digest: of the weights at the record of the sum; None: there are none.
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
            edges = recorder.reversed_weights(weights, digest)
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
        EdgeCall(
            run,
            sources={"x": x},
            destinations=destinations,
            edges={"e": weights},
            parameters=parameters,
            row_type=(x.shape[1:], x.dtype),
        )
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
