"""Aggregation over the edges of a graph: g-SpMM, g-SDDMM, edge softmax, with gradients."""

from peergraph.aggregate.kernels.arguments import supports
from peergraph.aggregate.messages.message import Message, message
from peergraph.aggregate.ops.attention import attention, attention_fits
from peergraph.aggregate.ops.edge_softmax import edge_softmax
from peergraph.aggregate.ops.sddmm import g_sddmm
from peergraph.aggregate.ops.spmm import g_spmm
from peergraph.aggregate.ops.spmm_add_self import spmm_add_self
from peergraph.aggregate.ops.spmm_linear import spmm_linear
from peergraph.aggregate.sparse.csc import Csc
from peergraph.aggregate.sparse.reorder import reorder

__all__ = [
    "Csc",
    "Message",
    "attention",
    "attention_fits",
    "edge_softmax",
    "g_sddmm",
    "g_spmm",
    "message",
    "reorder",
    "spmm_add_self",
    "spmm_linear",
    "supports",
]
