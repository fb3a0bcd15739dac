"""Bias, ReLU and dropout in one pass over the features, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import DTYPES, launch_on, sum_dtype
from peergraph.aggregate.ops.gradient_checks import unbatched
from peergraph.aggregate.ops.operands import runs_outside_of_traces
from peergraph.autograd import Function
from peergraph.memory.device.plain_tensor import dense

_ELEMENTS_OF_BYTE = 8


def activate(
    x: Tensor, bias: Tensor | None = None, *, relu: bool = True, dropout: float = 0.0
) -> Tensor:
    """Computes ``dropout(relu(x + bias))``, in one pass forward and one pass backward.

    A bit of each element is kept for the gradient, and no other value. The gradient of the bias is
    summed in the same pass.

    Dropped elements are drawn with a seed from torch's default generator of the device:
    ``torch.manual_seed`` makes them reproducible. They are not the elements that
    ``torch.nn.functional.dropout`` drops with this seed. They depend on the seed, the row and the
    column only, and are the same on the CPU and on a GPU for a given seed. The probability is
    rounded to a multiple of 1/65536. A dropped element is 0, also if it was NaN.

    Args:
        x: [rows, columns] float32, float64, float16 or bfloat16. Other tensors, a bias of a wider
            dtype outside of autocast, and compiled code take torch's operations one by one.
        bias: [columns], added in the dtype of sums (float32, float64 for float64), or None.
        relu: whether negative values become 0.
        dropout: probability of dropping an element; 0 outside of training.

    Returns:
        As `x`.

    Asynchronous on a GPU. Differentiable any number of times.

    Raises:
        ValueError: a probability outside of 0..1, a bias of another shape.
    """
    if not 0 <= dropout <= 1:
        raise ValueError(f"dropout must be in 0..1, got {dropout}")
    if bias is not None and (x.dim() == 0 or bias.dim() != 1 or bias.shape[0] != x.shape[-1]):
        raise ValueError(f"bias must be {list(x.shape[-1:])}, got {list(bias.shape)}")
    if not _runs_in_one_pass(x, bias):
        out = x if bias is None else x + bias
        out = out.relu() if relu else out
        return F.dropout(out, dropout) if dropout > 0 else out
    seed = draw_seed(x.device) if dropout > 0 else None
    result: tuple[Tensor, Tensor | None] = _Activate.apply(x, bias, relu, dropout, seed)
    return result[0]


def _runs_in_one_pass(x: Tensor, bias: Tensor | None) -> bool:
    if type(x) is not Tensor or x.dim() != 2 or x.dtype not in DTYPES or x.numel() == 0:
        return False
    if bias is not None and (bias.dtype != x.dtype or bias.device != x.device):
        fits = bias.dtype in DTYPES and bias.device == x.device
        wide = x.dtype == torch.promote_types(x.dtype, bias.dtype)
        casts = torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64
        if not fits or not (wide or casts):
            return False
    return runs_outside_of_traces(x)


def draw_seed(device: torch.device) -> Tensor:
    """Draws a seed from torch's generator of the device, [1] int64; does not synchronise."""
    return torch.empty(1, dtype=torch.int64, device=device).random_()


def activation_of(
    x: Tensor,
    bias: Tensor | None,
    relu: bool,
    dropout: float,
    seed: Tensor | None,
    *,
    keeps_bits: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Returns the activated features, and the bits of the elements that pass gradients.

    Args:
        x: [rows, columns].
        bias: [columns], or None.
        relu, dropout: as for :func:`activate`.
        seed: [1] int64 on the device of `x`; None without dropout. Equal seeds drop equal elements.
        keeps_bits: otherwise the bits are None.

    Returns:
        As `x`, and [rows, columns / 8, rounded up] uint8 or None.
    """
    x = dense(x)
    out, bits = torch.empty_like(x), None
    if keeps_bits:
        width = -(-x.shape[1] // _ELEMENTS_OF_BYTE)
        bits = torch.empty(x.shape[0], width, dtype=torch.uint8, device=x.device)
    wide = None if bias is None else dense(bias.to(sum_dtype(x.dtype)))
    _C.activate(
        x=x, bias=wide, relu=relu, p=dropout, seed=seed, bits=bits, out=out,
        launch=launch_on(x.device),
    )  # fmt: skip
    return out, bits


def gradient_of_activation(
    grad: Tensor, bits: Tensor, dropout: float, with_bias: bool
) -> tuple[Tensor, Tensor | None]:
    """Returns the gradient of `x`, and its sum over the rows, [columns] of the dtype of sums."""
    grad = dense(grad)
    out, partial = torch.empty_like(grad), None
    if with_bias:
        parts = _C.activation_parts(grad.shape[0])
        partial = grad.new_empty(parts, grad.shape[1], dtype=sum_dtype(grad.dtype))
    _C.activate_backward(
        grad=grad, bits=bits, p=dropout, out=out, partial=partial, launch=launch_on(grad.device)
    )
    return out, None if partial is None else partial.sum(0)


class _Activate(Function):
    """Saves a bit of each element in place of the features.

    Returns the activated features and, with ReLU, an empty tensor: through it a gradient depends
    on `x`, by zeros, as torch's does.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor | None, relu: bool, dropout: float, seed: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        keeps_bits = any(ctx.needs_input_grad[:2])
        out, bits = activation_of(x, bias, relu, dropout, seed, keeps_bits=keeps_bits)
        empty = x.new_empty(0) if relu and keeps_bits else None
        ctx.save_for_backward(bits, empty)
        ctx.shape, ctx.dropout = x.shape, dropout
        ctx.bias_dtype = None if bias is None else bias.dtype
        return out, empty

    @staticmethod
    @unbatched
    def backward(
        ctx: Any, grad: Tensor | None, grad_of_empty: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        bits, empty = ctx.saved_tensors
        needs_x, needs_bias = ctx.needs_input_grad[:2]
        if grad is None:
            zeros = empty.new_zeros(ctx.shape)
            of_bias = zeros.sum(0).to(ctx.bias_dtype) if needs_bias else None
            return zeros if needs_x else None, of_bias, None, None, None
        if torch.is_grad_enabled():
            again = masked_gradient(grad, bits, empty, ctx.dropout)
            return again, again.sum(0) if needs_bias else None, None, None, None
        of_x, of_bias = gradient_of_activation(grad, bits, ctx.dropout, needs_bias)
        of_bias = None if of_bias is None else of_bias.to(ctx.bias_dtype)
        return of_x if needs_x else None, of_bias, None, None, None


def masked_gradient(grad: Tensor, bits: Tensor, empty: Tensor | None, dropout: float) -> Tensor:
    """Returns the gradient of `x` in :func:`gradient_of_activation`. Differentiable.

    Args:
        grad: [rows, columns] of the result.
        bits, dropout: of the activation.
        empty: through which the gradient depends on `x`, by zeros; None without ReLU.
    """
    result: Tensor = _Masked.apply(grad, bits, empty, dropout)
    return result


class _Masked(Function):
    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, bits: Tensor, empty: Tensor | None, dropout: float
    ) -> Tensor:
        ctx.save_for_backward(bits, empty)
        ctx.dropout = dropout
        return gradient_of_activation(grad, bits, dropout, False)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        bits, empty = ctx.saved_tensors
        result = masked_gradient(grad, bits, empty, ctx.dropout)
        return result, None, None if empty is None else torch.zeros_like(empty), None
