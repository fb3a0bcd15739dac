"""DGL's layers on Peergraph's kernels: the same names, arguments, parameters and results."""

from .convs import GATConv, GATv2Conv, GINConv, GraphConv, RelGraphConv, SAGEConv
from .hetero import HeteroGraphConv

__all__ = [
    "GATConv",
    "GATv2Conv",
    "GINConv",
    "GraphConv",
    "HeteroGraphConv",
    "RelGraphConv",
    "SAGEConv",
]
