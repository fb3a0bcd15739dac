"""The operations of :class:`peergraph.aggregate.Csc` as functions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from peergraph.aggregate.csc import Csc
from peergraph.aggregate.ops.attention import AttentionSum
from peergraph.aggregate.ops.spmm_add_self import SumAddSelf
from peergraph.aggregate.ops.spmm_linear import SumLinear
from peergraph.aggregate.sparse.edge_matrix import Backward
from peergraph.memory import TableRows


def g_spmm(
    csc: Csc,
    message: str,
    reduce: str,
    x: Tensor | TableRows | None = None,
    e: Tensor | None = None,
    *,
    backward: Backward = "auto",
    deterministic: bool | None = None,
) -> Tensor:
    """Reduces the messages of each destination's edges (WholeGraph III-C4, g-SpMM).

    Messages are never written to memory. Destinations without edges get zeros. Sums are kept in
    float32, in float64 for float64. The forward always reduces in a fixed order. Of several edges
    with the extremum, the first has the gradient. Sums and means are differentiable any number
    of times in `x` and `e`, extrema once.

    Under ``torch.amp`` operands other than float64 are cast to autocast's dtype, as by a matrix
    product.

    Args:
        csc: the structure; its device is that of all.
        message: ``copy_u`` (x of the source), ``copy_e`` (e of the edge), ``add``, ``sub``,
            ``mul``, ``div`` (x before e), ``dot`` (sum of x * e over the last dimension).
        reduce: ``sum``, ``mean``, ``max`` or ``min``.
        x: [sources, *features] float32, float64, float16 or bfloat16; or rows of a table, which
            are read where they lie: the matrix of all sources is never written.
        e: [edges, *features] of the same dtype, in the order of the structure's edge ids. Trailing
            dimensions may be left out or be 1: a scalar [edges] for all features, [edges, heads]
            for x of [sources, heads, width]. Where x lacks what e has, x is expanded.
        backward: how gradients reach `x`: ``transpose`` sums over the transpose of the structure,
            which is made once and kept; ``atomic`` needs none; ``auto`` takes atomics for the
            structure of one mini-batch on a GPU, unless its transpose has been made.
        deterministic: gradients too are summed in a fixed order; default: as
            ``torch.use_deterministic_algorithms`` says.

    Returns:
        [destinations, *features]; ``dot`` drops the last dimension.

    Asynchronous on a GPU, but for the making of the transpose.

    Raises:
        ValueError: an unknown name, an operand missing or not used, shapes or devices that do not
            go together.
        TypeError: dtypes that are not supported or differ.
    """
    return csc.spmm(message, reduce, x, e, backward=backward, deterministic=deterministic)


def g_sddmm(
    csc: Csc,
    op: str,
    lhs: Tensor,
    rhs: Tensor | None = None,
    lhs_target: str = "u",
    rhs_target: str = "v",
    *,
    backward: Backward = "auto",
    deterministic: bool | None = None,
) -> Tensor:
    """A value for each edge from its source, its destination or itself (WholeGraph III-C4).

    Products are summed in float32, in float64 for float64. Differentiable any number of
    times in both operands.
    Under ``torch.amp`` operands other than float64 are cast to autocast's dtype.

    Args:
        csc: the structure; its device is that of all.
        op: ``copy`` (lhs alone), ``add``, ``sub``, ``mul``, ``div``, or ``dot`` (sum of products
            over the last dimension).
        lhs, rhs: [sources | destinations | edges, *features] of one dtype of float32, float64,
            float16 and bfloat16; their features broadcast.
        lhs_target, rhs_target: whose features: ``u`` source, ``v`` destination, ``e`` edge.
        backward, deterministic: for gradients of sources, as in
            :func:`peergraph.aggregate.g_spmm`.

    Returns:
        [edges, *features] in the order of the structure's edge ids; ``dot`` drops the last
        dimension.

    Asynchronous on a GPU, but for the making of the transpose.

    Raises:
        ValueError: an unknown name, an operand missing or not used, shapes or devices that do not
            go together.
        TypeError: dtypes that are not supported or differ.
    """
    return csc.sddmm(
        op, lhs, rhs, lhs_target, rhs_target, backward=backward, deterministic=deterministic
    )


def edge_softmax(csc: Csc, scores: Tensor) -> Tensor:
    """Softmax of `scores` over the edges of each destination, by head.

    The largest score is subtracted first, so that large scores do not overflow; short rows are read
    once. Sums are kept in float32, in float64 for float64, in a fixed order. Differentiable once.
    Under ``torch.amp`` it runs in float32, as torch's softmax does.

    Args:
        csc: the structure.
        scores: [edges] or [edges, *heads] float32, float64, float16 or bfloat16, in the order of
            the structure's edge ids.

    Returns:
        As `scores`. A destination whose scores are all -inf gets NaN, as from ``torch.softmax``.

    Asynchronous on a GPU.

    Raises:
        ValueError: another number of rows, another device.
        TypeError: another dtype.
    """
    return csc.edge_softmax(scores)


def attention(
    csc: Csc,
    x: Tensor,
    left: Tensor | None = None,
    right: Tensor | None = None,
    *,
    att: Tensor | None = None,
    negative_slope: float = 0.2,
    self_loops: int | None = None,
    deterministic: bool | None = None,
) -> Tensor:
    """Sums sources weighted by the softmax of scores over each destination's edges.

    The score of an edge for a head is ``leaky_relu(left[source] + right[destination])`` as in GAT
    or, with `att`, the sum over the head of ``att * leaky_relu(x[source] + right[destination])`` as
    in GATv2. Scores and weights are never written: gradients compute them again, so what is kept
    is one number for each destination and head. Differentiable once in all tensors.

    Args:
        csc: the structure; edge ids do not matter.
        x: [sources, heads, depth] float32, float64, float16 or bfloat16, of sizes that
            :func:`attention_fits`.
        left: [sources, heads]; not with `att`.
        right: [destinations, heads], or None for zeros; with `att` [destinations, heads, depth].
        att: [heads, depth].
        negative_slope: of leaky_relu.
        self_loops: None: the edges as they are. Else the first so many destinations have one edge
            each from the source of the same number, and no edge of `matrix` between a source and a
            destination of the same number counts.
        deterministic: gradients are summed in a fixed order; default: as
            ``torch.use_deterministic_algorithms`` says.

    Returns:
        [destinations, heads, depth]; zeros where there are no edges.

    Asynchronous on a GPU, but for the making of the transpose, which gradients run over unless
    the structure is one-shot.

    Raises:
        ValueError: shapes or devices that do not go together, an operand missing or not used.
        TypeError: dtypes that are not supported or differ.
        NotImplementedError: heads of a size that does not fit a GPU's kernels.
    """
    return csc.attention(
        AttentionSum(x, left, right, att, negative_slope, self_loops, deterministic)
    )


def spmm_add_self(
    csc: Csc,
    x: Tensor | TableRows,
    self_weight: Tensor,
    e: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    backward: Backward = "auto",
    deterministic: bool | None = None,
) -> Tensor:
    """``g_spmm(csc, "copy_u" or "mul", "sum", x, e) + self_weight * x[:destinations] + bias``.

    The destinations are the first sources, as in a mini-batch and in a whole graph. Gradients reach
    `x` in the one matrix that the sums need anyhow, and destinations that no edge reaches have no
    part in the sums. Differentiable once in `x`, `self_weight`, `e` and `bias`, and as often as
    :func:`g_spmm` where `x` needs no gradient.

    Args:
        csc: the structure, with at least as many sources as destinations.
        x: [sources, columns] as for :func:`g_spmm`, or rows of a table.
        self_weight: [] or [1] for all rows, or [destinations, 1]; on the same device.
        e: [edges] weights, or None for ones.
        bias: [columns], or None.
        backward, deterministic: as for :func:`g_spmm`.

    Returns:
        [destinations, columns].

    Asynchronous on a GPU, but for the making of the transpose.

    Raises:
        ValueError: shapes or devices that do not go together.
        TypeError: as :func:`g_spmm`.
    """
    return csc.spmm_add_self(SumAddSelf(x, self_weight, e, bias, backward, deterministic))


def spmm_linear(
    structures: Csc | Sequence[Csc],
    reduce: str,
    x: Tensor | TableRows,
    weights: Tensor | Sequence[Tensor],
    self_weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    self_x: Tensor | None = None,
    backward: Backward = "auto",
    deterministic: bool | None = None,
) -> Tensor:
    """Aggregates and multiplies by weights, as SAGE, GraphConv and RGCN do.

    Adds up ``g_spmm(csc, "copy_u", reduce, x) @ weight.T`` over pairs of a structure (the edges of
    one relation) and its weight, and ``self_x @ self_weight.T + bias``. Products are added as they
    are made, and so are their gradients: no two matrices are added in a pass of their own. Products
    leave out isolated destinations at the end. Sums and means are differentiable any
    number of times.

    Args:
        structures: one, or several of the same numbers of nodes.
        reduce: ``sum``, ``mean``, ``max`` or ``min``.
        x: [sources, in] as for :func:`g_spmm`, or rows of a table.
        weights: [out, in] for each structure.
        self_weight: [out, in of self_x], or None to leave that term out.
        bias: [out].
        self_x: [destinations, in of self_x]; None: the first rows of `x`.
        backward, deterministic: as for :func:`g_spmm`.

    Returns:
        [destinations, out].

    Asynchronous on a GPU, but for the making of the transpose.

    Raises:
        ValueError: shapes or devices that do not go together, or an unknown reduction.
        TypeError: dtypes that are not supported or differ.
    """
    structures = [structures] if isinstance(structures, Csc) else list(structures)
    weights = [weights] if isinstance(weights, Tensor) else list(weights)
    if not structures or len(structures) != len(weights):
        raise ValueError(f"each structure needs a weight, got {len(structures)} and {len(weights)}")
    first, *others = structures
    return first.spmm_linear(
        SumLinear(reduce, x, weights, self_weight, bias, self_x, others, backward, deterministic)
    )
