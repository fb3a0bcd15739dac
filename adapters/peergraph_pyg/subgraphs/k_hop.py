"""PyG's ``k_hop_subgraph`` of shared edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.sampling import NeighborSampler
from peergraph.store import EdgeType, Store, reverse_type

from ..data.edge_index_tensor import EdgeIndexTensor


def k_hop_subgraph(
    original: Any,
    node_idx: Any,
    num_hops: int,
    edge_index: Any,
    relabel_nodes: bool = False,
    num_nodes: int | None = None,
    flow: str = "source_to_target",
    directed: bool = False,
) -> Any:
    """PyG's function; of a shared ``edge_index``, only the edges of the subgraph are read.

    Results equal PyG's. The mask of edges takes a byte for each edge of the graph. With
    ``flow="target_to_source"``, the first call is collective (:meth:`Store.reversed`).
    """
    is_served = (
        isinstance(edge_index, EdgeIndexTensor)
        and edge_index.edge_type[0] == edge_index.edge_type[2]
        and flow in ("source_to_target", "target_to_source")
    )
    if not is_served:
        return original(node_idx, num_hops, edge_index, relabel_nodes, num_nodes, flow, directed)
    backward = flow == "target_to_source"
    store, edge_type = edge_index.store, edge_index.edge_type
    if backward:
        store, edge_type = store.reversed(), reverse_type(edge_type)
    seeds = torch.as_tensor(node_idx, device=store.device).reshape(-1)
    nodes, source, target, ids = _neighborhood(store, edge_type, seeds, num_hops, directed)
    subset, place = torch.unique(nodes, return_inverse=True)
    ends = torch.stack([target, source] if backward else [source, target])
    edges = place[ends] if relabel_nodes else nodes[ends]
    mask = torch.zeros(store.num_edges(edge_type), dtype=torch.bool, device=store.device)
    mask[ids] = True
    return subset, edges, torch.searchsorted(subset, seeds), mask


def _neighborhood(
    store: Store, edge_type: EdgeType, seeds: Tensor, num_hops: int, directed: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the nodes within the hops; and sources, targets (as positions) and ids of edges, in
    the order of ids.
    """
    fanouts = {t: [-1 if t == edge_type else 0] * num_hops for t in store.edge_types}
    sampler = NeighborSampler(store, fanouts, subgraph="directional" if directed else "induced")
    sample = sampler.sample({edge_type[0]: torch.unique(seeds)}, 0)
    assert sample.edge_ids is not None
    ids, order = sample.edge_ids[edge_type].sort()
    row, col = sample.row[edge_type][order], sample.col[edge_type][order]
    return sample.nodes[edge_type[0]], row, col, ids
