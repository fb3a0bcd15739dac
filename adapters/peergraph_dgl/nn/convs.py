"""DGL's layers on the layer functions of `peergraph.aggregate.layers`."""

from __future__ import annotations

from typing import Any

import dgl.nn as dgl_nn
import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate import Structure, layers
from peergraph.integration import Unsupported, require

from ..fullgraph.graph import PartitionedGraph
from .kernel_graph import KernelGraph
from .layer import FastLayer, Features, check_scores, drop_features


class GraphConv(FastLayer, dgl_nn.GraphConv):  # type: ignore[misc]
    """DGL's GraphConv."""

    dgl_class = dgl_nn.GraphConv

    def fused(
        self, graph: KernelGraph, feat: Features, weight: Any = None, edge_weight: Any = None
    ) -> Tensor:
        self._check_degrees(graph)
        require(weight is None or self.weight is None, "there are two weights")
        matrix = self.weight if weight is None else weight
        first = feat[0] if isinstance(feat, tuple) else feat
        dtype = first.dtype if matrix is None else matrix.dtype
        x, _ = self._check(graph, feat, dtype, reads_target=False)
        e = self._check_edge_weight(graph, edge_weight, x)
        if matrix is not None:
            # DGL chooses the order of the products by these numbers.
            fits = tuple(matrix.shape) == (self._in_feats, self._out_feats)
            require(fits, f"the weight is {list(matrix.shape)}")
        out = layers.gcn(
            graph.edges.csc(),
            x,
            weight=None if matrix is None else matrix.t(),
            bias=self.bias,
            norm=self._norm,
            out_degrees=True,
            edge_weight=e,
        )
        if self._activation is not None:
            out = self._activation(out)
        return out


class SAGEConv(FastLayer, dgl_nn.SAGEConv):  # type: ignore[misc]
    """DGL's SAGEConv; DGL computes aggregator "lstm"."""

    dgl_class = dgl_nn.SAGEConv

    def check_steps(self) -> None:
        # This must be checked before dropout: the fallback to DGL draws random numbers again.
        require(self._aggre_type != "lstm", "the reduce function is a network")

    def fused(self, graph: KernelGraph, feat: Features, edge_weight: Any = None) -> Tensor:
        self.check_steps()
        has_self = self._aggre_type != "gcn"
        modules = [self.fc_neigh, self.fc_self] if has_self else [self.fc_neigh]
        source, target = self._check(graph, feat, self.fc_neigh.weight.dtype, *modules)
        e = self._check_edge_weight(graph, edge_weight, source)
        if not has_self:
            require(target is None or target.shape[1] == source.shape[1], "features differ in size")
        x, self_x = drop_features(self.feat_drop, source, target)
        bias = self.fc_self.bias if has_self else self.bias
        reduce = self._aggre_type
        if reduce == "pool":
            self_x = x[: graph.num_dst_nodes()] if self_x is None else self_x
            x, reduce = F.relu(self.fc_pool(x)), "max"
        out = layers.sage(
            graph.edges.csc(),
            x,
            self.fc_neigh.weight,
            reduce=reduce,
            self_weight=self.fc_self.weight if has_self else None,
            self_x=self_x,
            bias=bias,
            edge_weight=e,
            project_first=reduce != "max" and self._in_src_feats > self._out_feats,
        )
        if self.activation is not None:
            out = self.activation(out)
        if self.norm is not None:
            out = self.norm(out)
        return out


class GATConv(FastLayer, dgl_nn.GATConv):  # type: ignore[misc]
    """DGL's GATConv; without dropout of attention, in one pass that writes no values of edges.

    With `get_attention`, DGL's steps run on Peergraph's kernels.
    """

    dgl_class = dgl_nn.GATConv

    def fused(
        self,
        graph: KernelGraph,
        feat: Features,
        edge_weight: Any = None,
        get_attention: bool = False,
    ) -> Tensor:
        require(not get_attention, "attention weights are returned")
        check_scores(self.leaky_relu, self.attn_drop)
        self._check_degrees(graph)
        source, target = self._check(graph, feat, self.attn_l.dtype)
        e = self._check_edge_weight(graph, edge_weight, source)
        require(e is None or edge_weight.dim() == 1, "edge_weight has several dimensions")
        two = hasattr(self, "fc_src")
        require(target is not None or not two, "the layer needs features of both ends")
        source, target = drop_features(self.feat_drop, source, target)
        x = _by_head(self, self.fc_src if two else self.fc, source)
        destination_x = None
        if target is not None:
            destination_x = _by_head(self, self.fc_dst if two else self.fc, target)
        weights = None if e is None else e.unsqueeze(1)
        dropout = _dropout(self.attn_drop)

        def attend(structure: Structure, features: Tensor) -> Tensor:
            return layers.gat(
                structure,
                features,
                self.attn_l[0],
                self.attn_r[0],
                destination_x=destination_x,
                edge_weight=weights,
                negative_slope=self.leaky_relu.negative_slope,
                dropout=dropout,
            )

        csc = graph.edges.csc()
        # Dropout of the weights of partitioned edges depends on the edge ids.
        one_end = destination_x is None and weights is None and dropout == 0
        out = csc.run_layer(attend, x) if one_end else attend(csc, x)
        out = _add_residual(self, graph, out, source, target)
        if self.bias is not None:
            out = out + self.bias.view(1, self._num_heads, self._out_feats)
        if self.activation:
            out = self.activation(out)
        return out


class GATv2Conv(FastLayer, dgl_nn.GATv2Conv):  # type: ignore[misc]
    """DGL's GATv2Conv; without dropout of attention, in one pass that writes no values of edges.

    With `get_attention`, DGL's steps run on Peergraph's kernels.
    """

    dgl_class = dgl_nn.GATv2Conv

    def fused(self, graph: KernelGraph, feat: Features, get_attention: bool = False) -> Tensor:
        require(not get_attention, "attention weights are returned")
        check_scores(self.leaky_relu, self.attn_drop)
        self._check_degrees(graph)
        source, target = self._check(graph, feat, self.attn.dtype)
        source, target = drop_features(self.feat_drop, source, target)
        x = _by_head(self, self.fc_src, source)
        first_rows = source[: graph.num_dst_nodes()]
        if target is None and self.share_weights:
            destination_x = x[: graph.num_dst_nodes()]
        else:
            destination_x = _by_head(self, self.fc_dst, first_rows if target is None else target)
        out = layers.gatv2(
            graph.edges.csc(),
            x,
            destination_x,
            self.attn[0],
            negative_slope=self.leaky_relu.negative_slope,
            dropout=_dropout(self.attn_drop),
        )
        out = _add_residual(self, graph, out, source, target)
        if self.activation:
            out = self.activation(out)
        return out


class GINConv(FastLayer, dgl_nn.GINConv):  # type: ignore[misc]
    """DGL's GINConv."""

    dgl_class = dgl_nn.GINConv

    def fused(self, graph: KernelGraph, feat: Features, edge_weight: Any = None) -> Tensor:
        x, self_x = self._check(graph, feat, self.eps.dtype)
        same_size = self_x is None or self_x.shape[1] == x.shape[1]
        require(same_size, "features differ in size")
        e = self._check_edge_weight(graph, edge_weight, x)
        reduce = self._aggregator_type
        out = layers.gin(
            graph.edges.csc(), x, self.eps, reduce=reduce, self_x=self_x, edge_weight=e
        )
        if self.apply_func is not None:
            out = self.apply_func(out)
        if self.activation is not None:
            out = self.activation(out)
        return out


class RelGraphConv(FastLayer, dgl_nn.RelGraphConv):  # type: ignore[misc]
    """DGL's RelGraphConv; with regularizer "basis" it writes no messages.

    DGL computes the other regularizers.
    """

    dgl_class = dgl_nn.RelGraphConv

    def forward(
        self, graph: Any, feat: Tensor, etypes: Any, norm: Any = None, *, presorted: bool = False
    ) -> Any:
        """As DGL's ``forward``."""
        # Each rank has some edges of every type. The order of edges does not change the result.
        presorted = presorted and not isinstance(graph, PartitionedGraph)
        return super().forward(graph, feat, etypes, norm, presorted=presorted)

    def fused(
        self,
        graph: KernelGraph,
        feat: Tensor,
        etypes: Any,
        norm: Tensor | None = None,
        *,
        presorted: bool = False,
    ) -> Tensor:
        linear = self.linear_r
        if linear.regularizer != "basis" or linear._forward_hooks or linear._forward_pre_hooks:
            raise Unsupported("messages are multiplied edge by edge")
        x, _ = self._check(graph, feat, linear.W.dtype)
        self.presorted = presorted
        types = etypes if isinstance(etypes, Tensor) else torch.as_tensor(etypes)
        coefficients = linear.coeff[types.to(x.device).long()]
        if norm is not None:
            coefficients = coefficients * norm.reshape(-1, 1)
        h = layers.rgcn_by_basis(graph.edges.csc(), x, coefficients, linear.W)
        if self.layer_norm:
            h = self.layer_norm_weight(h)
        if self.bias:
            h = h + self.h_bias
        if self.self_loop:
            h = layers.add_product(h, x[: graph.num_dst_nodes()], self.loop_weight)
        if self.activation:
            h = self.activation(h)
        result: Tensor = self.dropout(h)
        return result


def _by_head(layer: Any, linear: torch.nn.Module, x: Tensor) -> Tensor:
    """Projects features, [rows, heads, depth]."""
    projected: Tensor = linear(x)
    return projected.view(-1, layer._num_heads, layer._out_feats)


def _dropout(module: torch.nn.Dropout) -> float:
    return module.p if module.training else 0.0


def _add_residual(
    layer: Any, graph: KernelGraph, out: Tensor, source: Tensor, target: Tensor | None
) -> Tensor:
    if layer.res_fc is None:
        return out
    rows = source[: graph.num_dst_nodes()] if target is None else target
    residual: Tensor = layer.res_fc(rows)
    return out + residual.view(rows.shape[0], -1, layer._out_feats)
