"""The schema of a build: the sizes and dtypes of a graph, and the part of each rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from peergraph.memory import Group, RowCodec
from peergraph.memory.table.row_codec import codec_of
from peergraph.store.input.frame_spec import Frames, is_list_type
from peergraph.store.input.source import EdgeType, GraphSource, NodeType, RowSource


@dataclass(frozen=True)
class TableSpec:
    """The shape and the dtype of a table that users see, and the table's storage.

    Args:
        shape: ``[rows, ...]``, with the rows of all ranks.
        dtype: the dtype that users see.
        storage: the name of the storage; None: rows are stored without a change.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    storage: str | None = None

    @classmethod
    def of(cls, table: Tensor | RowSource) -> TableSpec:
        """Returns the spec of a source's table."""
        storage = table.storage if isinstance(table, RowSource) else None
        return cls(tuple(table.shape), table.dtype, storage)

    @property
    def codec(self) -> RowCodec | None:
        """The codec of the rows; None if they are stored without a change."""
        return codec_of(self.storage, self.dtype, self.shape[1:])

    @property
    def row_bytes(self) -> int:
        """The bytes of a stored row."""
        if (codec := self.codec) is not None:
            return codec.row_bytes
        return int(torch.Size(self.shape[1:]).numel()) * self.dtype.itemsize


@dataclass(frozen=True)
class Schema:
    """The sizes of a graph and the dtypes of its tables, without data.

    Args:
        num_nodes, num_edges: the number of nodes or edges of each type.
        node_tables, edge_tables: the specs of the tables, by type and name.
        node_range: by rank and node type, the range of nodes in the rank's source.
        edge_begin: by rank and edge type, the CSC position of the first edge in its source.
        holder: the rank that has the whole graph; None: the source is split over ranks.
        frames: the frames whose columns are in the tables, by type and name.
    """

    num_nodes: dict[NodeType, int]
    num_edges: dict[EdgeType, int]
    node_tables: dict[NodeType, dict[str, TableSpec]]
    edge_tables: dict[EdgeType, dict[str, TableSpec]]
    node_range: tuple[dict[NodeType, tuple[int, int]], ...]
    edge_begin: tuple[dict[EdgeType, int], ...]
    holder: int | None = None
    frames: Frames = field(default_factory=dict)

    @property
    def node_types(self) -> list[NodeType]:
        """All node types, without those of elements of lists."""
        return [t for t in self.num_nodes if not is_list_type(t)]


def agree_on_schema(source: GraphSource | None, group: Group) -> Schema:
    """Returns the schema of the graph that the ranks' sources form. Collective; if it fails, every
    rank raises the same error.

    Raises:
        ValueError: no rank has a graph, or ranges have gaps, or tables do not match.
    """
    shares: list[_Share | Exception | None] = group.all_gather(_describe(source))
    for share in shares:
        if isinstance(share, Exception):
            raise share
    own_shares = [s for s in shares if isinstance(s, _Share)]
    if not own_shares:
        raise ValueError("no rank of the node group brings a graph: source is None on all of them")
    if own_shares[0].node_range is None:
        holder = next(r for r, s in enumerate(shares) if s is not None)
        return _undivided(own_shares[0], holder, group.world_size)
    if len(own_shares) < group.world_size or any(s.node_range is None for s in own_shares):
        raise ValueError("a source split over ranks must have a node_range on every rank")
    return _merged(own_shares)


@dataclass
class _Share:
    num_nodes: dict[NodeType, int]
    num_edges: dict[EdgeType, int]
    node_tables: dict[NodeType, dict[str, TableSpec]]
    edge_tables: dict[EdgeType, dict[str, TableSpec]]
    node_range: dict[NodeType, tuple[int, int]] | None
    frames: Frames


def _describe(source: GraphSource | None) -> _Share | Exception | None:
    if source is None:
        return None
    try:
        source.validate()
    except (TypeError, ValueError) as error:
        return error
    return _Share(
        dict(source.num_nodes),
        {t: e.num_edges for t, e in source.edges.items()},
        {t: _specs(tables) for t, tables in source.node_tables.items()},
        {t: _specs(tables) for t, tables in source.edge_tables.items()},
        None if source.node_range is None else dict(source.node_range),
        source.frames,
    )


def _specs(tables: Mapping[str, Tensor | RowSource]) -> dict[str, TableSpec]:
    return {n: TableSpec.of(table) for n, table in tables.items()}


def _undivided(share: _Share, holder: int, world_size: int) -> Schema:
    all_nodes = {t: (0, n) for t, n in share.num_nodes.items()}
    none = dict.fromkeys(share.num_nodes, (0, 0))
    return Schema(
        share.num_nodes,
        share.num_edges,
        share.node_tables,
        share.edge_tables,
        tuple(all_nodes if r == holder else none for r in range(world_size)),
        tuple(dict.fromkeys(share.num_edges, 0) for _ in range(world_size)),
        holder,
        share.frames,
    )


def _merged(shares: list[_Share]) -> Schema:
    first = shares[0]
    for share in shares[1:]:
        if share.num_nodes != first.num_nodes or share.num_edges.keys() != first.num_edges.keys():
            raise ValueError("the ranks' sources differ in node types, node counts or edge types")
        if share.frames != first.frames:
            raise ValueError("the ranks' sources differ in their frames")
    for node_type, count in first.num_nodes.items():
        _check_ranges(node_type, count, shares)
    edge_begin = []
    total = dict.fromkeys(first.num_edges, 0)
    for share in shares:
        edge_begin.append(dict(total))
        for edge_type, count in share.num_edges.items():
            total[edge_type] += count
    return Schema(
        first.num_nodes,
        total,
        _merged_tables([s.node_tables for s in shares], first.num_nodes),
        _merged_tables([s.edge_tables for s in shares], total),
        tuple(s.node_range or {} for s in shares),
        tuple(edge_begin),
        frames=first.frames,
    )


def _check_ranges(node_type: NodeType, count: int, shares: list[_Share]) -> None:
    ranges = [(s.node_range or {}).get(node_type, (-1, -1)) for s in shares]
    bounds = [0, *(bound for pair in ranges for bound in pair), count]
    gaps = any(bounds[i] != bounds[i + 1] for i in range(0, len(bounds), 2))
    if gaps or any(begin > end for begin, end in ranges):
        raise ValueError(
            f"node_range of {node_type!r} must cover 0..{count} in rank order, got {ranges}"
        )


def _merged_tables(parts: list[dict], rows: dict) -> dict:  # type: ignore[type-arg]
    for tables in parts[1:]:
        if _row_specs(tables) != _row_specs(parts[0]):
            raise ValueError("the ranks' sources differ in table names, row shapes or dtypes")
    return {
        t: {n: replace(s, shape=(rows[t], *s.shape[1:])) for n, s in specs.items()}
        for t, specs in parts[0].items()
    }


def _row_specs(tables: dict) -> dict:  # type: ignore[type-arg]
    return {
        t: {n: (s.shape[1:], s.dtype, s.storage) for n, s in v.items()} for t, v in tables.items()
    }
