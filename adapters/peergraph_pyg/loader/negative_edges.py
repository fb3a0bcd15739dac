"""PyG's functions that draw pairs of nodes without an edge, on shared edges, which stay in the
store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from peergraph.sampling import NegativeSampler, next_seed
from peergraph.store import EdgeType, Store

from ..data.edge_index_tensor import EdgeIndexTensor

Original = Callable[..., Any]

# Rounds in which pairs without an edge are drawn, as in PyG.
TRIES = 3
# Of fewer pairs PyG may list all, and copying the edges is cheap.
_LEAST_PAIRS = 1 << 22
_STRUCTURED_TRIES = 8  # of 16 draws each
_DESTINATIONS_AT_ONCE = 1 << 20

# Structures of a store do not change.
_num_ids: WeakKeyDictionary[Store, dict[EdgeType, int]] = WeakKeyDictionary()


def negative_sampling(
    original: Original,
    edge_index: Any,
    num_nodes: int | tuple[int, int] | None = None,
    num_neg_samples: int | float | None = None,
    method: str = "sparse",
    force_undirected: bool = False,
) -> Any:
    """PyG's function; of a shared ``edge_index``, only the lists of drawn nodes are read.

    Pairs are distinct, without edges and, in a graph of one node type, without self loops, as
    PyG's, and every such pair is equally probable. They are drawn from torch's generator of the
    CPU. Graphs of few pairs of nodes, and sizes beyond the store's, are left to PyG.
    """
    arguments = (num_nodes, num_neg_samples, method, force_undirected)
    if not isinstance(edge_index, EdgeIndexTensor) or method not in ("sparse", "dense"):
        return original(edge_index, *arguments)
    if num_nodes is None:
        num_nodes = count_ids(edge_index)
    bipartite = not isinstance(num_nodes, int)
    size = (num_nodes, num_nodes) if isinstance(num_nodes, int) else tuple(num_nodes)
    population = size[0] * size[1]
    fits = _fits(edge_index, size) and edge_index.size(1) < population // 2
    if population < _LEAST_PAIRS or not fits:
        return original(edge_index, *arguments)
    undirected = force_undirected and not bipartite
    count = edge_index.size(1) if num_neg_samples is None else num_neg_samples
    if isinstance(count, float):
        count = int(count * edge_index.size(1))
    if undirected:
        count //= 2
    sampler = NegativeSampler(
        edge_index.store,
        edge_index.edge_type,
        src_weight=_first_nodes(edge_index, 0, size[0]),
        dst_weight=_first_nodes(edge_index, 1, size[1]),
        avoid_edges=True,
        tries=1,
    )
    share = 1 - edge_index.size(1) / population
    at_once = int(1.1 * count / share * (2 if undirected else 1)) + 64
    numbers = torch.empty(0, dtype=torch.int64, device=edge_index.store.device)
    for _ in range(TRIES):
        source, destination, is_edge = sampler.sample(at_once, next_seed())
        assert is_edge is not None
        fitting = ~is_edge
        if undirected:
            fitting &= source < destination
        elif not bipartite:
            fitting &= source != destination
        drawn = source[fitting] * size[1] + destination[fitting]
        numbers = distinct(torch.cat([numbers, drawn]))
        if len(numbers) >= count:
            break
    numbers = numbers[:count]
    pairs = torch.stack([numbers // size[1], numbers % size[1]]).to(edge_index.device)
    return torch.cat([pairs, pairs.flip(0)], dim=1) if undirected else pairs


def structured_negative_sampling(
    original: Original,
    edge_index: Any,
    num_nodes: int | None = None,
    contains_neg_self_loops: bool = True,
) -> Any:
    """PyG's function; the edges of a shared ``edge_index`` are not sorted or copied to the CPU.

    For each edge (i, j) a node k is drawn, uniformly among those to which i has no edge.

    Raises ValueError if a node has edges to all nodes. PyG does not end then.
    """
    arguments = (num_nodes, contains_neg_self_loops)
    if not isinstance(edge_index, EdgeIndexTensor):
        return original(edge_index, *arguments)
    if num_nodes is None:
        num_nodes = count_ids(edge_index)
    if not _fits(edge_index, (0, num_nodes)) or edge_index.edge_type[0] != edge_index.edge_type[2]:
        return original(edge_index, *arguments)
    edges = edge_index.materialize()
    sampler = NegativeSampler(
        edge_index.store,
        edge_index.edge_type,
        mode="triplet",
        dst_weight=_first_nodes(edge_index, 1, num_nodes),
        avoid_edges=True,
    )
    drawn = torch.empty_like(edges[0])
    left = torch.arange(len(drawn), device=drawn.device)
    for _ in range(_STRUCTURED_TRIES):
        if not left.numel():
            break
        source = edges[0][left]
        _, destination, is_edge = sampler.sample(source, next_seed())
        assert is_edge is not None
        drawn[left] = destination[:, 0].to(drawn.device)
        again = is_edge[:, 0].to(drawn.device)
        if not contains_neg_self_loops:
            again = again | (drawn[left] == source)
        left = left[again]
    for node in torch.unique(edges[0][left]).tolist():
        # Few nodes have no edge from it, or none.
        is_free = torch.ones(num_nodes, dtype=torch.bool, device=drawn.device)
        is_free[edges[1][edges[0] == node]] = False
        if not contains_neg_self_loops:
            is_free[node] = False
        free = is_free.nonzero().view(-1)
        if not free.numel():
            raise ValueError(f"edge_index: node {node} has edges to all {num_nodes} nodes")
        places = left[edges[0][left] == node]
        choice = torch.randint(len(free), (len(places),), device="cpu").to(drawn.device)
        drawn[places] = free[choice]
    return edges[0], edges[1], drawn


def count_ids(edge_index: EdgeIndexTensor) -> int:
    """Returns the largest id of an end of shared edges, plus one, which PyG takes for the number of
    nodes. The first call reads all edges.
    """
    store, edge_type = edge_index.store, edge_index.edge_type
    counts = _num_ids.setdefault(store, {})
    if edge_type not in counts:
        largest = -1
        count = store.num_nodes(edge_type[2])
        for start in range(0, count, _DESTINATIONS_AT_ONCE):
            stop = min(start + _DESTINATIONS_AT_ONCE, count)
            lists = store.read_csc(edge_type, start, stop)
            if lists.indices.numel():
                last = int(lists.indptr.diff().nonzero()[-1])
                largest = max(largest, int(lists.indices.max()), start + last)
        counts[edge_type] = largest + 1
    return counts[edge_type]


def _fits(edge_index: EdgeIndexTensor, size: tuple[int, ...]) -> bool:
    """Returns whether the store has all nodes of these numbers of sources and destinations."""
    store, edge_type = edge_index.store, edge_index.edge_type
    return size[0] <= store.num_nodes(edge_type[0]) and size[1] <= store.num_nodes(edge_type[2])


def _first_nodes(edge_index: EdgeIndexTensor, end: int, count: int) -> Tensor | None:
    """Returns weights by which only the first nodes of an end are drawn; None: all nodes."""
    size = edge_index.store.num_nodes(edge_index.edge_type[2 * end])
    return None if count == size else (torch.arange(size, device="cpu") < count).long()


def distinct(numbers: Tensor) -> Tensor:
    """Returns each number once, in the order of their first places."""
    values, inverse = torch.unique(numbers, return_inverse=True)
    places = torch.arange(len(numbers), device=numbers.device)
    first = torch.full_like(values, len(numbers))
    return numbers[first.scatter_reduce(0, inverse, places, "amin").sort().values]
