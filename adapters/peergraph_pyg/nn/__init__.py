"""PyG's layers on Peergraph's aggregation: the same names, arguments, parameters and results."""

from .convs import (
    GATConv,
    GatedGraphConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GINEConv,
    GraphConv,
    SAGEConv,
)
from .relational_convs import FastRGCNConv, RGCNConv
from .typed_convs import HANConv, HGTConv

__all__ = [
    "FastRGCNConv",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "GINConv",
    "GINEConv",
    "GatedGraphConv",
    "GraphConv",
    "HANConv",
    "HGTConv",
    "RGCNConv",
    "SAGEConv",
]
