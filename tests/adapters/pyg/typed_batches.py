"""Mini-batches of the small graph of several types, and models on them beside accelerated ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.utils import trim_to_layer

import peergraph_pyg
from peergraph.memory import EncodedRows
from peergraph_pyg import accelerate

from .typed_graph import EDGES, NODES, graph

EDGE_TYPES = [edge_type for edge_type, count in EDGES.items() if count]
STORAGES = [None, "int8", "lazy int8"]


class TrimmedModel(torch.nn.Module):
    """Two layers on a mini-batch, trimmed between them as in PyG's examples, or not.

    Args:
        layer: makes one from its input width, to 32 columns.
    """

    def __init__(self, layer: Callable[[int], torch.nn.Module], trims: bool = True) -> None:
        super().__init__()
        self.trims = trims
        self.convs = torch.nn.ModuleList([layer(16), layer(32)])

    def forward(self, batch: Any) -> Tensor:
        x, edges = batch.x_dict, batch.edge_index_dict
        hops = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
        for i, conv in enumerate(self.convs):
            if self.trims:
                x, edges, _ = trim_to_layer(i, *hops, x, edges)
            x = {t: F.leaky_relu(rows) for t, rows in conv(x, edges).items()}
        return x["paper"][: batch["paper"].batch_size]


def shared_graph(device: torch.device, storage: str | None) -> Any:
    """The graph with 16 columns of each type, four times the nodes, and the relations with edges;
    in one byte where the storage is one of int8.
    """
    data, draws = HeteroData(), torch.Generator().manual_seed(0)
    for node_type, count in NODES.items():
        data[node_type].x = torch.randn(4 * count, 16, generator=draws)
    edges = graph(torch.device("cpu"))[1]
    for edge_type in EDGE_TYPES:
        data[edge_type].edge_index = edges[edge_type]
    is_narrow = storage is not None and "int8" in storage
    options: dict[str, Any] = {"storage": {"x": "int8"}} if is_narrow else {}
    return peergraph_pyg.share(data, device=device, **options)


def check_batches(
    model: TrimmedModel, storage: str | None, device: torch.device, never_decodes: bool = True
) -> None:
    """Rows of narrow storage are read as they are stored; rows without edges are not written.

    Args:
        storage: "int8", with "lazy" in front where layers read the rows from the store.
        never_decodes: whether lazy rows must not be decoded.
    """
    stored = shared = shared_graph(device, storage)
    is_lazy = storage is not None and "lazy" in storage
    if is_lazy:
        shared = peergraph_pyg.lazy(shared)
    loader = NeighborLoader(shared, [4, 3], input_nodes=("paper", torch.arange(20)), batch_size=10)
    fast = accelerate(copy.deepcopy(model))
    for batch in loader:
        plain = copy.copy(batch)  # A deep one would gather the rows.
        for node_type in batch.node_types:
            plain[node_type].x = stored[node_type].x[batch[node_type].n_id]
        expected = model(plain)
        with pytest.MonkeyPatch.context() as patch:
            if is_lazy and "int8" in str(storage) and never_decodes:
                patch.setattr(EncodedRows, "decode", None)
            out = fast(batch)
        if is_lazy:
            assert model.trims <= (not batch["paper"].x.is_gathered)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
        for each, loss in ((model, expected), (fast, out)):
            each.zero_grad()
            loss.square().sum().backward()
        for one, other in zip(fast.parameters(), model.parameters(), strict=True):
            if other.grad is not None and other.grad.any():
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)
    peergraph_pyg.store_of(stored).close()
