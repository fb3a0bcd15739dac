"""Which tables of the store the weights and times that a PyG loader names are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch_geometric.data import Data, HeteroData

from peergraph.store import NODE, EdgeType, NodeType, TableTensor

from ..data.feature_store import PeergraphFeatureStore

Times = Tensor | dict[NodeType, Tensor]


def weight_tables(data: Any, name: str) -> dict[EdgeType, str]:
    """By edge type, the table of the weights; types without the attribute have none.

    Raises:
        ValueError: no edge type has the attribute, or it was not shared.
    """
    found = list(_found(data, name))
    tables = {t.owner: t.table_name for t in found if isinstance(t.owner, tuple)}
    if not tables:
        if found and isinstance(data, Data) and data.num_nodes == data.num_edges:
            # As PyG decides it, for batches too.
            raise ValueError(
                f"weight_attr: {name!r} is taken for an attribute of nodes, of which there are as "
                "many as edges; a name with 'edge' in it says what it is"
            )
        raise ValueError(f"weight_attr: no edge type has an attribute {name!r}")
    return tables


def time_tables(data: Any, name: str) -> tuple[dict[NodeType, str], dict[EdgeType, str]]:
    """The tables of the times, either by node type or by edge type.

    Raises:
        ValueError: neither nodes nor edges have the attribute, or both, or it was not shared.
    """
    found = list(_found(data, name))
    of_nodes = {t.owner: t.table_name for t in found if isinstance(t.owner, str)}
    of_edges = {t.owner: t.table_name for t in found if isinstance(t.owner, tuple)}
    if of_nodes and of_edges:
        raise ValueError(f"time_attr: {name!r} is an attribute of nodes and of edges")
    if not found:
        raise ValueError(f"time_attr: neither nodes nor edges have an attribute {name!r}")
    return of_nodes, of_edges


def _found(data: Any, name: str) -> Iterator[TableTensor]:
    if not isinstance(data, (Data, HeteroData)):
        features: PeergraphFeatureStore = data[0]
        yield from features.named(name)
        return
    for storage in data.stores:
        if name not in storage:
            continue
        value = storage[name]
        if not isinstance(value, TableTensor):
            kind = type(value).__name__
            raise ValueError(f"{name!r} must be an attribute that was shared, got {kind}")
        yield value


def times_for_negatives(times: dict[NodeType, Any], homogeneous: bool) -> Times:
    """Times of nodes as PyG's negative sampling reads them: by ids on the CPU."""
    near = {t: v if v.device.type == "cpu" else v.whole().cpu() for t, v in times.items()}
    flat = {t: v.reshape(-1) if v.dim() > 1 else v for t, v in near.items()}
    return flat[NODE] if homogeneous else flat
