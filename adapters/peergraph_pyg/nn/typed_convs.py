"""PyG's layers over all relations of a graph, which run as one operation."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import conv as pyg
from torch_geometric.nn.dense import HeteroDictLinear, HeteroLinear

from peergraph.aggregate import TypedPairs, layers
from peergraph.aggregate.layers import DotAttention, without_autocast
from peergraph.integration import Unsupported, is_explaining, note, require

from .. import compat
from ..data.csc_cache import typed_edges_of
from ..data.lazy_features import is_plain
from ..data.tailed_rows import TailedRows
from .features import Ends
from .layer import FastLayer
from .linear_maps import product_dtype
from .typed_inputs import features_of, relations_of, rows_to_read


class TypedLayer(FastLayer):
    """A layer whose messages of all relations are one operation."""

    def _is_compiled(self, step: str | None) -> bool:
        return False

    def _operands(self, kwargs: dict[str, Any]) -> tuple[Ends, Tensor | None]:
        raise Unsupported("messages are of several relations")


class HGTConv(TypedLayer, pyg.HGTConv):  # type: ignore[misc]
    """PyG's HGTConv; one attention over the edges of all relations.

    Maps of relations multiply queries and sums of values, rather than keys and values of each
    source. Only destinations that have edges have queries.
    """

    pyg_class = pyg.HGTConv

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        """As PyG's. The joined edges are kept for as long as the edge indices live."""
        return self._fused_or_fallback(
            lambda: self._joined(x_dict, edge_index_dict),
            lambda: pyg.HGTConv.forward(self, x_dict, edge_index_dict),
            step="forward",
        )

    def _joined(self, x_dict: Any, edge_index_dict: Any) -> dict[str, Tensor]:
        features = self._require_inputs(x_dict)
        relations = relations_of(edge_index_dict, features, self.edge_types)
        maps = [self.edge_types_map[edge_type] for edge_type in edge_index_dict]
        # PyG multiplies by the maps of other relations then.
        require(maps == sorted(maps), "relations are not in the order of the metadata")
        linears = [self.kqv_lin.lins[node_type] for node_type in features]
        priors = [self.p_rel["__".join(edge_type)] for edge_type in edge_index_dict]
        parameters = self.k_rel.weight, self.v_rel.weight, *priors
        dtypes = {each.dtype for each in (*(linear.weight for linear in linears), *parameters)}
        require(all(map(is_plain, parameters)) and len(dtypes) == 1, "weights are of other kinds")
        device, kept = self.k_rel.weight.device, dtypes.pop()
        dtype = product_dtype(device, kept, *(x.dtype for x in features.values()))
        if dtype is None:
            raise Unsupported(f"x is not {kept}")
        sizes = [len(x) for x in features.values()]
        pairs = typed_edges_of(TypedPairs, relations, sizes)
        depth = self.out_channels // self.heads
        by_head = self.heads, len(self.edge_types), depth, depth
        sums = without_autocast(
            lambda: layers.typed_dot_attention(
                pairs,
                [rows_to_read(x) for x in features.values()],
                DotAttention(
                    weights=[linear.weight for linear in linears],
                    biases=[linear.bias for linear in linears],
                    key_maps=self.k_rel.weight.view(by_head),
                    value_maps=self.v_rel.weight.view(by_head),
                    maps=maps,
                    priors=priors,
                ),
                dtype,
            )
        )
        if is_explaining():
            note(f"forward: peergraph, attention of {len(relations)} relations in one pass")
        results = {
            node_type: rows
            for node_type, rows in zip(features, sums, strict=True)
            if node_type in self.dst_node_types
        }
        projected = self.out_lin({node_type: F.gelu(rows) for node_type, rows in results.items()})
        for node_type in results:
            x = features[node_type]
            bias = self.out_lin.lins[node_type].bias
            rows = projected[node_type]
            # Of the other destinations, the sums are zeros.
            rows = TailedRows.of(rows, bias.to(rows.dtype), len(x))
            if rows.shape[-1] == x.shape[-1]:
                share = self.skip[node_type].sigmoid()
                rows = share * rows + (1 - share) * x
            results[node_type] = rows
        return results

    def _require_inputs(self, x_dict: Any) -> dict[str, Tensor]:
        """Returns the features by type; raises Unsupported unless all steps are PyG's own."""
        require(self._require_settings() == "sum", f"aggr is {self.aggr}")
        self._require_steps("propagate", "forward")
        for maps in (self.kqv_lin, self.out_lin):
            require(
                type(maps) is HeteroDictLinear and not compat.has_hooks(maps), "maps have hooks"
            )
        for maps in (self.k_rel, self.v_rel):
            plain = type(maps) is HeteroLinear and maps.bias is None
            require(plain and not compat.has_hooks(maps), "maps of relations are the user's")
        features = features_of(x_dict, self.kqv_lin.lins)
        for node_type in features:
            if node_type in self.dst_node_types:
                linear = self.out_lin.lins[node_type]
                require(not compat.has_hooks(linear), "there are hooks of a map")
                require(
                    is_plain(linear.bias) and linear.weight.dtype == linear.bias.dtype, "no bias"
                )
        return features
