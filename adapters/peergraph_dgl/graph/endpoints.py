"""Source and destination nodes of edges as tables of the store, to find edges by their ids."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.store import EdgeType, Store

SOURCE = "peergraph.source"
DESTINATION = "peergraph.destination"
ENDPOINT_TABLES = (SOURCE, DESTINATION)

_MAX_INT32 = torch.iinfo(torch.int32).max


def add_endpoints(store: Store, edge_type: EdgeType) -> None:
    """Adds the endpoint tables of a relation to the store, unless it has them. Collective."""
    if SOURCE in store.edge_table_names(edge_type):
        return
    if store.group is None:
        raise RuntimeError("edges: only the ranks that built a store can add to it")
    values: list[Tensor | None] = [None, None]
    if store.group.rank == 0:
        index = store.edge_index(edge_type)
        for end, node_type in enumerate((edge_type[0], edge_type[2])):
            small = store.num_nodes(node_type) <= _MAX_INT32
            values[end] = index[end].to(torch.int32 if small else torch.int64)
    for name, of_end in zip(ENDPOINT_TABLES, values, strict=True):
        store.add_edge_table(name, of_end, edge_type)


def endpoints(store: Store, edge_type: EdgeType, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Looks up the [n] int64 sources and destinations of edges, on the CPU. One-sided.

    Raises:
        NotImplementedError: the store has no endpoint tables.
    """
    if SOURCE not in store.edge_table_names(edge_type):
        raise NotImplementedError(
            f"edges of {edge_type} cannot be found by their ids; "
            "call peergraph_dgl.from_store(store, edges=True) on all ranks"
        )
    source, destination = (
        store.edge_table(name, edge_type).gather(ids).to("cpu", torch.int64)
        for name in ENDPOINT_TABLES
    )
    return source, destination
