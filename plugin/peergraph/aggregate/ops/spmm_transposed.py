"""Sums of messages at the sources of edges."""

from __future__ import annotations

from torch import Tensor

from peergraph.aggregate.ops.edge_maps import SourceSums
from peergraph.aggregate.ops.operands import (
    align,
    autocast,
    check_message,
    check_operand,
    check_same_dtype,
    use_deterministic,
)
from peergraph.aggregate.sparse.edge_matrix import Backward, EdgeMatrix

MESSAGES = ("copy_u", "copy_e", "mul")


def spmm_transposed(
    matrix: EdgeMatrix,
    message: str,
    x: Tensor | None = None,
    e: Tensor | None = None,
    *,
    backward: Backward = "auto",
    deterministic: bool | None = None,
) -> Tensor:
    """Sums messages at sources, [sources, *features].

    Args:
        matrix: the structure.
        message: ``copy_u`` (x of the destination), ``copy_e`` (e of the edge) or ``mul``.
        x: [destinations, *features].
        e: [edges, *features], as for :func:`peergraph.aggregate.g_spmm`.
        backward, deterministic: whether the sum itself uses the transpose or atomics.
    """
    check_message(message, MESSAGES, x, e)
    if x is not None:
        check_operand("x", x, matrix.device, matrix.num_destinations, "destinations")
    if e is not None:
        check_operand("e", e, matrix.device, matrix.num_edges, "edges")
    x, e = autocast(x), autocast(e)
    check_same_dtype(x=x, e=e)
    x, e, features = align(x, e)
    transpose = matrix.gradient_matrix(backward, use_deterministic(deterministic))
    result: Tensor = SourceSums.apply(x, e, matrix, transpose, message)
    return result.reshape(matrix.num_sources, *features)
