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
    shuffled = torch.randperm(owner.numel(), device=owner.device)
    # A stable sort of shuffled edges: those of each destination, in random order.
    in_order = shuffled[owner[shuffled].argsort(stable=True)]
    rank = torch.arange(owner.numel(), device=owner.device) - first[owner[in_order]]
    chosen: Tensor = in_order[rank < count]
    return chosen
