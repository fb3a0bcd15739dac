"""The logarithm of the sigmoid. Its kernel returns rows, and a buffer that its gradient reads.

On the CPU the buffer has a row for each row of the argument. On a GPU it is empty, whatever the
rows: it is a plain tensor.
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
    """The result, and the buffer."""
    out, buffer = aten.log_sigmoid_forward(x._local)
    if buffer.device.type == "cpu":
        buffer = wrap(buffer, x.row_layout, x.partitioned_dim)
    return wrap(out, x.row_layout, x.partitioned_dim), buffer


@rule(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> PartitionedTensor:
    """The gradient of `x`. If `x` is moved to the layout of `grad`, the buffer is moved too."""
    with_rows, empty = ((buffer,), ()) if isinstance(buffer, PartitionedTensor) else ((), (buffer,))
    first, local = localize(aten.log_sigmoid_backward.default, (grad, x, *with_rows))
    out = aten.log_sigmoid_backward(*local, *empty)
    return wrap(out, first.row_layout, first.partitioned_dim)
