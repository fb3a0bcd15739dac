"""New tensors that are partitioned as a given one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import RULES
from peergraph.fullgraph.tensor.row_copies import as_view

aten = torch.ops.aten


def _register(overload: OpOverload) -> None:
    def run(x: PartitionedTensor, size: Sequence[int], *args: Any, **kwargs: Any) -> Tensor:
        dim = partitioned_dim_of(x, size)
        if dim is None:
            plain: Tensor = overload(x._local, size, *args, **kwargs)
            return plain
        local_size = list(size)
        local_size[dim] = x.row_layout.local_count
        return wrap(overload(x._local, local_size, *args, **kwargs), x.row_layout, dim)

    RULES[overload] = run


def partitioned_dim_of(x: PartitionedTensor, size: Sequence[int]) -> int | None:
    """The dimension along which a new tensor of shape `size` has the rows of `x`, or None.

    It is the partitioned dimension of `x`, if the size there is the number of rows. Another
    dimension of that size is a width that happens to be equal.
    """
    dim = x.partitioned_dim
    return dim if len(size) > dim and size[dim] == x.row_layout.size else None


for _op in (aten.new_zeros, aten.new_ones, aten.new_full, aten.new_empty):
    _register(_op.default)


def new_empty_strided(
    x: PartitionedTensor, size: Sequence[int], stride: Sequence[int], **kwargs: Any
) -> Tensor:
    """As `new_empty`, of a given order in memory."""
    result: Tensor = RULES[aten.new_empty.default](x, size, **kwargs)
    if not isinstance(result, PartitionedTensor):
        return x._local.new_empty_strided(size, stride, **kwargs)
    local = as_view(result._local, result._local.shape, size, stride)
    return wrap(local, result.row_layout, result.partitioned_dim, stride)


RULES[aten.new_empty_strided.default] = new_empty_strided
