"""Samples of a static shape on the CPU: an ordinary sample with padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from peergraph.sampling.sample import EdgeType, NodeType, Sample
from peergraph.sampling.static_shape.static_shape_sample import StaticShape, StaticShapeSample


def check_capacity(sample: Sample, shape: StaticShape) -> None:
    """Raises OverflowError, as a GPU reports it, for the first hop that exceeds a capacity."""
    for hop in range(sample.num_hops):
        for edge_type, sampled in sample.num_sampled_edges.items():
            capacity = shape.edges_per_hop[edge_type][hop]
            if sampled[hop] > capacity:
                raise OverflowError(
                    f"max_edges: hop {hop} sampled {sampled[hop]} edges of a relation, "
                    f"there is room for {capacity}"
                )
        for node_type, counts in sample.num_sampled_nodes.items():
            capacity = shape.rows_per_hop[node_type][hop + 1]
            if counts[hop + 1] > capacity:
                raise OverflowError(
                    f"max_nodes: hop {hop} found {counts[hop + 1]} new nodes of a type, "
                    f"there is room for {capacity}"
                )


def with_clamped_counts(padded: StaticShapeSample, sample: Sample) -> StaticShapeSample:
    """Returns `padded` with the counts of a sample that exceeds the capacities, as a GPU's."""
    shape = padded.shape
    nodes, edges = {}, {}
    for node_type, counts in sample.num_sampled_nodes.items():
        pairs = zip(counts, shape.rows_per_hop[node_type], strict=True)
        nodes[node_type] = _counts([min(pair) for pair in pairs])
    for edge_type, sampled in sample.num_sampled_edges.items():
        bounds = zip(sampled, shape.edges_per_hop[edge_type], strict=True)
        edges[edge_type] = _counts([min(pair) for pair in bounds])
    return replace(padded, num_nodes=nodes, num_edges=edges, num_drawn_edges=edges)


class Padding:
    """Pads a sample that has passed :func:`check_capacity`.

    Args:
        sample: a sample on the CPU.
        shape: the capacities.
        expand_all: whether hops expand all nodes so far.
        first_seeds: for each type of the seeds, in order: the capacity and the number of the seeds
            of the types before it.
        valid: whether the ids of padding are valid, else -1.
    """

    def __init__(
        self,
        sample: Sample,
        shape: StaticShape,
        expand_all: bool,
        first_seeds: Sequence[tuple[int, int]],
        valid: bool,
    ) -> None:
        self.sample, self.shape, self.expand_all = sample, shape, expand_all
        self.first_seeds = first_seeds
        self.valid = valid
        self.rows = {
            t: _positions(shape.rows_per_hop[t], counts)
            for t, counts in sample.num_sampled_nodes.items()
        }
        self.edges = {
            t: _positions(shape.edges_per_hop[t], counts)
            for t, counts in sample.num_sampled_edges.items()
        }

    def pad(self) -> StaticShapeSample:
        """Returns the padded sample."""
        sample, by_row, by_edge = self.sample, self._by_row, self._by_edge
        num_hops, rows, columns = sample.num_hops, sample.row.items(), sample.col.items()
        row = {t: by_edge(t, self._new_rows(t[0], x), self._ends(t, t[0])) for t, x in rows}
        col = {t: by_edge(t, self._new_rows(t[2], x), self._ends(t, t[2])) for t, x in columns}
        num_edges = {t: _counts(c) for t, c in sample.num_sampled_edges.items()}
        return StaticShapeSample(
            nodes={t: by_row(t, ids, self._padding_node(t)) for t, ids in sample.nodes.items()},
            edge_index={t: torch.stack([row[t], col[t]]) for t in row},
            edge_ids=None
            if sample.edge_ids is None
            else {
                t: by_edge(t, ids, 0 if self.valid else -1) for t, ids in sample.edge_ids.items()
            },
            batch=None
            if sample.batch is None
            else {t: by_row(t, self._seed_positions(b), -1) for t, b in sample.batch.items()},
            duplicate_counts=None
            if sample.duplicate_counts is None
            else {t: by_row(t, c, 0) for t, c in sample.duplicate_counts.items()},
            num_nodes={t: _counts(c) for t, c in sample.num_sampled_nodes.items()},
            num_edges=num_edges,
            num_drawn_edges=num_edges,
            shape=self.shape,
            indptr={t: [self._indptr(t, hop) for hop in range(num_hops)] for t in sample.row},
            first_target={
                t: [self._targets(t, hop)[0] for hop in range(num_hops)] for t in sample.row
            },
        )

    def _padding_node(self, node_type: NodeType) -> int:
        """Returns the id of padding nodes."""
        if not self.valid:
            return -1
        has_seeds = self.sample.num_sampled_nodes[node_type][0] > 0
        return int(self.sample.nodes[node_type][0]) if has_seeds else 0

    def _by_row(self, node_type: NodeType, values: Tensor, padding: int) -> Tensor:
        capacity = sum(self.shape.rows_per_hop[node_type])
        return values.new_full((capacity,), padding).index_copy(0, self.rows[node_type], values)

    def _by_edge(self, edge_type: EdgeType, values: Tensor, padding: int | Tensor) -> Tensor:
        capacity = sum(self.shape.edges_per_hop[edge_type])
        filled = values.new_empty(capacity)
        filled[:] = padding
        return filled.index_copy(0, self.edges[edge_type], values)

    def _new_rows(self, node_type: NodeType, rows: Tensor) -> Tensor:
        """Converts row numbers of the sample to those of the padded sample."""
        return self.rows[node_type][rows.long()].to(rows.dtype)

    def _ends(self, edge_type: EdgeType, node_type: NodeType) -> Tensor:
        """Returns [edges] with the row of a type for each padding edge; others are 0."""
        begins = self.shape.edge_offsets(edge_type)
        ends = torch.zeros(begins[-1], dtype=torch.int64, device="cpu")
        for hop, sampled in enumerate(self.sample.num_sampled_edges[edge_type]):
            places = ends[begins[hop] + sampled : begins[hop + 1]]
            first, rows = self._padding_rows(node_type, hop)
            if rows == 0:
                places[:] = self.shape.padding_row(node_type)
            else:
                numbers = torch.arange(1, places.numel() + 1, device="cpu")
                places[:] = first + (numbers * rows - 1) // max(places.numel(), 1)
        return ends

    def _padding_rows(self, node_type: NodeType, hop: int) -> tuple[int, int]:
        """Returns the first padding row of a type's last segment before a hop, and how many there
        are. Padding edges of the hop begin and end there.
        """
        begins, counts = self.shape.row_offsets(node_type), self.sample.num_sampled_nodes
        first = begins[hop] + counts[node_type][hop]
        return first, begins[hop + 1] - first

    def _seed_positions(self, seeds: Tensor) -> Tensor:
        """Converts indices of seeds to positions among the padded seeds."""
        places = seeds.clone()
        for place, seed in self.first_seeds:
            behind = seeds >= seed
            places[behind] = seeds[behind] + (place - seed)
        return places

    def _targets(self, edge_type: EdgeType, hop: int) -> tuple[int, int]:
        """Returns the range of rows that a hop expands."""
        begins = self.shape.row_offsets(edge_type[2])
        return 0 if self.expand_all else begins[hop], begins[hop + 1]

    def _indptr(self, edge_type: EdgeType, hop: int) -> Tensor:
        begin, end = self._targets(edge_type, hop)
        degrees = self.sample.indptr[edge_type][hop].diff()
        first = self.sample.first_target[edge_type][hop]
        targets = self.rows[edge_type[2]][first : first + degrees.numel()] - begin
        indptr = torch.zeros(end - begin + 1, dtype=torch.int64, device="cpu")
        indptr[1:].index_copy_(0, targets, degrees)
        indptr = indptr.cumsum(0)
        first, rows = self._padding_rows(edge_type[2], hop)
        padding = self.shape.edges_per_hop[edge_type][hop] - int(indptr[-1])
        if rows > 0:
            numbers = torch.arange(1, rows + 1, device="cpu")
            indptr[first - begin + 1 :] += numbers * padding // rows
        return indptr


def _positions(capacities: Sequence[int], counts: Sequence[int]) -> Tensor:
    """Returns the positions of the items of segments with these capacities."""
    begins = [0, *accumulate(capacities)]
    pieces = [torch.arange(b, b + n, device="cpu") for b, n in zip(begins, counts, strict=False)]
    return torch.cat([torch.empty(0, dtype=torch.int64, device="cpu"), *pieces])


def _counts(counts: Sequence[int]) -> Tensor:
    return torch.tensor(counts, dtype=torch.int64, device="cpu")
