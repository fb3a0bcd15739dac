"""Aggregation over the edges of a graph: g-SpMM, g-SDDMM, edge softmax, with gradients."""

from peergraph.aggregate import layers
from peergraph.aggregate.communities import find_communities, reorder
from peergraph.aggregate.csc import Csc
from peergraph.aggregate.functions import (
    attention,
    edge_softmax,
    g_sddmm,
    g_spmm,
    spmm_add_self,
    spmm_linear,
)
from peergraph.aggregate.kernels.arguments import DTYPES, supports
from peergraph.aggregate.messages.message import Message, message
from peergraph.aggregate.ops.attention import AttentionSum, attention_fits
from peergraph.aggregate.ops.spmm import Sum
from peergraph.aggregate.ops.spmm_add_self import SumAddSelf
from peergraph.aggregate.ops.spmm_linear import SumLinear
from peergraph.aggregate.sparse.index_tensors import is_arange, row_of_edges
from peergraph.aggregate.sparse.relation_blocks import RelationBlocks
from peergraph.aggregate.sparse.relation_columns import RelationColumns
from peergraph.aggregate.sparse.typed_edges import Relation, TypedEdges
from peergraph.aggregate.sparse.typed_pairs import ApartPairs, BlockPairs, JointPairs, TypedPairs
from peergraph.aggregate.structure import Structure
from peergraph.aggregate.traced.edges import TracedEdges, register_finder
from peergraph.aggregate.traced.structure import TracedStructure

FEATURE_DTYPES = tuple(DTYPES)

__all__ = [
    "FEATURE_DTYPES",
    "ApartPairs",
    "AttentionSum",
    "BlockPairs",
    "Csc",
    "JointPairs",
    "Message",
    "Relation",
    "RelationBlocks",
    "RelationColumns",
    "Structure",
    "Sum",
    "SumAddSelf",
    "SumLinear",
    "TracedEdges",
    "TracedStructure",
    "TypedEdges",
    "TypedPairs",
    "attention",
    "attention_fits",
    "edge_softmax",
    "find_communities",
    "g_sddmm",
    "g_spmm",
    "is_arange",
    "layers",
    "message",
    "register_finder",
    "reorder",
    "row_of_edges",
    "spmm_add_self",
    "spmm_linear",
    "supports",
]
