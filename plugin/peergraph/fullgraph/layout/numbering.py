"""Internal orders of nodes: position in the order -> user id.

Blocks of ranks are cut from an order (:mod:`peergraph.fullgraph.layout.blocks`), or are the parts
of a partition.
"""

from __future__ import annotations

import torch
from torch import Tensor

ORDERS = ("auto", "random", "communities", "original", "metis")
"""Names of orders; a tensor with the part of each node is another."""


def original_order(count: int) -> Tensor:
    """Returns the order of the user's ids, [count] int64 on the CPU."""
    return torch.arange(count, device="cpu")


def random_order(count: int, seed: int) -> Tensor:
    """Returns a permutation that depends on `count` and `seed` only, [count] int64 on the CPU.

    Blocks of a random order have about the same number of edges from every other block, which
    balances all stages of a product (MG-GCN 5.2).
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randperm(count, generator=generator, device="cpu")


def order_by_part(
    part: Tensor, world_size: int, community: Tensor | None = None
) -> tuple[Tensor, tuple[int, ...]]:
    """Returns the nodes by part, and the number of nodes of each part. Synchronises.

    Nodes of a part are in the order of their communities, those of one in the order of their ids.

    Args:
        part: [nodes] part of each node, such as METIS gives, of any integer dtype.
        world_size: number of parts.
        community: [nodes] number of each node's community, from 0; None: all are of one.

    Returns:
        The order, [nodes] int64 on the CPU, and a count for each rank.

    Raises:
        ValueError: the first part that is no rank.
    """
    bad = (part < 0) | (part >= world_size)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise ValueError(
            f"order: node {first} is in part {int(part[first])}, expected parts 0 to "
            f"{world_size - 1}, one for each rank"
        )
    counts = torch.bincount(part.long(), minlength=world_size)
    if community is not None and len(community):
        part = part.long() * (int(community.max()) + 1) + community
    return torch.sort(part, stable=True).indices.cpu(), tuple(counts.tolist())


def check_part(part: Tensor, count: int) -> Tensor:
    """Returns a user's vector of parts as [count] integers on its device.

    Raises:
        TypeError, ValueError: another dtype or shape.
    """
    if part.dtype.is_floating_point or part.dtype.is_complex or part.dtype == torch.bool:
        raise TypeError(f"order must hold integers, the part of each node, got {part.dtype}")
    if tuple(part.shape) != (count,):
        raise ValueError(
            f"order must have the part of each of {count} nodes, got shape {list(part.shape)}"
        )
    return part


def rank_of_nodes(order: Tensor, counts: tuple[int, ...], device: torch.device) -> Tensor:
    """Returns the rank that has each node, [nodes] int16 on `device`.

    Args:
        order: [nodes] position -> user id.
        counts: nodes of each rank, in rank order.
    """
    ranks = torch.arange(len(counts), dtype=torch.int16, device=order.device)
    by_position = ranks.repeat_interleave(torch.tensor(counts, device=order.device))
    return torch.empty_like(by_position).index_copy_(0, order, by_position).to(device)
