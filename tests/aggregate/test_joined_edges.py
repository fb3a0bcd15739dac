"""Edges of several relations as one matrix, compared with sets and lists of Python."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from peergraph.aggregate.sparse.joined_edges import (
    JoinedEdges,
    KeyedEdges,
    join_edges,
    matrix_of_all,
)

Pairs = list[tuple[int, int]]
DTYPES = [torch.int32, torch.int64]


def random_relations(
    device: torch.device, dtype: torch.dtype, seed: int, sizes: list[int], num_edges: list[int]
) -> tuple[list[KeyedEdges], list[int], list[int]]:
    """Relations from type 0 to each type: rows of a destination lie side by side, by type."""
    generator = torch.Generator().manual_seed(seed)
    row_starts, column_starts, relations = [0], [0], []
    for size, count in zip(sizes, num_edges, strict=True):
        ends = [
            torch.randint(max(1, n), (count,), generator=generator, dtype=torch.int64)
            for n in (sizes[0], size)
        ]
        edges = torch.stack(ends).to(device, dtype)
        keys = column_starts[-1], row_starts[-1] + 1, 3
        relations.append(KeyedEdges(edges, sizes[0], size, *keys))
        column_starts.append(column_starts[-1] + sizes[0])
        row_starts.append(row_starts[-1] + 3 * size)
    return relations, row_starts, column_starts


def edges_of(relation: KeyedEdges) -> list[tuple[int, int]]:
    if relation.edges is None:
        return [(node, node) for node in range(relation.num_destinations)]
    sources, destinations = relation.edges.tolist()
    return list(zip(sources, destinations, strict=True))


def reference(relations: list[KeyedEdges]) -> tuple[list[int], list[int], list[Pairs]]:
    """The keys of rows and of columns, and the columns of each row as (column key, edge)."""
    keys = [
        (each.first_row + each.row_stride * destination, each.first_column + source)
        for each in relations
        for source, destination in edges_of(each)
    ]
    rows, columns = sorted({row for row, _ in keys}), sorted({column for _, column in keys})
    lists: dict[int, Pairs] = {row: [] for row in rows}
    for edge, (row, column) in enumerate(keys):
        lists[row].append((column, edge))
    return rows, columns, [lists[row] for row in rows]


def check(
    joined: JoinedEdges, relations: list[KeyedEdges], starts: tuple[list[int], list[int]]
) -> None:
    rows, columns, lists = reference(relations)
    row_starts, column_starts = starts
    segments = joined.row_segments.tolist()
    shifts = [row_starts[segment] for segment in segments]
    assert [a + b for a, b in zip(joined.rows.tolist(), shifts, strict=True)] == rows
    assert joined.row_cuts == [sum(key < cut for key in rows) for cut in row_starts]
    assert joined.column_cuts == [sum(key < cut for key in columns) for cut in column_starts]
    by_segment = torch.arange(len(column_starts) - 1).repeat_interleave(
        torch.tensor(joined.column_cuts).diff()
    )
    shifts = [column_starts[segment] for segment in by_segment]
    assert [a + b for a, b in zip(joined.columns.tolist(), shifts, strict=True)] == columns
    for first, end, last in zip(row_starts, row_starts[1:], joined.row_lasts, strict=False):
        assert last == max((key - first for key in rows if first <= key < end), default=-1)
    matrix = joined.matrix
    degrees = [len(each) for each in lists]
    assert matrix.in_degrees().tolist() == degrees
    sources = [columns[i] for i in matrix.indices.tolist()]
    assert sources == [column for each in lists for column, _ in each]
    long, chunk = 512, 256
    chunks = sum(-(-n // chunk) for n in degrees if n > long)
    assert matrix.max_chunks == (0 if matrix.device.type == "cpu" else chunks)


def check_transpose(joined: JoinedEdges) -> None:
    assert joined.matrix.has_transpose
    transpose = joined.matrix.transpose()
    matrix = joined.matrix
    columns = matrix.indices.cpu()
    rows = torch.repeat_interleave(torch.arange(matrix.num_destinations), matrix.in_degrees().cpu())
    assert transpose.indices.tolist() == rows[torch.argsort(columns, stable=True)].tolist()
    counts = torch.bincount(columns, minlength=matrix.num_sources)
    assert transpose.in_degrees().tolist() == counts.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("sizes", "num_edges"),
    [
        ([7, 5, 0, 9], [20, 3, 0, 14]),
        ([50], [4000]),
        ([3, 1], [0, 0]),
        ([5, 400_000, 400_000], [9, 6, 5]),  # many more keys than edges
        ([400_000, 3], [8, 2]),
        ([900, 2, 300], [5000, 3000, 700]),  # rows that a GPU cuts in chunks
    ],
    ids=["types", "one", "no edges", "many destinations", "many sources", "long rows"],
)
def test_equals_joining_by_lists(
    device: torch.device,
    dtype: torch.dtype,
    gradients: bool,
    sizes: list[int],
    num_edges: list[int],
) -> None:
    for seed in range(3):
        relations, *starts = random_relations(device, dtype, seed, sizes, num_edges)
        joined = join_edges(relations, *starts, gradients=gradients)
        check(joined, relations, (starts[0], starts[1]))
        if gradients:
            check_transpose(joined)


@pytest.mark.parametrize(
    ("sizes", "num_edges"),
    [([7, 5, 0, 9], [20, 3, 0, 14]), ([3, 1], [0, 0]), ([900, 2, 300], [5000, 3000, 700])],
)
def test_fixed_shapes(device: torch.device, sizes: list[int], num_edges: list[int]) -> None:
    """Shapes depend on the numbers of nodes and edges; what is added to a segment has no edges."""
    shapes = set()
    for seed in range(3):
        relations, *starts = random_relations(device, torch.int64, seed, sizes, num_edges)
        fixed = join_edges(relations, *starts, gradients=True, fixed=True)
        exact = join_edges(relations, *starts, gradients=True)
        check_transpose(fixed)
        shapes.add((*fixed.row_cuts, *fixed.column_cuts, *fixed.row_lasts))
        assert fixed.matrix.num_destinations == fixed.row_cuts[-1] == len(fixed.rows)
        assert fixed.matrix.num_sources == fixed.column_cuts[-1] == len(fixed.columns)
        for segment, (first, end) in enumerate(pairwise(fixed.row_cuts)):
            assert set(fixed.row_segments[first:end].tolist()) <= {segment}
        used_rows = fixed.matrix.in_degrees() > 0
        used_columns = fixed.matrix.transpose().in_degrees() > 0
        assert torch.equal(fixed.rows[used_rows], exact.rows)
        assert torch.equal(fixed.row_segments[used_rows], exact.row_segments)
        assert torch.equal(fixed.columns[used_columns], exact.columns)
        assert torch.equal(fixed.matrix.in_degrees()[used_rows], exact.matrix.in_degrees())
        numbers = torch.cumsum(used_columns, 0) - 1
        assert torch.equal(numbers[fixed.matrix.indices], exact.matrix.indices)
        for segment, (first, end) in enumerate(pairwise(fixed.row_cuts)):
            last = starts[0][segment + 1] - starts[0][segment] - 1
            assert set(fixed.rows[first:end][~used_rows[first:end]].tolist()) <= {last}
        for segment, (first, end) in enumerate(pairwise(fixed.column_cuts)):
            count = starts[1][segment + 1] - starts[1][segment]
            assert bool((fixed.columns[first:end] < count).all())
    assert len(shapes) == 1


@pytest.mark.parametrize("edge_ids", [False, True])
def test_rows_and_columns_of_all_keys(device: torch.device, edge_ids: bool) -> None:
    relations, *starts = random_relations(device, torch.int32, 1, [9, 4, 7], [40, 0, 21])
    matrix = matrix_of_all(
        device, relations, starts[0][-1], starts[1][-1], edge_ids=edge_ids, gradients=True
    )
    pairs = [
        (each.first_row + each.row_stride * destination, each.first_column + source)
        for each in relations
        for source, destination in edges_of(each)
    ]
    order = sorted(range(len(pairs)), key=lambda edge: pairs[edge][0])
    assert (matrix.num_destinations, matrix.num_sources) == (starts[0][-1], starts[1][-1])
    assert matrix.indices.tolist() == [pairs[edge][1] for edge in order]
    counts = torch.bincount(torch.tensor([row for row, _ in pairs]), minlength=starts[0][-1])
    assert matrix.in_degrees().tolist() == counts.tolist()
    transpose = matrix.transpose()
    order = sorted(order, key=lambda edge: pairs[edge][1])
    assert transpose.indices.tolist() == [pairs[edge][0] for edge in order]
    if edge_ids:
        assert matrix.edge_ids is not None
        assert transpose.edge_ids is not None
        assert [pairs[e][1] for e in matrix.edge_ids.tolist()] == matrix.indices.tolist()
        assert transpose.edge_ids.tolist() == order
    else:
        assert matrix.edge_ids is None


@pytest.mark.parametrize("fixed", [False, True])
def test_edges_of_nodes_to_themselves(device: torch.device, fixed: bool) -> None:
    relations, *starts = random_relations(device, torch.int32, 2, [9, 4, 7], [40, 0, 21])
    loops = KeyedEdges(None, 9, 5, starts[1][-1], starts[0][-1], 2)
    starts[0].append(starts[0][-1] + 10)
    starts[1].append(starts[1][-1] + 9)
    written = loops._replace(edges=torch.arange(5, device=device).expand(2, -1))
    for place in (0, 2, 3):
        both = [[*relations[:place], each, *relations[place:]] for each in (loops, written)]
        joined, expected = (join_edges(each, *starts, gradients=True, fixed=fixed) for each in both)
        assert (joined.row_cuts, joined.column_cuts) == (expected.row_cuts, expected.column_cuts)
        assert joined.row_lasts == expected.row_lasts
        matrices = [matrix_of_all(device, each, starts[0][-1], starts[1][-1]) for each in both]
        for one, other in ((joined.matrix, expected.matrix), matrices):
            assert torch.equal(one.indptr, other.indptr)
            assert torch.equal(one.indices, other.indices)
        if not fixed:
            check(joined, both[0], (starts[0], starts[1]))
            check_transpose(joined)


def test_fixed_shapes_take_relations_of_one_segment(device: torch.device) -> None:
    edges = torch.zeros(2, 3, dtype=torch.int64, device=device)
    relation = KeyedEdges(edges, 4, 2, 0, 0)
    with pytest.raises(ValueError, match="keys of a relation must be of one segment"):
        join_edges([relation], [0, 2], [0, 2, 4], fixed=True)
    relation = KeyedEdges(edges, 9_000_000, 2, 0, 0)
    with pytest.raises(NotImplementedError, match="9000000 nodes for 3 edges"):
        join_edges([relation], [0, 2], [0, 9_000_000], fixed=True)


def test_many_relations(device: torch.device) -> None:
    sizes, num_edges = [30] * 300, [4] * 300
    relations, *starts = random_relations(device, torch.int64, 5, sizes, num_edges)
    check(join_edges(relations, *starts), relations, (starts[0], starts[1]))


def test_rows_of_an_edge_index_need_not_be_contiguous(device: torch.device) -> None:
    edges = torch.tensor([[0, 1], [2, 0], [2, 1]], device=device).t()
    relation = KeyedEdges(edges, 3, 2, 0, 0)
    joined = join_edges([relation], [0, 2], [0, 3])
    assert joined.columns.tolist() == [0, 2]
    assert joined.matrix.indices.tolist() == [1, 0, 1]


@pytest.mark.parametrize("many", [False, True], ids=["few keys", "many keys"])
@pytest.mark.parametrize(
    ("ends", "message"),
    [
        (([0, 5], [0, 0]), r"relations\[1\].edge_index\[0\]\[1\] = 5 is out of range for 5 sou"),
        (([0, -1], [0, 0]), r"relations\[1\].edge_index\[0\]\[1\] = -1 is out of range"),
        (([0, 1], [4, 0]), r"relations\[1\].edge_index\[1\]\[0\] = 4 is out of range for 4 dest"),
    ],
)
def test_ids_out_of_range(
    device: torch.device, many: bool, ends: tuple[list[int], list[int]], message: str
) -> None:
    good = torch.zeros(2, 3, dtype=torch.int64, device=device)
    bad = torch.tensor(ends, device=device)
    size = 9_000_000 if many else 5
    relations = [
        KeyedEdges(good, 5, size, 0, 0),
        KeyedEdges(bad, 5, 4, 5, size),
    ]
    with pytest.raises(IndexError, match=message):
        join_edges(relations, [0, size, size + 4], [0, 5, 10])
