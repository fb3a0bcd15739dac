"""Softmax over the edges of each row as an operator: no autograd, nothing checked."""

from __future__ import annotations

from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import CsrTensors, contiguous, launch_on
from peergraph.aggregate.kernels.torch_operator import kernel
from peergraph.memory.device.launching import Buffers
from peergraph.memory.device.plain_tensor import dense


def _empty_like_values(values: Tensor) -> Tensor:
    return values.new_empty(values.shape)


@kernel(_empty_like_values)
def edge_softmax(values: Tensor, grad: Tensor | None, matrix: CsrTensors) -> Tensor:
    """Returns the softmax of `values` [edges, heads] in each row.

    With `grad`, `values` are the softmax, and the gradient of the scores is returned.
    """
    out = _empty_like_values(values)
    _C.edge_softmax(
        matrix.native(),
        values=dense(values),
        grad=contiguous(grad),
        out=out,
        launch=launch_on(out.device),
        allocate=Buffers(out.device),
    )
    return out
