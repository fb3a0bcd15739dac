"""Attention in one pass over the edges, for layers that ask for no number of an edge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate import attention, attention_fits

from .kernel_graph import KernelGraph, Refusal

Pair = tuple[Tensor, Tensor]


def check_one_pass(layer: Any, graph: KernelGraph, feat: Tensor | Pair) -> None:
    """Raises Refusal for what :func:`attend` does not do; draws no random numbers.

    Args:
        layer: DGL's GATv2Conv.
        graph: the graph of the call.
        feat: its features.
    """
    for module in (layer.attn_drop, layer.leaky_relu):
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
            raise Refusal("scores or weights of edges are looked at")
    if type(layer.leaky_relu) is not torch.nn.LeakyReLU:
        raise Refusal("scores have an activation of the user's")
    if type(layer.attn_drop) is not torch.nn.Dropout or (layer.training and layer.attn_drop.p > 0):
        raise Refusal("there is dropout of attention")
    dtype = next(layer.parameters()).dtype
    for end in feat if isinstance(feat, tuple) else (feat,):
        if end.dim() != 2 or end.dtype != dtype or end.device != graph.device:
            raise Refusal(f"features are {list(end.shape)}, {end.dtype} on {end.device}")
    first = feat[0] if isinstance(feat, tuple) else feat
    if torch.is_autocast_enabled(first.device.type):
        raise Refusal("there is autocast")
    if not attention_fits(first.new_empty(0, layer._num_heads, layer._out_feats)):
        raise Refusal(f"{layer._num_heads} heads of {layer._out_feats} do not fit the device")
    if not layer._allow_zero_in_degree and bool((graph.in_degrees() == 0).any()):
        raise Refusal("there are nodes without in-edges, of which DGL's code complains")


def ends_of(layer: Any, graph: KernelGraph, feat: Tensor | Pair) -> Pair:
    """Features of sources and destinations after dropout, as DGL's forward takes them."""
    if isinstance(feat, tuple):
        return layer.feat_drop(feat[0]), layer.feat_drop(feat[1])
    both = layer.feat_drop(feat)
    return both, both[: graph.num_dst_nodes()] if graph.is_block else both


def by_head(layer: Any, linear: torch.nn.Module, feat: Tensor) -> Tensor:
    """[rows, heads, features]."""
    projected: Tensor = linear(feat)
    return projected.view(-1, layer._num_heads, layer._out_feats)


def attend(layer: Any, graph: KernelGraph, target: Tensor, *args: Tensor, **kwargs: Any) -> Tensor:
    """Sums by attention over `args` of :func:`peergraph.aggregate.attention`, and the residual."""
    slope = layer.leaky_relu.negative_slope
    out = attention(graph.edges.csc(), *args, negative_slope=slope, **kwargs)
    if layer.res_fc is None:
        return out
    residual: Tensor = layer.res_fc(target)
    return out + residual.view(target.shape[0], -1, layer._out_feats)
