"""Cuts an order of nodes into one block for each rank, balanced by nodes and by edges."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def balance_cost(degrees: Tensor) -> Tensor:
    """Returns the cost of each node: the mean of its share of all nodes and of all edges.

    A block whose costs add up to c has at most a share 2c of the nodes and a share 2c of the edges.

    Args:
        degrees: [nodes] in-degrees, of any dtype and device.

    Returns:
        [nodes] float64; the costs add up to 1. Synchronises.
    """
    nodes, edges = degrees.numel(), int(degrees.sum())
    if nodes == 0:
        return degrees.double()
    if edges == 0:
        return torch.full_like(degrees, 1.0 / nodes, dtype=torch.float64)
    return degrees.double() / (2.0 * edges) + 0.5 / nodes


def balance_costs(degrees: Sequence[Tensor]) -> Tensor:
    """Returns the costs that partitions balance one by one: nodes of each type, and edges.

    Args:
        degrees: [nodes] in-degrees by node type, on one device.

    Returns:
        [nodes of all types, types + 1] float64; each column adds up to 1, or to 0 without nodes or
        edges.
    """
    edges = torch.cat(list(degrees)).double()
    costs = edges.new_zeros(edges.numel(), len(degrees) + 1)
    begin = 0
    for column, of_type in enumerate(degrees):
        end = begin + of_type.numel()
        costs[begin:end, column] = 1.0 / max(1, of_type.numel())
        begin = end
    costs[:, -1] = edges / edges.sum().clamp_(min=1.0)
    return costs


def cut_blocks(cost: Tensor, world_size: int) -> tuple[int, ...]:
    """Cuts rows into contiguous blocks of about equal cost (MG-GCN 4.1).

    Each block ends where its cost is closest to an equal share of what the blocks before have left:
    after a hub that is a block by itself, the others share the rest equally. Synchronises.

    Args:
        cost: [rows] costs in the order of the rows, not negative.
        world_size: blocks; trailing blocks are empty if there are fewer rows.

    Returns:
        The number of rows in each block.
    """
    # On the CPU, where all ranks round alike.
    cost = cost.double().cpu()
    # NumPy reads single numbers faster: a plan cuts hundreds of chunks.
    before = torch.cat([cost.new_zeros(1), cost.cumsum(0)]).numpy()
    rows = cost.numel()
    total = float(before[-1])
    ends = [0]
    for blocks_left in range(world_size, 1, -1):
        start = ends[-1]
        done = float(before[start])
        target = done + (total - done) / blocks_left
        end = min(int(before.searchsorted(target)), rows)
        if end > start + 1 and target - float(before[end - 1]) < float(before[end]) - target:
            end -= 1
        ends.append(max(end, min(start + 1, rows)))
    ends.append(rows)
    return tuple(b - a for a, b in pairwise(ends))


def imbalance(values: Sequence[int]) -> float:
    """Returns the largest value divided by the mean; 1 is balanced, and what no values give."""
    total = sum(values)
    return max(values) * len(values) / total if total else 1.0
