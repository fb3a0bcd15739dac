"""Between partitioned tensors and plain ones: local rows, all rows, replicated values."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from peergraph.autograd import Function
from peergraph.fullgraph.exchange.local_operands import enter_replicas, replica
from peergraph.fullgraph.exchange.replicas import Replicas
from peergraph.fullgraph.exchange.route import linear
from peergraph.fullgraph.exchange.transport import Transport
from peergraph.fullgraph.layout.ranks import Ranks
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.arguments import PlainRowsError, SplitRowsError, rows_in_layout
from peergraph.fullgraph.tensor.nested import map_nested, tensors_in
from peergraph.fullgraph.tensor.parameters import check_parameters
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import METHODS, method
from peergraph.fullgraph.tensor.row_copies import refuse_writes
from peergraph.fullgraph.tensor.transforms import check_transforms


def from_local(local: Tensor, layout: RowLayout, dim: int = 0) -> PartitionedTensor:
    """Returns the partitioned tensor of which each rank gives its rows. Differentiable.

    Not collective. The rows are not copied.

    Args:
        local: `layout.local_count` along `dim`: row i is the user's row `layout.positions[i]`.
        layout: which rank holds which rows.
        dim: the partitioned dimension.

    Raises:
        ValueError: `local` has another number of rows.
    """
    dim = _check_dim(dim, local.dim())
    if isinstance(local, PartitionedTensor):
        raise ValueError("local must be a plain tensor of this rank's rows, got a partitioned one")
    check_transforms(local)
    if local.shape[dim] != layout.local_count:
        raise ValueError(
            f"local must have the {layout.local_count} rows of rank {layout.group.rank} along "
            f"dimension {dim}, got shape {tuple(local.shape)}"
        )
    if local.requires_grad and torch.is_grad_enabled():
        result: PartitionedTensor = FromLocal.apply(local, layout, dim)
        return result
    return wrap(local.detach(), layout, dim)


def distribute(full: Tensor, layout: RowLayout | Tensor, dim: int = 0) -> PartitionedTensor:
    """Returns a partitioned tensor with the rows of a plain one. Differentiable; not collective.

    Args:
        full: `layout.size` along `dim`, in the user's order; equal on all ranks, on any device.
        layout: which rank holds which rows, or a partitioned tensor that has the layout.
        dim: the dimension to partition.

    Raises:
        ValueError: `full` has another number of rows.
    """
    if isinstance(layout, PartitionedTensor):
        layout = layout.row_layout
    assert isinstance(layout, RowLayout)
    check_transforms(full)
    check_parameters((full,), layout.group)
    dim = _check_dim(dim, full.dim())
    if full.shape[dim] != layout.size:
        raise ValueError(
            f"full must have all {layout.size} rows along dimension {dim}, "
            f"got shape {tuple(full.shape)}"
        )
    own_rows = partial(_own_rows, layout=layout, dim=dim)
    return linear(full, own_rows, partial(_all_rows, device=full.device))  # type: ignore[return-value]


def like(x: PartitionedTensor, full: Tensor) -> PartitionedTensor:
    """Returns `full`, a plain tensor equal on all ranks, partitioned as `x` is."""
    return distribute(full, x.row_layout, x.partitioned_dim)


def replicated(tensor: Tensor, group: Ranks) -> Tensor:
    """Returns a plain tensor that may enter computations on local rows.

    Its gradient, of which each rank computes a share from its rows, is added up over the ranks:
    backward is collective. Parameters are made equal on all ranks at their first use.
    """
    check_transforms()
    check_parameters((tensor,), group)
    if group.world_size == 1 or not (tensor.requires_grad and torch.is_grad_enabled()):
        return tensor
    return replica(tensor, group)


def replicated_together(group: Ranks, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Returns each tensor as :func:`replicated` does; their gradients are added up at once.

    Then the ranks' collectives are in the same order even where one rank's local operations differ,
    as torch's do for no rows.
    """
    check_transforms()
    check_parameters(tensors, group)
    if group.world_size == 1:
        return tensors
    present = [tensor for tensor in tensors if tensor is not None]
    if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in present)):
        return tensors
    entered = iter(enter_replicas(group, present))
    return tuple(None if tensor is None else next(entered) for tensor in tensors)


class ToLocal(Function):
    """The local rows of a partitioned tensor."""

    @staticmethod
    def forward(ctx: Any, x: PartitionedTensor) -> Tensor:
        ctx.row_layout, ctx.dim = x.row_layout, x.partitioned_dim
        return x._local.view_as(x._local)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return from_local(grad, ctx.row_layout, ctx.dim)


class FromLocal(Function):
    """A partitioned tensor of local rows."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, layout: RowLayout, dim: int) -> PartitionedTensor:
        ctx.row_layout, ctx.dim = layout, dim
        return wrap(local.detach(), layout, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return take_rows(grad, ctx.row_layout, ctx.dim).to_local(), None, None


@method("full_tensor")
def full_tensor(x: PartitionedTensor) -> Tensor:
    """Returns all rows in the user's order. Differentiable; collective."""
    layout, dim = x.row_layout, x.partitioned_dim

    def gather(rows: Tensor) -> Tensor:
        return gather_rows(take_rows(rows, layout, dim)._local, layout, dim)

    return linear(x, gather, partial(_own_rows, layout=layout, dim=dim))


def _own_rows(full: Tensor, layout: RowLayout, dim: int) -> PartitionedTensor:
    """Returns the local rows of a plain tensor that all ranks hold."""
    positions = layout.positions.to(full.device)
    local = full.detach().index_select(dim, positions).to(layout.group.device)
    return wrap(local, layout, dim)


def _all_rows(rows: Tensor, device: torch.device) -> Tensor:
    """Returns the plain tensor of which :func:`_own_rows` takes local rows."""
    full = rows.full_tensor() if isinstance(rows, PartitionedTensor) else rows
    return full.to(device)


def gather_rows(local: Tensor, layout: RowLayout, dim: int) -> Tensor:
    """All rows in the user's order, of plain local rows. Collective; not differentiable."""
    Replicas.of(layout.group).compare()
    rows = local.movedim(dim, 0).contiguous()
    rows = Transport.of(layout.group).all_gather_rows(rows, layout.counts)
    order = layout.internal_rows.to(rows.device)
    full = rows.index_select(0, order)
    return full.movedim(0, dim).contiguous() if dim else full


def take_rows(grad: Tensor, layout: RowLayout, dim: int) -> PartitionedTensor:
    """A gradient in the layout of its tensor; it may come plain, or in a layout by other ids."""
    if not isinstance(grad, PartitionedTensor):
        return distribute(grad, layout, dim)
    if grad.row_layout is layout:
        return grad
    return redistribute(grad, layout)


def redistribute(x: PartitionedTensor, layout: RowLayout) -> PartitionedTensor:
    """Returns `x` with its rows in another layout of as many rows. Differentiable; collective."""
    dim = x.partitioned_dim
    moved = partial(_moved, layout=layout, dim=dim)
    return linear(x, moved, partial(_moved, layout=x.row_layout, dim=dim))  # type: ignore[return-value]


def _moved(x: Tensor, layout: RowLayout, dim: int) -> PartitionedTensor:
    if not isinstance(x, PartitionedTensor):
        return _own_rows(x, layout, dim)
    return wrap(rows_in_layout("gradient", x._local, dim, x.row_layout, layout), layout, dim)


def _check_dim(dim: int, dims: int) -> int:
    if not -dims <= dim < dims:
        raise ValueError(f"dim must be in {-dims}..{dims - 1}, got {dim}")
    return dim % dims


METHODS["to_local"] = ToLocal.apply


@method(PlainRowsError.again)
def with_own_rows(
    error: PlainRowsError, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments with this rank's rows in the place of the error's plain tensor.

    Raises the error where the tensor is none of them.
    """
    tensors, of, layout = tensors_in((args, kwargs)), error.tensor, error.row_layout
    plain = [value for value in tensors if value is of]
    if not plain and layout.size <= 1:  # of a function that torch makes of others
        plain = [x for x in tensors if type(x) is not PartitionedTensor and x.shape == of.shape]
    if not plain:
        raise error

    def own_rows(value: Tensor) -> PartitionedTensor:
        if layout.size > 1:
            return distribute(value, layout, error.dim)
        # The gradient of one row is a sum, which chunks of offloaded rows add to, too.
        own = replicated(value, layout.group).narrow(error.dim, 0, layout.local_count)
        return from_local(own, layout, error.dim)

    rows = {id(value): own_rows(value) for value in plain}
    again: tuple[tuple[Any, ...], dict[str, Any]] = map_nested(
        (args, kwargs), lambda value: rows.get(id(value), value)
    )
    return again


@method(SplitRowsError.again)
def with_moved_rows(
    error: SplitRowsError, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments with the rows in the layout that a view needs. Collective.

    Raises the error where the view does not split the rows in equal parts.
    """
    x: Any = args[0] if args else None
    count = 1
    for place, part in enumerate(error.size):
        count *= part
        if count == error.row_layout.size and place:
            break
    else:
        raise error
    if getattr(x, "row_layout", None) is not error.row_layout or x.partitioned_dim != 0:
        raise error
    first = error.size[0]
    moved: Any = redistribute(x, error.row_layout.blocks(first).repeat(count // max(first, 1)))
    if moved._local.untyped_storage()._cdata != x._local.untyped_storage()._cdata:
        reason = "rows of a list of ids that another tensor is a view of are changed"
        refuse_writes(x._local, moved._local, reason)
    return (moved, *args[1:]), kwargs
