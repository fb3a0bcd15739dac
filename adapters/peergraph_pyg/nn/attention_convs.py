"""GAT's layers: PyG's, with attention in one pass over the edges."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import conv as pyg

from peergraph.aggregate import Csc, attention, edge_softmax, g_sddmm
from peergraph.integration import note

from .attention import attention_over, finish_attention, with_weights
from .layer import Ends, FastLayer, Size, ends_of, known_by, refuse, without_autocast
from .scores import scores


class GATConv(FastLayer, pyg.GATConv):  # type: ignore[misc]
    """PyG's GATConv; without edge features, dropout and autocast, in one pass over the edges.

    Else attention takes a number for each edge and head, and messages take none.
    """

    pyg_class = pyg.GATConv

    def forward(
        self,
        x: Any,
        edge_index: Any,
        edge_attr: Tensor | None = None,
        size: Size = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """As PyG's. The structure is kept for as long as `edge_index` lives."""

        def by_edges() -> Any:
            args = (x, edge_index, edge_attr, size, return_attention_weights)
            with known_by(edge_index, "GATConv", self.add_self_loops):
                return pyg.GATConv.forward(self, *args)

        if edge_attr is not None:
            return by_edges()
        return self._either(
            "forward",
            lambda: with_weights(
                self._in_one_pass(x, edge_index, size), by_edges, return_attention_weights
            ),
            by_edges,
        )

    def _in_one_pass(self, x: Any, edge_index: Any, size: Size) -> Tensor:
        pair = ends_of(x)
        csc, loops = attention_over(self, pair, edge_index, size)
        source, target, heads = pair.x_src, pair.x_dst, (self.heads, self.out_channels)
        if not isinstance(x, (tuple, list)):
            target = source
        to_source, to_target = (
            (self.lin, self.lin) if self.lin is not None else (self.lin_src, self.lin_dst)
        )
        h = to_source(source).view(-1, *heads)
        right = None
        if target is source and to_source is to_target:
            h, left, right = scores(h, self.att_src[0], self.att_dst[0])
        else:
            h, left = scores(h, self.att_src[0])
            if target is not None:
                of_target = to_target(target).view(-1, *heads)
                right = scores(of_target, self.att_dst[0])[1]
        out = attention(csc, h, left, right, negative_slope=self.negative_slope, self_loops=loops)
        note(f"forward: peergraph, attention in one pass over {csc}")
        return finish_attention(self, out, target)

    def edge_updater(self, edge_index: Any, size: Size = None, **kwargs: Any) -> Tensor:
        """Attention weights of edges [edges, heads], as PyG's."""

        def fast() -> Tensor:
            alpha, edge_attr = ends_of(kwargs["alpha"]), kwargs["edge_attr"]
            self._check_settings()
            csc = self._structure(edge_index, size, alpha, None)
            scores = without_autocast(lambda: _sum_of_ends(csc, alpha))
            weights = self._attention(csc, scores, edge_attr)
            note(f"edge_updater: peergraph, softmax over {csc}")
            return weights

        return self._either(
            "edge_updater",
            fast,
            lambda: FastLayer.edge_updater(self, edge_index, size, **kwargs),
        )

    def _attention(self, csc: Csc, scores: Tensor, edge_attr: Tensor | None) -> Tensor:
        if edge_attr is not None and self.lin_edge is not None:
            edges = edge_attr.view(-1, 1) if edge_attr.dim() == 1 else edge_attr
            edges = self.lin_edge(edges).view(-1, self.heads, self.out_channels)
            scores = scores + (edges * self.att_edge).sum(dim=-1)
        scores = F.leaky_relu(scores, self.negative_slope)
        weights = without_autocast(lambda: edge_softmax(csc, scores))
        return F.dropout(weights, p=self.dropout, training=self.training)

    def _operands(self, kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
        return ends_of(kwargs["x"]), kwargs["alpha"]


class GATv2Conv(FastLayer, pyg.GATv2Conv):  # type: ignore[misc]
    """PyG's GATv2Conv; without edge features, dropout and autocast, in one pass over the edges.

    Else scores are PyG's, which writes the features of both ends of each edge.
    """

    pyg_class = pyg.GATv2Conv

    def forward(
        self,
        x: Any,
        edge_index: Any,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """As PyG's. The structure is kept for as long as `edge_index` lives."""

        def by_edges() -> Any:
            args = (x, edge_index, edge_attr, return_attention_weights)
            with known_by(edge_index, "GATv2Conv", self.add_self_loops):
                return pyg.GATv2Conv.forward(self, *args)

        if edge_attr is not None:
            return by_edges()
        return self._either(
            "forward",
            lambda: with_weights(
                self._in_one_pass(x, edge_index), by_edges, return_attention_weights
            ),
            by_edges,
        )

    def _in_one_pass(self, x: Any, edge_index: Any) -> Tensor:
        single = not isinstance(x, (tuple, list))
        pair = ends_of((x, x) if single else x)
        refuse(pair.x_dst is None, "there are no features of destinations")
        csc, loops = attention_over(self, pair, edge_index, None)
        source, target, heads = pair.x_src, pair.x_dst, (self.heads, self.out_channels)
        left = self.lin_l(source).view(-1, *heads)
        same = single and self.share_weights
        right = left if same else self.lin_r(target).view(-1, *heads)
        out = attention(
            csc,
            left,
            None,
            right,
            att=self.att[0],
            negative_slope=self.negative_slope,
            self_loops=loops,
        )
        note(f"forward: peergraph, attention in one pass over {csc}")
        return finish_attention(self, out, target)

    def _operands(self, kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
        return ends_of(kwargs["x"]), kwargs["alpha"]


def _sum_of_ends(csc: Csc, values: Ends) -> Tensor:
    if values.x_dst is None:
        return g_sddmm(csc, "copy", values.x_src)
    return g_sddmm(csc, "add", values.x_src, values.x_dst)
