"""Makes a rank's part of each edge type on its device, sorted by destination.

Both ends of edge i are drawn from hashes of i, so every rank draws all edges and keeps those whose
destinations it has: nothing is exchanged, and any number of ranks makes the same graph.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import torch
from inputs.counter_hash import CHUNK, hash_ids, hash_range, stream_key
from inputs.graphs import KNOTS, coprime, ranks_by_weight
from torch import Tensor

from rgat_shape.graph import StoredType, TypedGraph

_SEED = 20261128
# Edges that are sorted at a time: it takes about 40 bytes each.
_SORTED_EDGES = 1 << 28


def make_csc(
    graph: TypedGraph, stored: StoredType, nodes: tuple[int, int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Returns the in-edges of the destinations in a range.

    Returns:
        indptr: [destinations + 1] int64, from 0.
        indices: [edges] int32 sources, ascending for each destination.
    """
    begin, end = nodes
    share = (end - begin) / graph.nodes[stored.type[2]]
    parts = max(1, math.ceil(graph.num_edges(stored) * share / _SORTED_EDGES))
    bounds = [begin + (end - begin) * i // parts for i in range(parts + 1)]
    pieces = [_sorted_part(graph, stored, *part, device) for part in itertools.pairwise(bounds)]
    indptr = torch.zeros(end - begin + 1, dtype=torch.int64, device=device)
    first = before = 0
    for offsets, indices in pieces:
        indptr[first : first + offsets.numel()] = offsets + before
        first += offsets.numel() - 1
        before += indices.numel()
    return indptr, torch.cat([indices for _, indices in pieces])


def _sorted_part(
    graph: TypedGraph, stored: StoredType, begin: int, end: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    sources = graph.nodes[stored.type[0]]
    keys = [_keys(graph, stored, side, begin, end, device) for side in stored.directions]
    if stored.self_loops:
        own = torch.arange(begin, end, device=device)
        keys.append((own - begin) * sources + own)
    ordered = torch.cat(keys)
    del keys
    ordered = ordered.sort().values
    first_of = torch.arange(end - begin + 1, device=device) * sources
    offsets = torch.searchsorted(ordered, first_of)
    ordered %= sources
    return offsets, ordered.to(torch.int32)


def _keys(
    graph: TypedGraph,
    stored: StoredType,
    source_end: int,
    begin: int,
    end: int,
    device: torch.device,
) -> Tensor:
    """Returns (destination - begin) * sources + source of the edges into [begin, end), int64."""
    relation = graph.relations[stored.relation]
    sources = graph.nodes[stored.type[0]]
    source_key, destination_key = (
        stream_key(_SEED, 16 + 2 * stored.relation + side) for side in (source_end, 1 - source_end)
    )
    keys = []
    for first in range(0, relation.edges, CHUNK):
        last = min(relation.edges, first + CHUNK)
        hashed = hash_range(destination_key, first, last, device)
        exponent = relation.exponents[1 - source_end]
        destination = _draw(hashed, graph.nodes[stored.type[2]], exponent)
        here = ((destination >= begin) & (destination < end)).nonzero().squeeze(1)
        key = (destination[here] - begin) * sources
        hashed = hash_ids(source_key, here + first)
        key += _draw(hashed, sources, relation.exponents[source_end])
        keys.append(key)
    return torch.cat(keys)


def _draw(hashed: Tensor, count: int, exponent: float) -> Tensor:
    """Draws nodes, int64 in [0, count), by the power law, from uniform bits."""
    table = _power_law(count, exponent, str(hashed.device))
    node = ranks_by_weight(hashed, table, count)
    node *= coprime(count, 0.6180339887498949)
    node += count // 3
    node %= count
    return node


@lru_cache(maxsize=64)
def _power_law(count: int, exponent: float, device: str) -> Tensor:
    """At knot k: how many of the heaviest nodes together have the share k / KNOTS of the weight."""
    share = torch.arange(KNOTS + 1, dtype=torch.float64) / KNOTS
    if exponent == 1.0:
        heaviest = torch.exp(share * math.log(count + 1.0)) - 1.0
    else:
        power = 1.0 - exponent
        heaviest = (share * ((count + 1.0) ** power - 1.0) + 1.0) ** (1.0 / power) - 1.0
    table = heaviest.floor().long().clamp_(0, count)
    table[-1] = count
    return table.to(device)
