"""A small graph like the user's, on which a model shows what an epoch does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dgl
from dgl import DGLGraph
from torch import Tensor

from peergraph.fullgraph import ModelRecorder, Partition, SmallGraph, sample_rows
from peergraph.memory import Group, Table
from peergraph.store import Store

from ..backend.materialize import materialize
from ..compat import frame_columns
from ..graph.columns import StoreColumn
from ..graph.share import user_attributes
from ..graph.store_of import StoreHandle, idtype_of
from ..graph.views import table_names


def small_parts(g: Any, partition: Callable[..., DGLGraph]) -> tuple[SmallGraph, Partition]:
    """Returns the sizes of a small graph, and a function that makes and partitions it.

    Args:
        g: the graph, or the store that has it.
        partition: partitions a graph: :func:`full_graph`.
    """
    is_store = isinstance(g, Store)
    ntypes = g.node_types if is_store else g.ntypes
    etypes = g.edge_types if is_store else g.canonical_etypes
    num_nodes, num_edges = {t: g.num_nodes(t) for t in ntypes}, {t: g.num_edges(t) for t in etypes}
    small = SmallGraph.like(num_nodes, num_edges)

    def make(alone: Group, recorder: ModelRecorder) -> DGLGraph:
        return partition(_small_graph(g, small), group=alone, model=recorder, order="original")

    return small, make


def _small_graph(g: Any, small: SmallGraph) -> DGLGraph:
    """Returns a graph of fewer nodes with random edges, with some of the rows of each frame."""
    idtype = idtype_of(g) if isinstance(g, Store) else g.idtype
    ends = {t: tuple(small.edges(t)) for t in small.num_edges}
    result = dgl.heterograph(ends, small.num_nodes, idtype=idtype)
    for owner, name, table in _tables(g):
        if isinstance(owner, tuple):
            result.edges[owner].data[name] = sample_rows(table, small.num_edges[owner])
        else:
            result.nodes[owner].data[name] = sample_rows(table, small.num_nodes[owner])
    if isinstance(g, DGLGraph):
        attributes = user_attributes(g).items()
        result.__dict__.update((k, v) for k, v in attributes if not isinstance(v, StoreHandle))
    return result


def _tables(g: Any) -> Iterator[tuple[Any, str, Table | Tensor]]:
    """The rows of nodes and edges, by type and name."""
    if isinstance(g, DGLGraph):
        frames = [*zip(g.ntypes, g._node_frames, strict=True),
                  *zip(g.canonical_etypes, g._edge_frames, strict=True)]  # fmt: skip
        for owner, frame in frames:
            for name, column in frame_columns(frame).items():
                table = column.table if isinstance(column, StoreColumn) else None
                yield owner, name, materialize(column.data) if table is None else table.table
        return
    store = g if isinstance(g, Store) else g.store
    for ntype in store.node_types:
        yield from ((ntype, n, store.node_table(n, ntype)) for n in table_names(store, ntype))
    for etype in store.edge_types:
        yield from ((etype, n, store.edge_table(n, etype)) for n in table_names(store, etype))
