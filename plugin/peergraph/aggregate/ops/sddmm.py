"""g-SDDMM: a value for each edge from features of its source, its destination or the edge."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import TARGETS
from peergraph.aggregate.ops.edge_maps import EdgeProducts
from peergraph.aggregate.ops.operands import (
    autocast,
    check_operand,
    check_same_dtype,
    columns,
    flat,
    use_deterministic,
    view_if_aliased,
)
from peergraph.aggregate.sparse.edge_matrix import Backward, EdgeMatrix, check_backward

OPERATIONS = ("copy", "add", "sub", "mul", "div", "dot")
_MESSAGES = {"copy": "copy_u", "dot": "mul"}


def sddmm(
    matrix: EdgeMatrix,
    op: str,
    lhs: Tensor,
    rhs: Tensor | None = None,
    lhs_target: str = "u",
    rhs_target: str = "v",
    *,
    backward: Backward = "auto",
    deterministic: bool | None = None,
) -> Tensor:
    """Computes a value for each edge: see :func:`peergraph.aggregate.g_sddmm`."""
    if op not in OPERATIONS:
        raise ValueError(f"op must be one of {', '.join(OPERATIONS)}, got {op!r}")
    if (rhs is None) != (op == "copy"):
        raise ValueError(f"op {op!r} {'does not use' if op == 'copy' else 'needs'} rhs")
    fixed_order = use_deterministic(deterministic)
    check_backward(backward, fixed_order)
    _check("lhs", lhs, lhs_target, matrix)
    if rhs is not None:
        _check("rhs", rhs, rhs_target, matrix)
    left, right = autocast(lhs), autocast(rhs)
    assert left is not None
    check_same_dtype(lhs=left, rhs=right)
    features = tuple(left.shape[1:])
    if right is not None and right.shape[1:] != features:
        try:
            features = tuple(torch.broadcast_shapes(features, right.shape[1:]))  # type: ignore[no-untyped-call]
        except RuntimeError:
            raise ValueError(
                f"lhs and rhs must have rows that broadcast, got {list(features)} and "
                f"{list(right.shape[1:])}"
            ) from None
        left, right = expand(left, features), expand(right, features)
    if op == "dot":
        if not features:
            raise ValueError("op 'dot' needs features to sum over, got one number for each row")
        features, depth = features[:-1], features[-1]
    else:
        depth = 1
    transpose = None
    grads = torch.is_grad_enabled()
    for operand, target in ((left, lhs_target), (right, rhs_target)):
        if operand is not None and target == "u" and operand.requires_grad and grads:
            transpose = matrix.gradient_matrix(backward, fixed_order)
    message = _MESSAGES.get(op, op)
    shape = (columns(features), depth)
    result: Tensor = EdgeProducts.apply(
        flat(left),
        None if right is None else flat(view_if_aliased(right, left)),
        matrix,
        message,
        lhs_target + rhs_target,
        shape,
        transpose,
    )
    return result.reshape(matrix.num_edges, *features)


def _check(name: str, operand: Tensor, target: str, matrix: EdgeMatrix) -> None:
    if target not in TARGETS:
        raise ValueError(f"{name}_target must be 'u', 'v' or 'e', got {target!r}")
    rows, what = {
        "u": (matrix.num_sources, "sources"),
        "v": (matrix.num_destinations, "destinations"),
        "e": (matrix.num_edges, "edges"),
    }[target]
    check_operand(name, operand, matrix.device, rows, what)


def expand(operand: Tensor, features: tuple[int, ...]) -> Tensor:
    """Returns the operand broadcast to all features, with missing leading dimensions."""
    if operand.shape[1:] == features:
        return operand
    missing = len(features) - (operand.dim() - 1)
    shape = (operand.shape[0], *[1] * missing, *operand.shape[1:])
    return operand.reshape(shape).expand(-1, *features)
