"""Groups the rows of joined edges by destination, in one call of the compiled module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import launch_on
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.aggregate.sparse.joined_edges import Int32Arrays, JoinedEdges
from peergraph.memory.device.launching import Buffers


class GroupedRows(NamedTuple):
    """The rows of a matrix of joined edges by destination.

    Destinations are numbered group after group.
    """

    owners: Tensor
    """[rows] int32, the destination of each row."""
    sums: EdgeMatrix
    """Adds up the rows of each destination."""
    places: Tensor | None
    """[rows] int64, the key of each row, counting from the first place of its segment."""
    by_destination: EdgeMatrix | None
    """Has a row for each destination, and a column for each edge: the destination's edges, in the
    order of its rows."""


def sizes_with_rows(
    joined: JoinedEdges, groups: Sequence[int], num_groups: int, strides: Sequence[int]
) -> list[int]:
    """Returns the number of destinations of each group up to the last one that has a row.

    Args:
        joined, groups, strides: as for :func:`group_rows`.
        num_groups: bound of `groups`.
    """
    sizes = [0] * num_groups
    for group, stride, last in zip(groups, strides, joined.row_lasts, strict=True):
        sizes[group] = max(sizes[group], last // stride + 1)
    return sizes


def group_rows(
    joined: JoinedEdges,
    groups: Sequence[int],
    strides: Sequence[int],
    sizes: Sequence[int],
    *,
    place_starts: Sequence[int] | None = None,
    edges: bool = False,
    max_chunks: int | None = None,
) -> GroupedRows:
    """Groups the rows of joined edges.

    Args:
        joined: the edges.
        groups, strides: of each segment of rows. The row of a key belongs to the destination
            ``key // stride`` of the segment's group.
        sizes: the destinations of each group, at least :func:`sizes_with_rows`.
        place_starts: the first place of each segment: makes ``places``.
        edges: makes ``by_destination``.
        max_chunks: of ``sums``.

    Synchronises no GPU.
    """
    matrix, num_owners = joined.matrix, sum(sizes)
    rows, device = joined.row_cuts[-1], matrix.device
    num_edges = matrix.num_edges if edges else 0
    of_edges = [num_owners + 1, num_edges] if edges else [0, 0]
    counts = [rows, num_owners + 1, rows, *of_edges, 0 if place_starts is None else 2 * rows]
    memory = Int32Arrays(counts, device)
    owners, indptr, ids, edge_indptr, edge_ids, places = memory.arrays(counts)
    of_keys = None if place_starts is None else places.view(torch.int64)
    _C.group_rows(
        joined.rows,
        matrix.indptr,
        row_cuts=joined.row_cuts,
        groups=groups,
        strides=strides,
        place_starts=place_starts or [0] * len(groups),
        sizes=sizes,
        owners=owners,
        places=of_keys,
        indptr=indptr,
        rows=ids,
        edge_indptr=edge_indptr if edges else None,
        edges=edge_ids if edges else None,
        num_edges=num_edges,
        launch=launch_on(device),
        allocate=Buffers(device),
    )
    return GroupedRows(
        owners,
        EdgeMatrix(indptr, ids, rows, max_chunks=max_chunks),
        of_keys,
        EdgeMatrix(edge_indptr, edge_ids, num_edges, edge_ids=edge_ids) if edges else None,
    )
