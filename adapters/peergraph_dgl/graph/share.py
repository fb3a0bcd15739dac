"""`share`: puts a DGL graph of one rank into a store that all ranks read as a DGL graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dgl
import torch
from dgl import DGLGraph
from torch import Tensor
from typing_extensions import Unpack

from peergraph.aggregate import is_arange
from peergraph.fullgraph import refuse_partitioned
from peergraph.integration import SplitGraph, share_graph
from peergraph.memory import Group
from peergraph.store import EdgeSource, EdgeType, GraphSource, PlacementOptions, Store

from ..backend.materialize import materialize
from ..backend.shared_index import IndexLayout, make_index, pack, share_arrays
from ..compat import frame_columns
from .columns import make_columns
from .store_of import attach_store, find_store, record_idtype

_CPU = torch.device("cpu")


def share(
    g: Any = None,
    *,
    device: Any = None,
    timeout: float | None = None,
    progress: bool | None = None,
    **options: Unpack[PlacementOptions],
) -> DGLGraph:
    """Puts a graph into one store on each machine, which its ranks read. Collective over all ranks
    of all machines.

    Every rank gets a ``DGLGraph`` on the CPU with the same types, nodes, edges and edge ids. The
    machine's memory holds one copy of its structure in all sparse formats that ``g`` allows
    (``g.formats("csc")`` before saves memory), and the store holds the CSC that Peergraph samples.
    Node and edge data are in the store: ``g.ndata[name][ids]`` reads rows, and
    ``g.ndata[name][ids] = values`` writes rows for all ranks. Assigning, adding or deleting a
    column changes the graph of this rank only. ``store_of(g).close()`` (collective) or the end of
    the last rank frees the memory.

    Args:
        g: the graph, on the first rank of the machine; homogeneous or heterogeneous, on any device.
            The argument of other ranks is ignored; they may pass ``None``. If the first rank of a
            machine passes ``None``, the first machine that has the graph sends it to that machine.
            Machines that have the graph must have the same graph.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:i"``, the device of this rank; default: see
            ``peergraph.memory.Group.current``.
        timeout: seconds to wait for the other ranks.
        progress: whether to show progress bars of long loads; default: if stderr is a terminal.
        options: placement of structure and tables: ``plan``, ``memory_budget``, ``hotness``,
            ``spill``, ``host_budget``, ``machines`` and the others of
            :class:`peergraph.store.PlacementOptions`.

    Raises:
        TypeError: rank 0's graph is not a ``DGLGraph``, or is a block, or a keyword is unknown. All
            errors are raised on all ranks.
        ValueError: the graph is shared already, or machines bring different graphs.
        MemoryError, OSError: the host, or the folder `spill`, has less room than the plan needs.
        NotImplementedError: data requires gradients.
        pickle.PicklingError, AttributeError: an attribute of the graph cannot be pickled.
    """

    def join(outline: _Outline, arrays: Sequence[Tensor], store: Store) -> DGLGraph:
        # DGL's graph is on the CPU, so its memory need not be pinned for GPUs.
        cpu_group = Group.current(device="cpu", timeout=timeout)
        index = make_index(outline.layout, share_arrays(outline.layout, arrays, cpu_group))
        return _join(outline, index, store)

    return share_graph(
        lambda: _split(g),
        join,
        brings=g is not None,
        device=device,
        timeout=timeout,
        progress=progress,
        **options,
    )


@dataclass
class _Outline:
    """The parts of a graph that every rank gets; small."""

    layout: IndexLayout
    ntypes: list[str]
    etypes: list[str]
    num_nodes: dict[str, Tensor] | None
    num_edges: dict[EdgeType, Tensor] | None
    attributes: dict[str, Any]


def _split(g: Any) -> SplitGraph[_Outline]:
    """Splits a graph; the tensors are the arrays of DGL's graph index."""
    if not isinstance(g, DGLGraph):
        raise TypeError(f"g must be a DGLGraph on rank 0, got {type(g).__name__}")
    if g.is_block:
        raise TypeError("g must be a graph, got a block (message flow graph)")
    for frame in (*g._node_frames, *g._edge_frames):
        refuse_partitioned({name: c.data for name, c in frame_columns(frame).items()})
    if find_store(g) is not None:
        raise ValueError("g is shared already")
    if g.device != _CPU:
        g = g.to(_CPU)
    layout, arrays = pack(g)
    outline = _Outline(
        layout,
        list(g.ntypes),
        list(g.etypes),
        g._batch_num_nodes,
        g._batch_num_edges,
        user_attributes(g),
    )
    source = GraphSource(
        num_nodes={t: g.num_nodes(t) for t in g.ntypes},
        edges={t: _edges(g, t) for t in g.canonical_etypes},
        node_tables={t: _tables(t, g.nodes[t].data) for t in g.ntypes},
        edge_tables={t: _tables(t, g.edges[t].data) for t in g.canonical_etypes},
    )
    contents = {f"g.{name}": value for name, value in vars(outline).items()}
    return SplitGraph(outline, source, arrays, contents)


def user_attributes(g: DGLGraph) -> dict[str, Any]:
    """Attributes that the user set on the graph, such as ``g.num_classes``."""
    dgl_attributes = vars(dgl.graph(([], []))).keys()
    return {k: v for k, v in vars(g).items() if k not in dgl_attributes and k != "_gpu_caches"}


def _edges(g: DGLGraph, edge_type: EdgeType) -> EdgeSource:
    formats = g.formats()
    allowed = formats["created"] + formats["not created"]
    if "csc" not in allowed:
        if "coo" in allowed:
            return EdgeSource(coo=torch.stack(g.edges(order="eid", etype=edge_type)))
        # From a CSR alone, DGL lists edges in its order only.
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
        # A graph derived from a shared graph still has columns of that store.
        tables[name] = materialize(value).detach()
    return tables


def _join(outline: _Outline, index: Any, store: Store) -> DGLGraph:
    graph = DGLGraph(index, outline.ntypes, outline.etypes)
    for node_type, frame in zip(graph.ntypes, graph._node_frames, strict=True):
        names = store.node_table_names(node_type)
        frame_columns(frame).update(make_columns(store, node_type, names))
    for edge_type, frame in zip(graph.canonical_etypes, graph._edge_frames, strict=True):
        names = store.edge_table_names(edge_type)
        frame_columns(frame).update(make_columns(store, edge_type, names))
    graph._batch_num_nodes = outline.num_nodes
    graph._batch_num_edges = outline.num_edges
    vars(graph).update(outline.attributes)
    attach_store(graph, store)
    record_idtype(store, graph.idtype)
    return graph
