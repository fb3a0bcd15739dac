"""Values of edges, attention and counts of edges as operators of torch; see `sums.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate.kernels.arguments import sum_dtype
from peergraph.aggregate.kernels.attention import AttentionInputs, attention_forward
from peergraph.aggregate.kernels.edge_softmax import edge_softmax
from peergraph.aggregate.kernels.sddmm import sddmm
from peergraph.aggregate.kernels.torch_operator import add_gradient, kernel
from peergraph.aggregate.ops.attention import Attention, aligned
from peergraph.aggregate.ops.edge_maps import EdgeProducts
from peergraph.aggregate.ops.operands import use_deterministic
from peergraph.aggregate.traced.context import Context, gradient_matrix, or_empty
from peergraph.aggregate.traced.edges import TracedEdges


def _empty_values(left: Tensor, edges: TracedEdges, heads: int) -> Tensor:
    return left.new_empty(edges.num_edges, heads)


@kernel(_empty_values)
def traced_sddmm(
    left: Tensor,
    right: Tensor | None,
    edges: TracedEdges,
    message: str,
    targets: str,
    heads: int,
    depth: int,
) -> Tensor:
    """Returns the message of `left` and `right` of each edge, [edges, heads]."""
    matrix = edges.structure(counted=True).tensors
    return sddmm(left, right, matrix, message, targets, heads, depth)


def _empty_gradients_of_values(
    grad: Tensor, rows: list[int], columns: int, needs: list[bool]
) -> tuple[Tensor, Tensor]:
    return (
        grad.new_empty(rows[0], columns) if needs[0] else grad.new_empty(0),
        grad.new_empty(rows[1], columns) if needs[1] else grad.new_empty(0),
    )


@kernel(_empty_gradients_of_values)
def traced_sddmm_gradients(
    grad: Tensor,
    left: Tensor | None,
    right: Tensor | None,
    edges: TracedEdges,
    message: str,
    targets: str,
    rows: list[int],
    columns: int,
    needs: list[bool],
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of the operands of :func:`traced_sddmm`.

    `rows` and `columns` are the operands' sizes.
    """
    matrix = edges.structure()
    sources = any(need and target == "u" for need, target in zip(needs, targets, strict=True))
    context = Context(
        needs,
        (left, right),
        matrix=matrix,
        message=message,
        targets=targets,
        heads=grad.shape[1],
        transpose=gradient_matrix(matrix, sources),
    )
    with torch.no_grad():
        grad_left, grad_right, *_ = EdgeProducts.backward(context, grad.contiguous())
    return or_empty(grad_left, grad), or_empty(grad_right, grad)


def _gradients_of_values(
    needs: tuple[Any, ...], inputs: list[Any], output: Tensor, grad: Tensor
) -> list[Any]:
    left, right, edges, message, targets, _, _ = inputs
    valued = message in ("mul", "div")
    # An operand by edge that is added has the gradient of the result.
    same = [not valued and target == "e" for target in targets]
    computed = [bool(need) and not each for need, each in zip(needs[:2], same, strict=True)]
    rows = [left.shape[0], 0 if right is None else right.shape[0]]
    gradients = traced_sddmm_gradients(
        grad,
        left if valued and computed[1] else None,
        right if valued and (computed[0] or message == "div") else None,
        edges,
        message,
        targets,
        rows,
        left.shape[1],
        computed,
    )
    signs = (grad, -grad if message == "sub" else grad)
    of_operands = [signs[i] if same[i] else gradients[i] if computed[i] else None for i in range(2)]
    results = [each if need else None for each, need in zip(of_operands, needs[:2], strict=True)]
    return [*results, *[None] * 5]


add_gradient(traced_sddmm, _gradients_of_values)


def _empty_like_values(values: Tensor) -> Tensor:
    return values.new_empty(values.shape)


@kernel(_empty_like_values)
def traced_edge_softmax(values: Tensor, grad: Tensor | None, edges: TracedEdges) -> Tensor:
    """Returns the softmax of `values` [edges, heads] in each row.

    With `grad`, `values` are the softmax, and the gradient of the scores is returned.
    """
    return edge_softmax(values, grad, edges.structure(counted=grad is None).tensors)


def _softmax_gradients(
    needs: tuple[Any, ...], inputs: list[Any], output: Tensor, grad: Tensor
) -> list[Any]:
    return [traced_edge_softmax(output, grad, inputs[2]), None, None]


add_gradient(traced_edge_softmax, _softmax_gradients)


# Attention in one pass.


def _empty_attention(inputs: AttentionInputs, edges: TracedEdges) -> tuple[Tensor, Tensor]:
    x, rows = inputs.x, edges.num_destinations
    lse = x.new_empty(rows, x.shape[1], dtype=sum_dtype(x.dtype))
    return x.new_empty(rows, x.shape[1], x.shape[2]), lse


@kernel(_empty_attention)
def traced_attention(inputs: AttentionInputs, edges: TracedEdges) -> tuple[Tensor, Tensor]:
    """Returns [rows, heads, depth], and the log of the sum of exp(score), [rows, heads]."""
    if inputs.x.numel() == 0 or edges.num_destinations == 0:
        out, lse = _empty_attention(inputs, edges)
        return out.zero_(), lse.zero_()
    return attention_forward(_dense_inputs(inputs), edges.structure(counted=True).tensors)


def _dense_inputs(inputs: AttentionInputs) -> AttentionInputs:
    x = aligned(inputs.x)
    assert x is not None
    left, right, att = (aligned(each) for each in (inputs.left, inputs.right, inputs.att))
    return replace(inputs, x=x, left=left, right=right, att=att)


def _empty_attention_gradients(
    grad: Tensor, inputs: AttentionInputs, needs: list[bool]
) -> list[Tensor]:
    tensors = (inputs.x, inputs.left, inputs.right, inputs.att)
    return [
        grad.new_empty(tensor.shape, dtype=tensor.dtype)
        if need and tensor is not None
        else grad.new_empty(0)
        for tensor, need in zip(tensors, needs, strict=True)
    ]


@kernel(_empty_attention_gradients)
def traced_attention_gradients(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    inputs: AttentionInputs,
    edges: TracedEdges,
    needs: list[bool],
) -> list[Tensor]:
    """Returns the gradients of x, left, right and att of :func:`traced_attention`."""
    if inputs.x.numel() == 0 or edges.num_destinations == 0:
        empty = _empty_attention_gradients(grad, inputs, needs)
        return [each.zero_() for each in empty]
    inputs, matrix = _dense_inputs(inputs), edges.structure()
    context = Context(
        needs,
        (inputs.x, inputs.left, inputs.right, inputs.att, out, lse),
        matrix=matrix,
        loops=inputs.loops,
        slope=inputs.slope,
        cuts=None,
        transpose=gradient_matrix(matrix),
        fixed=use_deterministic(None),
    )
    with torch.no_grad():
        gradients = Attention.backward(context, grad)[:4]
    return [or_empty(each, grad) for each in gradients]


def _attention_gradients(
    needs: tuple[Any, ...],
    inputs: list[Any],
    output: tuple[Tensor, Tensor],
    grad: Tensor,
    grad_lse: Tensor | None,
) -> list[Any]:
    attention_inputs, edges = inputs
    need_tensors = [bool(need) for need in needs[:4]]
    gradients = traced_attention_gradients(grad, *output, attention_inputs, edges, need_tensors)
    tensors = [each if need else None for each, need in zip(gradients, need_tensors, strict=True)]
    return [tensors, None]


add_gradient(traced_attention, _attention_gradients)


# Counts of edges.


def _empty_counts(edges: TracedEdges) -> Tensor:
    return edges.edge_index.new_empty(edges.num_destinations)


@kernel(_empty_counts)
def traced_in_degrees(edges: TracedEdges) -> Tensor:
    """Returns the number of edges to each destination, [destinations]."""
    return edges.structure().in_degrees()


def _empty_loops(edges: TracedEdges, dtype: torch.dtype) -> Tensor:
    return edges.edge_index.new_empty(edges.num_destinations, dtype=dtype)


@kernel(_empty_loops)
def traced_self_loops(edges: TracedEdges, dtype: torch.dtype) -> Tensor:
    """Returns the number of edges from source i to destination i, [destinations]."""
    csc = edges.structure()
    # What the operator returns may be overwritten.
    return csc.cached(("self loops", dtype), lambda: csc.count_self_loops(dtype)).clone()
