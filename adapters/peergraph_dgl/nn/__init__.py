"""DGL's layers on Peergraph's kernels: the same names, arguments, parameters and results."""

from .convs import GATConv, GATv2Conv, GINConv, GraphConv, RelGraphConv, SAGEConv
from .hetero import HeteroGraphConv
from .transformer import HGTConv

__all__ = [
    "GATConv",
    "GATv2Conv",
    "GINConv",
    "GraphConv",
    "HGTConv",
    "HeteroGraphConv",
    "RelGraphConv",
    "SAGEConv",
]
