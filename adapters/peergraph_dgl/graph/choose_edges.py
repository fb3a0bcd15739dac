"""Uniform choice among the in-edges of each destination."""

from __future__ import annotations

import torch
from torch import Tensor


def choose_edges(destinations: Tensor, fanout: int, replace: bool) -> Tensor:
    """Chooses at most `fanout` edges of each destination; with `replace`, exactly `fanout`. Returns
    their positions.

    Args:
        destinations: [edges] destination of each edge, in any order; may be on a GPU.
        fanout: edges per destination.
        replace: whether to draw with replacement.
    """
    nodes, rows = torch.unique(destinations, return_inverse=True)
    degrees = torch.bincount(rows, minlength=nodes.numel())
    offsets = degrees.cumsum(0) - degrees
    if replace:
        grouped = rows.argsort(stable=True)
        uniform = torch.rand(nodes.numel(), fanout, device=rows.device, dtype=torch.float64)
        picks = (uniform * degrees[:, None]).long().minimum(degrees[:, None] - 1)
        repeated: Tensor = grouped[(offsets[:, None] + picks).reshape(-1)]
        return repeated
    order = torch.randperm(rows.numel(), device=rows.device)
    return first_edges(order, rows, offsets, fanout)


def first_edges(order: Tensor, destinations: Tensor, offsets: Tensor, fanout: int) -> Tensor:
    """Returns the `fanout` edges of each destination that come first in a given order of all edges.

    Args:
        order: [edges] a permutation of the positions of edges.
        destinations: [edges] row of the destination of each edge.
        offsets: [rows] number of edges of all previous rows.
        fanout: edges per destination.

    Returns:
        Positions of edges, grouped by destination.
    """
    # The sort is stable, so the edges of each destination stay in that order.
    grouped = order[destinations[order].argsort(stable=True)]
    rank = torch.arange(destinations.numel(), device=destinations.device)
    rank -= offsets[destinations[grouped]]
    chosen: Tensor = grouped[rank < fanout]
    return chosen
