"""The strides of results, as torch chooses them for the rows of all ranks.

They decide what functions such as ``contiguous`` and ``reshape`` copy, and what is written into
their results reaches. A kernel may choose others for a rank's rows: dimensions of one element or
none have no order in memory, and rules may compute with other kernels than torch. Ranks would then
differ, or all of them from torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from peergraph.fullgraph.tensor.pointwise_names import is_pointwise
from peergraph.fullgraph.tensor.row_copies import as_view

_FEW = 2  # rows: the fewest that have an order in memory


@cache
def returns_views(overload: OpOverload) -> bool:
    """Returns whether results are views of arguments, or arguments themselves."""
    return any(value.alias_info is not None for value in overload._schema.returns)


def strides_in_torch(
    overload: OpOverload, args: Any, kwargs: Any, results: Sequence[Any]
) -> list[Sequence[int]] | None:
    """Returns the strides of an operation's results if its operands were plain; None if unknown.

    Args:
        args, kwargs: of the operation.
        results: partitioned ones.
    """
    try:
        if is_pointwise(overload) and not returns_views(overload):
            return _strides_of_few(overload, args, kwargs, results)
        return _strides_on_meta(overload, args, kwargs, results)
    except Exception:  # its shape depends on values, or only kernels know it
        return None


def _strides_on_meta(
    overload: OpOverload, args: Any, kwargs: Any, results: Sequence[Any]
) -> list[Sequence[int]] | None:
    def to_meta(tensor: Tensor) -> Tensor:
        shape, strides = tensor.shape, tensor.stride()
        return torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")

    args, kwargs = tree_map_only(Tensor, to_meta, (args, kwargs))
    if "device" in kwargs:
        kwargs["device"] = "meta"
    whole = overload(*args, **kwargs)
    parts = [whole] if isinstance(whole, Tensor) else whole
    is_same = [part.shape for part in parts] == [result.shape for result in results]
    return [part.stride() for part in parts] if is_same else None


def _strides_of_few(
    overload: OpOverload, args: Any, kwargs: Any, results: Sequence[Any]
) -> list[Sequence[int]]:
    """Runs the operation on few rows, since torch's meta functions give other strides than its
    kernels for some operations.
    """
    size = results[0].row_layout.size
    from_end = results[0].partitioned_dim - results[0].ndim
    few = min(_FEW, size)

    def few_rows(tensor: Tensor) -> Tensor:
        shape = list(tensor.shape)
        if len(shape) >= -from_end and shape[from_end] == size:
            shape[from_end] = few
        ones = torch.ones(shape, dtype=tensor.dtype, device=tensor.device)
        return as_view(ones, shape, tensor.shape, tensor.stride())

    args, kwargs = tree_map_only(Tensor, few_rows, (args, kwargs))
    whole = overload(*args, **kwargs)
    parts = [whole] if isinstance(whole, Tensor) else whole
    return [strides_of_all(part, size, part.ndim + from_end) for part in parts]


def strides_of_all(local: Tensor, size: int, dim: int) -> list[int]:
    """Returns the strides of a tensor of all `size` rows that lies in memory as a local one."""
    strides = list(local.stride())
    rows, step = max(local.shape[dim], 1), strides[dim]
    if step == 0:
        return strides
    return [
        stride * size // rows if stride > step or (stride == step and place < dim) else stride
        for place, stride in enumerate(strides)
    ]
