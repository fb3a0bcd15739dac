"""Rows of joined edges by destination, compared with lists of Python."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch import Tensor

from peergraph.aggregate.sparse.joined_edges import JoinedEdges, KeyedEdges, join_edges
from peergraph.aggregate.sparse.joined_rows import group_rows, sizes_with_rows


def joined_segments(
    device: torch.device, lengths: list[int], num_edges: list[int], *, fixed: bool = False
) -> JoinedEdges:
    """Edges from 40 sources to random keys of segments of these lengths."""
    starts, relations = [0, *accumulate(lengths)], []
    for i, (first, length, count) in enumerate(zip(starts, lengths, num_edges, strict=False)):
        generator = torch.Generator().manual_seed(i)
        ends = [torch.randint(max(1, n), (count,), generator=generator) for n in (40, length)]
        relations.append(KeyedEdges(torch.stack(ends).to(device), 40, length, 0, first))
    return join_edges(relations, starts, [0, 40], fixed=fixed)


def lists(indptr: Tensor, values: Tensor) -> list[list[int]]:
    return [part.tolist() for part in values.split(indptr.diff().tolist())]


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(
    ("lengths", "num_edges", "groups", "strides"),
    [
        ([12, 0, 30], [9, 0, 44], [0, 1, 2], [3, 1, 2]),  # a segment for each group
        ([20, 6, 20, 20, 6], [8, 3, 0, 30, 50], [1, 3, 1, 1, 3], [1] * 5),  # several
        ([5, 5], [0, 0], [0, 0], [1, 1]),
        ([700, 2], [3000, 5000], [0, 1], [1, 1]),  # long lists
        ([4] * 300, [3] * 300, [0] * 300, [1] * 300),
    ],
    ids=["one each", "several", "no edges", "many edges", "many segments"],
)
def test_equals_grouping_by_lists(
    device: torch.device,
    fixed: bool,
    lengths: list[int],
    num_edges: list[int],
    groups: list[int],
    strides: list[int],
) -> None:
    joined = joined_segments(device, lengths, num_edges, fixed=fixed)
    sizes = sizes_with_rows(joined, groups, 4, strides)
    starts = list(accumulate([1, *lengths[:-1]]))
    rows = group_rows(joined, groups, strides, sizes, place_starts=starts, edges=True)
    firsts = [0, *accumulate(sizes)]
    owners, places = [], []
    for key, segment in zip(joined.rows.tolist(), joined.row_segments.tolist(), strict=True):
        owners.append(firsts[groups[segment]] + key // strides[segment])
        places.append(starts[segment] + key)
    ends = [0] * 4
    of_segments = zip(lengths, groups, strides, joined.row_lasts, strict=True)
    for length, group, stride, last in of_segments:
        ends[group] = max(ends[group], -(-length // stride) if fixed else last // stride + 1)
    assert ends == sizes
    assert max(owners, default=-1) < sum(sizes)
    assert rows.owners.tolist() == owners
    assert rows.places is not None
    assert rows.places.tolist() == places
    by_owner: list[list[int]] = [[] for _ in range(firsts[-1])]
    for row, owner in enumerate(owners):
        by_owner[owner].append(row)
    assert lists(rows.sums.indptr, rows.sums.indices) == by_owner
    of_rows: list[list[int]] = [[] for _ in owners]
    degrees = joined.matrix.in_degrees().cpu()
    for edge, row in enumerate(torch.arange(len(owners)).repeat_interleave(degrees).tolist()):
        of_rows[row].append(edge)
    edges = rows.by_destination
    assert edges is not None
    assert edges.edge_ids is edges.indices
    assert lists(edges.indptr, edges.indices) == [
        [edge for row in each for edge in of_rows[row]] for each in by_owner
    ]


def test_makes_what_is_asked_for(device: torch.device) -> None:
    joined = joined_segments(device, [6, 6], [5, 5])
    sizes = sizes_with_rows(joined, [0, 0], 1, [1, 1])
    rows = group_rows(joined, [0, 0], [1, 1], sizes, max_chunks=7)
    assert (rows.places, rows.by_destination, rows.sums.max_chunks) == (None, None, 7)
