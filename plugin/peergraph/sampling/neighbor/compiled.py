"""The compiled sampler of a NeighborSampler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peergraph import _C

if TYPE_CHECKING:
    from peergraph.sampling.neighbor.neighbor_sampler import NeighborSampler


def make_native(sampler: NeighborSampler, *, positions: bool = False) -> _C.KHopSampler:
    """Gives the compiled module all that is known before there are seeds.

    Args:
        positions: yield the places of edges in the structure instead of their ids.
    """
    store = sampler.store
    position = {node_type: i for i, node_type in enumerate(store.node_types)}
    structures = {t: store.csc(t) for t in store.edge_types}
    # The views are addresses into tensors that the store holds.
    return _C.KHopSampler(
        node_types=[
            (
                node_type,
                store.num_nodes(node_type),
                store.id_map(node_type).internal_view,
                store.id_map(node_type).user_view,
            )
            for node_type in store.node_types
        ],
        relations=[
            (
                position[edge_type[0]],
                position[edge_type[2]],
                structure.positions_view() if positions else structure.view,
                sampler.fanouts[edge_type],
                sampler.choices.native(store, edge_type),
            )
            for edge_type, structure in structures.items()
        ],
        expand_all=sampler.frontier == "all",
        disjoint=sampler.disjoint,
        induced=sampler.subgraph == "induced",
        edge_ids=sampler.edge_ids,
        duplicate_counts=sampler.duplicate_counts,
        index_bytes=sampler.index_dtype.itemsize,
    )
