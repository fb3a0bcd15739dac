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
    if offsets.numel() != 2:
        raise NotImplementedError(
            f"a readout of {offsets.numel() - 1} segments of partitioned rows: a batch of graphs "
            "is partitioned as one graph; select the rows of each with a mask"
        )
    if op == "sum":
        return values.sum(0, keepdim=True)
    return values.amax(0, keepdim=True) if op == "max" else values.amin(0, keepdim=True)
