"""Aggregation over the edges of a graph: g-SpMM, g-SDDMM, edge softmax, with gradients."""

from peergraph.aggregate.attention import attention, attention_fits
from peergraph.aggregate.csc import Csc
from peergraph.aggregate.edge_softmax import edge_softmax
from peergraph.aggregate.locality import reorder
from peergraph.aggregate.native import supports
from peergraph.aggregate.sddmm import g_sddmm
from peergraph.aggregate.spmm import g_spmm
from peergraph.aggregate.user_message import Message, message

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
    "supports",
]
