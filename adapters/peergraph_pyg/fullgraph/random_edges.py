"""PyG's functions that drop edges, or draw pairs of nodes that have none, on partitioned graphs.

What is dropped depends on the seed and the user's ids of edges or nodes, as masks of dropout do: it
is the same on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph import (
    PartitionedEdgeIndex,
    PartitionedStructure,
    PartitionedTensor,
    RowLayout,
    from_local,
    select_edges,
    with_reversed_edges,
)

from .. import compat
from ..loader.negative_edges import TRIES, distinct

Original = Callable[..., Any]


def dropout_edge(
    original: Original,
    edge_index: Any,
    p: float = 0.5,
    force_undirected: bool = False,
    training: bool = True,
) -> Any:
    if not isinstance(edge_index, PartitionedEdgeIndex):
        return original(edge_index, p, force_undirected, training)
    _check(p)
    structure = edge_index.structure
    if not training or p == 0:
        return edge_index, _all(structure.edge_layout)
    mask = _draw(structure.edge_layout) >= p
    if not force_undirected:
        return _select(structure, mask), mask
    mask = mask & (edge_index[0] <= edge_index[1])
    both, ids = with_reversed_edges(_select(structure, mask).structure)
    return PartitionedEdgeIndex(both), ids


def dropout_node(
    original: Original,
    edge_index: Any,
    p: float = 0.5,
    num_nodes: int | None = None,
    training: bool = True,
    relabel_nodes: bool = False,
) -> Any:
    if not isinstance(edge_index, PartitionedEdgeIndex):
        return original(edge_index, p, num_nodes, training, relabel_nodes)
    _check(p)
    structure = edge_index.structure
    nodes = structure.destination_layout
    if num_nodes not in (None, nodes.size) or structure.num_sources != nodes.size:
        raise ValueError(f"num_nodes must be {nodes.size}, sources and destinations, got "
                         f"{num_nodes} for {structure}")  # fmt: skip
    if not training or p == 0:
        return edge_index, _all(structure.edge_layout), _all(nodes)
    if relabel_nodes:
        raise NotImplementedError(
            "dropout_node(relabel_nodes=True) on a partitioned graph, whose nodes keep their ids"
        )
    node_mask = _draw(nodes) > p
    mask = node_mask[edge_index[0]] & node_mask[edge_index[1]]
    return _select(structure, mask), mask, node_mask


def negative_sampling(
    original: Original,
    edge_index: Any,
    num_nodes: int | tuple[int, int] | None = None,
    num_neg_samples: int | float | None = None,
    method: str = "sparse",
    force_undirected: bool = False,
) -> Any:
    """Draws distinct pairs as PyG's, from torch's generator of the CPU, equal on all ranks.

    Returns [2, pairs], plain; each rank looks for its edges among the pairs.
    """
    if not isinstance(edge_index, PartitionedEdgeIndex):
        return original(edge_index, num_nodes, num_neg_samples, method, force_undirected)
    structure = edge_index.structure
    if method not in ("sparse", "dense"):
        raise ValueError(f"method must be 'sparse' or 'dense', got {method!r}")
    if num_nodes is None:
        num_nodes = max(structure.num_sources, structure.num_destinations)
    bipartite = not isinstance(num_nodes, int)
    size = (num_nodes, num_nodes) if isinstance(num_nodes, int) else num_nodes
    if size[0] < structure.num_sources or size[1] < structure.num_destinations:
        raise ValueError(f"num_nodes must be at least those of {structure}, got {num_nodes}")
    undirected = force_undirected and not bipartite
    number, pairs_of = compat.numbering_of_pairs(original)
    kind = (size, bipartite, undirected)

    def make() -> tuple[Tensor, int, int]:
        ends = torch.stack([end.to_local() for end in edge_index])
        numbers, population = number(ends, *kind)
        count = sum(structure.edge_layout.group.all_gather(len(numbers)))
        return numbers.sort().values, count, population

    existing, count, population = structure.cached(("numbers of pairs", *kind), make)
    num_samples = structure.num_edges if num_neg_samples is None else num_neg_samples
    if isinstance(num_samples, float):
        num_samples = int(num_samples * structure.num_edges)
    if undirected:
        num_samples //= 2
    codes = existing.new_empty(0)
    drawn_at_once = int(1.1 * num_samples / max(1 - count / population, 1e-3)) if population else 0
    for _ in range(TRIES if count < population else 0):
        if drawn_at_once >= population:
            drawn = torch.randperm(population)
        else:
            drawn = torch.randint(population, (drawn_at_once,))
        codes = distinct(torch.cat([codes, _without(drawn.to(codes.device), existing, structure)]))
        if len(codes) >= num_samples:
            break
    pairs: Tensor = pairs_of(codes[:num_samples], *kind)
    return pairs


def _without(numbers: Tensor, existing: Tensor, structure: PartitionedStructure) -> Tensor:
    """Returns the numbers that no rank has among its sorted `existing` ones. Collective."""
    place = torch.searchsorted(existing, numbers)
    exists = torch.zeros_like(numbers, dtype=torch.bool)
    if len(existing):
        exists = existing[place.clamp(max=len(existing) - 1)] == numbers
    group = structure.edge_layout.group
    by_rank = from_local(exists.unsqueeze(0), RowLayout.contiguous(group, group.world_size))
    return numbers[~by_rank.any(0)]


def _draw(layout: RowLayout) -> PartitionedTensor:
    """Returns a number of [0, 1) for each row, by the user's id."""
    rows = from_local(torch.empty(layout.local_count, device=layout.group.device), layout)
    return torch.rand_like(rows)  # type: ignore[return-value]


def _select(structure: PartitionedStructure, mask: Tensor) -> PartitionedEdgeIndex:
    assert isinstance(mask, PartitionedTensor)
    return PartitionedEdgeIndex(select_edges(structure, mask, keep=False))


def _all(layout: RowLayout) -> PartitionedTensor:
    ones = torch.ones(layout.local_count, dtype=torch.bool, device=layout.group.device)
    return from_local(ones, layout)


def _check(p: float) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"Dropout probability has to be between 0 and 1 (got {p})")
