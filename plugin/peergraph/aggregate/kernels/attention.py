"""Graph attention as operators on tensors: no autograd, nothing checked."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import CsrTensors, launch_on, sum_dtype
from peergraph.aggregate.kernels.torch_operator import kernel
from peergraph.memory.device.launching import Buffers


@dataclass(frozen=True)
class AttentionInputs:
    """The inputs of attention; scores and parameters are float32, or float64 for float64.

    Args:
        x: [columns, heads, depth] of any dtype.
        left: [columns, heads] scores of sources; None for dynamic attention (GATv2).
        right: [rows, heads] scores of destinations or None; for dynamic attention [rows, heads,
            depth] of the dtype of `x`.
        att: [heads, depth] for dynamic attention; with cuts [vectors, heads, depth]; else None.
        loops: -1 for the edges as they are; else how many nodes have one self loop each in place
            of the self loops among the edges.
        slope: of leaky_relu below 0.
        row_cuts, column_cuts: [vectors + 1] int64; vector i is that of the edges between the rows
            and columns from cut i on. None: there is one vector.
    """

    x: Tensor
    left: Tensor | None
    right: Tensor | None
    att: Tensor | None
    loops: int
    slope: float
    row_cuts: Tensor | None = None
    column_cuts: Tensor | None = None

    def native(self, matrix: CsrTensors) -> _C.Attention:
        """Returns the inputs as the compiled module takes them; tensors must outlive the call."""
        return _C.Attention(
            matrix=matrix.native(),
            x=self.x,
            left=self.left,
            right=self.right,
            att=self.att,
            row_cuts=self.row_cuts,
            column_cuts=self.column_cuts,
            loops=self.loops,
            slope=self.slope,
        )


@dataclass(frozen=True)
class OutputGradient:
    """The gradient of the outputs, and what the forward pass says of their scores.

    Args:
        grad: [rows, heads, depth] of the dtype of the outputs.
        lse: [rows, heads] as :func:`attention_forward` returned it.
        delta: [rows, heads] sums of `grad` times the outputs, of the dtype of `lse`.
    """

    grad: Tensor
    lse: Tensor
    delta: Tensor


def _empty_outputs(inputs: AttentionInputs, matrix: CsrTensors) -> tuple[Tensor, Tensor]:
    x = inputs.x
    lse = x.new_empty(matrix.num_rows, x.shape[1], dtype=sum_dtype(x.dtype))
    return x.new_empty(matrix.num_rows, *x.shape[1:]), lse


@kernel(_empty_outputs)
def attention_forward(inputs: AttentionInputs, matrix: CsrTensors) -> tuple[Tensor, Tensor]:
    """Returns [rows, heads, depth], and the log of the sum of exp(score), [rows, heads]."""
    out, lse = _empty_outputs(inputs, matrix)
    _C.attention(
        inputs.native(matrix),
        out=out,
        lse=lse,
        launch=launch_on(out.device),
        allocate=Buffers(out.device),
    )
    return out, lse


def _new_gradients(
    inputs: AttentionInputs,
    output: OutputGradient,
    transpose: CsrTensors | None,
    to_columns: bool,
    to_rows: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, heads, depth = inputs.x, inputs.x.shape[1], inputs.x.shape[2]
    dtype = sum_dtype(x.dtype)
    columns = x.shape[0] if to_columns else 0
    rows = output.grad.shape[0] if to_rows else 0
    right = (heads,) if inputs.att is None else (heads, depth)
    # A pass by column writes all rows of its matrix, once each.
    is_written = transpose is not None and transpose.num_rows == columns
    new = x.new_empty if is_written else x.new_zeros
    return (
        new(columns, heads, depth, dtype=dtype if transpose is None else x.dtype),
        x.new_zeros(0 if inputs.left is None else columns, heads, dtype=dtype),
        x.new_zeros(0 if inputs.right is None else rows, *right, dtype=dtype),
        x.new_zeros(0 if inputs.att is None else rows, heads, depth, dtype=dtype),
    )


@kernel(_new_gradients)
def attention_backward(
    inputs: AttentionInputs,
    output: OutputGradient,
    matrix: CsrTensors,
    transpose: CsrTensors | None,
    to_columns: bool,
    to_rows: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the gradients of x, left, right, and of att by row; empty where not wanted.

    With `transpose`, gradients belong to its rows (x, left) or to the rows of `matrix` (right,
    att), whichever is wanted, and to both where the gradients of rows can be added by atomics.
    Without it, a GPU adds all by atomics, and the CPU computes those of rows.
    """
    gradients = _new_gradients(inputs, output, transpose, to_columns, to_rows)
    grad_x, grad_left, grad_right, grad_att = gradients
    _C.attention_backward(
        inputs.native(matrix),
        grad=output.grad,
        lse=output.lse,
        delta=output.delta,
        grad_x=grad_x,
        grad_left=grad_left,
        grad_right=grad_right,
        grad_att=grad_att,
        transpose=None if transpose is None else transpose.native(),
        launch=launch_on(grad_x.device),
        allocate=Buffers(grad_x.device),
    )
    return gradients
