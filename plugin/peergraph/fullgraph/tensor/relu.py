"""ReLU whose gradient reads one bit of each element, so that no result is kept for it.

Where dropout follows, the linear layer behind it keeps the rows that it multiplies, and no others
are kept: one buffer for each layer (MG-GCN 4.2).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate import FEATURE_DTYPES
from peergraph.aggregate.kernels.torch_operator import kernel
from peergraph.aggregate.ops.activate import (
    activation_of,
    gradient_of_activation,
    masked_gradient,
)
from peergraph.autograd import Function
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.chunk_rows import ChunkRows
from peergraph.fullgraph.tensor.conversions import from_local, take_rows
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import chunk_rule, function_rule

_ELEMENTS_OF_BYTE = 8


def _matrix(x: Tensor) -> Tensor:
    """Contiguous `x` as a matrix, with whole bytes of bits in each row where possible."""
    if x.ndim == 2 and x.shape[1] % _ELEMENTS_OF_BYTE == 0:
        return x
    if x.numel() % _ELEMENTS_OF_BYTE == 0:
        return x.view(-1, _ELEMENTS_OF_BYTE)
    return x.view(-1, x.shape[-1] if x.ndim > 1 else 1)


def _empty_relu(x: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = _matrix(x).shape
    width = -(-columns // _ELEMENTS_OF_BYTE)
    return torch.empty_like(x), torch.empty(rows, width, dtype=torch.uint8, device=x.device)


@kernel(_empty_relu)
def relu_bitmask(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the ReLU of contiguous `x`, and the bits of elements that pass gradients.

    Returns:
        As `x`, and uint8, with a row of whole bytes for each row of a matrix of these elements: the
        first element has the lowest bit.
    """
    out, bits = activation_of(_matrix(x), None, True, 0.0, None)
    assert bits is not None
    return out.view(x.shape), bits


def _empty_masked(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@kernel(_empty_masked)
def apply_bitmask(x: Tensor, bits: Tensor) -> Tensor:
    """Returns contiguous `x` with 0 where the bit of :func:`relu_bitmask` is 0."""
    return gradient_of_activation(_matrix(x), bits, 0.0, False)[0].view(x.shape)


@function_rule(F.relu, torch.relu, Tensor.relu)
def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """As `F.relu`, of partitioned or plain rows."""
    if (
        not inplace
        and input.requires_grad
        and torch.is_grad_enabled()
        and input.dtype in FEATURE_DTYPES
        and input.is_contiguous()  # torch's result has the order of others in memory
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
        place = ctx.place
        rows = grad if place is None else take_rows(grad, *place)
        if not torch.is_grad_enabled():
            out = apply_bitmask(_rows(rows).contiguous(), bits)
            return out if place is None else wrap(out, *place)
        local = rows.to_local() if isinstance(rows, PartitionedTensor) else rows
        masked = masked_gradient(_matrix(local.contiguous()), bits, empty, 0.0).view(ctx.shape)
        return masked if place is None else from_local(masked, *place)


def _rows(x: Tensor) -> Tensor:
    return x._local if isinstance(x, PartitionedTensor) else x


def _place(x: Tensor) -> tuple[RowLayout, int] | None:
    return (x.row_layout, x.partitioned_dim) if isinstance(x, PartitionedTensor) else None
