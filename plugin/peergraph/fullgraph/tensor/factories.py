"""New tensors made from a partitioned one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import rule

aten = torch.ops.aten


@rule(aten.new_empty.default)
def new_empty(x: PartitionedTensor, size: Sequence[int], **options: Any) -> Tensor:
    """Partitioned as `x` where the size along its partitioned dimension is the same, else plain."""
    return _made(x, size, lambda shape: x._local.new_empty(shape, **options))


@rule(aten.new_zeros.default)
def new_zeros(x: PartitionedTensor, size: Sequence[int], **options: Any) -> Tensor:
    """As :func:`new_empty`."""
    return _made(x, size, lambda shape: x._local.new_zeros(shape, **options))


@rule(aten.new_ones.default)
def new_ones(x: PartitionedTensor, size: Sequence[int], **options: Any) -> Tensor:
    """As :func:`new_empty`."""
    return _made(x, size, lambda shape: x._local.new_ones(shape, **options))


@rule(aten.new_full.default)
def new_full(x: PartitionedTensor, size: Sequence[int], fill_value: Any, **options: Any) -> Tensor:
    """As :func:`new_empty`."""
    return _made(x, size, lambda shape: x._local.new_full(shape, fill_value, **options))


@rule(aten.new_empty_strided.default)
def new_empty_strided(
    x: PartitionedTensor, size: Sequence[int], stride: Sequence[int], **options: Any
) -> Tensor:
    """As :func:`new_empty`, with the dimensions in memory in the order that `stride` has."""
    order = sorted(range(len(size)), key=lambda dim: (stride[dim], -dim), reverse=True)
    back = sorted(range(len(order)), key=order.__getitem__)

    def make(shape: Sequence[int]) -> Tensor:
        return x._local.new_empty([shape[dim] for dim in order], **options).permute(back)

    return _made(x, size, make)


def _made(x: PartitionedTensor, size: Sequence[int], make: Any) -> Tensor:
    dim = x.partitioned_dim
    if len(size) <= dim or size[dim] != x.layout.size:
        made: Tensor = make(size)
        return made
    local = list(size)
    local[dim] = x.layout.local_count
    return wrap(make(local), x.layout, dim)
