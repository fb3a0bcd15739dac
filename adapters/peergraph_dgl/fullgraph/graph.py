"""DGL's graph class over nodes and edges that are partitioned over the ranks."""

from __future__ import annotations

import copy
import numbers
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import dgl
import torch
from dgl import DGLGraph
from dgl.base import ALL, DGLError, is_all
from dgl.frame import Frame
from dgl.udf import NodeBatch
from dgl.view import HeteroNodeView
from torch import Tensor

from peergraph.fullgraph import (
    PartitionedTensor,
    RowLayout,
    distribute,
    from_local,
    in_layout,
    select_edge_rows,
)

from ..compat import frame_columns, new_patches
from .partitioned_edges import EdgeStructure, PartitionedEdges, selected_rows
from .partitioned_index import PartitionedIndex
from .reversed_csc import ReversedCsc

_REFUSED = (
    *("add_nodes", "add_edges", "remove_nodes", "add_self_loop"),
    *("subgraph", "in_subgraph", "out_subgraph", "node_type_subgraph", "edge_type_subgraph"),
    *("khop_in_subgraph", "khop_out_subgraph", "line_graph", "to_simple"),
    *("reorder_graph", "sample_neighbors", "sample_etype_neighbors", "sample_labors"),
    *("sample_neighbors_fused", "sample_neighbors_biased", "select_topk"),
    *("global_uniform_negative_sampling", "find_edges", "has_edges_between", "edge_ids"),
    *("in_edges", "out_edges", "predecessors", "successors", "adj", "adjacency_matrix"),
    *("adj_external", "adj_tensors", "inc", "send_and_recv", "pull", "push", "prop_nodes"),
    *("prop_edges", "filter_nodes", "filter_edges", "pin_memory_", "shared_memory"),
    *("to_networkx", "to_cugraph", "is_multigraph"),
)


_patches = new_patches()


def install() -> None:
    """Makes graphs that DGL's functions derive from a partitioned one of its class. Idempotent."""
    if not _patches:
        _patches.replace(DGLGraph, "__init__", _init)


def _init(
    original: Callable[..., None], graph: Any, gidx: Any = (), *args: Any, **kwargs: Any
) -> None:
    original(graph, gidx, *args, **kwargs)
    if type(gidx) is PartitionedIndex and type(graph) is DGLGraph:
        graph.__class__ = PartitionedGraph


def is_batch(counts: Mapping[Any, Tensor] | None) -> bool:
    """Returns whether numbers of nodes or edges, by type, are those of several graphs."""
    return counts is not None and any(count.numel() != 1 for count in counts.values())


class PartitionedGraph(DGLGraph):  # type: ignore[misc]
    """A DGLGraph of which each rank holds some nodes, their data and their in-edges.

    Made by :func:`peergraph_dgl.full_graph`. All of DGL's message passing runs on it, with results
    and gradients as on one graph in one process. Node and edge data are
    :class:`peergraph.fullgraph.PartitionedTensor`: their shapes are those of all nodes or edges,
    and rows are numbered by the user's ids. Every rank calls the same methods in the same order.
    Methods that change the structure, or need all of it on one rank, raise NotImplementedError.
    """

    _graph: PartitionedIndex
    _edge_frames: list[Any]
    _batch_num_edges: dict[Any, Tensor] | None

    # Types, degrees and ids

    @property
    def nodes(self) -> Any:
        return _NodeView(self, self.get_ntype_id)

    @property
    def srcnodes(self) -> Any:
        return _NodeView(self, self.get_ntype_id_from_src)

    @property
    def dstnodes(self) -> Any:
        return _NodeView(self, self.get_ntype_id_from_dst)

    def in_degrees(self, v: Any = "__ALL__", etype: Any = None) -> Any:
        """As DGL's, for all nodes a partitioned tensor. Collective."""
        return _rows(self.relation(etype).in_degrees(), v)

    def out_degrees(self, u: Any = "__ALL__", etype: Any = None) -> Any:
        """As DGL's, for all nodes a partitioned tensor. Collective."""
        return _rows(self.relation(etype).out_degrees(), u)

    def relation(self, etype: Any = None) -> PartitionedEdges:
        """Returns the edges of a type; it may be left out where there is one."""
        edges: PartitionedEdges = self._graph.edge_lists[self.get_etype_id(etype)]
        return edges

    def node_layout(self, ntid: int) -> RowLayout:
        """Returns which rank holds which nodes of the type with this number."""
        layout: RowLayout = self._graph.layouts[ntid]
        return layout

    # Data

    def _set_n_repr(self, ntid: int, u: Any, data: dict[str, Tensor]) -> None:
        if is_all(u):
            layout = self.node_layout(ntid)
            data = {name: _with_rows(name, rows, layout, "nodes") for name, rows in data.items()}
        super()._set_n_repr(ntid, u, data)

    def _set_e_repr(self, etid: int, edges: Any, data: Any) -> None:
        layout = self._graph.edge_lists[etid].structure.edge_layout
        if not is_all(edges):
            if not isinstance(edges, Tensor):
                raise NotImplementedError(
                    "data of edges that are named by their ends, on a partitioned graph: name them "
                    "by a tensor of their ids"
                )
            frame = self._edge_frames[etid]
            data = {
                name: _with_changed_rows(frame.get(name), rows, edges.long(), layout)
                for name, rows in data.items()
            }
        data = {name: _with_rows(name, rows, layout, "edges") for name, rows in data.items()}
        super()._set_e_repr(etid, ALL, data)

    def apply_nodes(self, func: Callable[..., Any], v: Any = "__ALL__", ntype: Any = None) -> None:
        """As DGL's, for all nodes of a type."""
        if not is_all(v):
            raise NotImplementedError(
                "apply_nodes for some nodes of a partitioned graph: apply it to all nodes, and "
                "select with torch.where"
            )
        ntid = self.get_ntype_id(ntype)
        ntype = self.ntypes[ntid]
        batch = NodeBatch(self, self.nodes(ntype), ntype, self._node_frames[ntid])
        self._set_n_repr(ntid, v, func(batch))

    # Edges

    def remove_edges(self, eids: Any, etype: Any = None, store_ids: bool = False) -> None:
        """As DGL's, in place. Collective.

        Args:
            eids: ids, equal on all ranks, or partitioned ids that a mask selected from all ids.
            etype: their type.
            store_ids: keep the former ids as edge data ``dgl.EID``.
        """
        etid = self.get_etype_id(etype)
        layout = self._graph.edge_lists[etid].structure.edge_layout
        removed = selected_rows("eids", eids, layout)
        mask = torch.ones(layout.local_count, dtype=torch.bool, device=self.device)
        mask[slice(None) if removed is layout else removed.parent_rows] = False
        self._keep_edges({etid: layout.select_mask(mask)}, store_ids)

    def edge_subgraph(
        self,
        edges: Any,
        *,
        relabel_nodes: bool = True,
        store_ids: bool = True,
        output_device: Any = None,
    ) -> PartitionedGraph:
        """As DGL's with ``relabel_nodes=False``. Collective.

        Args:
            edges: ids or a mask, equal on all ranks or partitioned as for :meth:`remove_edges`; of
                several types by type, of which those that are left out have no edges.
            store_ids: keep the former ids as edge data ``dgl.EID``.
        """
        if relabel_nodes:
            raise NotImplementedError(
                "edge_subgraph of a partitioned graph, whose nodes keep their ids: pass "
                "relabel_nodes=False, or call it on the DGLGraph before peergraph_dgl.full_graph()"
            )
        graph = self.to(output_device or self.device)
        by_type = edges if isinstance(edges, Mapping) else {self.canonical_etypes[0]: edges}
        if not isinstance(edges, Mapping) and len(self.canonical_etypes) != 1:
            raise DGLError(
                "Edge type name must be specified if there are more than one edge types."
            )
        ids_by_type = {self.get_etype_id(etype): ids for etype, ids in by_type.items()}
        graph._keep_edges(
            {
                etid: selected_rows(
                    "edges", ids_by_type.get(etid, []), structure.structure.edge_layout
                )
                for etid, structure in enumerate(self._graph.edge_lists)
            },
            store_ids,
        )
        return graph

    def remove_self_loop(self, etype: Any = None) -> PartitionedGraph:
        """As DGL's. Collective."""
        graph: PartitionedGraph = dgl.remove_self_loop(self, etype)
        return graph

    def _keep_edges(self, layouts: Mapping[int, RowLayout], store_ids: bool) -> None:
        """Leaves selections of the edges of some types, with their data. Collective."""
        if is_batch(self._batch_num_edges):
            raise NotImplementedError(
                "edges of a batch of graphs that is partitioned: change them before "
                "peergraph_dgl.full_graph()"
            )
        self._batch_num_edges = None  # DGL keeps the number of one graph
        lists, frames = list(self._graph.edge_lists), list(self._edge_frames)
        for etid, layout in layouts.items():
            before = lists[etid].structure.edge_layout
            if layout is before:
                continue
            lists[etid] = lists[etid].of_layout(layout)
            columns = {
                name: _selected(column.data, lists[etid].structure)
                for name, column in frame_columns(frames[etid]).items()
            }
            if store_ids:
                ids = from_local(before.positions.to(self.idtype), before)
                columns[dgl.EID] = _selected(ids, lists[etid].structure)
            frames[etid] = Frame(columns, num_rows=layout.size)
        index = self._graph
        self._graph = PartitionedIndex(
            index.metagraph, index.layouts, lists, index.device, index.idtype
        )
        self._edge_frames = frames

    # Copies

    def clone(self) -> PartitionedGraph:
        """Returns a graph with the same structure and data; changes of its data are its own."""
        graph: PartitionedGraph = self.local_var()
        graph._batch_num_nodes = copy.copy(self._batch_num_nodes)
        graph._batch_num_edges = copy.copy(self._batch_num_edges)
        return graph

    def to(self, device: Any, **kwargs: Any) -> PartitionedGraph:
        """Returns a copy for the device that the graph is on already.

        Raises:
            NotImplementedError: another device; the group chooses it.
        """
        self._graph.check_device(torch.device(device))
        return self.clone()

    def cpu(self) -> PartitionedGraph:
        return self.to("cpu")

    def __deepcopy__(self, memo: dict[int, Any]) -> PartitionedGraph:
        graph = copy.copy(self)
        memo[id(self)] = graph
        graph._node_frames = [_copy_frame(frame) for frame in self._node_frames]
        graph._edge_frames = [_copy_frame(frame) for frame in self._edge_frames]
        return graph


class _NodeView(HeteroNodeView):  # type: ignore[misc]
    """``g.nodes``, which gives the ids of all nodes as a partitioned tensor."""

    __slots__ = ()

    def __call__(self, ntype: Any = None) -> Tensor:
        layout = self._graph.node_layout(self._typeid_getter(ntype))
        return from_local(layout.positions.to(self._graph.idtype, copy=True), layout)


def _selected(edges: PartitionedTensor, structure: EdgeStructure) -> PartitionedTensor:
    """Returns rows of the edges that a structure was selected from, for its edges."""
    original = structure.original if isinstance(structure, ReversedCsc) else structure
    return select_edge_rows(edges, original)


def _copy_frame(frame: Frame) -> Frame:
    columns = {name: column.data.clone() for name, column in frame_columns(frame).items()}
    return Frame(columns, num_rows=frame.num_rows)


def _rows(values: Tensor, ids: Any) -> Any:
    """Rows of a partitioned tensor for all, one or several ids."""
    if is_all(ids):
        return values
    if isinstance(ids, numbers.Integral):
        return values[[int(ids)]].full_tensor().item()  # type: ignore[attr-defined]
    return values[torch.as_tensor(ids, device=values.device).long()]


def _with_changed_rows(
    values: Tensor | None, rows: Tensor, ids: Tensor, layout: RowLayout
) -> Tensor:
    """Returns a column in which the rows of `ids` have new values; a new column is zero elsewhere.

    Differentiable.
    """
    if values is None:
        zeros = torch.zeros(
            layout.local_count, *rows.shape[1:], dtype=rows.dtype, device=rows.device
        )
        changed: Tensor = from_local(zeros, layout)
    else:
        changed = values.clone()
    changed[ids] = rows
    return changed


def _with_rows(name: str, rows: Any, layout: RowLayout, kind: str) -> Any:
    """The values as a partitioned tensor with the rows of a layout.

    A plain tensor of all rows is equal on all ranks, so each rank takes its rows. Rows that a list
    of ids selected, ``x[permutation]``, are sent to the ranks of the layout: collective.
    """
    if not isinstance(rows, Tensor) or rows.dim() == 0 or rows.shape[0] != layout.size:
        return rows  # DGL raises its error.
    if not isinstance(rows, PartitionedTensor):
        return distribute(rows, layout)
    rows_of_layout = in_layout(rows, layout)
    if rows_of_layout is None:
        raise ValueError(
            f"{name!r} must have the rows of the {kind}, {layout}, in dimension 0, got "
            f"{rows.row_layout} in dimension {rows.partitioned_dim} of {list(rows.shape)}"
        )
    return rows_of_layout


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: PartitionedGraph, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"{name} of a partitioned graph, of which each rank holds a part: call it on the "
            "DGLGraph before peergraph_dgl.full_graph()"
        )

    refuse.__name__ = name
    return refuse


for _name in _REFUSED:
    _method = _refusing(_name)
    _is_property = isinstance(getattr(DGLGraph, _name, None), property)
    setattr(PartitionedGraph, _name, property(_method) if _is_property else _method)
