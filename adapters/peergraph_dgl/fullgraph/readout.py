"""Readouts of a partitioned graph: sums and extrema over the nodes or edges of all ranks.

A batch of graphs is partitioned as one graph. Its graphs are segments of the rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.fullgraph import PartitionedTensor, from_local


def reduce_all_rows(op: str, values: PartitionedTensor, offsets: Tensor) -> Tensor:
    """Reduces the rows of each segment over all ranks. Collective.

    Args:
        op: ``sum``, ``max`` or ``min``.
        values: [rows, *features].
        offsets: [segments + 1] where segments begin, and the number of rows.

    Returns:
        [segments, *features], equal on all ranks; zeros for segments without rows. The gradient of
        an extremum goes to the first row that has it, as in DGL.
    """
    segments = _Segments(values, offsets[1:])
    if op == "sum":
        return segments.sums(values)
    return segments.sums(torch.where(segments.are_extrema(op, values.detach()), values, 0))


def softmax_all_rows(lengths: Tensor, values: PartitionedTensor) -> Tensor:
    """Returns the softmax of each feature over the rows of each segment. Collective.

    Args:
        lengths: [segments] numbers of rows.
        values: [rows, *features].
    """
    segments = _Segments(values, lengths.cumsum(0))
    powers = (values - segments.at_rows(segments.extrema("max", values.detach()))).exp()
    return powers / segments.at_rows(segments.sums(powers))


def broadcast_to_rows(values: Tensor, rows: PartitionedTensor, lengths: Tensor) -> Tensor:
    """Returns for each node or edge the values of its segment.

    Args:
        values: [segments, *features], equal on all ranks; for one segment also [*features].
        rows: [rows] of the nodes or edges.
        lengths: [segments] numbers of rows.
    """
    if lengths.numel() == 1 and values.shape[:1] != (1,):
        values = values.unsqueeze(0)
    zeros = torch.zeros_like(rows, dtype=values.dtype).view(-1, *[1] * (values.dim() - 1))
    return zeros + _Segments(rows, lengths.cumsum(0)).at_rows(values)


class _Segments:
    """Ranges of the rows of all ranks.

    If there is one, its rows are reduced without a scatter: on a GPU, that would add all rows to
    one by atomics.

    Args:
        rows: a tensor with these rows.
        ends: [segments] where each segment ends.
    """

    def __init__(self, rows: PartitionedTensor, ends: Tensor) -> None:
        self._count = ends.numel()
        self._positions = from_local(rows.row_layout.positions, rows.row_layout)
        self._of_rows: Tensor | None = None
        if self._count != 1:
            ends = ends.to(rows.device, torch.int64)
            self._of_rows = torch.bucketize(self._positions, ends, right=True)

    def at_rows(self, totals: Tensor) -> Tensor:
        """Returns the total of each row's segment, or the only total, which broadcasts."""
        return totals if self._of_rows is None else totals[self._of_rows]

    def sums(self, values: Tensor) -> Tensor:
        """Returns the sum of each segment."""
        if self._of_rows is None:
            return values.sum(0, keepdim=True)
        return self._zeros(values).index_add(0, self._of_rows, values)

    def extrema(self, op: str, values: Tensor) -> Tensor:
        """Returns the extrema of each segment, without NaN as in DGL, and without gradients."""
        flat = values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)
        if flat.is_floating_point():
            least = -torch.inf if op == "max" else torch.inf
            flat = flat.nan_to_num(least, posinf=torch.inf, neginf=-torch.inf)
        result, reduce = self._zeros(flat), "amax" if op == "max" else "amin"
        if self._of_rows is not None:
            wide = self._of_rows.unsqueeze(1).expand(-1, flat.shape[1])
            result = result.scatter_reduce(0, wide, flat, reduce, include_self=False)
        elif flat.shape[0] > 0:
            result = getattr(flat, reduce)(0, keepdim=True)
        return result.view(self._count, *values.shape[1:])

    def are_extrema(self, op: str, values: Tensor) -> Tensor:
        """Returns for each row and feature whether it is the first one of its segment that has the
        extremum.
        """
        has_extremum = values == self.at_rows(self.extrema(op, values))
        positions = self._positions.view(-1, *[1] * (values.dim() - 1))
        candidates = torch.where(has_extremum, positions, values.shape[0])
        return has_extremum & (candidates == self.at_rows(self.extrema("min", candidates)))

    def _zeros(self, values: Tensor) -> Tensor:
        """Returns plain zeros; `new_zeros` of as many rows as `values` would be partitioned."""
        shape = self._count, *values.shape[1:]
        return torch.zeros(shape, dtype=values.dtype, device=values.device)
