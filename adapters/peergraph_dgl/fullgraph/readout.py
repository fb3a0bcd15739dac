"""Readouts of a partitioned graph: sums and extrema over all of its nodes or edges."""

from __future__ import annotations

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
    _check_segments(offsets.numel() - 1)
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
    _check_segments(lengths.numel())
    powers = (values - values.detach().amax(0, keepdim=True)).exp()
    return powers / powers.sum(0, keepdim=True)


def _check_segments(count: int) -> None:
    if count != 1:
        raise NotImplementedError(
            f"a readout of {count} segments of partitioned rows: a batch of graphs is partitioned "
            "as one graph; select the rows of each with a mask"
        )
