"""Operations that compute each element from elements at the same place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload

from peergraph.fullgraph.tensor.arguments import (
    local_rows_of_plain,
    not_implemented,
    require_same_rows,
    rows_in_layout,
)
from peergraph.fullgraph.tensor.chunk_rows import ChunkRows
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.pointwise_names import is_pointwise
from peergraph.fullgraph.tensor.registry import Rule, chunk_rule, family, rule

_SCALARS = (int, float, bool, type(None), str)


@family
def pointwise(overload: OpOverload) -> Rule | None:
    """The rule of a pointwise operation, in place or not; of random ones there is none here."""
    if not is_pointwise(overload):
        return None
    if overload._schema.is_mutable:
        return _in_place(overload)

    def run(*args: Any, **kwargs: Any) -> Any:
        first, local_args = localize(overload, args)
        if kwargs:
            if first is None:
                first = _first_partitioned(kwargs.values())
            kwargs = {
                name: value._local if type(value) is PartitionedTensor else value
                for name, value in kwargs.items()
            }
        result = overload(*local_args, **kwargs)
        from_end = first.partitioned_dim - first._local.dim()
        if isinstance(result, Tensor):
            return wrap(result, first.row_layout, result.dim() + from_end)
        return tuple(wrap(part, first.row_layout, part.dim() + from_end) for part in result)

    return run


def localize(overload: OpOverload | str, args: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """Returns the first partitioned tensor and all arguments as they meet on local rows.

    Raises ValueError where their rows do not meet.
    """
    first: PartitionedTensor | None = None
    from_end = 0
    has_plain = False
    result = list(args)
    for place, arg in enumerate(args):
        kind = type(arg)
        if kind is PartitionedTensor:
            local = arg._local
            if first is None:
                first, from_end = arg, arg.partitioned_dim - local.dim()
            elif arg.partitioned_dim - local.dim() != from_end:
                not_implemented(overload, "the tensors' rows meet other dimensions")
            elif arg.row_layout is not first.row_layout:
                dim = arg.partitioned_dim
                local = rows_in_layout(overload, local, dim, arg.row_layout, first.row_layout)
            result[place] = local
        elif kind not in _SCALARS and isinstance(arg, Tensor):
            has_plain = True
    if has_plain and first is not None:
        for place, arg in enumerate(args):
            if isinstance(arg, Tensor) and type(arg) is not PartitionedTensor:
                result[place] = local_rows_of_plain(overload, arg, first.row_layout, from_end)
    return first, result


def _in_place(overload: OpOverload) -> Rule:
    has_out = any(argument.is_out for argument in overload._schema.arguments)

    def run(*args: Any, **kwargs: Any) -> Any:
        first, local_args = localize(overload, args)
        target = kwargs.pop("out", args[0])
        if type(target) is not PartitionedTensor:
            not_implemented(overload, "a plain tensor cannot take partitioned values in place")
        if first is not None:
            require_same_rows(overload, target.row_layout, first.row_layout)
        written = target._local
        if any(_overlaps(written, arg, target.partitioned_dim) for arg in local_args):
            not_implemented(
                overload,
                "an argument is another view of the memory that is written; pass a copy of it, "
                "argument.clone()",
            )
        if has_out:
            kwargs["out"] = written
        overload(*local_args, **kwargs)
        return target

    return run


def _overlaps(written: Tensor, arg: Any, dim: int) -> bool:
    """Returns whether an argument is another view of elements that are written; on all ranks.

    torch allows some of them, by sizes that differ between ranks, and reads what is written before.

    Args:
        written, arg: local rows.
        dim: the dimension of rows of `written`.
    """
    if not isinstance(arg, Tensor) or arg is written:
        return False
    if arg.untyped_storage()._cdata != written.untyped_storage()._cdata:
        return False
    dim -= written.dim()
    rows = {view.shape[dim] if view.dim() >= -dim else 1 for view in (written, arg)}
    first, second = (_places_in_row(view, dim) for view in (written, arg))
    if rows == {written.shape[dim]} and torch.equal(first, second):
        return False  # the same elements
    return bool(torch.isin(first, second).any())


def _places_in_row(view: Tensor, dim: int) -> Tensor:
    """Returns where the elements of a row are in memory, counted from the beginning of the row."""
    shape, strides = list(view.shape), list(view.stride())
    step = 0
    if view.dim() >= -dim:
        shape[dim], step = 1, strides[dim] if view.shape[dim] > 1 else 0
    places = torch.full((), int(view.storage_offset()), dtype=torch.int64, device="cpu")
    for size, stride in zip(shape, strides, strict=True):
        places = places.unsqueeze(-1) + torch.arange(size, device="cpu") * stride
    return places % step if step else places


def _first_partitioned(values: Any) -> PartitionedTensor:
    for value in values:
        if type(value) is PartitionedTensor:
            return value
    raise AssertionError("no partitioned tensor")


def _of_plain_rows(function: Callable[..., Any]) -> Rule:
    """Returns the rule of chunks: for rows of one layout, numbers, and tensors that all share."""

    def run(*args: Any, **kwargs: Any) -> ChunkRows | None:
        first: ChunkRows | None = None
        from_end = 0
        local = list(args)
        for place, arg in enumerate(args):
            if type(arg) is ChunkRows:
                if first is None:
                    first, from_end = arg, arg.partitioned_dim - arg.rows.dim()
                elif arg.row_layout is not first.row_layout or (
                    arg.partitioned_dim - arg.rows.dim() != from_end
                ):
                    return None
                local[place] = arg.rows
        if first is None:
            return None
        for arg in (*args, *kwargs.values()):
            # A plain tensor must have no rows of its own.
            if isinstance(arg, Tensor) and arg.dim() >= -from_end and arg.shape[from_end] != 1:
                return None
            if type(arg) is not ChunkRows and isinstance(arg, (list, tuple, dict)):
                return None
        if any(type(value) is ChunkRows for value in kwargs.values()):
            return None
        result = function(*local, **kwargs)
        return ChunkRows(result, first.row_layout, result.dim() + from_end)

    return run


_NAMES = ("add", "sub", "mul", "div", "true_divide", "neg", "abs", "exp", "sigmoid", "tanh",
          "square", "sqrt", "rsqrt", "pow", "addcmul", "where")  # fmt: skip
_POINTWISE: tuple[Callable[..., Any], ...] = (
    *(getattr(torch, name) for name in _NAMES),
    *(getattr(Tensor, name) for name in _NAMES),
    *(Tensor.__radd__, Tensor.__rmul__, Tensor.__rsub__, Tensor.__rtruediv__),
    *(Tensor.__add__, Tensor.__mul__, Tensor.__sub__, Tensor.__truediv__, Tensor.__neg__),
    *(F.leaky_relu, F.elu, F.gelu, F.silu, F.softplus, F.sigmoid, F.tanh),
    *(torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor),
)
for _function in _POINTWISE:
    chunk_rule(_function)(_of_plain_rows(_function))


aten = torch.ops.aten


@rule(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(x: PartitionedTensor) -> tuple[PartitionedTensor, Tensor]:
    """The result, and a buffer that the gradient reads.

    On the CPU the buffer has a row for each row of `x`; on a GPU it is empty, a plain tensor.
    """
    out, buffer = aten.log_sigmoid_forward(x._local)
    if buffer.device.type == "cpu":
        buffer = wrap(buffer, x.row_layout, x.partitioned_dim)
    return wrap(out, x.row_layout, x.partitioned_dim), buffer


@rule(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> PartitionedTensor:
    """The gradient of `x`. If `x` is moved to the layout of `grad`, the buffer is moved too."""
    with_rows, empty = ((buffer,), ()) if isinstance(buffer, PartitionedTensor) else ((), (buffer,))
    first, local = localize(aten.log_sigmoid_backward.default, (grad, x, *with_rows))
    out = aten.log_sigmoid_backward(*local, *empty)
    return wrap(out, first.row_layout, first.partitioned_dim)
