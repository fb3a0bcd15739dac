"""Sums along the edges backwards, to the sources."""

from __future__ import annotations

from torch import Tensor

from peergraph.aggregate.kernels.sums import spmm, spread
from peergraph.aggregate.structure.csc import Csc
from peergraph.aggregate.structure.rows import Rows


def sum_to_sources(
    csc: Csc, transpose: Rows | None, x: Tensor | None, e: Tensor | None, message: str
) -> Tensor:
    """[sources, columns]: for each source the sum of the messages of its edges.

    Args:
        csc: the structure.
        transpose: its transpose, or None to add by atomics.
        x: by destination.
        e: by edge.
        message: as in :func:`peergraph.aggregate.g_spmm`.
    """
    if transpose is not None:
        return spmm(x, e, *transpose.tensors, message, False, transpose.numbering)
    return spread(x, e, csc.duplicate_counts, *csc.rows.tensors, message)
