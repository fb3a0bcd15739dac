"""Exclusion of edges from samples of a static shape, without waiting for the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from peergraph.sampling.exclude import find_ids
from peergraph.sampling.sample import EdgeType
from peergraph.sampling.static_shape.static_shape_sample import StaticShapeSample


def exclude_static(
    sample: StaticShapeSample, edges: Mapping[EdgeType, Tensor], padding_id: int
) -> StaticShapeSample:
    """Removes edges from a sample, as :func:`exclude_edges` does; they become padding.

    A CUDA graph can capture it. Of a sample that exceeds its capacities, the contents are
    undefined, as before.

    Args:
        sample: it is not changed.
        edges: by edge type, [any number] int64 ids on the device of the sample, or the rows
            [2, any number] of sources and destinations of edges.
        padding_id: the edge id of padding.
    """
    edge_index, indptr = dict(sample.edge_index), dict(sample.indptr)
    num_edges = dict(sample.num_edges)
    new_ids = None if sample.edge_ids is None else dict(sample.edge_ids)
    duplicates = sample.duplicate_counts
    duplicates = None if duplicates is None else {t: c.clone() for t, c in duplicates.items()}
    for edge_type, of_type in edges.items():
        if of_type.numel() == 0:
            continue
        keys, of_edges = _keys(sample, edge_type, of_type)
        is_excluded = find_ids(keys.sort().values, of_edges)[1]
        hops = [_Hop(sample, edge_type, hop, is_excluded) for hop in range(len(indptr[edge_type]))]
        edge_index[edge_type] = torch.stack(
            [torch.cat([hop.ends(end) for hop in hops]) for end in (0, 1)]
        )
        if new_ids is not None:
            new_ids[edge_type] = torch.cat([hop.edge_ids(padding_id) for hop in hops])
        num_edges[edge_type] = torch.stack([hop.remaining for hop in hops])
        indptr[edge_type] = [hop.indptr() for hop in hops]
        if duplicates is not None:
            for hop in hops:
                hop.subtract_duplicates(duplicates[edge_type[0]])
    return replace(
        sample,
        edge_index=edge_index,
        edge_ids=new_ids,
        num_edges=num_edges,
        indptr=indptr,
        duplicate_counts=duplicates,
    )


def _keys(sample: StaticShapeSample, edge_type: EdgeType, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a number for each excluded edge, and for each edge of the sample."""
    if edges.dim() == 1:
        assert sample.edge_ids is not None
        return edges, sample.edge_ids[edge_type]
    count = sample.nodes[edge_type[2]].numel()
    source, destination = sample.edge_index[edge_type].long()
    return edges[0] * count + edges[1], source * count + destination


class _Hop:
    """The edges of one hop by a relation, of which some are excluded.

    Attributes:
        remaining: the number of the others, on the device.
    """

    def __init__(
        self, sample: StaticShapeSample, edge_type: EdgeType, hop: int, is_excluded: Tensor
    ) -> None:
        self._sample, self._edge_type, self._hop = sample, edge_type, hop
        begin, end = sample.shape.edge_offsets(edge_type)[hop : hop + 2]
        self._edges, self._capacity = slice(begin, end), end - begin
        self._numbers = torch.arange(self._capacity, device=is_excluded.device)
        is_edge = self._numbers < sample.num_edges[edge_type][hop]
        remains = is_edge & ~is_excluded[self._edges]
        self._removed = is_edge & ~remains
        self._before = torch.cat([self._numbers.new_zeros(1), remains.cumsum(0)])
        self.remaining = self._before[-1]
        # Edges that do not remain are written behind all others.
        self._places = torch.where(remains, self._before[:-1], self._capacity)

    def ends(self, end: int) -> Tensor:
        """Returns the sources (0) or the destinations (1)."""
        ends = self._sample.edge_index[self._edge_type][end, self._edges]
        node_type = self._edge_type[0 if end == 0 else 2]
        first, rows = self._padding_rows(node_type)
        number = self._numbers - self.remaining + 1  # from 1 on, of padding edges
        padding = first + (number * rows - 1) // (self._capacity - self.remaining).clamp(min=1)
        padding = torch.where(rows > 0, padding, self._sample.shape.padding_row(node_type))
        return self._moved(ends, padding.to(ends.dtype))

    def edge_ids(self, padding_id: int) -> Tensor:
        """Returns the ids of the edges."""
        assert self._sample.edge_ids is not None
        ids = self._sample.edge_ids[self._edge_type][self._edges]
        return self._moved(ids, torch.full_like(ids, padding_id))

    def indptr(self) -> Tensor:
        """Returns the offsets of the hop's targets."""
        old = self._sample.indptr[self._edge_type][self._hop]
        first, rows = self._padding_rows(self._edge_type[2])
        targets = torch.arange(old.numel(), device=old.device)
        first_target = self._sample.first_target[self._edge_type][self._hop]
        padding_targets = (targets - (first - first_target)).clamp(min=0)
        padding_edges = self._capacity - self.remaining
        # Offsets of a sample that exceeds its capacities may be larger.
        remaining = self._before[old.clamp(0, self._capacity)]
        return remaining + padding_targets * padding_edges // rows.clamp(min=1)

    def subtract_duplicates(self, counts: Tensor) -> None:
        """Subtracts the excluded edges from the number of times that their sources were drawn."""
        rows = self._sample.edge_index[self._edge_type][0, self._edges].long()
        # In a sample that exceeds its capacities, a row may be any number.
        counts.index_add_(0, rows.clamp(0, counts.numel() - 1), -self._removed.to(counts.dtype))

    def _moved(self, values: Tensor, padding: Tensor) -> Tensor:
        moved = values.new_empty(self._capacity + 1).scatter_(0, self._places, values)
        return torch.where(self._numbers < self.remaining, moved[:-1], padding)

    def _padding_rows(self, node_type: str) -> tuple[Tensor, Tensor]:
        """Returns the first row of padding before the hop, and how many there are."""
        begin, end = self._sample.shape.row_offsets(node_type)[self._hop : self._hop + 2]
        first = begin + self._sample.num_nodes[node_type][self._hop]
        return first, end - first
