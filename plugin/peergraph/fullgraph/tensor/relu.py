"""ReLU whose gradient reads one bit of each element, so that no result is kept for it.

Where dropout follows, the linear layer behind it keeps the rows that it multiplies, and no others
are kept: one buffer for each layer (MG-GCN 4.2).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate import FEATURE_DTYPES
from peergraph.aggregate.kernels.torch_operator import kernel
from peergraph.autograd import Function
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.chunk_rows import ChunkRows
from peergraph.fullgraph.tensor.conversions import take_rows
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import chunk_rule, function_rule
from peergraph.memory.device.launching import launch_on

_ELEMENTS_OF_BYTE = 8


def _empty_relu(x: Tensor) -> tuple[Tensor, Tensor]:
    count = -(-x.numel() // _ELEMENTS_OF_BYTE)
    return torch.empty_like(x), torch.empty(count, dtype=torch.uint8, device=x.device)


@kernel(_empty_relu)
def relu_bitmask(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the ReLU of contiguous `x`, and the bits of elements that pass gradients.

    Returns:
        As `x`, and [elements / 8, rounded up] uint8: the first element has the lowest bit.
    """
    out, bits = _empty_relu(x)
    _C.relu_bitmask(x=x, bits=bits, out=out, launch=launch_on(x.device))
    return out, bits


def _empty_masked(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@kernel(_empty_masked)
def apply_bitmask(x: Tensor, bits: Tensor) -> Tensor:
    """Returns contiguous `x` with 0 where the bit of :func:`relu_bitmask` is 0."""
    out = _empty_masked(x)
    _C.apply_bitmask(x=x, bits=bits, out=out, launch=launch_on(x.device))
    return out


@function_rule(F.relu, torch.relu, Tensor.relu)
def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """As `F.relu`, of partitioned or plain rows."""
    if (
        not inplace
        and input.requires_grad
        and torch.is_grad_enabled()
        and input.dtype in FEATURE_DTYPES
    ):
        result: tuple[Tensor, Tensor] = Relu.apply(input)
        return result[0]
    with torch._C.DisableTorchFunctionSubclass():
        return torch.relu_(input) if inplace else torch.relu(input)


@chunk_rule(F.relu, torch.relu, Tensor.relu)
def _relu_of_chunk(input: Any, inplace: bool = False) -> ChunkRows | None:
    if type(input) is not ChunkRows or inplace:
        return None
    return input.with_rows(relu(input.rows))


class Relu(Function):
    """`max(x, 0)` of partitioned or plain rows, and an empty result.

    The empty one leads from a gradient to `x`, on which it depends as torch's does, by zeros.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = _rows(x).contiguous()
        out, bits = relu_bitmask(rows)
        empty = rows.new_empty(0)
        ctx.save_for_backward(bits, empty)
        ctx.shape, ctx.place = rows.shape, _place(x)
        return out if ctx.place is None else wrap(out, *ctx.place), empty

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_of_empty: Tensor | None) -> Tensor:
        bits, empty = ctx.saved_tensors
        if grad is None:
            zeros = empty.new_zeros(ctx.shape)
            return zeros if ctx.place is None else wrap(zeros, *ctx.place)
        rows = grad if ctx.place is None else take_rows(grad, *ctx.place)
        if not torch.is_grad_enabled():
            return _masked(rows, bits)
        result: Tensor = _Masked.apply(rows, bits, empty)
        return result


class _Masked(Function):
    """Rows with 0 where a bit is 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: Tensor, empty: Tensor) -> Tensor:
        ctx.save_for_backward(bits, empty)
        ctx.place = _place(x)
        return _masked(x, bits)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor]:
        bits, empty = ctx.saved_tensors
        rows = grad if ctx.place is None else take_rows(grad, *ctx.place)
        result: Tensor = _Masked.apply(rows, bits, empty)
        return result, None, torch.zeros_like(empty)


def _masked(x: Tensor, bits: Tensor) -> Tensor:
    out, place = apply_bitmask(_rows(x).contiguous(), bits), _place(x)
    return out if place is None else wrap(out, *place)


def _rows(x: Tensor) -> Tensor:
    return x._local if isinstance(x, PartitionedTensor) else x


def _place(x: Tensor) -> tuple[RowLayout, int] | None:
    return (x.row_layout, x.partitioned_dim) if isinstance(x, PartitionedTensor) else None
