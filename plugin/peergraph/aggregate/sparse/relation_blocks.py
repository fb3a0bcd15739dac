"""The edges of several relations, for sums that lie side by side: a block for each relation.

Sums before products take one kernel for all relations, and one product for each result: the rows of
a result's destinations are the sums of all relations into it, one after the other, so that a matrix
of all weights, one above the other, multiplies and adds them. The destinations' own rows are a
block as well, of one edge each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import Schedule, count_chunks, sum_dtype
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix, tensors_of
from peergraph.aggregate.sparse.index_tensors import (
    check_ids,
    check_range,
    cuts_of,
    distinct,
    group_by,
    on_device,
)
from peergraph.aggregate.sparse.joined_edges import MAX_EDGES, KeyedEdges, matrix_of_all
from peergraph.aggregate.sparse.typed_edges import Relation, check_relation

# Blocks of sums may have this many times as many rows as pairs of a destination and a relation
# have edges; the others are zeros. Beyond, only pairs that have edges have rows.
_MOST_ROWS = 2
# With at most this many rows of sums, every destination has one for each block: a GPU takes less
# time to write and multiply zeros than its host takes to find the pairs that have edges.
_FEW_ROWS = {"cpu": 1 << 10, "cuda": 1 << 16}
# The tail of a type, its destinations at the end that have no edges, is left out if it is more than
# one in `_LONG_TAIL` of them, and would take more than `_SHORT_TAIL` rows of sums: what makes its
# results apart takes several launches.
_LONG_TAIL = 8
_SHORT_TAIL = {"cpu": 0, "cuda": 1 << 15}


@dataclass(frozen=True)
class BlockProduct:
    """Rows of sums that are multiplied together.

    Args:
        first, last: the range of rows. Each destination has one row for each block.
        blocks: positions of the blocks, in the order of rows.
        output: the position of the result to which the products belong.
    """

    first: int
    last: int
    blocks: list[int]
    output: int


@dataclass(frozen=True)
class BlockGroup:
    """The blocks of relations whose sources have features of one kind.

    Args:
        features: positions of the features, whose rows are the columns of the matrix in this order.
        num_rows: of each of them.
        matrix: a row of it is a row of sums.
        relations: of each block, the position of its relation; None: the destinations' own rows.
        sources: of each block, the position of its features.
        outputs: of each block, the position of its result.
        num_edges: of each block.
        products: the ranges of rows that are multiplied together, in ascending order.
        owners: where only pairs with edges have rows: the destination of each row, counting those
            of all results; else None.
        sums: likewise: by result, its rows, and a matrix that adds them up for each destination.
    """

    features: list[int]
    num_rows: list[int]
    matrix: EdgeMatrix
    relations: list[int | None]
    sources: list[int]
    outputs: list[int]
    num_edges: list[int]
    products: list[BlockProduct]
    owners: Tensor | None = None
    sums: dict[int, tuple[slice, EdgeMatrix]] = field(default_factory=dict)
    _inverse_degrees: dict[torch.dtype, Tensor] = field(default_factory=dict)

    @property
    def is_compact(self) -> bool:
        """Whether only pairs of a destination and a relation that have edges have rows."""
        return self.owners is not None

    def by_product(self, sums: Tensor) -> list[Tensor]:
        """Returns the rows of each product, with those of its blocks side by side: [destinations,
        all columns].
        """
        parts = sums.split_with_sizes([each.last - each.first for each in self.products])
        return [
            part if len(each.blocks) == 1 else part.view(-1, len(each.blocks) * part.shape[1])
            for part, each in zip(parts, self.products, strict=True)
        ]

    def rows_of(self, feature: int) -> int:
        """Returns the number of rows of one of the group's features, by its position."""
        return self.num_rows[self.features.index(feature)]

    def split(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Returns the parts of each of the features of a tensor by column of the matrix."""
        return tuple(rows.split_with_sizes(self.num_rows))

    def inverse_degrees(self, dtype: torch.dtype) -> Tensor:
        """Returns [edges, 1]: one by the number of edges of the row, in the order of the transpose.

        For a matrix without edge ids.
        """
        if dtype not in self._inverse_degrees:
            inverse = self.matrix.divisors(sum_dtype(dtype)).reciprocal_().to(dtype)
            by_edge = inverse.index_select(0, self.matrix.transpose().indices)
            self._inverse_degrees[dtype] = by_edge.unsqueeze(1)
        return self._inverse_degrees[dtype]

    def tensors(self) -> list[Tensor]:
        """Returns the tensors on the device."""
        tensors = tensors_of([self.matrix, *(matrix for _, matrix in self.sums.values())])
        return tensors if self.owners is None else [*tensors, self.owners]


class RelationBlocks:
    """The edges of several relations, in blocks of sums.

    Args:
        relations: the relations. ``sources`` is the position of a relation's features,
            ``destinations`` that of the result to which its products are added; there are no
            ``self_loops``.
        num_rows: of each of the features.
        sizes: the number of destinations of each result.
        own: for each result, the position of its destinations' own features, or None where these
            are not multiplied.
        groups: for each of the features, its group: a kernel reads all of a group. None: all are of
            one group.
        weighted: whether edges have weights: see :meth:`weights`.
        check: verify the ids. The shapes are always verified.
        gradients: whether gradients of features will be needed: makes the transposes.
        bounds: for each result, a bound of the destinations that have edges, which are the rows
            then; None: it is looked up.
        count_rows: returns for the position of a relation the number of destinations that have
            edges, or None; None: they are counted, for which the host waits.
        min_rows: returns for the position of a relation a lower bound of that number, without a
            wait. If the bound shows already that most rows have edges, nothing is counted.
        fixed: whether all shapes depend on the sizes and the numbers of edges only, as a CUDA graph
            needs: all destinations have rows, for each block.

    Synchronises with the stream of a GPU, a few times whatever the number of relations is; not
    without `check`, if `fixed`, or if `bounds` and `count_rows` are there and most rows have edges.

    Raises:
        TypeError, ValueError: an edge index of another dtype, shape or device.
        IndexError: the first id out of range, if it is checked.
    """

    def __init__(
        self,
        relations: Sequence[Relation],
        num_rows: Sequence[int],
        sizes: Sequence[int],
        own: Sequence[int | None],
        groups: Sequence[int] | None = None,
        *,
        weighted: bool = False,
        check: bool = True,
        gradients: bool = False,
        bounds: Sequence[int] | None = None,
        count_rows: Callable[[int], int | None] | None = None,
        min_rows: Callable[[int], int | None] | None = None,
        fixed: bool = False,
    ) -> None:
        if not relations:
            raise ValueError("relations must be one at least, got none")
        self.device = device = relations[0].edge_index.device
        """The device of all tensors."""
        edge_indices = [
            check_relation(f"relations[{i}]", relation, sizes[relation.destinations], device, check)
            for i, relation in enumerate(relations)
        ]
        if fixed:
            self.rows = list(sizes)
        elif bounds is None:
            self.rows = destinations_with_edges(relations, sizes)
        else:
            self.rows = _without_long_tails(bounds, sizes)
        num_blocks = [int(each is not None) for each in own]
        for relation in relations:
            num_blocks[relation.destinations] += 1
        self.rows = [
            size if (size - count) * blocks_of <= _SHORT_TAIL[device.type] else count
            for count, size, blocks_of in zip(self.rows, sizes, num_blocks, strict=True)
        ]
        """For each result, the destinations that it has: at least up to the last one with edges."""
        of_features = [0] * len(num_rows) if groups is None else groups
        by_group: list[list[_Block]] = [[] for _ in range(max(of_features) + 1)]
        for i, (relation, edges) in enumerate(zip(relations, edge_indices, strict=True)):
            feature = source_position(relation)
            block = _Block(i, feature, relation.destinations, edges, edges.shape[1])
            by_group[of_features[feature]].append(block)
        for output, position in enumerate(own):
            if position is not None:
                block = _Block(None, position, output, None, self.rows[output])
                by_group[of_features[position]].append(block)
        self.groups: list[BlockGroup] = []
        """The groups that have blocks."""
        for group, blocks in enumerate(by_group):
            if blocks:
                features = [i for i, each in enumerate(of_features) if each == group]
                of_group = device, features, blocks, num_rows, self.rows, weighted, gradients
                self.groups.append(_group(*of_group, min_rows, count_rows, fixed))
        if gradients:
            for each in self.groups:
                each.matrix.transpose()

    @classmethod
    def of_edge_types(
        cls,
        edge_index: Tensor,
        edge_type: Tensor,
        num_relations: int,
        num_rows: Sequence[int],
        size: int,
        own: int | None,
        groups: Sequence[int] | None = None,
        *,
        check: bool = True,
        gradients: bool = False,
    ) -> RelationBlocks:
        """Makes the blocks of one result of edges that have types.

        Args:
            edge_index: [2, edges] int32 or int64.
            edge_type: [edges] int32 or int64: the relation of each edge.
            num_relations: the number of relations.
            num_rows, groups, check, gradients: as for the class. The first features are those of
                sources. Types are always verified.
            size: the number of destinations.
            own: the position of the destinations' own features, or None.

        Raises:
            TypeError, ValueError, IndexError: as the class; a type out of range.
        """
        check_ids("edge_type", edge_type, edge_index.device, edge_index.shape[1])
        check_range("edge_type", edge_type, num_relations, "relations")
        relation = Relation(edge_index, num_rows[0], 0, sources=0)
        check_relation("relation", relation, size, edge_index.device, check)
        counts = torch.bincount(edge_type, minlength=num_relations).tolist()
        parts = torch.split(edge_index[:, torch.argsort(edge_type, stable=True)], counts, 1)
        relations = [Relation(part, num_rows[0], 0, sources=0) for part in parts]
        return cls(relations, num_rows, [size], [own], groups, check=False, gradients=gradients)

    def tensors(self) -> list[Tensor]:
        """Returns the tensors on the device."""
        return [tensor for group in self.groups for tensor in group.tensors()]


class _Block(NamedTuple):
    """A block: the position of its relation or None, of its features, and of its result; its edges,
    None for one from each destination to itself, and their number.
    """

    relation: int | None
    feature: int
    output: int
    edges: Tensor | None
    num_edges: int


def source_position(relation: Relation) -> int:
    """Returns the position of a relation's features; raises ValueError if it has none."""
    if relation.sources is None or relation.self_loops is not None:
        raise ValueError(f"relations must have sources and no self_loops, got {relation}")
    return relation.sources


def destinations_with_edges(relations: Sequence[Relation], sizes: Sequence[int]) -> list[int]:
    """Returns the number of destinations up to the last one with edges, for each result.

    All of them, if only a few more have none.
    """
    starts = [0, *accumulate(sizes)]
    device = relations[0].edge_index.device
    rows = [relation.edge_index[1].long() for relation in relations]
    of_relations = [[starts[each.destinations] for each in relations], [len(each) for each in rows]]
    table = on_device(of_relations, device)
    total = sum(map(len, rows))
    rows_of_all = torch.cat(rows) + table[0].repeat_interleave(table[1], output_size=total)
    flags = torch.zeros(starts[-1] + 1, dtype=torch.bool, device=device)
    flags.index_fill_(0, rows_of_all + 1, True)
    before = torch.cumsum(flags, 0, dtype=torch.int64)
    ends = before[on_device(starts[1:], device)]
    # The first place where as many destinations have edges as have some up to the end of the type.
    last: list[int] = torch.searchsorted(before, ends).tolist()
    counts = [max(0, end - first) for end, first in zip(last, starts, strict=False)]
    return _without_long_tails(counts, sizes)


def _without_long_tails(counts: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Returns the counts; where few more destinations follow, the size."""
    return [
        size if size - count <= size // _LONG_TAIL else count
        for count, size in zip(counts, sizes, strict=True)
    ]


def _group(
    device: torch.device,
    features: list[int],
    blocks: list[_Block],
    num_rows: Sequence[int],
    rows: list[int],
    weighted: bool,
    gradients: bool,
    min_rows: Callable[[int], int | None] | None,
    count_rows: Callable[[int], int | None] | None,
    fixed: bool,
) -> BlockGroup:
    """Returns a group; `num_rows` are the rows of features, `rows` those of results."""
    blocks = sorted(blocks, key=attrgetter("output"))
    rows_of_features = [num_rows[i] for i in features]
    num_columns = sum(rows_of_features)
    first_column = dict(zip(features, accumulate([0, *rows_of_features]), strict=False))
    of_output: list[list[int]] = [[] for _ in rows]
    places = []
    for block, each in enumerate(blocks):
        places.append(len(of_output[each.output]))
        of_output[each.output].append(block)
    first_row = [0, *accumulate([n * len(of) for n, of in zip(rows, of_output, strict=True)])]
    first_owner = [0, *accumulate(rows)]
    counts = [each.num_edges for each in blocks]
    group_of = partial(
        BlockGroup,
        features,
        rows_of_features,
        relations=[each.relation for each in blocks],
        sources=[each.feature for each in blocks],
        outputs=[each.output for each in blocks],
        num_edges=counts,
    )
    products = [
        BlockProduct(first_row[output], first_row[output + 1], of, output)
        for output, of in enumerate(of_output)
        if of
    ]
    # A row for each destination and block, if that does not take too many.
    num_rows_of_all, num_edges = first_row[-1], sum(counts)
    may_fit = fits = num_rows_of_all <= _FEW_ROWS[device.type]
    if not (fixed or fits) and num_rows_of_all <= _MOST_ROWS * num_edges:
        with_edges = None
        for count in (min_rows, count_rows):  # the first of them does not wait
            with_edges = None if count is None else _count_rows(blocks, rows, count)
            if with_edges is not None and num_rows_of_all <= _MOST_ROWS * with_edges:
                fits = True
                break
        may_fit = fits or with_edges is None
    if fixed or (may_fit and max(num_rows_of_all, num_edges, num_columns) <= MAX_EDGES):
        keyed = [
            KeyedEdges(
                each.edges,
                num_rows[each.feature],
                rows[each.output],
                first_column[each.feature],
                first_row[each.output] + place,
                len(of_output[each.output]),
            )
            for each, place in zip(blocks, places, strict=True)
        ]
        matrix = matrix_of_all(
            device, keyed, num_rows_of_all, num_columns, edge_ids=weighted, gradients=gradients
        )
        matrix.has_edge_operands = weighted
        if fixed or fits or _has_few_empty_rows(matrix):
            return group_of(matrix=matrix, products=products)
    # Only pairs of a block and a destination that have edges. By block: first column, first
    # destination, edges.
    of_blocks = [
        [first_column[each.feature] for each in blocks],
        [first_owner[each.output] for each in blocks],
        counts,
    ]
    table = on_device(of_blocks, device)
    ids = torch.arange(max(counts), device=device)
    ends = [
        ids[: each.num_edges].expand(2, -1) if each.edges is None else each.edges.long()
        for each in blocks
    ]
    columns, destinations = torch.cat(ends, 1)
    numbers = torch.arange(len(blocks), device=device).repeat_interleave(
        table[2], output_size=num_edges
    )
    small = max(first_owner[-1] * len(blocks), num_edges, num_columns) < 2**31 - 1
    columns = (columns + table[0][numbers]).to(torch.int32 if small else torch.int64)
    keys = (destinations + table[1][numbers]).add_(numbers, alpha=first_owner[-1])
    pairs, places_of_edges = distinct(keys, first_owner[-1] * len(blocks))
    matrix = _matrix(places_of_edges, columns, len(pairs), num_columns, weighted)
    starts = [first_owner[-1] * block for block in range(len(blocks) + 1)]
    cuts: list[int] = cuts_of(pairs, starts).tolist()
    products = [
        BlockProduct(first, last, [block], blocks[block].output)
        for block, (first, last) in enumerate(pairwise(cuts))
    ]
    owners = pairs % first_owner[-1] if len(pairs) else pairs
    sums = _sums(owners, first_owner, products)
    return group_of(matrix=matrix, products=products, owners=owners, sums=sums)


def _count_rows(
    blocks: list[_Block], rows: list[int], count_rows: Callable[[int], int | None]
) -> int | None:
    """Returns the number of rows that have edges; None if it is not known."""
    total = 0
    for each in blocks:
        count = rows[each.output] if each.relation is None else count_rows(each.relation)
        if count is None:
            return None
        total += count
    return total


def _has_few_empty_rows(matrix: EdgeMatrix) -> bool:
    """Returns whether enough rows have edges."""
    with_edges = int(torch.count_nonzero(matrix.indptr.diff()))
    return matrix.num_destinations <= _MOST_ROWS * with_edges


def _matrix(
    rows: Tensor, columns: Tensor, num_rows: int, num_columns: int, weighted: bool
) -> EdgeMatrix:
    """Returns the edges by row; edges have ids, their positions here, if they have weights."""
    indptr, indices, order = group_by(rows, columns, num_rows, num_columns, rows.dtype)
    matrix = EdgeMatrix(
        indptr,
        indices,
        num_columns,
        edge_ids=order if weighted else None,
        max_chunks=count_chunks(indptr),
    )
    matrix.has_edge_operands = weighted
    return matrix


def _sums(
    owners: Tensor, starts: list[int], products: list[BlockProduct]
) -> dict[int, tuple[slice, EdgeMatrix]]:
    """Returns by result a matrix that adds up the rows of each destination, and which these are.

    Args:
        owners: the destination of each row.
        starts: the first destination of each result, and the number of all.
        products: of blocks, in the order of their results.
    """
    rows = torch.arange(len(owners), dtype=torch.int32, device=owners.device)
    indptr, indices, _ = group_by(
        owners.to(torch.int32), rows, starts[-1], len(owners), torch.int32
    )
    by_output: dict[int, list[BlockProduct]] = {}
    for product in products:
        by_output.setdefault(product.output, []).append(product)
    sums = {}
    for output, of_output in by_output.items():
        first, last = starts[output], starts[output + 1]
        if last > first:
            begin, end = of_output[0].first, of_output[-1].last
            matrix = EdgeMatrix(
                indptr[first : last + 1] - begin,
                indices[begin:end] - begin,
                end - begin,
                # A destination has a row for each block at most.
                max_chunks=None if len(of_output) > Schedule.long_row else 0,
            )
            sums[output] = slice(begin, end), matrix
    return sums
