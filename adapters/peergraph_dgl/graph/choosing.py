"""Choosing among edges that are at hand already, uniformly per destination."""

from __future__ import annotations

import torch
from torch import Tensor


def choose(destinations: Tensor, count: int, replace: bool) -> Tensor:
    """Positions of at most ``count`` edges of each destination; with ``replace`` exactly as many.

    Args:
        destinations: [edges] of the edges, in any order; may lie on a GPU.
        count: edges per destination.
        replace: draw with replacement.
    """
    nodes, owner = torch.unique(destinations, return_inverse=True)
    degrees = torch.bincount(owner, minlength=nodes.numel())
    first = degrees.cumsum(0) - degrees
    if replace:
        in_order = owner.argsort(stable=True)
        picks = torch.rand(nodes.numel(), count, device=owner.device, dtype=torch.float64)
        offsets = (picks * degrees[:, None]).long().minimum(degrees[:, None] - 1)
        with_repeats: Tensor = in_order[(first[:, None] + offsets).reshape(-1)]
        return with_repeats
    return first_of_each(torch.randperm(owner.numel(), device=owner.device), owner, first, count)


def first_of_each(order: Tensor, owner: Tensor, first: Tensor, count: int) -> Tensor:
    """The `count` edges of each destination that come first in an order of all edges.

    Args:
        order: [edges] positions of edges.
        owner: [edges] destination of each edge.
        first: [destinations] how many edges the destinations before have.
        count: edges per destination.
    """
    # A stable sort: the edges of each destination, in that order.
    grouped = order[owner[order].argsort(stable=True)]
    rank = torch.arange(owner.numel(), device=owner.device) - first[owner[grouped]]
    chosen: Tensor = grouped[rank < count]
    return chosen
