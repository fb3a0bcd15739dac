"""Aggregation over the edges of a graph: g-SpMM, g-SDDMM, edge softmax, with gradients."""

from peergraph.aggregate.kernels.native import supports
from peergraph.aggregate.messages.message import Message, message
from peergraph.aggregate.operations.attention import attention, attention_fits
from peergraph.aggregate.operations.edge_softmax import edge_softmax
from peergraph.aggregate.operations.own_rows import sum_with_own
from peergraph.aggregate.operations.sddmm import g_sddmm
from peergraph.aggregate.operations.spmm import g_spmm
from peergraph.aggregate.operations.spmm_linear import spmm_linear
from peergraph.aggregate.structure.csc import Csc
from peergraph.aggregate.structure.reorder import reorder

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
    "spmm_linear",
    "sum_with_own",
    "supports",
]
