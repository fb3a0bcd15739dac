"""Graph attention: GAT and GATv2."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.layers.autocast import without_autocast
from peergraph.aggregate.layers.node_scores import node_scores
from peergraph.aggregate.ops.attention import AttentionSum, attention_fits
from peergraph.aggregate.structure import Structure


def gat(
    structure: Structure,
    x: Tensor,
    att_source: Tensor,
    att_destination: Tensor | None = None,
    *,
    destination_x: Tensor | None = None,
    edge_scores: Tensor | None = None,
    edge_weight: Tensor | None = None,
    negative_slope: float = 0.2,
    add_self_loops: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Computes graph attention (Velickovic et al. 2018) from features that are multiplied already.

    Without `edge_scores`, `edge_weight`, dropout and autocast it runs in one pass over the edges,
    where the structure supports the size of `x`; nothing is written by edge. Else scores and
    weights are written, [edges, heads].

    Args:
        structure: the edges.
        x: [sources, heads, depth] float32, float64, float16 or bfloat16.
        att_source, att_destination: [heads, depth] attention vectors; without the second,
            destinations add nothing to scores.
        destination_x: [destinations, heads, depth]; None: the first rows of `x`.
        edge_scores: [edges, heads], added to scores.
        edge_weight: [edges, heads] or [edges, 1], by which weights are multiplied.
        negative_slope: of leaky_relu.
        add_self_loops: each node has one self loop, whatever loops are among the edges; in one pass
            only (:func:`why_not_one_pass`).
        dropout: probability of dropping a weight.

    Returns:
        [destinations, heads, depth]; zeros where there are no edges.

    Asynchronous on a GPU, but for the making of the transpose. Differentiable once.

    Raises:
        ValueError: shapes or devices that do not go together; self loops outside of one pass.
        TypeError: dtypes that are not supported or differ.
    """
    left, right = None, None
    if att_destination is None:
        x, left = node_scores(x, att_source)
    elif destination_x is None:
        x, left, right = node_scores(x, att_source, att_destination)
        if right.shape[0] != structure.num_destinations:
            right = right[: structure.num_destinations]
    else:
        x, left = node_scores(x, att_source)
        right = node_scores(destination_x, att_destination)[1]
    one_pass = edge_scores is None and edge_weight is None
    if one_pass and _runs_in_one_pass(structure, x, dropout):
        loops = _num_loops(structure) if add_self_loops else None
        return structure.attention(AttentionSum(x, left, right, None, negative_slope, loops))
    _check_no_self_loops(add_self_loops)
    weights = gat_weights(
        structure,
        left,
        right,
        edge_scores=edge_scores,
        negative_slope=negative_slope,
        dropout=dropout,
    )
    return _weighted_sum(structure, x, weights, edge_weight)


def gat_weights(
    structure: Structure,
    left: Tensor,
    right: Tensor | None = None,
    *,
    edge_scores: Tensor | None = None,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
) -> Tensor:
    """Computes the weights of edges in :func:`gat`, [edges, heads], after dropout.

    Args:
        structure: the edges.
        left: [sources, heads] scores.
        right: [destinations, heads] scores, or None for zeros.
        edge_scores: [edges, heads], added to the scores.
        negative_slope: of leaky_relu.
        dropout: probability of dropping a weight.

    Raises:
        ValueError, TypeError: as :func:`gat`.
    """
    if right is None:
        scores = without_autocast(lambda: structure.sddmm("copy", left))
    else:
        scores = without_autocast(lambda: structure.sddmm("add", left, right))
    if edge_scores is not None:
        scores = scores + edge_scores
    scores = F.leaky_relu(scores, negative_slope)
    weights = without_autocast(lambda: structure.edge_softmax(scores))
    return F.dropout(weights, p=dropout)


def gatv2(
    structure: Structure,
    x: Tensor,
    destination_x: Tensor,
    att: Tensor,
    *,
    edge_weight: Tensor | None = None,
    negative_slope: float = 0.2,
    add_self_loops: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Computes GATv2 (Brody et al. 2022) from features that are multiplied already.

    One pass as for :func:`gat`; else the sums of both ends are written, [edges, heads, depth].

    Args:
        structure: the edges.
        x: [sources, heads, depth] float32, float64, float16 or bfloat16.
        destination_x: [destinations, heads, depth].
        att: [heads, depth].
        edge_weight, negative_slope, add_self_loops, dropout: as for :func:`gat`.

    Returns:
        [destinations, heads, depth]; zeros where there are no edges.

    Raises:
        ValueError, TypeError: as :func:`gat`.
    """
    if edge_weight is None and _runs_in_one_pass(structure, x, dropout):
        loops = _num_loops(structure) if add_self_loops else None
        return structure.attention(AttentionSum(x, None, destination_x, att, negative_slope, loops))
    _check_no_self_loops(add_self_loops)
    ends = without_autocast(lambda: structure.sddmm("add", x, destination_x))
    scores = (F.leaky_relu(ends, negative_slope) * att).sum(-1)
    weights = F.dropout(without_autocast(lambda: structure.edge_softmax(scores)), p=dropout)
    return _weighted_sum(structure, x, weights, edge_weight)


def combine_heads(
    out: Tensor, *, concat: bool = True, residual: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Returns heads side by side or their mean, plus a residual and a bias.

    Args:
        out: [destinations, heads, depth].
        concat: side by side, [destinations, heads * depth]; else the mean, [destinations, depth].
        residual, bias: of the result's shape, or None.
    """
    out = out.flatten(1) if concat else out.mean(dim=1)
    if residual is not None:
        out = out + residual
    return out if bias is None else out + bias


def why_not_one_pass(
    x: Tensor, heads: int, depth: int, parameter_dtype: torch.dtype, dropout: float = 0.0
) -> str | None:
    """Returns why a layer on `x` cannot run in one pass over the edges; None if it can.

    Args:
        x: [sources, in], the features of the layer.
        heads, depth: of the features that attention sums.
        parameter_dtype: of the layer's parameters.
        dropout: probability of dropping a weight, 0 outside of training.
    """
    if dropout > 0:
        return "there is dropout of attention"
    if x.ndim != 2:
        return f"x is {list(x.shape)}"
    if torch.is_autocast_enabled(x.device.type):
        return "there is autocast"
    if parameter_dtype != x.dtype:
        return f"x is {x.dtype} and weights {parameter_dtype}"
    if not attention_fits(torch.empty(0, heads, depth, dtype=x.dtype, device=x.device)):
        return f"{heads} heads of {depth} do not fit"
    return None


def _runs_in_one_pass(structure: Structure, x: Tensor, dropout: float) -> bool:
    autocast = torch.is_autocast_enabled(x.device.type)
    return dropout == 0 and not autocast and structure.supports_attention(x)


def _num_loops(structure: Structure) -> int:
    return min(structure.num_sources, structure.num_destinations)


def _check_no_self_loops(add_self_loops: bool) -> None:
    if add_self_loops:
        raise ValueError("add_self_loops needs one pass over the edges; add loops to the structure")


def _weighted_sum(
    structure: Structure, x: Tensor, weights: Tensor, edge_weight: Tensor | None
) -> Tensor:
    if edge_weight is not None:
        weights = weights * edge_weight
    # Frameworks multiply first, so the result has the wider dtype of the two.
    dtype = torch.promote_types(x.dtype, weights.dtype)
    rows, weights = x.to(dtype), weights.to(dtype)
    return without_autocast(lambda: structure.spmm("mul", "sum", rows, weights))
