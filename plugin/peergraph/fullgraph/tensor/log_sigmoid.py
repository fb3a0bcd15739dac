"""The logarithm of the sigmoid. Its kernel returns rows, and a buffer that its gradient reads.

The buffer of a GPU is empty, whatever the rows: it is a plain tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.pointwise import localize
from peergraph.fullgraph.tensor.registry import rule

aten = torch.ops.aten


@rule(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(x: PartitionedTensor) -> tuple[PartitionedTensor, Tensor]:
    """The result, and this rank's buffer."""
    out, buffer = aten.log_sigmoid_forward(x._local)
    return wrap(out, x.layout, x.partitioned_dim), buffer


@rule(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> PartitionedTensor:
    """The gradient of `x`, from this rank's buffer."""
    first, (local_grad, rows) = localize(aten.log_sigmoid_backward.default, (grad, x))
    out = aten.log_sigmoid_backward(local_grad, rows, buffer)
    return wrap(out, first.layout, first.partitioned_dim)
