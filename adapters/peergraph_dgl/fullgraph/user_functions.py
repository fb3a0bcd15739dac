"""Users' message, reduce and apply functions on a partitioned graph.

They get the batches that DGL gives them, with partitioned tensors: shapes are those of all edges or
nodes, so that parameters which the functions use get gradients of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dgl.core
import torch
from dgl.base import NID, is_all
from dgl.udf import EdgeBatch, NodeBatch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.fullgraph import (
    EdgeCall,
    PartitionedStructure,
    PartitionedTensor,
    RowLayout,
    distribute,
    from_local,
)

from ..compat import new_patches
from .graph import PartitionedGraph
from .partitioned_edges import EdgeStructure, features_of_ends
from .reversed_csc import ReversedCsc

_patches = new_patches()

Function = Callable[..., Any]


def install() -> None:
    """Replaces the functions of DGL that call users' functions. Idempotent."""
    if not _patches:
        _patches.replace(dgl.core, "invoke_edge_udf", _invoke_edge_function)
        _patches.replace(dgl.core, "invoke_udf_reduce", _invoke_reduce_function)
        _patches.replace(dgl.core, "invoke_node_udf", _invoke_node_function)


def _invoke_edge_function(
    original: Function, graph: Any, eid: Any, etype: Any, func: Function, **kwargs: Any
) -> Any:
    if not isinstance(graph, PartitionedGraph):
        return original(graph, eid, etype, func, **kwargs)
    etid = graph.get_etype_id(etype)
    source, destination = graph._graph.metagraph.find_edge(etid)
    structure = graph._graph.edge_lists[etid].structure
    layout, ids = structure.edge_layout, None
    if not is_all(eid):
        ids = eid.long()
        layout = layout.select_ids(ids)
    batch = _EdgeBatch(
        graph,
        eid,
        etype,
        _FeaturesOfEnds(structure, graph._node_frames[source], "u", ids),
        _SelectedData(graph._edge_frames[etid], ids),
        _FeaturesOfEnds(structure, graph._node_frames[destination], "v", ids),
    )
    batch.ids = ids
    return _with_layout(func(batch), layout, func)


class _EdgeBatch(EdgeBatch):  # type: ignore[misc]
    """All edges of a relation, or those of ids."""

    ids: Tensor | None

    def edges(self) -> tuple[Tensor, ...]:
        """The ids of sources, destinations and edges, partitioned as features of edges."""
        graph = self._graph
        ids: tuple[Tensor, ...] = graph._graph.edges(graph.get_etype_id(self.canonical_etype))
        return ids if self.ids is None else tuple(rows[self.ids] for rows in ids)

    def batch_size(self) -> int:
        if self.ids is not None:
            return len(self.ids)
        count: int = self._graph.num_edges(self.canonical_etype)
        return count


class _Columns(Mapping[str, Tensor]):
    """Columns made of those of a frame, at their use."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame)

    def __len__(self) -> int:
        return len(self._frame)


class _SelectedData(_Columns):
    """The data of all edges or of some, whose rows are selected at the use of a column."""

    def __init__(self, frame: Any, ids: Tensor | None) -> None:
        super().__init__(frame)
        self._ids = ids

    def __getitem__(self, name: str) -> Tensor:
        rows: Tensor = self._frame[name]
        return rows if self._ids is None else rows[self._ids]


class _FeaturesOfEnds(_Columns):
    """The data of each edge's source or destination; a column is gathered at its first use."""

    def __init__(self, structure: EdgeStructure, frame: Any, end: str, ids: Tensor | None) -> None:
        super().__init__(frame)
        self._structure = structure
        self._end = end
        self._ids = ids
        self._gathered: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._gathered:
            rows = features_of_ends(self._structure, self._frame[name], self._end)
            self._gathered[name] = rows if self._ids is None else rows[self._ids]
        return self._gathered[name]


def _invoke_reduce_function(
    original: Function, graph: Any, func: Function, msgdata: Any, **kwargs: Any
) -> Any:
    """Calls the function for each in-degree, with the nodes of all ranks that have it.

    All ranks go through the same degrees in the same order.
    """
    if not isinstance(graph, PartitionedGraph):
        return original(graph, func, msgdata, **kwargs)
    ntype = graph.dsttypes[0]
    frame = graph._node_frames[graph.get_ntype_id_from_dst(ntype)]
    if frame._initializers or frame._default_initializer is not None:
        raise NotImplementedError("initializers of node data with a reduce function of the user's")
    structure = graph._graph.edge_lists[0].structure
    messages = dict(msgdata)
    if isinstance(structure, ReversedCsc):
        moved = structure.moved
        messages = {name: moved.to_reversed(rows) for name, rows in messages.items()}
        structure = moved.structure
    buckets: list[_Bucket] = structure.cached(("dgl degrees",), lambda: _make_buckets(structure))
    parts: dict[str, dict[str, Tensor]] = {}
    for bucket in buckets:
        mailbox = {name: bucket.mail(structure, rows) for name, rows in messages.items()}
        nodes = from_local(bucket.ids.to(graph.idtype, copy=True), bucket.row_layout)
        data = _SelectedRows(frame, structure, bucket)
        batch = NodeBatch(graph, nodes, ntype, data, msgs=mailbox)
        for name, rows in _with_layout(func(batch), bucket.row_layout, func).items():
            parts.setdefault(name, {})[str(bucket.degree)] = rows
    return {name: _join(structure, of_degrees) for name, of_degrees in parts.items()}


class _Bucket:
    """The destinations of one in-degree.

    Args:
        degree: their in-degree.
        layout: of these destinations, over all ranks.
        ids: of this rank's ones, among all destinations.
        steps: [nodes, degree] int64: the edges of each by edge id, as numbers within its edges.
    """

    def __init__(
        self, degree: int, layout: RowLayout, ids: Tensor, steps: PartitionedTensor
    ) -> None:
        self.degree = degree
        self.row_layout = layout
        self.ids = ids
        self.steps = steps

    def mail(self, structure: PartitionedStructure, rows: Tensor) -> PartitionedTensor:
        """Returns [nodes, degree, *features] of rows of edges."""

        def run(csc: Csc, rows: Tensor, steps: Tensor) -> Tensor:
            positions = csc.indptr[_of_degree(csc, self.degree)].unsqueeze(1) + steps
            return rows[positions if csc.edge_ids is None else csc.edge_ids[positions].long()]

        return structure.on_edges(
            EdgeCall(
                run,
                edges={"rows": rows},
                others={"steps": self.steps},
                result=self.row_layout,
                row_type=((self.degree, *rows.shape[1:]), rows.dtype),
            )
        )

    def select(self, structure: PartitionedStructure, rows: Tensor) -> PartitionedTensor:
        """Returns [nodes, *features] of rows of destinations."""

        def run(csc: Csc, rows: Tensor) -> Tensor:
            return rows[_of_degree(csc, self.degree)]

        return structure.on_edges(
            EdgeCall(
                run,
                destinations={"rows": rows},
                result=self.row_layout,
                row_type=(rows.shape[1:], rows.dtype),
            )
        )


def _join(structure: PartitionedStructure, parts: dict[str, Tensor]) -> PartitionedTensor:
    """Returns rows of destinations, from those of each in-degree; others are zero."""
    first = next(iter(parts.values()))
    row_type = first.shape[1:], first.dtype
    return structure.on_edges(EdgeCall(_put, others=parts, row_type=row_type))


def _put(csc: Csc, **parts: Tensor) -> Tensor:
    first = next(iter(parts.values()))
    result = first.new_zeros(csc.num_destinations, *first.shape[1:])
    for degree, rows in parts.items():
        result = result.index_copy(0, _of_degree(csc, int(degree)), rows)
    return result


def _of_degree(csc: Csc, degree: int) -> Tensor:
    """Returns the destinations of an in-degree."""
    return csc.cached(
        ("destinations of degree", degree),
        lambda: (csc.in_degrees() == degree).nonzero().squeeze(1),
    )


def _make_buckets(structure: PartitionedStructure) -> list[_Bucket]:
    """Groups destinations by in-degree, in ascending order, without those of degree 0."""
    local, layout = structure.resident.local, structure.destination_layout
    degrees = local.in_degrees().long()
    ids = structure.edge_layout.positions
    if local.edge_ids is not None:
        ids = ids[local.edge_ids.long()]
    by_id = torch.argsort(ids, stable=True)
    destinations = torch.arange(len(degrees), device=degrees.device).repeat_interleave(degrees)
    # The position of each edge, by destination and then by edge id.
    order = by_id[torch.argsort(destinations[by_id], stable=True)]
    first = degrees.cumsum(0) - degrees
    steps = order - first.repeat_interleave(degrees)
    degrees_by_rank = layout.group.all_gather(sorted(set(degrees.tolist())))
    buckets = []
    for degree in sorted({value for values in degrees_by_rank for value in values} - {0}):
        mask = degrees == degree
        rows = first[mask].unsqueeze(1) + torch.arange(degree, device=first.device)
        selected = layout.select_mask(mask)
        ids_of_degree = layout.positions[mask]
        buckets.append(_Bucket(degree, selected, ids_of_degree, from_local(steps[rows], selected)))
    return buckets


class _SelectedRows(_Columns):
    """The data of a bucket's destinations; a column is selected at its first use."""

    def __init__(self, frame: Any, structure: PartitionedStructure, bucket: _Bucket) -> None:
        super().__init__(frame)
        self._structure = structure
        self._bucket = bucket

    def __getitem__(self, name: str) -> Tensor:
        return self._bucket.select(self._structure, self._frame[name])


def _invoke_node_function(
    original: Function,
    graph: Any,
    nid: Any,
    ntype: Any,
    func: Function,
    *,
    ndata: Any = None,
    orig_nid: Any = None,
) -> Any:
    if not isinstance(graph, PartitionedGraph):
        return original(graph, nid, ntype, func, ndata=ndata, orig_nid=orig_nid)
    if not is_all(nid):
        raise NotImplementedError("functions of some nodes of a partitioned graph")
    ntid = graph.get_ntype_id(ntype)
    frame = graph._node_frames[ntid]
    ids = frame[NID] if NID in frame else graph.nodes(ntype)
    batch = NodeBatch(graph, ids, ntype, frame if ndata is None else ndata)
    return _with_layout(func(batch), graph.node_layout(ntid), func)


def _with_layout(results: Any, layout: RowLayout, func: Function) -> dict[str, PartitionedTensor]:
    """Results of a user's function as partitioned tensors of these rows."""
    by_name = {}
    for name, rows in results.items():
        if rows.dim() == 0 or rows.shape[0] != layout.size:
            raise ValueError(
                f"{getattr(func, '__name__', func)} must return {layout.size} rows for {name!r}, "
                f"got shape {list(rows.shape)}"
            )
        by_name[name] = rows if isinstance(rows, PartitionedTensor) else distribute(rows, layout)
    return by_name
