"""PyG's layers over all relations of a graph, which run as one operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import conv as pyg
from torch_geometric.nn.dense import HeteroDictLinear, HeteroLinear

from peergraph.aggregate import ApartPairs, JointPairs, layers
from peergraph.aggregate.layers import RelationMaps, TypedResult, without_autocast
from peergraph.integration import Unsupported, is_explaining, note, require

from .. import compat
from ..data.csc_cache import typed_edges_of
from ..data.lazy_features import is_plain
from ..data.tailed_rows import TailedRows
from .features import Ends
from .joined_layers import EdgeType
from .layer import FastLayer
from .linear_maps import product_dtype
from .typed_inputs import features_of, relations_of, rows_between, rows_to_read


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
        device, dtype_of_rows = self.k_rel.weight.device, dtypes.pop()
        dtype = product_dtype(device, dtype_of_rows, *(x.dtype for x in features.values()))
        if dtype is None:
            raise Unsupported(f"x is not {dtype_of_rows}")
        sizes = [len(x) for x in features.values()]
        pairs = typed_edges_of(JointPairs, relations, sizes)
        depth = self.out_channels // self.heads
        by_head = self.heads, len(self.edge_types), depth, depth
        relation_maps = RelationMaps(
            self.k_rel.weight.view(by_head), self.v_rel.weight.view(by_head), maps, priors
        )

        def attend() -> tuple[Tensor, ...]:
            rows = [rows_to_read(x) for x in features.values()]
            weights = [linear.weight for linear in linears]
            biases = [linear.bias for linear in linears]
            keys = layers.typed_keys_queries_values(pairs, rows, weights, biases, dtype)
            return layers.typed_dot_attention(pairs, *keys, relation_maps)

        sums = without_autocast(attend)
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
            if rows.shape[-1] == x.shape[-1]:
                share = self.skip[node_type].sigmoid()
                results[node_type] = _with_own_rows(rows, bias, share, x)
            else:
                results[node_type] = TailedRows.of(rows, bias.to(rows.dtype), len(x))
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


def _with_own_rows(rows: Tensor, bias: Tensor, share: Tensor, x: Tensor) -> Tensor:
    """Returns ``share * all_rows + (1 - share) * x``, where all rows but the first are the bias.

    Those of nodes without edges are computed if something reads them.
    """
    count, dtype = rows.shape[0], rows.dtype

    def combine(part: Tensor, begin: int, end: int) -> Tensor:
        return layers.mix_rows(share, part, rows_between(x, begin, end, x.dtype))

    def append(parameters: Sequence[Tensor], before: TypedResult, begin: int, end: int) -> Tensor:
        [own] = parameters
        return torch.cat([before.first, combine(own, begin, end)])

    first = TypedResult(combine(rows, 0, count))
    return TailedRows.of_computed(first, partial(partial, append), x, lambda: [bias.to(dtype)])


class HANConv(TypedLayer, pyg.HANConv):  # type: ignore[misc]
    """PyG's HANConv; one sum over the edges of all relations into a type.

    Rows of destinations without edges are zeros, and are neither written nor multiplied for the
    attention over relations.
    """

    pyg_class = pyg.HANConv

    def forward(
        self, x_dict: Any, edge_index_dict: Any, return_semantic_attention_weights: bool = False
    ) -> Any:
        """As PyG's. The joined edges are kept for as long as the edge indices live."""
        with_weights = return_semantic_attention_weights

        def joined() -> Any:
            results, weights = self._joined(x_dict, edge_index_dict)
            return (results, weights) if with_weights else results

        return self._fused_or_fallback(
            joined,
            lambda: pyg.HANConv.forward(self, x_dict, edge_index_dict, with_weights),
            step="forward",
        )

    def _joined(self, x_dict: Any, edge_index_dict: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns results and weights of relations by node type; None for types without any."""
        require(self._require_settings() == "sum", f"aggr is {self.aggr}")
        self._require_steps("propagate", "forward")
        features = features_of(x_dict, self.proj)
        relations_of(edge_index_dict, features, self.metadata[1])  # before anything runs
        names = ["__".join(edge_type) for edge_type in edge_index_dict]
        vectors = [self.lin_src[name] for name in names], [self.lin_dst[name] for name in names]
        parameters = *vectors[0], *vectors[1], self.q, *self.k_lin.parameters()
        plain = type(self.k_lin) is torch.nn.Linear and all(map(is_plain, parameters))
        require(plain and not compat.has_hooks(self.k_lin), "parameters are of other kinds")
        weights = [self.proj[node_type].weight for node_type in features]
        dtypes = {each.dtype for each in (*parameters, *weights)}
        of_x = [x.dtype for x in features.values()]
        fits = len(dtypes) == 1 and product_dtype(self.q.device, *dtypes, *of_x) is not None
        require(fits, "x and weights are of several dtypes")
        require(all(map(len, features.values())), "there are types without nodes")
        by_head = -1, self.heads, self.out_channels // self.heads
        rows = {t: self.proj[t](features[t]).view(by_head) for t in features}
        results: dict[str, Any] = {}
        shares: dict[str, Any] = {}
        for node_type in x_dict:
            edges = {key: each for key, each in edge_index_dict.items() if key[2] == node_type}
            results[node_type] = shares[node_type] = None
            if edges:
                results[node_type], shares[node_type] = self._into(node_type, rows, edges)
        if is_explaining():
            note(f"forward: peergraph, attention of {len(names)} relations in one pass a type")
        return results, shares

    def _into(
        self, node_type: str, rows: Mapping[str, Tensor], edges: Mapping[EdgeType, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Returns the result and the weights of the relations into one node type."""
        used = {end for edge_type in edges for end in (edge_type[0], edge_type[2])}
        features = {key: each for key, each in rows.items() if key in used}
        relations = relations_of(edges, features, edges)
        names = ["__".join(edge_type) for edge_type in edges]
        pairs = typed_edges_of(ApartPairs, relations, [len(x) for x in features.values()])
        sums = without_autocast(
            lambda: layers.path_attention(
                pairs,
                relations,
                list(features.values()),
                [self.lin_src[name][0] for name in names],
                [self.lin_dst[name][0] for name in names],
                negative_slope=self.negative_slope,
                dropout=self.dropout if self.training else 0.0,
            )
        )
        count = len(rows[node_type])
        out, weights = layers.semantic_attention(pairs, F.relu(sums), count, self.k_lin, self.q)
        out = out.to(torch.promote_types(out.dtype, self.q.dtype))
        return TailedRows.of(out, out.new_zeros(out.shape[1]), count), weights
