"""PyG's layers: each maps its arguments to a function of ``peergraph.aggregate.layers``.

Constructors, attributes and ``state_dict`` are PyG's; where a call is not supported, so is
``forward``. Of several neighbours with the same extremum (``aggr="max"`` or ``"min"``) the first
gets the gradient, where PyG divides it among them. Rows that are zero after ReLU or dropout are
such, but their gradient goes no further: gradients of parameters are then those of PyG.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import conv as pyg

from peergraph.aggregate import Structure, layers
from peergraph.aggregate.layers import without_autocast
from peergraph.integration import Unsupported, is_explaining, note, require

from ..data.csc_cache import cache_key
from ..data.lazy_features import gathered
from .attention_steps import combine_heads, structure_of_one_pass, with_attention_weights
from .features import (
    Ends,
    are_first_rows,
    ends_of,
    is_rows,
    kind_of,
    weighted_operands,
)
from .layer import FastLayer, Size
from .linear_maps import weight_to_reorder
from .partitioned import split_weights
from .withheld_bias import bias_to_add


class SAGEConv(FastLayer, pyg.SAGEConv):  # type: ignore[misc]
    """PyG's SAGEConv; aggr "mean", "sum", "add", "max" or "min" runs on Peergraph."""

    pyg_class = pyg.SAGEConv

    def forward(self, x: Any, edge_index: Any, size: Size = None) -> Any:
        """As PyG's; the products of the two linear maps are added as they are made."""

        def fused() -> Tensor:
            require(not self.project, "features are projected before")
            require(self.root_weight, "there is no root weight")
            ends = ends_of((x, x) if isinstance(x, Tensor) else x)
            maps = self.lin_l, self.lin_r
            out = self._aggregate_and_project(
                ends, edge_index, size, *maps, adds_bias_last=not self.normalize
            )
            return F.normalize(out, p=2.0, dim=-1) if self.normalize else out

        return self._fused_or_fallback(
            fused, lambda: pyg.SAGEConv.forward(self, x, edge_index, size)
        )


class GCNConv(FastLayer, pyg.GCNConv):  # type: ignore[misc]
    """PyG's GCNConv; without edge weights, the degrees of the structure normalise.

    With edge weights, or ``cached=True``, normalisation and its cache are PyG's.
    """

    pyg_class = pyg.GCNConv

    def forward(self, x: Any, edge_index: Any, edge_weight: Tensor | None = None) -> Any:
        """As PyG's. Structure and degrees are kept for as long as `edge_index` lives."""
        edge_index, edge_weight = split_weights(edge_index, edge_weight)
        if edge_weight is None and self.normalize and not self.cached:
            return self._fused_or_fallback(
                lambda: self._by_degrees(x, edge_index),
                lambda: self._by_weights(x, edge_index, None),
                step="forward",
            )
        return self._by_weights(x, edge_index, edge_weight)

    def _by_degrees(self, x: Any, edge_index: Any) -> Tensor:
        require(self._require_settings(by_columns=True) == "sum", f"aggr is {self.aggr}")
        self._require_steps("propagate")
        require(isinstance(x, Tensor), f"x is a {kind_of(x)}")
        csc = self._structure(edge_index, None, Ends(x, None), None)
        if csc.num_destinations != csc.num_sources:
            raise Unsupported(f"there is {csc}")
        weight = weight_to_reorder(self.lin, x)
        out = layers.gcn(
            csc,
            self.lin(x) if weight is None else x,
            weight=weight,
            bias=bias_to_add(self, self.bias),
            add_self_loops=self.add_self_loops,
            norm_dtype=x.dtype,
        )
        if is_explaining():
            how = "edges weighted" if layers.weights_edges(csc, x.dtype) else "rows scaled"
            note(f"forward: peergraph, sum over {csc}, {how} by the degrees")
        return out

    def _makes_edges(self) -> bool:
        return bool(self.normalize and self.add_self_loops)

    def _by_weights(self, x: Any, edge_index: Any, edge_weight: Tensor | None) -> Any:
        # The edge index that ``cached=True`` keeps may come from another one than this.
        changes = self.normalize and self.add_self_loops and not self.cached
        with cache_key("GCNConv", edge_index, changes=changes):
            return super().forward(x, edge_index, edge_weight)

    def _operands(self, kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
        return weighted_operands(kwargs)


class GINConv(FastLayer, pyg.GINConv):  # type: ignore[misc]
    """PyG's GINConv."""

    pyg_class = pyg.GINConv

    def forward(self, x: Any, edge_index: Any, size: Size = None) -> Any:
        """As PyG's; the self term is added to the sums in place."""

        def fused() -> Tensor:
            ends = ends_of((x, x) if isinstance(x, Tensor) else x)
            require(self._require_settings() == "sum", f"aggr is {self.aggr}")
            self._require_steps("propagate")
            require(are_first_rows(ends.x_dst, ends.x_src), "destinations are other rows")
            if ends.x_src.dim() != 2:
                raise Unsupported(f"x is {list(ends.x_src.shape)}")
            csc = self._structure(edge_index, size, ends, None)
            out = without_autocast(lambda: layers.gin(csc, ends.x_src, self.eps))
            if is_explaining():
                note(f"propagate: peergraph, sum over {csc}")
            return out

        return self._fused_or_fallback(
            lambda: self.nn(fused()), lambda: pyg.GINConv.forward(self, x, edge_index, size)
        )


class GINEConv(FastLayer, pyg.GINEConv):  # type: ignore[misc]
    """PyG's GINEConv; in one compiled kernel where there is CuPy.

    Without CuPy, and over the structure of one mini-batch, messages are written.
    """

    pyg_class = pyg.GINEConv

    def forward(
        self, x: Any, edge_index: Any, edge_attr: Tensor | None = None, size: Size = None
    ) -> Any:
        """As PyG's; the self term is added in one pass."""
        pair = (x, x) if isinstance(x, Tensor) else x
        if torch.compiler.is_compiling() or not is_rows(pair[1]):
            return super().forward(x, edge_index, edge_attr, size)
        out = self.propagate(edge_index, x=pair, edge_attr=edge_attr, size=size)
        return self.nn(torch.addcmul(out, pair[1], 1 + self.eps))

    def _operands(self, kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
        x, edge_attr = ends_of(kwargs["x"]), kwargs["edge_attr"]
        require(edge_attr is not None and x.x_src.dim() == 2, "there are no edge features")
        return x, edge_attr

    def _aggregate(self, csc: Structure, reduce: str, x: Tensor, e: Tensor | None) -> Tensor:
        assert e is not None
        width = self.lin.out_channels if self.lin is not None else e.shape[-1]
        if e.dim() != 2 or width != x.shape[-1]:  # PyG raises the error.
            sources = without_autocast(lambda: csc.sddmm("copy", gathered(x)))
            messages = self.message(sources, e)
            return without_autocast(lambda: csc.spmm("copy_e", reduce, e=messages))
        rows = gathered(x)
        if layers.fuses_gine(csc, rows):
            note("messages: one compiled kernel, never written")
        return layers.gine(csc, rows, e if self.lin is None else self.lin(e), reduce=reduce)


class GraphConv(FastLayer, pyg.GraphConv):  # type: ignore[misc]
    """PyG's GraphConv."""

    pyg_class = pyg.GraphConv

    def forward(
        self, x: Any, edge_index: Any, edge_weight: Tensor | None = None, size: Size = None
    ) -> Any:
        """As PyG's; the products of the two linear maps are added as they are made."""
        edge_index, edge_weight = split_weights(edge_index, edge_weight)

        def fused() -> Tensor:
            require(edge_weight is None, "there are weights")
            ends = ends_of((x, x) if isinstance(x, Tensor) else x)
            return self._aggregate_and_project(ends, edge_index, size, self.lin_rel, self.lin_root)

        return self._fused_or_fallback(
            fused, lambda: pyg.GraphConv.forward(self, x, edge_index, edge_weight, size)
        )

    def _operands(self, kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
        return weighted_operands(kwargs)


class GatedGraphConv(FastLayer, pyg.GatedGraphConv):  # type: ignore[misc]
    """PyG's GatedGraphConv: sums of products, without a message for each edge, and gated units."""

    pyg_class = pyg.GatedGraphConv

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Any:
        """As PyG's."""
        edge_index, edge_weight = split_weights(edge_index, edge_weight)
        return pyg.GatedGraphConv.forward(self, x, edge_index, edge_weight)

    def _operands(self, kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
        return weighted_operands(kwargs)


class GATConv(FastLayer, pyg.GATConv):  # type: ignore[misc]
    """PyG's GATConv; without edge features and dropout, in one pass over the edges.

    Else the weights of edges are written, a number for each edge and head; messages are not.
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
            with cache_key("GATConv", edge_index, changes=self.add_self_loops):
                return pyg.GATConv.forward(self, *args)

        if edge_attr is not None:
            return by_edges()
        return self._fused_or_fallback(
            lambda: with_attention_weights(
                self._in_one_pass(x, edge_index, size), by_edges, return_attention_weights
            ),
            by_edges,
            step="forward",
        )

    def _makes_edges(self) -> bool:
        return bool(self.add_self_loops)

    def _in_one_pass(self, x: Any, edge_index: Any, size: Size) -> Tensor:
        pair = ends_of(x)
        csc = structure_of_one_pass(self, pair, edge_index, size, self.att_src.dtype)
        source, target, heads = pair.x_src, pair.x_dst, (self.heads, self.out_channels)
        if not isinstance(x, (tuple, list)):
            target = source
        to_source, to_target = (
            (self.lin, self.lin) if self.lin is not None else (self.lin_src, self.lin_dst)
        )
        h = to_source(source)
        alone = target is None or (target is source and to_source is to_target)
        one_end = alone and self.res is None
        destination_h = None if alone else to_target(target).view(-1, *heads)

        def attend(structure: Structure, features: Tensor) -> Tensor:
            out = without_autocast(
                lambda: layers.gat(
                    structure,
                    features.view(-1, *heads),
                    self.att_src[0].to(features.dtype),
                    None if target is None else self.att_dst[0].to(features.dtype),
                    destination_x=destination_h,
                    negative_slope=self.negative_slope,
                    add_self_loops=self.add_self_loops,
                )
            )
            return combine_heads(self, out, target, self.att_src.dtype)

        out = csc.run_layer(attend, h) if one_end else attend(csc, h)
        if is_explaining():
            note(f"forward: peergraph, attention in one pass over {csc}")
        return out

    def edge_updater(self, edge_index: Any, size: Size = None, **kwargs: Any) -> Tensor:
        """Attention weights of edges [edges, heads], as PyG's."""

        def fused() -> Tensor:
            alpha = ends_of(kwargs["alpha"])
            self._require_settings()
            csc = self._structure(edge_index, size, alpha, None)
            weights = layers.gat_weights(
                csc,
                alpha.x_src,
                alpha.x_dst,
                edge_scores=self._edge_scores(kwargs["edge_attr"]),
                negative_slope=self.negative_slope,
                dropout=self.dropout if self.training else 0.0,
            )
            if is_explaining():
                note(f"edge_updater: peergraph, softmax over {csc}")
            return weights

        result: Tensor = self._fused_or_fallback(
            fused,
            lambda: FastLayer.edge_updater(self, edge_index, size, **kwargs),
            step="edge_updater",
        )
        return result

    def _edge_scores(self, edge_attr: Tensor | None) -> Tensor | None:
        # Without edges, PyG leaves the parameters without a gradient, which optimizers then skip.
        if edge_attr is None or self.lin_edge is None or edge_attr.shape[0] == 0:
            return None
        edges = edge_attr.view(-1, 1) if edge_attr.dim() == 1 else edge_attr
        edges = self.lin_edge(edges).view(-1, self.heads, self.out_channels)
        scores: Tensor = (edges * self.att_edge).sum(dim=-1)
        return scores

    def _operands(self, kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
        return ends_of(kwargs["x"]), kwargs["alpha"]


class GATv2Conv(FastLayer, pyg.GATv2Conv):  # type: ignore[misc]
    """PyG's GATv2Conv; without edge features and dropout, in one pass over the edges.

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
            with cache_key("GATv2Conv", edge_index, changes=self.add_self_loops):
                return pyg.GATv2Conv.forward(self, *args)

        if edge_attr is not None:
            return by_edges()
        return self._fused_or_fallback(
            lambda: with_attention_weights(
                self._in_one_pass(x, edge_index), by_edges, return_attention_weights
            ),
            by_edges,
            step="forward",
        )

    def _makes_edges(self) -> bool:
        return bool(self.add_self_loops)

    def _in_one_pass(self, x: Any, edge_index: Any) -> Tensor:
        single = not isinstance(x, (tuple, list))
        pair = ends_of((x, x) if single else x)
        require(pair.x_dst is not None, "there are no features of destinations")
        csc = structure_of_one_pass(self, pair, edge_index, None, self.att.dtype)
        source, target, heads = pair.x_src, pair.x_dst, (self.heads, self.out_channels)
        left = self.lin_l(source).view(-1, *heads)
        same = single and self.share_weights
        right = left if same else self.lin_r(target).view(-1, *heads)
        out = without_autocast(
            lambda: layers.gatv2(
                csc,
                left,
                right,
                self.att[0].to(left.dtype),
                negative_slope=self.negative_slope,
                add_self_loops=self.add_self_loops,
            )
        )
        if is_explaining():
            note(f"forward: peergraph, attention in one pass over {csc}")
        return combine_heads(self, out, target, self.att.dtype)

    def _operands(self, kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
        return ends_of(kwargs["x"]), kwargs["alpha"]
