"""DGL's layers, computed without DGL's frames; forward is DGL's own code but for GATv2's."""

from __future__ import annotations

from typing import Any

import dgl.nn as dgl_nn
import torch
from torch import Tensor

from peergraph.aggregate.layers import add_product

from ..backend.kernels import spmm
from ..backend.message_passing import install
from .attention import Pair, attend, by_head, check_one_pass, ends_of
from .kernel_graph import KernelGraph, Refusal


class FastLayer(torch.nn.Module):
    """Mixed into a subclass of one of DGL's layers, before it; has no state of its own."""

    dgl_class: type[torch.nn.Module]

    def forward(self, graph: Any, *args: Any, **kwargs: Any) -> Any:
        """As DGL's. Graphs of several relations and functions of users are served by DGL's."""
        install()  # DGL's edge_softmax must know the structure that it is given.
        try:
            return self._fast(KernelGraph(graph), *args, **kwargs)
        except Refusal:
            pass
        return super().forward(graph, *args, **kwargs)

    def _fast(self, graph: KernelGraph, *args: Any, **kwargs: Any) -> Any:
        return super().forward(graph, *args, **kwargs)


class GraphConv(FastLayer, dgl_nn.GraphConv):  # type: ignore[misc]
    """DGL's GraphConv."""

    dgl_class = dgl_nn.GraphConv


class SAGEConv(FastLayer, dgl_nn.SAGEConv):  # type: ignore[misc]
    """DGL's SAGEConv; aggregator "lstm" is DGL's."""

    dgl_class = dgl_nn.SAGEConv

    def _fast(self, graph: KernelGraph, *args: Any, **kwargs: Any) -> Any:
        # Before dropout draws, which would draw again for DGL's code.
        if self._aggre_type == "lstm":
            raise Refusal("the reduce function is a network")
        return super()._fast(graph, *args, **kwargs)


class GATConv(FastLayer, dgl_nn.GATConv):  # type: ignore[misc]
    """DGL's GATConv; messages are not written to memory."""

    dgl_class = dgl_nn.GATConv


class GATv2Conv(FastLayer, dgl_nn.GATv2Conv):  # type: ignore[misc]
    """DGL's GATv2Conv; in one pass over the edges, of which nothing is written.

    With `get_attention`, dropout of attention, autocast, features of more than two dimensions, or
    heads that do not fit a GPU's kernels, DGL's steps run one by one, and the features of both ends
    of each edge are written.
    """

    dgl_class = dgl_nn.GATv2Conv

    # What DGL's constructor sets; its class says nothing of types.
    fc_src: Any
    fc_dst: Any
    attn: Any
    share_weights: Any
    activation: Any

    def _fast(self, graph: KernelGraph, feat: Tensor | Pair, get_attention: bool = False) -> Any:
        try:
            if get_attention:
                raise Refusal("numbers of edges are asked for")
            check_one_pass(self, graph, feat)
        except Refusal:
            return super()._fast(graph, feat, get_attention)
        source, target = ends_of(self, graph, feat)
        x = by_head(self, self.fc_src, source)
        if self.share_weights and not isinstance(feat, tuple):
            y = x[: target.shape[0]]
        else:
            y = by_head(self, self.fc_dst, target)
        out = attend(self, graph, target, x, right=y, att=self.attn[0])
        return self.activation(out) if self.activation else out


class GINConv(FastLayer, dgl_nn.GINConv):  # type: ignore[misc]
    """DGL's GINConv."""

    dgl_class = dgl_nn.GINConv


class RelGraphConv(FastLayer, dgl_nn.RelGraphConv):  # type: ignore[misc]
    """DGL's RelGraphConv; with regularizer "basis" no message is written to memory.

    The sum over the edges of ``x[u] @ (sum_b coeff[type, b] W_b)`` is, for each basis, a sum of
    ``x[u]`` weighted by ``coeff[type, b]``, times ``W_b``. Other regularizers are DGL's.
    """

    dgl_class = dgl_nn.RelGraphConv

    # What DGL's constructor sets; its class says nothing of types.
    linear_r: Any
    layer_norm_weight: Any
    h_bias: Any
    loop_weight: Any
    layer_norm: bool
    bias: bool
    self_loop: bool
    activation: Any
    dropout: Any
    presorted: bool

    def _fast(
        self,
        graph: KernelGraph,
        feat: Tensor,
        etypes: Any,
        norm: Tensor | None = None,
        *,
        presorted: bool = False,
    ) -> Tensor:
        linear = self.linear_r
        hooked = linear._forward_hooks or linear._forward_pre_hooks
        if linear.regularizer != "basis" or hooked or feat.dim() != 2:
            raise Refusal("messages are multiplied edge by edge")
        self.presorted = presorted
        weights = linear.coeff[torch.as_tensor(etypes, device=feat.device).long()]
        if norm is not None:
            weights = weights * norm.reshape(-1, 1)
        h = None
        for weight, matrix in zip(weights.unbind(1), linear.W, strict=True):
            sums = spmm(graph.edges, "mul", "sum", feat, weight)
            h = sums @ matrix if h is None else add_product(h, sums, matrix)
        assert h is not None
        return self._finish(h, feat, graph.num_dst_nodes())

    def _finish(self, h: Tensor, feat: Tensor, num_dst: int) -> Tensor:
        """What DGL does to the sums."""
        if self.layer_norm:
            h = self.layer_norm_weight(h)
        if self.bias:
            h = h + self.h_bias
        if self.self_loop:
            h = add_product(h, feat[:num_dst], self.loop_weight)
        if self.activation:
            h = self.activation(h)
        result: Tensor = self.dropout(h)
        return result
