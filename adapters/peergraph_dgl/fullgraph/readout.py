"""Readouts of a partitioned graph: sums and extrema over all of its nodes or edges."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.fullgraph import PartitionedTensor


def reduce_all_rows(op: str, values: PartitionedTensor, offsets: Tensor) -> Tensor:
    """Reduces the rows of all ranks. Collective.

    Args:
        op: ``sum``, ``max`` or ``min``.
        values: [rows, *features].
        offsets: [2], the only segment; a batch of graphs has more.

    Returns:
        [1, *features], equal on all ranks.

    Raises:
        NotImplementedError: there are several segments.
    """
    check_segments(offsets.numel() - 1)
    if op == "sum":
        return values.sum(0, keepdim=True)
    return values.amax(0, keepdim=True) if op == "max" else values.amin(0, keepdim=True)


def softmax_all_rows(lengths: Tensor, values: PartitionedTensor) -> Tensor:
    """Returns the softmax of each feature over the rows of all ranks. Collective.

    Args:
        lengths: [1], of the only segment.
        values: [rows, *features].

    Raises:
        NotImplementedError: there are several segments.
    """
    check_segments(lengths.numel())
    powers = (values - values.detach().amax(0, keepdim=True)).exp()
    return powers / powers.sum(0, keepdim=True)


def broadcast_to_rows(values: Tensor, ids: Tensor) -> Tensor:
    """Returns the values of the whole graph for each node or edge, partitioned as their `ids`.

    Args:
        values: [1, *features], equal on all ranks, or [*features].
        ids: [rows], partitioned.
    """
    values = values if values.shape[:1] == (1,) else values.unsqueeze(0)
    zeros = torch.zeros_like(ids, dtype=values.dtype)
    return zeros.view(-1, *[1] * (values.dim() - 1)) + values


def check_segments(count: int) -> None:
    """Raises NotImplementedError for several graphs of a batch."""
    if count != 1:
        raise NotImplementedError(
            f"a readout of {count} segments of partitioned rows: a batch of graphs is partitioned "
            "as one graph; select the rows of each with a mask"
        )
