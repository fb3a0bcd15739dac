"""`share`: a DGL graph of one rank becomes a DGL graph of all ranks, over one store."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from os import PathLike
from typing import Any

import dgl
import torch
from dgl import DGLGraph
from torch import Tensor

from peergraph.aggregate import is_arange
from peergraph.memory import Group
from peergraph.memory.group.collective_call import collective_call
from peergraph.store import EdgeSource, EdgeType, GraphSource, Store, StoreTensor

from ..backend.materialize import whole
from ..backend.shared_index import Packed, make_index, pack, share_arrays
from .columns import store_columns
from .store_of import attach, find_store, remember_idtype

_CPU = torch.device("cpu")


def share(
    g: Any = None,
    *,
    plan: Any = "auto",
    memory_budget: Any = None,
    spill: str | PathLike[str] | None = None,
    host_budget: int | None = None,
    device: Any = None,
    timeout: float | None = None,
    progress: Any = None,
) -> DGLGraph:
    """Puts a graph into one store that all ranks of this machine read. Collective.

    Returns a ``DGLGraph`` on the CPU on every rank, with the same types, nodes, edges and edge ids.
    Its structure lies once in the machine's memory, in all the sparse formats that ``g`` allows
    (``g.formats("csc")`` before saves memory), and again, as Peergraph's sampler reads it, in the
    store. Node and edge data are in the store: selecting rows of them reads those rows,
    ``g.ndata[name][ids] = values`` writes them, for all ranks. A column that is assigned, added or
    deleted is so on this rank only, as in DGL's processes. The memory is freed by
    ``store_of(g).close()`` (collective), or with the last rank.

    Args:
        g: the graph, on rank 0; homogeneous or heterogeneous, on any device. What other ranks pass
            is not used; they may pass ``None``.
        plan: where structure and tables lie: ``"auto"``, ``"replicated"``, ``"sharded"``,
            ``"host"`` or a ``peergraph.store.Plan``.
        memory_budget: for ``"auto"``, as ``peergraph.store.Store.build`` takes it.
        spill: folder for the coldest rows, for what the host does not hold; see docs/disk.md.
        host_budget: bytes the store may take of the host's memory; default: what is free.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:i"``, where this rank reads to; default: see
            ``peergraph.memory.Group.current``.
        timeout: seconds to wait for the other ranks.
        progress: as ``peergraph.store.Store.build`` takes it.

    Raises:
        TypeError: if rank 0's graph is no ``DGLGraph``, or a block. This and the following are
            raised on all ranks.
        ValueError: if it is shared already.
        MemoryError, OSError: the host, or the folder `spill`, has less room than the plan needs.
        NotImplementedError: for data that requires gradients.
        pickle.PicklingError, AttributeError: for an attribute of the graph that cannot be sent.
    """
    group = Group.current(device=device, timeout=timeout)

    def describe() -> tuple[bytes, GraphSource, list[Tensor]]:
        outline, source, arrays = _split(g)
        return pickle.dumps(outline), source, arrays

    with group.collective("share"):
        message, source, arrays = collective_call(
            group, lambda: describe() if group.rank == 0 else (None, None, None)
        )
        outline = pickle.loads(group.broadcast(message))
        store = Store.build(
            source,
            plan=plan,
            memory_budget=memory_budget,
            spill=spill,
            host_budget=host_budget,
            group=group,
            progress=progress,
        )
        # Graphs of DGL's PyPI wheels are on the CPU: their memory is not pinned for GPUs.
        on_cpu = Group.current(device="cpu", timeout=timeout)
        index = make_index(outline.packed, share_arrays(outline.packed, arrays, on_cpu))
    return _join(outline, index, store)


@dataclass
class _Outline:
    """What all ranks must know of a graph, small enough to send."""

    packed: Packed
    ntypes: list[str]
    etypes: list[str]
    num_nodes: dict[str, Tensor] | None
    num_edges: dict[EdgeType, Tensor] | None
    attributes: dict[str, Any]


def _split(g: Any) -> tuple[_Outline, GraphSource, list[Tensor]]:
    if not isinstance(g, DGLGraph):
        raise TypeError(f"g must be a DGLGraph on rank 0, got {type(g).__name__}")
    if g.is_block:
        raise TypeError("g must be a graph, got a block (message flow graph)")
    if find_store(g) is not None:
        raise ValueError("g is shared already")
    if g.device != _CPU:
        g = g.to(_CPU)
    packed, arrays = pack(g)
    outline = _Outline(
        packed,
        list(g.ntypes),
        list(g.etypes),
        g._batch_num_nodes,
        g._batch_num_edges,
        _own_attributes(g),
    )
    source = GraphSource(
        num_nodes={t: g.num_nodes(t) for t in g.ntypes},
        edges={t: _edges(g, t) for t in g.canonical_etypes},
        node_tables={t: _tables(t, g.nodes[t].data) for t in g.ntypes},
        edge_tables={t: _tables(t, g.edges[t].data) for t in g.canonical_etypes},
    )
    return outline, source, arrays


def _own_attributes(g: DGLGraph) -> dict[str, Any]:
    """What the user has set on the object itself, such as ``g.num_classes``."""
    known = vars(dgl.graph(([], []))).keys()
    return {k: v for k, v in vars(g).items() if k not in known and k != "_gpu_caches"}


def _edges(g: DGLGraph, edge_type: EdgeType) -> EdgeSource:
    formats = g.formats()
    allowed = formats["created"] + formats["not created"]
    if "csc" not in allowed:
        if "coo" in allowed:
            return EdgeSource(coo=torch.stack(g.edges(order="eid", etype=edge_type)))
        # DGL knows edges by source in no other order than that.
        source, destination, edge_ids = g.edges(form="all", order=None, etype=edge_type)
        return EdgeSource(coo=torch.stack([source, destination])[:, edge_ids.argsort()])
    indptr, indices, edge_ids = g.adj_tensors("csc", etype=edge_type)
    in_order = is_arange(edge_ids.contiguous())
    return EdgeSource(csc=(indptr.long(), indices), edge_ids=None if in_order else edge_ids)


def _tables(owner: Any, data: Any) -> dict[str, Tensor]:
    tables = {}
    for name, value in data.items():
        if value.requires_grad:
            raise NotImplementedError(
                f"{name!r} of {owner!r} requires gradients; a shared tensor cannot be trained"
            )
        # A graph made of a shared one still has columns of that one's store.
        tables[name] = whole(value) if isinstance(value, StoreTensor) else value.detach()
    return tables


def _join(outline: _Outline, index: Any, store: Store) -> DGLGraph:
    graph = DGLGraph(index, outline.ntypes, outline.etypes)
    for node_type, frame in zip(graph.ntypes, graph._node_frames, strict=True):
        names = store.node_table_names(node_type)
        frame._columns.update(store_columns(store, node_type, names))
    for edge_type, frame in zip(graph.canonical_etypes, graph._edge_frames, strict=True):
        names = store.edge_table_names(edge_type)
        frame._columns.update(store_columns(store, edge_type, names))
    graph._batch_num_nodes = outline.num_nodes
    graph._batch_num_edges = outline.num_edges
    vars(graph).update(outline.attributes)
    attach(graph, store)
    remember_idtype(store, graph.idtype)
    return graph
