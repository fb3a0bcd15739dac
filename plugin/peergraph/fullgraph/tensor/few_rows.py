"""The strides of results on ranks with at most one row.

Torch orders the dimensions of a result in memory as those of its operands, but for dimensions of
one element or none. Functions such as ``contiguous`` and ``reshape`` would then copy on one rank
and not on another, and what is written into their result would reach other tensors on some ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only


def strides_in_torch(
    overload: OpOverload, args: Any, kwargs: Any, result: Tensor
) -> tuple[int, ...] | None:
    """Returns the strides that a new result would have if it had more rows, as torch chooses them;
    None if they are unknown, or those of the result.
    """
    if any(value.alias_info is not None for value in overload._schema.returns):
        return None  # a view, or what was written
    operands: list[Tensor] = []

    def to_meta(tensor: Tensor) -> Tensor:
        operands.append(tensor)
        shape, strides = tensor.shape, tensor.stride()
        return torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")

    args, kwargs = tree_map_only(Tensor, to_meta, (args, kwargs))
    if "device" in kwargs:
        kwargs["device"] = "meta"
    if all(tensor.is_contiguous() for tensor in (*operands, result)):
        return None
    try:
        whole = overload(*args, **kwargs)
    except Exception:  # its shape depends on values, or only kernels know it
        return None
    is_same = isinstance(whole, Tensor) and whole.shape == result.shape
    return whole.stride() if is_same else None
