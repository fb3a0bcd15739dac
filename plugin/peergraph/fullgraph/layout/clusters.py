"""Parts made of whole communities: neighbours are on one rank as often as balance allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergraph.aggregate import Csc, find_communities

Array = np.ndarray[Any, Any]

# A part may exceed the mean of each cost by this share, once packed and once refined. Communities
# of high degree fill parts with edges, others with nodes: without room, no node could move.
_SLACK, _REFINED_SLACK = 0.15, 0.2
# Pieces of a part, at least: fewer could not be packed into parts of the same size.
_PER_PART = 4
_LARGEST = 4096
_PASSES = 3
_COST_UNITS = 1 << 40
_REFINEMENTS = 16


def community_parts(
    source: Tensor, destination: Tensor, cost: Tensor, world_size: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Partitions a graph by communities, packed into parts of about equal cost. Synchronises.

    Communities come from label propagation. They are packed by linear deterministic greedy
    (Stanton and Kliot 2012), repeated over the result (Nishimura and Ugander 2013). Then single
    nodes move to the part that most of their neighbours have, where it has room.
    Depends on the arguments only. Takes about 350 bytes an edge, half of that where the graph is
    symmetric.

    Args:
        source, destination: [edges] int64 ends of the edges; both directions count alike.
        cost: [nodes, costs] float64, on the same device; each column adds up to 1, or to 0, and is
            balanced on its own.
        world_size: number of parts.
        seed: of the label propagation.

    Returns:
        The part of each node and its community, [nodes] int64 each, on the edges' device.
        Communities are numbered from 0; sums read a community's rows from caches where the rows
        lie together.
    """
    nodes = cost.shape[0]
    if nodes == 0:
        nothing = torch.zeros(0, dtype=torch.int64, device=source.device)
        return nothing, nothing
    # As integers, whose sums are the same in any order.
    cost = (cost * _COST_UNITS).round().long()
    if not is_symmetric(source, destination):
        source, destination = torch.cat([source, destination]), torch.cat([destination, source])
    csc = Csc.from_coo(source, destination, nodes, nodes)
    largest = max(1, min(_LARGEST, nodes // (_PER_PART * world_size)))
    labels = find_communities(csc, largest=largest, seed=seed)
    cluster = _split(labels, cost.sum(1), float(cost.sum()) / (_PER_PART * world_size))
    clusters = int(cluster.max()) + 1
    total = cost.new_zeros(clusters, cost.shape[1]).index_add_(0, cluster, cost)
    pairs = cluster[destination] * clusters + cluster[source]
    between = cluster[destination] != cluster[source]
    links, weights = torch.unique(pairs[between], return_counts=True)
    degrees = torch.bincount(links // clusters, minlength=clusters)
    indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    links, cost_of = links % clusters, total.double().cpu().numpy()
    graph = indptr.cpu().numpy(), links.cpu().numpy(), weights.cpu().numpy()
    packed = torch.from_numpy(_pack(cost_of, *graph, world_size)).to(cluster.device)
    return _refine(packed[cluster], source, destination, cost, world_size), cluster


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

    Args:
        cost: [clusters, costs].
        indptr, neighbors, weights: the edges between clusters, in CSR.
    """
    capacity = _capacity(cost.sum(0), cost.max(0), world_size, _SLACK)
    part = np.full(cost.shape[0], -1, dtype=np.int64)
    load = np.zeros((world_size, cost.shape[1]))
    by_cost = np.argsort(-cost.max(1), kind="stable")
    for turn in range(_PASSES):
        for cluster in by_cost.tolist():
            if turn:
                load[part[cluster]] -= cost[cluster]
            links_of = slice(indptr[cluster], indptr[cluster + 1])
            parts = part[neighbors[links_of]]
            placed = parts >= 0
            links = np.bincount(parts[placed], weights[links_of][placed], world_size)
            full = (load + cost[cluster]) / capacity
            room = 1 - full.max(1)
            # Without any part that it fits in, the emptiest.
            score = np.where(room >= 0, (links + 1e-3) * (room + 1e-3), room - 1)
            best = int(np.argmax(score))
            part[cluster] = best
            load[best] += cost[cluster]
    return part


def _refine(
    part: Tensor, source: Tensor, destination: Tensor, cost: Tensor, world_size: int
) -> Tensor:
    """Moves nodes to the part with most of their neighbours, the largest gains first.

    About half of the nodes may move in a round, so that neighbours do not change places.

    Args:
        part: [nodes] int64.
        source, destination: edges in both directions.
        cost: [nodes, costs] int64.
    """
    nodes, costs = cost.shape
    largest = cost.max(0).values.double().cpu().numpy()
    limit = _capacity(cost.sum(0).double().cpu().numpy(), largest, world_size, _REFINED_SLACK)
    capacity = torch.from_numpy(limit).to(cost.device)
    ids = torch.arange(nodes, device=part.device)
    for turn in range(_REFINEMENTS):
        votes = torch.bincount(
            destination * world_size + part[source], minlength=nodes * world_size
        )
        votes = votes.view(nodes, world_size)
        most, best = votes.max(1)
        gain = most - votes.gather(1, part.unsqueeze(1)).squeeze(1)
        moving = ((gain > 0) & ((ids * 0x9E3779B1 >> 16) + turn & 1 == 0)).nonzero().squeeze(1)
        # By part, then by falling gain.
        moving = moving[torch.sort(gain[moving], descending=True, stable=True).indices]
        into, order = torch.sort(best[moving], stable=True)
        moving = moving[order]
        load = cost.new_zeros(world_size, costs).index_add_(0, part, cost)
        leaving = torch.zeros_like(load).index_add_(0, part[moving], cost[moving])
        # Half of the nodes that want to leave a part are taken to do so.
        load -= leaving // 2
        moved_cost = cost[moving].cumsum(0)
        before = moved_cost - cost[moving]
        start = torch.searchsorted(into, into)
        moved_cost = moved_cost - before[start]
        fits = (moved_cost <= (capacity - load)[into]).all(1)
        part = part.index_put((moving[fits],), into[fits])
        if moving.numel() == 0:
            break
    return part


def _capacity(total: Array, largest: Array, world_size: int, slack: float) -> Array:
    """[costs] the most of each cost in a part: of one node or cluster, at least."""
    capacity = np.maximum(total / world_size * (1 + slack), largest)
    return np.where(total > 0, capacity, np.inf)
