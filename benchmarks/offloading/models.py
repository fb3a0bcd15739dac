"""The models that HongTu trains, of PyG's layers."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GATConv, GatedGraphConv, GCNConv, GINConv, GraphSAGE, SAGEConv

KINDS = ("GCN", "SAGE", "GIN", "GAT", "GGNN")


class Gnn(torch.nn.Module):
    """Layers of one kind, with ReLU between them."""

    def __init__(self, kind: str, widths: list[int], heads: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList()
        pairs = list(pairwise(widths))
        for number, (before, after) in enumerate(pairs):
            last = number == len(pairs) - 1
            if kind == "GCN":
                layer = GCNConv(before, after)
            elif kind == "SAGE":
                layer = SAGEConv(before, after)
            elif kind == "GIN":
                layer = GINConv(torch.nn.Linear(before, after))
            elif kind == "GAT":
                shape = (after, 1) if last else (after // heads, heads)
                # Loops would be added to all edges at once, on the device.
                layer = GATConv(before, *shape, add_self_loops=False)
            else:
                layer = torch.nn.ModuleList(
                    [torch.nn.Linear(before, after), GatedGraphConv(after, 1)]
                )
            self.layers.append(layer)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            if number:
                x = F.relu(x)
            if isinstance(layer, torch.nn.ModuleList):
                linear, gated = layer
                x = gated(linear(x), edge_index)
            else:
                x = layer(x, edge_index)
        return x


def make_sage(widths: list[int]) -> GraphSAGE:
    """Returns PyG's GraphSAGE, which has layer-wise inference of its own."""
    if len(set(widths[1:-1])) > 1:
        raise ValueError(f"PyG's GraphSAGE has one hidden width, got {widths}")
    return GraphSAGE(widths[0], widths[1], len(widths) - 1, widths[-1])
