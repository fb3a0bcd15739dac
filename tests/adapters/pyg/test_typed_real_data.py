"""Typed attention on real graphs of several types: the results and gradients of plain PyG."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import GATConv, HANConv, HeteroConv, HGTConv

from tests.adapters.pyg.test_real_data import read_typed

from .typed_graph import compare


def attention(widths: dict[str, int], metadata: Any) -> HeteroConv:
    """GAT layers of all relations."""

    def conv(edge_type: tuple[str, str, str]) -> GATConv:
        ends = widths[edge_type[0]], widths[edge_type[2]]
        return GATConv(ends, 4, 2, add_self_loops=False, residual=True)

    return HeteroConv({edge_type: conv(edge_type) for edge_type in metadata[1]})


LAYERS: dict[str, Callable[[dict[str, int], Any], torch.nn.Module]] = {
    "GATConv": attention,
    "HGTConv": lambda widths, metadata: HGTConv(widths, 8, metadata, 2),
    "HANConv": lambda widths, metadata: HANConv(widths, 8, metadata, 2),
}


@pytest.mark.parametrize("name", ["imdb_hetero", "debian_hetero"])
@pytest.mark.parametrize("kind", list(LAYERS))
def test_outputs_and_gradients(kind: str, name: str, device: torch.device) -> None:
    """Types without features have random ones."""
    data, draws = read_typed(name), torch.Generator().manual_seed(0)
    x: dict[str, Tensor] = {}
    for node_type in data.node_types:
        store = data[node_type]
        rows = store.x[:, :64] if "x" in store else torch.randn(store.num_nodes, 5, generator=draws)
        x[node_type] = rows.to(device, torch.float64)
    edges = {edge_type: data[edge_type].edge_index.to(device) for edge_type in data.edge_types}
    torch.manual_seed(0)
    widths = {node_type: rows.shape[1] for node_type, rows in x.items()}
    model = LAYERS[kind](widths, data.metadata()).to(device, torch.float64)
    compare(model, x, edges, 1e-9)
