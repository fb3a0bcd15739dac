"""Layers of graph neural networks as functions that know no framework.

They take a structure (:class:`peergraph.aggregate.Csc` or another implementation of
:class:`peergraph.aggregate.Structure`), features and weights.
"""

from peergraph.aggregate.layers.autocast import without_autocast
from peergraph.aggregate.layers.degree_normalisation import gcn, weights_edges
from peergraph.aggregate.layers.graph_attention import (
    combine_heads,
    gat,
    gat_weights,
    gatv2,
    why_not_one_pass,
)
from peergraph.aggregate.layers.isomorphism import fuses_gine, gin, gine
from peergraph.aggregate.layers.linear_aggregation import graph, rgcn, rgcn_by_basis, sage
from peergraph.aggregate.layers.path_attention import path_attention, semantic_attention
from peergraph.aggregate.layers.typed_attention import DynamicRelation, typed_gat, typed_gatv2
from peergraph.aggregate.layers.typed_sums import (
    SumRelation,
    rgcn_of_ids,
    typed_rgcn,
    typed_sage,
    typed_sage_of_products,
)
from peergraph.aggregate.ops.activate import activate
from peergraph.aggregate.ops.appended_products import append_products
from peergraph.aggregate.ops.mixed_rows import mix_rows
from peergraph.aggregate.ops.product_order import RelationSize, relations_multiply_first
from peergraph.aggregate.ops.source_rows import kind_of_rows
from peergraph.aggregate.ops.spmm_linear import add_product
from peergraph.aggregate.ops.typed_dot_attention import RelationMaps, typed_dot_attention
from peergraph.aggregate.ops.typed_products import typed_keys_queries_values
from peergraph.aggregate.ops.typed_projection import AttentionRelation
from peergraph.aggregate.ops.typed_sums import TypedResult, total_of

__all__ = [
    "AttentionRelation",
    "DynamicRelation",
    "RelationMaps",
    "RelationSize",
    "SumRelation",
    "TypedResult",
    "activate",
    "add_product",
    "append_products",
    "combine_heads",
    "fuses_gine",
    "gat",
    "gat_weights",
    "gatv2",
    "gcn",
    "gin",
    "gine",
    "graph",
    "kind_of_rows",
    "mix_rows",
    "path_attention",
    "relations_multiply_first",
    "rgcn",
    "rgcn_by_basis",
    "rgcn_of_ids",
    "sage",
    "semantic_attention",
    "total_of",
    "typed_dot_attention",
    "typed_gat",
    "typed_gatv2",
    "typed_keys_queries_values",
    "typed_rgcn",
    "typed_sage",
    "typed_sage_of_products",
    "weights_edges",
    "why_not_one_pass",
    "without_autocast",
]
