"""Differentiable selection of rows and its reverse."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from peergraph.autograd import Function
from peergraph.fullgraph.exchange.route import RowRequests
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.conversions import take_rows
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap


class TakeRows(Function):
    """The rows of a selection."""

    @staticmethod
    def forward(ctx: Any, x: PartitionedTensor, layout: RowLayout) -> PartitionedTensor:
        ctx.row_layout, ctx.dim = layout, x.partitioned_dim
        return selected_rows(x, layout)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        rows = take_rows(grad, ctx.row_layout, ctx.dim)
        if not torch.is_grad_enabled():
            return _with_zeros(rows), None
        return AddRows.apply(rows), None


class AddRows(Function):
    """Zeros in the layout of which rows were selected, with the selected rows added."""

    @staticmethod
    def forward(ctx: Any, rows: PartitionedTensor) -> PartitionedTensor:
        ctx.row_layout, ctx.dim = rows.row_layout, rows.partitioned_dim
        return _with_zeros(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        parent = ctx.row_layout.parent
        grad = take_rows(grad, parent, ctx.dim)
        result: Tensor = TakeRows.apply(grad, ctx.row_layout)
        return result


def selected_rows(x: PartitionedTensor, layout: RowLayout) -> PartitionedTensor:
    """Returns the rows of a selection from the layout of `x`, without autograd."""
    assert layout.parent_rows is not None
    dim = x.partitioned_dim
    return wrap(x._local.index_select(dim, layout.parent_rows), layout, dim)


def _with_zeros(rows: PartitionedTensor) -> PartitionedTensor:
    """Returns selected rows, added to zeros in the layout that they were selected from."""
    layout, dim = rows.row_layout, rows.partitioned_dim
    assert layout.parent is not None
    assert layout.parent_rows is not None
    shape = list(rows._local.shape)
    shape[dim] = layout.parent.local_count
    result = rows._local.new_zeros(shape)
    if layout.unique:
        result.index_copy_(dim, layout.parent_rows, rows._local)
    else:  # sums in a fixed order on GPUs, too
        result.movedim(dim, 0).index_put_(
            (layout.parent_rows,), rows._local.movedim(dim, 0), accumulate=True
        )
    return wrap(result, layout.parent, dim)


class NamedRows(NamedTuple):
    """Rows that partitioned ids name, as the ids were: they may change before the gradient."""

    requests: RowRequests
    rows: RowLayout
    """Of the tensor that they name rows of."""
    row_layout: RowLayout
    """Of the ids."""
    shape: torch.Size
    """Of this rank's ids."""

    @classmethod
    def of(cls, rows: RowLayout, ids: PartitionedTensor) -> NamedRows:
        """Returns the rows that ids name. Collective."""
        requests = RowRequests.of(rows, ids._local)
        return cls(requests, rows, ids.row_layout, ids._local.shape)


class FetchRows(Function):
    """The rows that partitioned ids name."""

    @staticmethod
    def forward(ctx: Any, x: PartitionedTensor, named: NamedRows) -> PartitionedTensor:
        ctx.named = named
        rows = named.requests.fetch(x._local)
        return wrap(rows.view(*named.shape, *rows.shape[1:]), named.row_layout, 0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = take_rows(grad, ctx.named.row_layout, 0)
        return SendRows.apply(grad, ctx.named), None


class SendRows(Function):
    """Zeros with rows added at the ids that partitioned ids name."""

    @staticmethod
    def forward(ctx: Any, rows: PartitionedTensor, named: NamedRows) -> PartitionedTensor:
        ctx.named = named
        local = rows._local
        features = local.shape[len(named.shape) :]
        result = local.new_zeros((named.rows.local_count, *features))
        named.requests.add(local.reshape(named.shape.numel(), *features), result)
        return wrap(result, named.rows, 0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = take_rows(grad, ctx.named.rows, 0)
        return FetchRows.apply(grad, ctx.named), None
