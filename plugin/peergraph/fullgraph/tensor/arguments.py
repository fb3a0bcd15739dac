"""Checks of operations with several tensors: all must be partitioned alike."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor
from torch._ops import OpOverload

from peergraph.fullgraph.layout.row_layout import RowLayout


def require_same_rows(name: OpOverload | str, first: RowLayout, second: RowLayout) -> None:
    """Raises ValueError where two tensors of an operation hold other rows."""
    if first is not second and not first.same_rows(second):
        raise ValueError(
            f"{name}: the tensors are partitioned by different layouts, {first} and {second}: "
            "select both with the same mask or ids"
        )


def local_rows_of_plain(
    name: OpOverload | str, tensor: Tensor, layout: RowLayout, dim: int
) -> Tensor:
    """Returns the part of a plain tensor that meets the local rows along `dim`.

    A tensor with one row, or with equal rows in the same memory (expanded), serves all ranks.

    Args:
        dim: where the partitioned dimension meets `tensor`'s; may be negative. A tensor with fewer
            dimensions broadcasts.
    """
    if tensor.dim() < -dim:
        return tensor
    rows = tensor.shape[dim]
    if rows == 1 and layout.size != 1:
        return tensor
    if rows == layout.size and (rows <= 1 or tensor.stride(dim) == 0):
        return tensor.narrow(dim, 0, layout.local_count)
    refuse_plain(name, tensor, layout, dim)


def refuse_plain(name: OpOverload | str, tensor: Tensor, layout: RowLayout, dim: int) -> NoReturn:
    """Raises ValueError for a plain tensor that meets a partitioned one."""
    shape = tuple(tensor.shape)
    if tensor.shape[dim] == layout.size:
        raise ValueError(
            f"{name}: a plain tensor of shape {shape} has all {layout.size} rows, but the other "
            "is partitioned: give each rank its rows with "
            "peergraph.fullgraph.like(partitioned, plain) or make it from the partitioned one "
            "(x.new_zeros, torch.zeros_like(x), ...)"
        )
    raise ValueError(
        f"{name}: a plain tensor of shape {shape} does not broadcast with {layout.size} rows"
    )


def not_implemented(name: OpOverload | str, reason: str) -> NoReturn:
    """Raises NotImplementedError with the reason and the way out."""
    raise NotImplementedError(
        f"{name}: {reason}; compute on this rank's rows, x.to_local(), or gather all rows with "
        "x.full_tensor()"
    )


def bind_names(overload: OpOverload) -> tuple[list[str], dict[str, Any]]:
    """The names of an overload's arguments in order, and their default values."""
    arguments = overload._schema.arguments
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    return [argument.name for argument in arguments], defaults
