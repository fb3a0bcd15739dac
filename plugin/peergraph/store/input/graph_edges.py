"""The edges of a graph as its ranks bring them, and their degrees over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from peergraph.memory import Group
from peergraph.memory.region.staging import Staging
from peergraph.store.input.local_csc import LocalCsc, local_structure
from peergraph.store.input.schema import Schema
from peergraph.store.input.shared_vector import add_over_ranks, build_shared_vector
from peergraph.store.input.source import EdgeType, GraphSource, NodeType
from peergraph.store.input.staged_edges import StagedEdges, add_counts, count_edges, uses_torch

_COUNT_PIECE = 1 << 24  # ids that are counted at a time

RelationEdges = LocalCsc | StagedEdges
"""The edges of a relation: this rank's part of its CSC, or those that one rank has for all."""


def graph_edges(
    source: GraphSource | None,
    schema: Schema,
    staging: Staging | None,
    group: Group,
    count_sources: bool,
    moved: Callable[[int], object],
) -> Mapping[EdgeType, RelationEdges]:
    """Returns the edges of every relation, with checked ids. Collective.

    Args:
        staging: if one rank has the graph: the memory through which all ranks read it.
        count_sources: whether :func:`out_degrees` will be called.
        moved: called with the number of edges that have been counted.

    Raises:
        IndexError: a node id is out of range. Every rank raises this.
        ValueError: an edge id occurs twice.
    """
    if staging is None:
        return local_structure(source, schema, group)
    edges = source.edges if source is not None and staging.is_holder else {}
    return {
        t: count_edges(t, edges.get(t), schema, staging, count_sources, moved)
        for t in schema.num_edges
    }


def out_degrees(
    edges: Mapping[EdgeType, RelationEdges], schema: Schema, group: Group
) -> dict[NodeType, Tensor]:
    """Returns [num_nodes] for each node type: the number of edges out of each node. Collective."""
    degrees = {}
    for node_type in schema.node_types:
        count = schema.num_nodes[node_type]
        of_type = [e for t, e in edges.items() if t[0] == node_type]
        parts = [e.indices for e in of_type if isinstance(e, LocalCsc)]
        staged = [e.out_degrees for e in of_type if isinstance(e, StagedEdges)]

        def add(counts: Tensor, parts: list[Tensor] = parts) -> None:
            for indices in parts:
                for piece in torch.split(indices, _COUNT_PIECE):
                    add_counts(counts, piece.to(counts.device), group)

        if parts or not staged:
            staged.append(
                add_over_ranks(group, count, add, atomically=not uses_torch(group.device))
            )
        total = staged[0]
        for more in staged[1:]:
            total = total + more
        degrees[node_type] = total
    return degrees


def in_degrees(
    edges: Mapping[EdgeType, RelationEdges], schema: Schema, group: Group
) -> dict[EdgeType, Tensor]:
    """Returns the in-degrees of each relation: [destinations] int64, by user id. Collective."""

    def write(degrees: Tensor, edge_type: EdgeType, csc: LocalCsc) -> None:
        begin, end = schema.node_range[group.rank][edge_type[2]]
        if begin < end:
            degrees[begin:end] = csc.indptr.diff().cpu()

    by_relation = {}
    for edge_type, of_type in edges.items():
        if isinstance(of_type, StagedEdges):
            by_relation[edge_type] = of_type.in_degrees
        else:
            by_relation[edge_type] = build_shared_vector(
                group,
                schema.num_nodes[edge_type[2]],
                lambda d, t=edge_type, csc=of_type: write(d, t, csc),  # type: ignore[misc]
                at_once=True,
            )
    return by_relation


def relations_with_edge_ids(
    edges: Mapping[EdgeType, RelationEdges], group: Group
) -> dict[EdgeType, bool]:
    """Returns, for each relation, whether edge ids differ from CSC positions. Collective."""
    mine = {
        t: e.has_edge_ids if isinstance(e, StagedEdges) else e.edge_ids is not None
        for t, e in edges.items()
    }
    everyone = group.all_gather(mine)
    return {t: any(m[t] for m in everyone) for t in mine}
