"""Checks and conversions of the tensors that users pass."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import DTYPES
from peergraph.aggregate.kernels.torch_operator import is_traced
from peergraph.memory import TableRows
from peergraph.memory.device.plain_tensor import plain


def check_operand(name: str, tensor: Tensor, device: torch.device, rows: int, what: str) -> None:
    """Checks an operand.

    Args:
        name: of the argument.
        tensor: the operand.
        device: of the structure.
        rows: that it must have.
        what: there is a row for each of.

    Raises:
        TypeError: it is no dense tensor of a dtype that kernels know.
        ValueError: it is on another device, or has not `rows` rows.
        NotImplementedError: it belongs to a transform of ``torch.func``.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if tensor.dtype not in DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise TypeError(f"{name} must be one of {names}, got {tensor.dtype}")
    if is_transformed(tensor):
        raise NotImplementedError(f"{name}: transforms of torch.func do not know aggregation")
    if not is_traced():
        plain(name, tensor)
    if tensor.device != device:
        raise ValueError(f"{name} must be on {device} as the structure, got {tensor.device}")
    if tensor.dim() == 0 or tensor.shape[0] != rows:
        raise ValueError(f"{name} must have {rows} rows ({what}), got {list(tensor.shape)}")


def is_transformed(tensor: Tensor) -> bool:
    """Returns whether the tensor belongs to a transform of ``torch.func`` and has no address."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def runs_plainly(x: Tensor | TableRows) -> bool:
    """Returns whether operations on `x` run outside of traces, transforms and autocast.

    These would not see operations in place.
    """
    return runs_outside_of_traces(x) and not torch.is_autocast_enabled(x.device.type)


def runs_outside_of_traces(x: Tensor | TableRows) -> bool:
    """Returns whether operations on `x` run outside of traces and transforms."""
    if is_traced():
        return False
    return not (isinstance(x, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(x))


def pays_to_fuse(x: Tensor) -> bool:
    """Returns whether a fused function that is differentiable once saves passes for `x`."""
    return x.requires_grad and torch.is_grad_enabled() and x.numel() > 0 and runs_plainly(x)


def check_message(message: str, messages: Sequence[str], x: object, e: object) -> None:
    """Raises ValueError for an unknown message, or for operands that are not those it reads."""
    if message not in messages:
        raise ValueError(f"message must be one of {', '.join(messages)}, got {message!r}")
    for name, operand, is_read in (("x", x, message != "copy_e"), ("e", e, message != "copy_u")):
        if (operand is not None) != is_read:
            state = "needs" if is_read else "does not use"
            raise ValueError(f"message {message!r} {state} {name}")


def check_same_dtype(**operands: Tensor | None) -> None:
    """Raises TypeError unless all operands have one dtype."""
    dtype_by_name = {name: tensor.dtype for name, tensor in operands.items() if tensor is not None}
    if len(set(dtype_by_name.values())) > 1:
        dtypes = " and ".join(map(str, dtype_by_name.values()))
        raise TypeError(f"{' and '.join(dtype_by_name)} must have one dtype, got {dtypes}")


def first_rows(x: Tensor, count: int) -> Tensor:
    """Returns the first `count` rows: `x` itself if these are all."""
    return x if x.shape[0] == count else x[:count]


def as_tensor(x: Tensor | TableRows, count: int | None = None) -> Tensor:
    """Returns the first `count` rows, or all, as a tensor; gathers rows of a table."""
    if isinstance(x, TableRows):
        return (x if count is None else x.first(count)).gather()
    return x if count is None else first_rows(x, count)


def columns(shape: torch.Size | tuple[int, ...]) -> int:
    """Returns the number of values in a row of features of `shape`."""
    return math.prod(shape)


def flat(tensor: Tensor) -> Tensor:
    """Returns the tensor as a matrix [rows, columns]."""
    if tensor.dim() == 2:
        return tensor
    return tensor.reshape(tensor.shape[0], columns(tensor.shape[1:]))


def is_prefix(narrow: tuple[int, ...], wide: tuple[int, ...]) -> bool:
    """Returns whether a value of shape `narrow` broadcasts to consecutive columns of `wide`."""
    while narrow and narrow[-1] == 1:
        narrow = narrow[:-1]
    return wide[: len(narrow)] == narrow


def align(
    x: Tensor | None, e: Tensor | None
) -> tuple[Tensor | None, Tensor | None, tuple[int, ...]]:
    """Returns both operands as matrices, and the features of a message.

    The number of columns of `e` is that of `x` or a divisor.
    """
    if x is None or e is None:
        only = e if x is None else x
        assert only is not None
        return (
            None if x is None else flat(x),
            None if e is None else flat(e),
            tuple(only.shape[1:]),
        )
    own, edge = tuple(x.shape[1:]), tuple(e.shape[1:])
    features = own
    if own == edge:
        return flat(x), flat(view_if_aliased(e, x)), features
    if len(own) == len(edge):
        try:
            features = tuple(torch.broadcast_shapes(own, edge))  # type: ignore[no-untyped-call]
        except RuntimeError:
            features = own
    if not is_prefix(edge, features):
        raise ValueError(
            f"e must have the shape of x's rows, {list(own)}, or the first dimensions of it, "
            f"got {list(edge)}"
        )
    return flat(x.expand(-1, *features)), flat(e), features


def view_if_aliased(tensor: Tensor, other: Tensor) -> Tensor:
    """Returns another handle of `tensor` if it is `other`.

    torch.compile does not take one tensor twice in one call.
    """
    same = torch.compiler.is_compiling() and tensor is other
    return tensor.view_as(tensor) if same else tensor


def autocast(tensor: Tensor | None) -> Tensor | None:
    """Returns the operand in the dtype that a matrix product gives it under torch.amp."""
    if tensor is None or tensor.dtype == torch.float64:
        return tensor
    kind = tensor.device.type
    if not torch.is_autocast_enabled(kind):
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))


def product_dtype(x: Tensor | TableRows) -> torch.dtype:
    """Returns the dtype in which matrix products of `x` run: that of autocast, else its own."""
    kind = x.device.type
    if x.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return x.dtype
    return torch.get_autocast_dtype(kind)


def use_deterministic(deterministic: bool | None) -> bool:
    """Returns the argument, or torch's global setting for None."""
    if deterministic is None:
        return torch.are_deterministic_algorithms_enabled()
    return deterministic
