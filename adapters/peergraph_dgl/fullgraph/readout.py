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
        an extremum is that of the first row that has it, as in DGL.
    """
    segments, count = _segments(values, offsets), offsets.numel() - 1
    if op == "sum":
        return _sums(values, segments, count)
    chosen = torch.where(_is_extremum(op, values, segments, count), values, 0)
    return _sums(chosen, segments, count)


def softmax_all_rows(lengths: Tensor, values: PartitionedTensor) -> Tensor:
    """Returns the softmax of each feature over the rows of each segment. Collective.

    Args:
        lengths: [segments] numbers of rows.
        values: [rows, *features].
    """
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    segments, count = _segments(values, offsets), lengths.numel()
    powers = (values - _extrema("max", values.detach(), segments, count)[segments]).exp()
    return powers / _sums(powers, segments, count)[segments]


def broadcast_to_rows(values: Tensor, rows: PartitionedTensor, lengths: Tensor) -> Tensor:
    """Returns the values of its segment for each node or edge.

    Args:
        values: [segments, *features], equal on all ranks; of one segment [*features], too.
        rows: [rows] of the nodes or edges.
        lengths: [segments] numbers of rows.
    """
    if lengths.numel() == 1 and values.shape[:1] != (1,):
        values = values.unsqueeze(0)
    return values[_segments(rows, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))]


def _segments(values: PartitionedTensor, offsets: Tensor) -> Tensor:
    """Returns the segment of each row, partitioned as `values`."""
    ends = offsets[1:].to(values.device, torch.int64)
    return torch.bucketize(_positions(values), ends, right=True)


def _positions(values: PartitionedTensor) -> PartitionedTensor:
    """Returns the position of each row among those of all ranks."""
    return from_local(values.row_layout.positions, values.row_layout)


def _sums(values: Tensor, segments: Tensor, count: int) -> Tensor:
    return _zeros(count, values).index_add(0, segments, values)


def _zeros(count: int, values: Tensor) -> Tensor:
    """Returns plain zeros; `new_zeros` of as many rows as `values` would be partitioned."""
    shape = count, *values.shape[1:]
    return torch.zeros(shape, dtype=values.dtype, device=values.device)


def _extrema(op: str, values: Tensor, segments: Tensor, count: int) -> Tensor:
    """Returns the extrema of each segment, without NaN as in DGL, and without gradients."""
    flat = values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)
    if flat.is_floating_point():
        least = -torch.inf if op == "max" else torch.inf
        flat = flat.nan_to_num(least, posinf=torch.inf, neginf=-torch.inf)
    wide = segments.unsqueeze(1).expand(-1, flat.shape[1])
    result = _zeros(count, flat).scatter_reduce(
        0, wide, flat, "amax" if op == "max" else "amin", include_self=False
    )
    return result.view(count, *values.shape[1:])


def _is_extremum(op: str, values: PartitionedTensor, segments: Tensor, count: int) -> Tensor:
    """Returns whether a row is the first of its segment that has the extremum, by feature."""
    rows = values.detach()
    positions = _positions(values).view(-1, *[1] * (rows.dim() - 1))
    is_extremum = rows == _extrema(op, rows, segments, count)[segments]
    candidates = torch.where(is_extremum, positions, rows.shape[0])
    return is_extremum & (candidates == _extrema("min", candidates, segments, count)[segments])
