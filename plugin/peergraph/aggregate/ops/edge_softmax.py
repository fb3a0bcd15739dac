"""Softmax of edge scores over the edges of each destination."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.kernels import edge_softmax as kernels
from peergraph.aggregate.ops.gradient_checks import once_differentiable
from peergraph.aggregate.ops.operands import check_operand, flat
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.autograd import Function


def edge_softmax(matrix: EdgeMatrix, scores: Tensor) -> Tensor:
    """Normalises scores in each row: see :func:`peergraph.aggregate.edge_softmax`."""
    check_operand("scores", scores, matrix.device, matrix.num_edges, "edges")
    if scores.dtype != torch.float64 and torch.is_autocast_enabled(scores.device.type):
        scores = scores.float()
    result: Tensor = _EdgeSoftmax.apply(flat(scores), matrix)
    return result.reshape(scores.shape)


class _EdgeSoftmax(Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, matrix: EdgeMatrix) -> Tensor:
        out = kernels.edge_softmax(scores, None, matrix.tensors)
        ctx.save_for_backward(out)
        ctx.matrix = matrix
        return out

    @staticmethod
    @once_differentiable("softmax over edges")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        return kernels.edge_softmax(out, grad, ctx.matrix.tensors), None
