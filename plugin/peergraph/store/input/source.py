"""Sources of a build: structure and tables, all on one rank or split over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from peergraph.memory import RowCodec
from peergraph.memory.device.plain_tensor import plain
from peergraph.memory.region.free_memory import check_count
from peergraph.memory.table.id_list import integers
from peergraph.store.input.frame_spec import Frames, check_frames

NodeType = str
EdgeType = tuple[str, str, str]

NODE: NodeType = "_N"
"""The node type of a homogeneous graph."""

EDGE: EdgeType = (NODE, "_E", NODE)
"""The edge type of a homogeneous graph."""


def reverse_type(edge_type: EdgeType) -> EdgeType:
    """Returns the edge type with source and destination type exchanged."""
    return edge_type[2], edge_type[1], edge_type[0]


@dataclass
class RowSource:
    """Rows that a function makes or reads piece by piece, for tables that do not fit into memory.

    Args:
        shape: ``[rows, ...]`` of this source: all rows of the table, or the rows of this rank's
            range if the source is split over ranks.
        dtype: the dtype of the rows.
        rows: ``rows(begin, end)`` returns the rows at these positions of the table, as a tensor
            ``[end - begin, ...]`` on the CPU or on the rank's GPU. If it raises an error, all ranks
            raise it. They raise ``ValueError`` if it returns rows of another number, shape or
            dtype.
        storage: the storage of the table, if the option ``storage`` does not name the table; None:
            rows are stored without a change.
        ahead: whether another thread may read the next rows while earlier ones are loaded.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    rows: Callable[[int, int], Tensor]
    storage: str | None = None
    ahead: bool = field(default=False, kw_only=True)


@dataclass
class EncodedRows(RowSource):
    """Rows of a table that have been encoded for narrow storage, such as those of a saved store.

    Args:
        codec: the encoding of the rows. `rows` returns decoded rows.
        encoded: ``encoded(begin, end)`` returns the encoded rows at these positions of the table,
            as uint8 ``[end - begin, codec.row_bytes]`` on the CPU.
    """

    codec: RowCodec = field(kw_only=True)
    encoded: Callable[[int, int], Tensor] = field(kw_only=True)


@dataclass
class EdgeSource:
    """One relation, as COO or as CSC (exactly one of the two).

    Args:
        coo: ``[2, E]`` int32 or int64: row 0 has the sources, row 1 the destinations. An edge's id
            is its position.
        csc: ``(indptr [N + 1] int64, indices [E] int32 or int64)``: the sources of the edges into
            node ``j`` are ``indices[indptr[j]:indptr[j + 1]]``. If the source is split over ranks,
            it has only this rank's destinations, and ``indptr[0] == 0``.
        edge_ids: ``[E]`` the ids of the edges in CSC order, a permutation of ``0 .. E - 1``;
            default: an edge's id is its position. Not with ``coo``.
    """

    coo: Tensor | None = None
    csc: tuple[Tensor, Tensor] | None = None
    edge_ids: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.coo is None) == (self.csc is None):
            raise ValueError("an EdgeSource takes exactly one of coo and csc")
        if self.coo is not None:
            if self.edge_ids is not None:
                raise ValueError("edge_ids goes with csc: the ids of coo are its positions")
            self.coo = _checked_ids("coo", self.coo, dim=2)
            if self.coo.size(0) != 2:
                raise ValueError(f"coo must be [2, E], got {list(self.coo.shape)}")
        if self.csc is not None:
            indptr = _checked_ids("indptr", self.csc[0], dim=1)
            indices = _checked_ids("indices", self.csc[1], dim=1)
            self.csc = indptr, indices
            _check_indptr(indptr, indices.numel())
        if self.edge_ids is not None:
            self.edge_ids = _checked_ids("edge_ids", self.edge_ids, dim=1)
            if self.edge_ids.numel() != self.num_edges:
                raise ValueError(
                    f"edge_ids must have one id per edge ({self.num_edges}), "
                    f"got {self.edge_ids.numel()}"
                )

    @property
    def num_edges(self) -> int:
        """The number of edges in this source."""
        if self.coo is not None:
            return self.coo.size(1)
        assert self.csc is not None
        return self.csc[1].numel()


@dataclass
class GraphSource:
    """A graph, or a part of it, that a rank passes to :meth:`Store.build`.

    Either rank 0 of the node group passes the whole graph and the others pass ``None``, or every
    rank passes a part. A part has a contiguous range of the nodes of each type, in the order of the
    ranks and without gaps; their in-edges (CSC) and table rows; and the rows of edge tables of
    these edges. By default, the ids of its edges follow those of the ranks before it.

    Args:
        num_nodes: the number of nodes of each type in the whole graph.
        edges: the structure of each edge type ``(source type, relation, destination type)``.
        node_tables: by node type and name, ``[num_nodes, ...]``, or the rows of the range.
        edge_tables: by edge type and name, ``[num_edges, ...]`` in the order of the edge ids.
        node_range: for a part, the range of nodes of each type; None: the whole graph.
        frames: the frames whose columns are in the tables, by type and name. Elements of lists are
            the table ``"values"`` of a node type of their own, which :func:`list_type` names.
    """

    num_nodes: Mapping[NodeType, int]
    edges: Mapping[EdgeType, EdgeSource]
    node_tables: Mapping[NodeType, Mapping[str, Tensor | RowSource]] = field(default_factory=dict)
    edge_tables: Mapping[EdgeType, Mapping[str, Tensor | RowSource]] = field(default_factory=dict)
    node_range: Mapping[NodeType, tuple[int, int]] | None = None
    frames: Frames = field(default_factory=dict)

    @classmethod
    def homogeneous(
        cls,
        num_nodes: int,
        edges: EdgeSource,
        node_tables: Mapping[str, Tensor | RowSource] | None = None,
        edge_tables: Mapping[str, Tensor | RowSource] | None = None,
        node_range: tuple[int, int] | None = None,
    ) -> GraphSource:
        """Makes a graph of one node type and one edge type (:data:`NODE`, :data:`EDGE`)."""
        return cls(
            {NODE: num_nodes},
            {EDGE: edges},
            {NODE: node_tables or {}},
            {EDGE: edge_tables or {}},
            None if node_range is None else {NODE: node_range},
        )

    def range_of(self, node_type: NodeType) -> tuple[int, int]:
        """Returns the range of nodes of a type in this source."""
        if self.node_range is None:
            return 0, self.num_nodes[node_type]
        return self.node_range[node_type]

    def validate(self) -> None:
        """Raises ``ValueError`` if structure and tables do not fit together, and ``TypeError`` if a
        number of nodes is not an integer.
        """
        for node_type, count in self.num_nodes.items():
            check_count(f"num_nodes of {node_type!r}", count)
        for edge_type, edges in self.edges.items():
            self._validate_edges(edge_type, edges)
        for node_type, node_tables in self.node_tables.items():
            if node_type not in self.num_nodes:
                raise ValueError(f"node_tables names an unknown node type {node_type!r}")
            begin, end = self.range_of(node_type)
            _check_rows(f"node table of {node_type!r}", node_tables, end - begin)
        for edge_type, edge_tables in self.edge_tables.items():
            if edge_type not in self.edges:
                raise ValueError(f"edge_tables names an unknown edge type {edge_type}")
            num_edges = self.edges[edge_type].num_edges
            _check_rows(f"edge table of {edge_type}", edge_tables, num_edges)
        shapes: dict[NodeType | EdgeType, dict[str, tuple[int, ...]]] = {}
        shapes.update((t, _shapes(tables)) for t, tables in self.node_tables.items())
        shapes.update((t, _shapes(tables)) for t, tables in self.edge_tables.items())
        check_frames(self.frames, shapes, self.num_nodes)

    def _validate_edges(self, edge_type: EdgeType, edges: EdgeSource) -> None:
        for node_type in (edge_type[0], edge_type[2]):
            if node_type not in self.num_nodes:
                raise ValueError(f"edge type {edge_type} names an unknown node type {node_type!r}")
        if self.node_range is not None and edges.csc is None:
            raise ValueError(f"edges of {edge_type}: a source split over ranks takes csc, not coo")
        begin, end = self.range_of(edge_type[2])
        if edges.csc is not None and edges.csc[0].numel() != end - begin + 1:
            raise ValueError(
                f"indptr of {edge_type} must have {end - begin + 1} entries "
                f"(destinations + 1), got {edges.csc[0].numel()}"
            )


def _checked_ids(name: str, ids: Tensor, dim: int) -> Tensor:
    if not isinstance(ids, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(ids).__name__}")
    # Rows of a subclass that wraps [2, E] may be plain tensors.
    ids = integers(plain(name, ids) if dim == 1 else ids)
    if ids.dim() != dim or ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"{name} must be a {dim}-D int32 or int64 tensor, "
            f"got {ids.dim()}-D {str(ids.dtype).removeprefix('torch.')}"
        )
    return ids.contiguous()


def _check_indptr(indptr: Tensor, num_edges: int) -> None:
    if indptr.numel() == 0 or int(indptr[0]) != 0 or int(indptr[-1]) != num_edges:
        raise ValueError(f"indptr must run from 0 to the number of indices ({num_edges})")
    falls = indptr[1:] < indptr[:-1]
    if bool(falls.any()):
        raise ValueError(f"indptr must not fall, it does at position {int(falls.nonzero()[0]) + 1}")


def _shapes(tables: Mapping[str, Tensor | RowSource]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(table.shape) for name, table in tables.items()}


def _check_rows(what: str, tables: Mapping[str, Tensor | RowSource], rows: int) -> None:
    for name, table in tables.items():
        if len(table.shape) == 0 or table.shape[0] != rows:
            raise ValueError(f"{what}: {name!r} must have {rows} rows, got {list(table.shape)}")
