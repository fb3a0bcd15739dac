"""Parts made of whole communities: neighbours are on one rank as often as balance allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergraph.aggregate import Csc, find_communities

Array = np.ndarray[Any, Any]

# A part may exceed the mean by this share, as METIS's default allows.
_SLACK = 0.03
# Pieces of a part, at least: fewer could not be packed into parts of the same size.
_PER_PART = 4
_LARGEST = 4096
_PASSES = 3


def community_parts(
    source: Tensor, destination: Tensor, cost: Tensor, world_size: int, seed: int
) -> Tensor:
    """Partitions a graph by communities, packed into parts of about equal cost. Synchronises.

    Communities come from label propagation. They are packed by linear deterministic greedy
    (Stanton and Kliot 2012), repeated over the result (Nishimura and Ugander 2013).
    Depends on the arguments only. Takes about 350 bytes an edge, half of that where the graph is
    symmetric.

    Args:
        source, destination: [edges] int64 ends of the edges; both directions count alike.
        cost: [nodes] float64, on the same device.
        world_size: number of parts.
        seed: of the label propagation.

    Returns:
        [nodes] int64: the part of each node, on the edges' device.
    """
    nodes = cost.numel()
    if nodes == 0:
        return torch.zeros(0, dtype=torch.int64, device=source.device)
    if not is_symmetric(source, destination):
        source, destination = torch.cat([source, destination]), torch.cat([destination, source])
    csc = Csc.from_coo(source, destination, nodes, nodes)
    largest = max(1, min(_LARGEST, nodes // (_PER_PART * world_size)))
    labels = find_communities(csc, largest=largest, seed=seed)
    cluster = _split(labels, cost, float(cost.sum()) / (_PER_PART * world_size))
    clusters = int(cluster.max()) + 1
    total = torch.zeros(clusters, dtype=torch.float64, device=cost.device)
    total.index_add_(0, cluster, cost)
    pairs = cluster[destination] * clusters + cluster[source]
    between = cluster[destination] != cluster[source]
    links, weights = torch.unique(pairs[between], return_counts=True)
    degrees = torch.bincount(links // clusters, minlength=clusters)
    indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    links, cost_of = links % clusters, total.cpu().numpy()
    graph = indptr.cpu().numpy(), links.cpu().numpy(), weights.cpu().numpy()
    part = _pack(cost_of, *graph, world_size)
    return torch.from_numpy(part).to(cluster.device)[cluster]


def _split(labels: Tensor, cost: Tensor, limit: float) -> Tensor:
    """Cuts communities into pieces of at most about `limit`, and numbers the pieces from 0.

    Many nodes can join a community in the same round of label propagation.
    """
    ordered, order = labels.sort(stable=True)
    before = cost[order].cumsum(0) - cost[order]
    starts = torch.searchsorted(ordered, ordered)
    pieces = ((before - before[starts]) / limit).long()
    begins = torch.zeros_like(ordered)
    begins[1:] = (ordered[1:] != ordered[:-1]) | (pieces[1:] != pieces[:-1])
    named = begins.cumsum(0)
    return torch.empty_like(named).index_copy_(0, order, named)


def is_symmetric(source: Tensor, destination: Tensor) -> bool:
    """Returns whether each edge has one in the other direction, by a sum of hashes. Synchronises.

    Graphs that are symmetric are always found to be.
    """

    def digest(low: Tensor, high: Tensor) -> int:
        mixed = low * -7046029254386353131 + high * 2685821657736338717
        mixed = (mixed ^ (mixed >> 29)) * -4658895280553007687
        return int((mixed ^ (mixed >> 32)).sum())

    return digest(source, destination) == digest(destination, source)


def _pack(cost: Array, indptr: Array, neighbors: Array, weights: Array, world_size: int) -> Array:
    """Returns the part of each cluster, [clusters] int64.

    Each cluster goes to the part with most edges to it, weighted by the room that the part has
    left; the most expensive clusters first.
    """
    capacity = cost.sum() / world_size * (1 + _SLACK)
    part = np.full(cost.size, -1, dtype=np.int64)
    load = np.zeros(world_size)
    by_cost = np.argsort(-cost, kind="stable")
    for turn in range(_PASSES):
        for cluster in by_cost.tolist():
            if turn:
                load[part[cluster]] -= cost[cluster]
            links_of = slice(indptr[cluster], indptr[cluster + 1])
            parts = part[neighbors[links_of]]
            known = parts >= 0
            links = np.bincount(parts[known], weights[links_of][known], world_size)
            room = 1 - load / capacity
            fits = load + cost[cluster] <= capacity
            # Without any part that it fits in, the emptiest; of equals, too.
            score = np.where(fits, (links + 1e-3) * np.maximum(room, 0), room - 2)
            best = int(np.argmax(score))
            part[cluster] = best
            load[best] += cost[cluster]
    return part
