"""Sums along the edges backwards, to the sources."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import sum_dtype
from peergraph.aggregate.kernels.sddmm import sddmm
from peergraph.aggregate.kernels.spmm import spmm, spread, spread_onto
from peergraph.aggregate.kernels.torch_operator import is_traced
from peergraph.aggregate.sparse.csc import Csc
from peergraph.aggregate.sparse.csr import CsrMatrix

# Edges for each destination up to which the gradient of a mean is weighted by edge. On an H200 at
# 128 columns, dividing the gradient of a row takes 0.4 ns, for it is read and written, and a weight
# costs a sum 0.04 ns more for each edge, and as much to be made.
_WEIGHTED_EDGES = 4
# Of narrower gradients a division costs less than the making of weights.
_WEIGHTED_COLUMNS = 32


def spmm_transposed(
    csc: Csc, transpose: CsrMatrix | None, x: Tensor | None, e: Tensor | None, message: str
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
        return spmm(x, e, *transpose.tensors, message, False)
    return spread(x, e, csc.duplicate_counts, *csc.rows.tensors, message)


def add_spmm_transposed(
    onto: Tensor, csc: Csc, transpose: CsrMatrix | None, x: Tensor, e: Tensor | None, message: str
) -> Tensor:
    """`onto` [sources, columns], which is used up, and the sums of :func:`spmm_transposed`.

    Atomics add to what there is, so that neither zeros are written nor a second matrix.
    """
    if transpose is not None or not sums_in_dtype(onto.dtype):
        return onto.add_(spmm_transposed(csc, transpose, x, e, message))
    spread_onto(onto, x, e, None, *csc.rows.tensors, message)
    return onto


def sums_in_dtype(dtype: torch.dtype) -> bool:
    """Whether sums of `dtype` are kept in it."""
    return dtype == sum_dtype(dtype)


def by_degrees(csc: Csc, grad: Tensor) -> Tensor:
    """`grad` [destinations, columns] divided by the numbers of edges, which float16 has no room
    for.
    """
    return (grad / _degrees(csc, sum_dtype(grad.dtype))).to(grad.dtype)


def _degrees(csc: Csc, dtype: torch.dtype) -> Tensor:
    """[destinations, 1] what sums are divided by."""
    return csc.degrees().clamp(min=1).to(dtype).unsqueeze(1)


def sums_of_means(csc: Csc, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    """The gradient of sums from that of means: rows, and a weight [edges, 1] or None for ones.

    Args:
        csc: the structure.
        grad: [destinations, columns].
    """
    if (
        is_traced()
        or not sums_in_dtype(grad.dtype)
        or grad.shape[1] < _WEIGHTED_COLUMNS
        or csc.num_edges > _WEIGHTED_EDGES * csc.num_destinations
    ):
        return by_degrees(csc, grad), None
    weight = sddmm(
        _degrees(csc, grad.dtype).reciprocal_(), None, *csc.rows.tensors, "copy_u", "vv", 1, 1
    )
    return grad, weight
