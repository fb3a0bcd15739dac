"""The edges of several relations as one matrix, by one call of the compiled module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import launch_on
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.aggregate.sparse.index_tensors import are_few_keys, check_range, cuts_of, on_device
from peergraph.memory.device.launching import Buffers

MAX_EDGES = 2**31 - 2
"""The most edges that are joined."""

# Kernels read vectors of 16 bytes.
_ALIGN = 4


class Int32Arrays:
    """One allocation for several arrays of int32.

    Args:
        lengths: of the arrays.
        device: where they are.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self._room = [-(-length // _ALIGN) * _ALIGN for length in lengths]
        self._whole = torch.empty(sum(self._room), dtype=torch.int32, device=device)

    def arrays(self, lengths: Sequence[int] | None = None) -> Sequence[Tensor]:
        """Returns the arrays, of these lengths at most; None: of the room that there is."""
        if lengths is None:
            return self._whole.split_with_sizes(self._room)
        pairs = zip(lengths, self._room, strict=True)
        sizes = [size for length, room in pairs for size in (length, room - length)]
        return self._whole.split_with_sizes(sizes)[::2]


class KeyedEdges(NamedTuple):  # a frozen dataclass takes several times as long to make
    """The edges of one relation, and the keys of their rows and columns.

    The compiled module takes it as it is.

    Args:
        edges: [2, edges] int32 or int64: sources, destinations. None: an edge from each node to
            itself, for all destinations.
        num_sources, num_destinations: bounds of the ids.
        first_column: the column key of source 0; that of the next one is one more.
        first_row: the row key of destination 0.
        row_stride: the distance of the row keys of two destinations that follow each other.
    """

    edges: Tensor | None
    num_sources: int
    num_destinations: int
    first_column: int
    first_row: int
    row_stride: int = 1

    @property
    def num_edges(self) -> int:
        """The number of edges."""
        return self.num_destinations if self.edges is None else self.edges.shape[1]

    def with_dense_rows(self) -> KeyedEdges:
        """Returns the same with edges whose sources, and destinations, are side by side."""
        edges = self.edges
        if edges is None or edges.stride(1) == 1:
            return self
        return self._replace(edges=edges.contiguous())


@dataclass(frozen=True)
class JoinedEdges:
    """One matrix of the edges of several relations, without rows and columns that have no edges.

    Args:
        matrix: the edges, int32; those of a row are in the order of relations and edges.
        rows: [rows] int32, the key of each row less the first key of its segment.
        row_segments: [rows] int32, the segment of each row.
        row_cuts: the first row of each segment, and the number of rows.
        row_lasts: the highest key of each segment that has edges, less its first one; -1: none has.
        columns: [columns] int32, the key of each column less the first key of its segment.
        column_cuts: the first column of each segment, and the number of columns.
    """

    matrix: EdgeMatrix
    rows: Tensor
    row_segments: Tensor
    row_cuts: list[int]
    row_lasts: list[int]
    columns: Tensor
    column_cuts: list[int]


def join_edges(
    relations: Sequence[KeyedEdges],
    row_starts: Sequence[int],
    column_starts: Sequence[int],
    *,
    gradients: bool = False,
    fixed: bool = False,
) -> JoinedEdges:
    """Numbers the rows and the columns that have edges, in the order of their keys.

    Args:
        relations: at least one, of which one has a tensor of edges.
        row_starts, column_starts: the first key of each segment, from 0 on, and the number of keys.
        gradients: makes the transpose.
        fixed: shapes and cuts depend on the numbers of keys and edges only. Each segment then has
            as many rows (columns) as its edges can need. Those that they do not need have no edges;
            such rows are of the last key, such columns of any. The keys of a relation are of one
            segment. Ids must be in range: on a GPU they are not verified.

    Synchronises with the current stream of a GPU, once; not if `fixed`.

    Raises:
        IndexError: the first id out of range.
        ValueError: there are more than :data:`MAX_EDGES` edges.
        NotImplementedError: `fixed`, and there are too many keys for an array of all of them.
    """
    num_edges = sum([each.num_edges for each in relations])
    if num_edges > MAX_EDGES:
        raise ValueError(f"relations must have at most {MAX_EDGES} edges, got {num_edges}")
    most = max(row_starts[-1], column_starts[-1])
    if most > MAX_EDGES or not are_few_keys(most, num_edges):
        if fixed:
            raise NotImplementedError(
                f"{most} nodes for {num_edges} edges in arrays of fixed shape"
            )
        return _join_sorted(relations, row_starts, column_starts, gradients)
    return _join(relations, row_starts, column_starts, num_edges, gradients, fixed)


def matrix_of_all(
    device: torch.device,
    relations: Sequence[KeyedEdges],
    num_rows: int,
    num_columns: int,
    *,
    edge_ids: bool = False,
    gradients: bool = False,
) -> EdgeMatrix:
    """Returns one matrix of the edges of several relations, with a row and a column for every key.

    Args:
        device: of the edges.
        relations: at least one; ids must be in range: on a GPU they are not verified.
        num_rows, num_columns: the numbers of keys.
        edge_ids: whether edges have values: the matrix has the number of each edge, counting those
            of all relations.
        gradients: makes the transpose.

    Synchronises no GPU.

    Raises:
        IndexError: on the CPU, the first id out of range.
    """
    num_edges = sum([each.num_edges for each in relations])
    cuts = [0, num_rows], [0, num_columns]
    return _native_join(
        device, relations, *cuts, num_edges, gradients, _C.KeyNumbering.all, edge_ids
    ).matrix


def _join(
    relations: Sequence[KeyedEdges],
    row_starts: Sequence[int],
    column_starts: Sequence[int],
    num_edges: int,
    gradients: bool,
    fixed: bool = False,
) -> JoinedEdges:
    numbering = _C.KeyNumbering.fixed if fixed else _C.KeyNumbering.used
    keys = row_starts, column_starts
    return _native_join(_device_of(relations), relations, *keys, num_edges, gradients, numbering)


def _native_join(
    device: torch.device,
    relations: Sequence[KeyedEdges],
    row_starts: Sequence[int],
    column_starts: Sequence[int],
    num_edges: int,
    gradients: bool,
    numbering: _C.KeyNumbering,
    edge_ids: bool = False,
) -> JoinedEdges:
    is_all, is_used = numbering == _C.KeyNumbering.all, numbering == _C.KeyNumbering.used
    most_rows = row_starts[-1] if is_all else min(row_starts[-1], num_edges)
    most_columns = column_starts[-1] if is_all else min(column_starts[-1], num_edges)

    def lengths(rows: int, columns: int) -> list[int]:
        of_keys = [0, 0, 0] if is_all else [rows, rows, columns]
        of_rows = [*of_keys, rows + 1, num_edges, num_edges if edge_ids else 0]
        return [*of_rows, columns + 1, num_edges, num_edges] if gradients else of_rows

    memory = Int32Arrays(lengths(most_rows, most_columns), device)
    rows, segments, columns, indptr, indices, ids, *transpose = memory.arrays()
    row_cuts, row_lasts, row_chunks, column_cuts, column_chunks, bad_edge = _C.join_edges(
        [each.with_dense_rows() for each in relations],
        num_rows=row_starts[-1],
        row_starts=list(row_starts[:-1]),
        num_columns=column_starts[-1],
        column_starts=list(column_starts[:-1]),
        row_keys=None if is_all else rows,
        row_segments=None if is_all else segments,
        column_keys=None if is_all else columns,
        indptr=indptr,
        indices=indices,
        edge_ids=ids if edge_ids else None,
        by_column=transpose[0] if gradients else None,
        rows_of=transpose[1] if gradients else None,
        positions=transpose[2] if gradients else None,
        numbering=numbering,
        schedule=_C.Schedule(),
        launch=launch_on(device),
        allocate=Buffers(device),
    )
    if bad_edge >= 0:
        _raise_bad_id(relations)
    num_rows, num_columns = row_cuts[-1], column_cuts[-1]
    arrays = memory.arrays(lengths(num_rows, num_columns))
    rows, segments, columns, indptr, indices, ids, *transpose = arrays
    matrix = EdgeMatrix(
        indptr,
        indices,
        num_columns,
        edge_ids=ids if edge_ids else None,
        max_chunks=row_chunks if is_used else None,
    )
    if gradients:
        by_column, rows_of, positions = transpose
        matrix.has_edge_operands = edge_ids or not is_all
        matrix.adopt_transpose(by_column, rows_of, positions, column_chunks if is_used else None)
    return JoinedEdges(matrix, rows, segments, row_cuts, row_lasts, columns, column_cuts)


def _join_sorted(
    relations: Sequence[KeyedEdges],
    row_starts: Sequence[int],
    column_starts: Sequence[int],
    gradients: bool,
) -> JoinedEdges:
    """Does the same for many keys: the distinct ones are found by a sort, and numbered first."""
    device = _device_of(relations)
    counts = [each.num_edges for each in relations]
    of_relations = [
        [each.num_sources for each in relations],
        [each.num_destinations for each in relations],
        [each.first_column for each in relations],
        [each.first_row for each in relations],
        [each.row_stride for each in relations],
        counts,
    ]
    table = on_device(of_relations, device)
    of_edge = table[:5].repeat_interleave(table[5], 1, output_size=sum(counts))
    ends = [
        torch.arange(count, device=device).expand(2, -1) if each.edges is None else each.edges
        for each, count in zip(relations, counts, strict=True)
    ]
    sources, destinations = torch.cat([each.long() for each in ends], 1)
    bad = (sources < 0) | (destinations < 0)
    if bool((bad | (sources >= of_edge[0]) | (destinations >= of_edge[1])).any()):
        _raise_bad_id(relations)
    columns, column_of = torch.unique(sources + of_edge[2], return_inverse=True)
    rows, row_of = torch.unique(destinations * of_edge[4] + of_edge[3], return_inverse=True)
    numbered = [
        KeyedEdges(edges, columns.shape[0], rows.shape[0], 0, 0)
        for edges in torch.split(torch.stack([column_of, row_of]), counts, 1)
    ]
    joined = _join(numbered, [0, rows.shape[0]], [0, columns.shape[0]], sum(counts), gradients)
    cuts = torch.cat([cuts_of(rows, row_starts), cuts_of(columns, column_starts)])
    bounds: list[int] = cuts.tolist()
    row_cuts, column_cuts = bounds[: len(row_starts)], bounds[len(row_starts) :]
    row_segments, row_shifts = _segments(row_cuts, row_starts, device)
    _, column_shifts = _segments(column_cuts, column_starts, device)
    local_rows = (rows - row_shifts).to(torch.int32)
    lasts = [max(0, last - 1) for last in row_cuts[1:]]
    highest: list[int] = local_rows[on_device(lasts, device)].tolist()
    return replace(
        joined,
        rows=local_rows,
        row_segments=row_segments,
        row_cuts=row_cuts,
        row_lasts=[
            key if first < end else -1
            for key, first, end in zip(highest, row_cuts, row_cuts[1:], strict=False)
        ],
        columns=(columns - column_shifts).to(torch.int32),
        column_cuts=column_cuts,
    )


def _segments(
    cuts: list[int], starts: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Returns the segment of each key, int32, and the first key of that segment."""
    lengths = on_device([end - first for first, end in pairwise(cuts)], device)
    segments = torch.arange(len(lengths), device=device)
    numbers = segments.repeat_interleave(lengths, output_size=cuts[-1] - cuts[0])
    return numbers.to(torch.int32), on_device(starts, device)[numbers]


def _device_of(relations: Sequence[KeyedEdges]) -> torch.device:
    return next(each.edges.device for each in relations if each.edges is not None)


def _raise_bad_id(relations: Sequence[KeyedEdges]) -> None:
    """Raises IndexError for the first id out of range."""
    for i, each in enumerate(relations):
        if each.edges is not None:
            name, (sources, destinations) = f"relations[{i}].edge_index", each.edges
            check_range(f"{name}[0]", sources, each.num_sources, "sources")
            check_range(f"{name}[1]", destinations, each.num_destinations, "destinations")
    raise RuntimeError("relations: their edges were changed by another thread")
