"""Aggregation over lists of edges in plain torch, which writes every message."""

from __future__ import annotations

import torch
from torch import Tensor


def _aligned(x: Tensor, e: Tensor) -> Tensor:
    """Returns `e` with as many dimensions as `x`."""
    return e.reshape(*e.shape, *[1] * (x.dim() - e.dim()))


def _apply(op: str, left: Tensor, right: Tensor) -> Tensor:
    if op == "add":
        return left + right
    if op == "sub":
        return left - right
    if op == "mul":
        return left * right
    if op == "div":
        return left / right
    return (left * right).sum(-1)


def g_spmm(
    edge_index: Tensor,
    num_destinations: int,
    message: str,
    reduce: str,
    x: Tensor | None = None,
    e: Tensor | None = None,
) -> Tensor:
    """:func:`peergraph.aggregate.g_spmm` of the edges of `edge_index`, [2, edges]."""
    source, destination = edge_index.long()
    if x is None:
        assert e is not None
        values = e
    elif e is None:
        values = x[source]
    else:
        values = _apply(message, x[source], _aligned(x, e))
    shape = (num_destinations, *values.shape[1:])
    index = destination.reshape(-1, *[1] * (values.dim() - 1)).expand_as(values)
    how = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}[reduce]
    zeros = values.new_zeros(shape)
    return zeros.scatter_reduce(0, index, values, how, include_self=False)


def g_sddmm(
    edge_index: Tensor,
    op: str,
    lhs: Tensor,
    rhs: Tensor | None = None,
    lhs_target: str = "u",
    rhs_target: str = "v",
) -> Tensor:
    """:func:`peergraph.aggregate.g_sddmm` of the edges of `edge_index`, [2, edges]."""
    source, destination = edge_index.long()

    def at_edges(values: Tensor, target: str) -> Tensor:
        return values if target == "e" else values[source if target == "u" else destination]

    left = at_edges(lhs, lhs_target)
    if rhs is None:
        return left
    right = at_edges(rhs, rhs_target)
    rank = max(left.dim(), right.dim())
    # Features broadcast from the right, edges stay in front.
    left, right = (
        v.reshape(v.shape[0], *[1] * (rank - v.dim()), *v.shape[1:]) for v in (left, right)
    )
    return _apply(op, left, right)


def edge_softmax(edge_index: Tensor, num_destinations: int, scores: Tensor) -> Tensor:
    """:func:`peergraph.aggregate.edge_softmax` of the edges of `edge_index`, [2, edges]."""
    destination = edge_index[1].long()
    index = destination.reshape(-1, *[1] * (scores.dim() - 1)).expand_as(scores)
    shape = (num_destinations, *scores.shape[1:])
    top = scores.new_zeros(shape).scatter_reduce(0, index, scores, "amax", include_self=False)
    weights = torch.exp(scores - top.detach()[destination])
    total = scores.new_zeros(shape).scatter_add(0, index, weights)
    return weights / total[destination]
