"""Values of edges of a plain graph, computed from partitioned features of its nodes.

The graph is a list of pairs of nodes that every rank holds, as those whose links a model predicts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..backend.edge_list import EdgeList

_OPERATIONS: dict[str, Any] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
}


def sddmm_of_lists(
    edges: EdgeList, op: str, lhs: Any, rhs: Any, lhs_target: str, rhs_target: str
) -> Tensor:
    """Computes a value for each edge, of features of which some are partitioned. Collective.

    Rows of the first operand stay on their ranks, and those of the second travel there.

    Args:
        edges: equal on all ranks.
        op: ``copy_lhs``, ``copy_rhs``, ``add``, ``sub``, ``mul``, ``div`` or ``dot``.
        lhs, rhs: features of the targets.
        lhs_target, rhs_target: ``u`` (sources), ``v`` (destinations) or ``e`` (edges).

    Returns:
        [edges, *features], partitioned; the last dimension of a ``dot`` has size 1.
    """

    def rows(x: Tensor, target: str) -> Tensor:
        return x if target == "e" else x[(edges.src if target == "u" else edges.dst).long()]

    if op == "copy_lhs":
        return rows(lhs, lhs_target)
    if op == "copy_rhs":
        return rows(rhs, rhs_target)
    left, right = rows(lhs, lhs_target), rows(rhs, rhs_target)
    if op == "dot":
        return (left * right).sum(-1, keepdim=True)
    result: Tensor = _OPERATIONS[op](left, right)
    return result
