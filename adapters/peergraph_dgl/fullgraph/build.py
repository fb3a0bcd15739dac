"""`full_graph`: partitions a DGL graph, a shared graph or a store over the ranks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from dgl import DGLGraph
from dgl.frame import Frame
from dgl.graph_index import from_coo
from torch import Tensor, nn
from typing_extensions import Unpack

from peergraph.fullgraph import (
    FullGraph,
    FullGraphOptions,
    ModelLoss,
    record_model,
    refuse_partitioned,
)
from peergraph.memory import Group, WorldGroup, collective_call
from peergraph.store import Store

from ..backend import message_passing
from ..backend.device_index import is_device_index
from ..backend.edge_list import edge_list_of
from ..backend.materialize import materialize
from ..compat import frame_columns
from ..graph.columns import StoreColumn
from ..graph.share import share, user_attributes
from ..graph.store_graph import StoreGraph
from ..graph.store_of import find_store, idtype_of
from ..graph.views import table_names
from . import refusals, typed_products, user_functions
from .graph import PartitionedGraph, install, is_batch
from .partitioned_edges import PartitionedEdges
from .partitioned_index import PartitionedIndex
from .small_graph import small_parts


def full_graph(
    g: Any,
    memory_budget: int | None = None,
    *,
    loss: ModelLoss | None = None,
    group: Group | None = None,
    **options: Unpack[FullGraphOptions],
) -> PartitionedGraph:
    """Partitions a graph over the ranks for exact full-graph training. Collective.

    The result is a ``DGLGraph`` whose node and edge data are
    :class:`peergraph.fullgraph.PartitionedTensor`, so that a full-batch script for one process runs
    unchanged on every rank, with the losses and gradients of one process. Each rank holds a block
    of nodes, their data and their in-edges (MG-GCN 4.1).

    Args:
        g: a ``DGLGraph`` that is equal on all ranks, a graph returned by :func:`share` or
            :func:`from_store`, or a :class:`peergraph.store.Store`. Of a shared graph and a store
            each rank reads its rows only. Where some ranks pass None, the others' graph is shared
            first, and sent to machines that have none.
        memory_budget: bytes of each rank's device; None: what is free.
        loss: called with the option ``model`` and a graph that this function returned, computes
            what ``backward`` is called of. So that the plan is made for the model, both run on a
            small graph with the types and degrees of `g` and some of its rows; the model stays as
            it is.
        group: the ranks, for a ``DGLGraph`` without a store; None:
            ``peergraph.memory.Group.current()``, each rank with its GPU if there is one.
        options: ``order``, ``offload``, ``num_chunks``, ``model``, ``host_memory``, ``folder``,
            ``hidden_dtype`` and others: see :class:`peergraph.fullgraph.FullGraphOptions`.

    Raises:
        TypeError: `g` is none of these, or a block.
        ValueError: ranks have other graphs, data or arguments, compared by digests: on all ranks,
            with the name of what differs and the ranks; a group for a graph in a store.
        NotImplementedError: data that requires gradients.
        Exception: `loss` raised it on the small graph; on all ranks.
        ValueError, MemoryError: the budget, or the host, is too small; says what is needed.
    """
    ranks = _group_of(g, group)
    g = _share_where_lacking(g, ranks)
    contents = collective_call(WorldGroup.of(ranks), lambda: _contents(g))
    message_passing.install()
    user_functions.install()
    typed_products.install()
    refusals.install()
    install()
    model = options.get("model")
    if isinstance(model, nn.Module):
        make_small = functools.partial(small_parts, g, full_graph)
        options["model"] = record_model(model, loss, WorldGroup.of(ranks), make_small)
    store = g if isinstance(g, Store) else find_store(g)
    if store is None:
        group = Group.current() if group is None else group
        return _from_graph(g, group, memory_budget, contents, options)
    if group is not None and group is not store.group:
        raise ValueError("group: the graph is in a store, whose ranks hold it; pass None")
    parts = FullGraph.from_store(store, memory_budget=memory_budget, contents=contents, **options)
    if isinstance(g, DGLGraph):
        graph = _make_graph(parts, g.idtype)
        _copy_frames(g, graph, parts)
        return graph
    graph = _make_graph(parts, idtype_of(store) if isinstance(g, Store) else g.idtype)
    for ntype in store.node_types:
        for name in table_names(store, ntype):
            table = store.node_table(name, ntype)
            graph.nodes[ntype].data[name] = parts.node_rows(table, ntype)
    for etype in store.edge_types:
        for name in table_names(store, etype):
            table = store.edge_table(name, etype)
            graph.edges[etype].data[name] = parts.edge_rows(table, etype)
    return graph


def _group_of(g: Any, group: Group | None) -> Group:
    """The ranks that call :func:`full_graph`. Collective if there is no group yet."""
    if group is not None:
        return group
    store = g if isinstance(g, Store) else None if g is None else find_store(g)
    return Group.current() if store is None or store.group is None else store.group


def _share_where_lacking(g: Any, group: Group) -> Any:
    """Returns a shared graph where some ranks have none, else the graph. Collective."""
    if not any(WorldGroup.of(group).all_gather(g is None)):
        return g
    return share(g, device=group.device, plan="host")


def _contents(g: Any) -> dict[str, Any]:
    """Returns what must be equal on all ranks besides edges and options, by name.

    What is in a store is not read: it is the same on all ranks.

    Raises:
        TypeError: `g` is no graph, or partitioned already, in part or as a whole.
        NotImplementedError: data that requires gradients.
    """
    if isinstance(g, PartitionedGraph) or not isinstance(g, (DGLGraph, StoreGraph, Store)):
        raise TypeError(f"g must be a DGLGraph or a Store, got {type(g).__name__}")
    contents: dict[str, Any] = {"type of g": type(g).__name__}
    if not isinstance(g, DGLGraph):
        return contents
    if g.is_block:
        raise TypeError("g must be a graph, got a block (message flow graph)")
    frames = [(f"g.nodes[{t!r}]", f) for t, f in zip(g.ntypes, g._node_frames, strict=True)]
    frames += [
        (f"g.edges[{t!r}]", f) for t, f in zip(g.canonical_etypes, g._edge_frames, strict=True)
    ]
    contents["g.idtype"] = str(g.idtype)
    for owner, frame in frames:
        for name, column in frame_columns(frame).items():
            is_of_store = isinstance(column, StoreColumn) and column.table is not None
            key = f"{owner}.data[{name!r}]"
            contents[key] = "a column of a store" if is_of_store else materialize(column.data)
    contents |= {f"g.{name}": value for name, value in user_attributes(g).items()}
    for name, counts in _batch_numbers(g).items():
        contents |= {f"g.{name}({owner!r})": count for owner, count in counts.items()}
    refuse_partitioned(contents)
    for key, values in contents.items():
        if isinstance(values, Tensor) and values.requires_grad:
            raise NotImplementedError(
                f"{key} requires gradients: leave it out of the graph, and give the model "
                "peergraph.fullgraph.distribute(parameter, g.ndata[...]) in each forward pass"
            )
    return contents


def _from_graph(
    g: DGLGraph,
    group: Group,
    memory_budget: int | None,
    contents: dict[str, Any],
    options: FullGraphOptions,
) -> PartitionedGraph:
    index = g._graph
    lists = [
        index.edge_lists[number] if is_device_index(index) else edge_list_of(index, number)
        for number in range(index.number_of_etypes())
    ]
    parts = FullGraph.build(
        group,
        {ntype: g.num_nodes(ntype) for ntype in g.ntypes},
        {
            etype: torch.stack([edges.src, edges.dst])
            for etype, edges in zip(g.canonical_etypes, lists, strict=True)
        },
        row_bytes={t: _row_bytes(f) for t, f in zip(g.ntypes, g._node_frames, strict=True)},
        edge_row_bytes={
            t: _row_bytes(f) for t, f in zip(g.canonical_etypes, g._edge_frames, strict=True)
        },
        memory_budget=memory_budget,
        contents=contents,
        **options,
    )
    graph = _make_graph(parts, g.idtype)
    _copy_frames(g, graph, parts)
    return graph


def _make_graph(parts: FullGraph, idtype: torch.dtype) -> PartitionedGraph:
    """The graph without data."""
    ntypes, etypes = list(parts.node_layouts), list(parts.structures)
    ends = [(ntypes.index(source), ntypes.index(target)) for source, _, target in etypes]
    index = PartitionedIndex(
        from_coo(len(ntypes), [source for source, _ in ends], [target for _, target in ends], True),
        list(parts.node_layouts.values()),
        [PartitionedEdges(structure, idtype) for structure in parts.structures.values()],
        parts.group.device,
        idtype,
    )
    return PartitionedGraph(index, ntypes, [etype[1] for etype in etypes])


def _copy_frames(g: DGLGraph, graph: PartitionedGraph, parts: FullGraph) -> None:
    """Gives the graph this rank's rows of the data of `g`, the numbers of nodes and edges of the
    graphs of a batch, and the attributes that users set.
    """
    for ntype, frame in zip(g.ntypes, g._node_frames, strict=True):
        rows = functools.partial(parts.node_rows, node_type=ntype)
        _copy_columns(frame, graph.nodes[ntype].data, rows)
    for etype, frame in zip(g.canonical_etypes, g._edge_frames, strict=True):
        rows = functools.partial(parts.edge_rows, edge_type=etype)
        _copy_columns(frame, graph.edges[etype].data, rows)
    for name, counts in _batch_numbers(g).items():
        on_device = {owner: count.to(graph.device) for owner, count in counts.items()}
        setattr(graph, f"_{name}", on_device)
    graph.__dict__.update(user_attributes(g))


def _batch_numbers(g: DGLGraph) -> dict[str, dict[Any, Tensor]]:
    """Returns the numbers of nodes and edges of each graph of a batch, by type; none of a graph."""
    names = ("batch_num_nodes", "batch_num_edges")
    return {name: getattr(g, f"_{name}") for name in names if is_batch(getattr(g, f"_{name}"))}


def _copy_columns(frame: Frame, data: Any, rows: Callable[[Any], Tensor]) -> None:
    for name, column in frame_columns(frame).items():
        table = column.table if isinstance(column, StoreColumn) else None
        data[name] = rows(materialize(column.data) if table is None else table.table)


def _row_bytes(frame: Frame) -> int:
    """Bytes of the data of a node or an edge."""
    schemes = [column.scheme for column in frame_columns(frame).values()]
    return sum(math.prod(scheme.shape) * scheme.dtype.itemsize for scheme in schemes)
