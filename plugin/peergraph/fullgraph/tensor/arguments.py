"""Checks of operations with several tensors, and errors after which a call is made again."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._ops import OpOverload

from peergraph.fullgraph.exchange.route import RowRequests
from peergraph.fullgraph.layout.row_layout import RowLayout

_WAY_OUT = "compute on this rank's rows, x.to_local(), or gather all rows with x.full_tensor()"
_NOT_IN_PLACE = ("__index__", "__int__", "__invert__")


class PlainRowsError(ValueError):
    """An operation below autograd got plain rows, whose gradient needs a rule above autograd.

    Raised where the rows were named by a list of ids, as in ``z[heads] * relation[types]``: then
    the tensor follows the list, and the call is made again with each rank's part of it. The same
    with one row in both tensors.

    Args:
        message: of the error where the tensor is no argument of the call.
        tensor: the plain tensor.
        layout: the rows.
        dim: the dimension of rows in `tensor`.
    """

    again = "with own rows"
    """What makes the arguments of the second call, in :data:`METHODS` of the registry."""

    def __init__(self, message: str, tensor: Tensor, layout: RowLayout, dim: int) -> None:
        super().__init__(message)
        self.tensor, self.row_layout, self.dim = tensor, layout, dim


class SplitRowsError(NotImplementedError):
    """A view splits rows that a list of ids named, as ``z[ids.view(-1)].view(pairs, k, -1)``.

    The call is made again with a copy whose rows are on the ranks as the view needs them. Writes
    into either of the two are refused as long as both are in use.

    Args:
        reason: of the error where the rows cannot be moved.
        layout: of the list.
        size: of the view.
    """

    again = "with moved rows"
    """As of :class:`PlainRowsError`."""

    def __init__(self, reason: str, layout: RowLayout, size: tuple[int, ...]) -> None:
        super().__init__(f"view: {reason}; {_WAY_OUT}")
        self.row_layout, self.size = layout, size


def require_same_rows(name: OpOverload | str, first: RowLayout, second: RowLayout) -> None:
    """Raises ValueError where two tensors of an operation hold other rows."""
    if not have_same_rows(first, second):
        raise ValueError(
            f"{name}: the tensors are partitioned by different layouts, {first} and {second}: "
            "select both with the same mask or ids"
        )


def have_same_rows(first: RowLayout, second: RowLayout) -> bool:
    """Whether two layouts give each rank the same rows in the same order."""
    return first is second or first.same_rows(second)


def rows_in_layout(
    name: OpOverload | str, local: Tensor, dim: int, layout: RowLayout, target: RowLayout
) -> Tensor:
    """Returns local rows of `layout` as those of `target`. Collective where they differ.

    Rows travel only where one of the layouts names rows by ids: `z[source] * z[target]`.

    Raises:
        ValueError: other layouts differ.
    """
    if have_same_rows(layout, target):
        return local
    if layout.size != target.size or not (layout.by_ids or target.by_ids):
        require_same_rows(name, target, layout)
    rows = RowRequests.of(layout, target.positions).fetch(local.movedim(dim, 0))
    return rows.movedim(0, dim)


def local_rows_of_plain(
    name: OpOverload | str, tensor: Tensor, layout: RowLayout, dim: int
) -> Tensor:
    """Returns the part of a plain tensor that meets the local rows along `dim`.

    A tensor with one row, or with equal rows, as ``torch.zeros`` and ``torch.ones`` make them,
    serves all ranks; where such rows are not the same memory, this synchronises the GPU. In a
    backward pass other tensors of all rows are taken, too: some gradients of autograd are plain.
    Values for rows that a list of ids named are taken as the list was. Others are refused: they
    are made by mistake, and as large as all ranks' rows.

    Args:
        dim: where the partitioned dimension meets `tensor`'s; may be negative. A tensor with fewer
            dimensions broadcasts.
    """
    require_dense(name, tensor)
    if tensor.dim() < -dim:
        return tensor
    rows = tensor.shape[dim]
    if rows == 1 and layout.size != 1:
        return tensor
    is_backward = torch._C._current_graph_task_id() != -1
    if rows == layout.size and (rows <= 1 or tensor.stride(dim) == 0):
        if rows <= 1 and tensor.requires_grad and torch.is_grad_enabled() and not is_backward:
            # It broadcasts with no row: autograd would take the rows' gradient for the tensor's.
            refuse_plain(name, tensor, layout, dim)
        return tensor.narrow(dim, 0, layout.local_count)
    if rows == layout.size and (is_backward or (layout.by_ids and not tensor.requires_grad)):
        return tensor.index_select(dim, layout.positions.to(tensor.device))
    if rows == layout.size and not tensor.requires_grad:
        first = tensor.narrow(dim, 0, 1)
        if bool((tensor == first).all()):
            return tensor.narrow(dim, 0, layout.local_count)
    refuse_plain(name, tensor, layout, dim)


def require_dense(name: OpOverload | str, tensor: Tensor) -> None:
    """Raises NotImplementedError for a plain operand that is a sparse tensor."""
    if tensor.layout != torch.strided:
        raise NotImplementedError(
            f"{name}: a plain operand is sparse ({tensor.layout}), which operations on partitioned "
            "rows do not take; sum over the edges of the graph with a layer and edge_index, or "
            "pass tensor.to_dense()"
        )


def refuse_plain(name: OpOverload | str, tensor: Tensor, layout: RowLayout, dim: int) -> NoReturn:
    """Raises ValueError for a plain tensor that meets a partitioned one."""
    shape = tuple(tensor.shape)
    if tensor.shape[dim] == layout.size:
        message = (
            f"{name}: a plain tensor of shape {shape} has all {layout.size} rows, but the other "
            "is partitioned: give each rank its rows with "
            "peergraph.fullgraph.like(partitioned, plain) or make it from the partitioned one "
            "(x.new_zeros, torch.zeros_like(x), ...)"
        )
        if (layout.by_ids or layout.size <= 1) and tensor.requires_grad:
            raise PlainRowsError(message, tensor, layout, dim)
        raise ValueError(message)
    raise ValueError(
        f"{name}: a plain tensor of shape {shape} does not broadcast with {layout.size} rows: it "
        "must have one row, or be partitioned as the rows are"
    )


def writes_first(function: Any) -> bool:
    """Returns whether a function of torch changes its first argument in place, by its name."""
    name: str = function.__name__.split(".")[0]  # of an overload
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name not in _NOT_IN_PLACE)
    return name.endswith("_")


def of_rule(function: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a function's rule, which makes a new result.

    Raises NotImplementedError for ``out=``.
    """
    if kwargs.pop("out", None) is not None:
        name = function.__name__
        raise NotImplementedError(
            f"{name}: out= is not implemented for partitioned tensors; use "
            f"out.copy_({name}(...)) instead"
        )
    return kwargs


def resolve_dim(name: str, dim: int, tensor: Tensor) -> int:
    """Returns a dimension of a tensor, not negative.

    Raises NotImplementedError for a tensor without dimensions, which torch takes for one row.
    """
    if not tensor.ndim:
        not_implemented(name, "a tensor without dimensions has no rows")
    return dim % tensor.ndim


def not_implemented(name: OpOverload | str, reason: str) -> NoReturn:
    """Raises NotImplementedError with the reason and the way out."""
    raise NotImplementedError(f"{name}: {reason}; {_WAY_OUT}")
