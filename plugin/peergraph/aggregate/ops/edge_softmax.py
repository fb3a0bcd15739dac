"""Softmax of edge scores over the edges of each destination."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.kernels.sddmm import softmax
from peergraph.aggregate.ops.once_differentiable import once_differentiable
from peergraph.aggregate.ops.operands import check_operand, flat
from peergraph.aggregate.sparse.csc import Csc


def edge_softmax(csc: Csc, scores: Tensor) -> Tensor:
    """Softmax of `scores` over the edges of each destination, by head.

    The largest score is subtracted first, so that large scores do not overflow; short rows are read
    once. Sums are kept in float32, in float64 for float64, in a fixed order. Differentiable once.
    Under ``torch.amp`` it runs in float32, as torch's softmax does.

    Args:
        csc: the structure.
        scores: [edges] or [edges, *heads] float32, float64, float16 or bfloat16, in the order of
            the structure's edge ids.

    Returns:
        As `scores`. A destination whose scores are all -inf gets NaN, as from ``torch.softmax``.

    Asynchronous on a GPU.

    Raises:
        ValueError: another number of rows, another device.
        TypeError: another dtype.
    """
    check_operand("scores", scores, csc, csc.num_edges, "edges")
    if scores.dtype != torch.float64 and torch.is_autocast_enabled(scores.device.type):
        scores = scores.float()
    result: Tensor = _EdgeSoftmax.apply(flat(scores), csc)  # type: ignore[no-untyped-call]
    return result.reshape(scores.shape)


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, csc: Csc) -> Tensor:
        out = softmax(scores, None, *csc.rows.tensors)
        ctx.save_for_backward(out)
        ctx.csc = csc
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        return softmax(out, grad, *ctx.csc.rows.tensors), None
