"""PyG's layers on Peergraph's aggregation: the same names, arguments, parameters and results."""

from .attention_convs import GATConv, GATv2Conv
from .convs import (
    GCNConv,
    GINConv,
    GINEConv,
    GraphConv,
    RGCNConv,
    SAGEConv,
)

__all__ = [
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "GINEConv",
    "GraphConv",
    "RGCNConv",
    "SAGEConv",
]
