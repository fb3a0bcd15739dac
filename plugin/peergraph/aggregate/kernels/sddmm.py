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
)
from peergraph.aggregate.kernels.torch_operator import kernel


def _empty_values(
    left: Tensor | None, right: Tensor | None, matrix: CsrTensors, heads: int
) -> Tensor:
    return first_operand(left, right).new_empty(matrix.num_edges, heads)


@kernel(_empty_values)
def sddmm(
    left: Tensor | None,
    right: Tensor | None,
    matrix: CsrTensors,
    message: str,
    targets: str,
    heads: int,
    depth: int,
) -> Tensor:
    """Returns the message of `left` and `right`, summed over `depth` columns, [edges, heads].

    `targets` has two letters: where the rows of `left` and of `right` are looked up, u (column),
    v (row) or e (edge). An operand has heads * depth columns or a divisor.
    """
    out = _empty_values(left, right, matrix, heads)
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
