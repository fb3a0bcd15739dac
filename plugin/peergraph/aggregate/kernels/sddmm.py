"""A value for each edge from its two ends and itself (g-SDDMM) as an operator.

Operands have two dimensions; there is no autograd, and nothing is checked.
"""

from __future__ import annotations

from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import (
    MESSAGES,
    TARGETS,
    CsrTensors,
    contiguous,
    first_operand,
    launch_on,
    sum_dtype,
)
from peergraph.aggregate.kernels.torch_operator import kernel


def _empty_values(
    left: Tensor | None, right: Tensor | None, matrix: CsrTensors, heads: int, wide: bool
) -> Tensor:
    operand = first_operand(left, right)
    dtype = sum_dtype(operand.dtype) if wide else operand.dtype
    return operand.new_empty(matrix.num_edges, heads, dtype=dtype)


@kernel(_empty_values)
def sddmm(
    left: Tensor | None,
    right: Tensor | None,
    matrix: CsrTensors,
    message: str,
    targets: str,
    heads: int,
    depth: int,
    wide: bool = False,
) -> Tensor:
    """Returns the message of `left` and `right`, summed over `depth` columns, [edges, heads].

    `targets` has two letters: where the rows of `left` and of `right` are looked up, u (column),
    v (row) or e (edge). An operand has heads * depth columns or a divisor. A `wide` result is in
    the dtype in which half precision is summed, float32.
    """
    out = _empty_values(left, right, matrix, heads, wide)
    _C.sddmm(
        matrix.native(),
        left=contiguous(left),
        left_target=TARGETS[targets[0]],
        right=contiguous(right),
        right_target=TARGETS[targets[1]],
        message=MESSAGES[message],
        depth=depth,
        out=out,
        launch=launch_on(out.device),
    )
    return out
