"""Renumbers the nodes of a graph by communities, so that neighbours have close numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.aggregate.csc import Csc
from peergraph.aggregate.kernels.arguments import count_chunks
from peergraph.aggregate.sparse.index_tensors import row_of_edges
from peergraph.number_arguments import check_number

_MAX_ROUNDS = 10_000
# Multipliers of splitmix64, as signed numbers.
_MIX = (-4658895280553007687, -7723592293110705685)


def reorder(
    csc: Csc, *, rounds: int = 10, largest: int = 4096, seed: int = 0
) -> tuple[Csc, Tensor]:
    """The structure with its nodes renumbered by communities, and the order of the nodes.

    Sums over a graph that has communities find most rows in a GPU's caches then. Worth it for a
    graph that is aggregated many times; graphs without communities gain nothing. Communities are
    found by label propagation (Raghavan et al. 2007): in every round about half of the nodes take
    the label that most of their in-neighbours have. The result depends on the arguments only.

    Args:
        csc: of as many sources as destinations.
        rounds: of propagation; each sorts all edges.
        largest: nodes from which on a community takes no more in.
        seed: which nodes take part in a round, and which of several labels they take.

    Returns:
        The structure, whose destination and source i are node ``order[i]`` of `csc`, and `order`
        [nodes] int64. Features are renumbered by ``x[order]``, results back by
        ``result[order] = out``; edge tensors stay as they are.

    Synchronises. Takes about 40 bytes an edge meanwhile.

    Raises:
        ValueError: sources and destinations differ in number, or an argument is out of range.
    """
    labels = find_communities(csc, rounds=rounds, largest=largest, seed=seed)
    order = torch.sort(labels, stable=True).indices
    return _renumber(csc, order), order


def find_communities(csc: Csc, *, rounds: int = 10, largest: int = 4096, seed: int = 0) -> Tensor:
    """Labels each node by its community, as :func:`reorder` finds them.

    Args:
        csc, rounds, largest, seed: as for :func:`reorder`.

    Returns:
        [nodes] int64: the number of a node of the same community, one number for each community.

    Synchronises. Takes about 40 bytes an edge meanwhile.

    Raises:
        ValueError: as :func:`reorder`.
    """
    if csc.num_sources != csc.num_destinations:
        raise ValueError(
            f"csc must have as many sources as destinations, got {csc.num_sources} and "
            f"{csc.num_destinations}"
        )
    check_number("rounds", rounds, 1, _MAX_ROUNDS)
    check_number("largest", largest, 1)
    check_number("seed", seed, -(2**31), 2**32)
    count, device = csc.num_destinations, csc.device
    nodes = torch.arange(count, device=device)
    target = row_of_edges(csc.indptr, csc.num_edges)
    source = csc.indices.long()
    label = nodes
    for turn in range(rounds):
        pairs, votes = torch.unique(target * count + label[source], return_counts=True)
        node, candidate = pairs // count, pairs % count
        # Of several labels with as many votes, one by chance, the same for all nodes of a round.
        luck = _hash(candidate, seed + turn) & 0xFFFF
        sizes = torch.bincount(label, minlength=count)
        is_open = (sizes[candidate] < largest) | (candidate == label[node])
        score = torch.where(is_open, votes << 16 | luck, -1)
        best = score.new_full((count,), -1).scatter_reduce_(0, node, score, "amax")
        wins = (score == best[node]) & (score >= 0)
        # Of those with the same score and luck, the greatest label.
        chosen = label.new_full((count,), -1)
        chosen.scatter_reduce_(0, node[wins], candidate[wins], "amax")
        moves = (chosen >= 0) & (_hash(nodes, seed - turn - 1) & 1 == 1)
        label = torch.where(moves, chosen, label)
    return label


def _hash(values: Tensor, seed: int) -> Tensor:
    """Mixed bits of int64 values."""
    mixed = values + seed * 0x1000193
    for multiplier in _MIX:
        mixed = (mixed ^ mixed >> 30) * multiplier
    return mixed ^ mixed >> 31


def _renumber(csc: Csc, order: Tensor) -> Csc:
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel(), device=order.device)
    degrees = csc.in_degrees().long()[order]
    indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    # Position p of the new structure was this one of the old.
    shift = csc.indptr.long()[:-1][order] - indptr[:-1]
    positions = torch.arange(csc.num_edges, device=order.device)
    positions += shift.repeat_interleave(degrees, output_size=csc.num_edges)
    edge_ids = positions if csc.edge_ids is None else csc.edge_ids[positions]
    indptr = indptr.to(csc.indptr.dtype)
    counts = csc.duplicate_counts
    return Csc(
        indptr,
        rank[csc.indices.long()[positions]].to(csc.indices.dtype),
        csc.num_sources,
        edge_ids=edge_ids.to(csc.indptr.dtype),
        max_chunks=None if csc.transient else count_chunks(indptr),
        duplicate_counts=None if counts is None else counts[order],
        transient=csc.transient,
        check=False,
    )
