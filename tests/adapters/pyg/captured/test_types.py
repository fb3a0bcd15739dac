"""`capture` on graphs of several types: the losses of a loop over the loader."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GATConv, HeteroConv, HGTConv, SAGEConv
from torch_geometric.utils import trim_to_layer

import peergraph_pyg
from peergraph.integration import has_static_shapes
from peergraph_pyg import explain
from tests.adapters.captured_results import adam
from tests.adapters.pyg.captured.training import check

SIZES = {"paper": 400, "author": 300, "topic": 20}
WIDTHS = {"paper": 12, "author": 8, "topic": 5}
EDGES = [
    ("paper", "cites", "paper"),
    ("author", "writes", "paper"),
    ("paper", "rev_writes", "author"),
    ("topic", "of", "paper"),
    ("paper", "has", "topic"),
]
CLASSES, HIDDEN, BATCH = 5, 16, 32
FANOUTS = [4, 3]


@pytest.fixture(scope="module")
def plain() -> HeteroData:
    random = torch.Generator().manual_seed(0)
    data = HeteroData()
    for node_type, count in SIZES.items():
        data[node_type].x = torch.randn(count, WIDTHS[node_type], generator=random)
    data["paper"].y = torch.randint(CLASSES, (SIZES["paper"],), generator=random)
    for source, relation, target in EDGES:
        ends = [torch.randint(SIZES[t], (3000,), generator=random) for t in (source, target)]
        data[source, relation, target].edge_index = torch.stack(ends)
    return data


class Typed(nn.Module):
    """Two typed layers, whose edges are those of the hops that they need."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.maps = nn.ModuleDict({t: nn.Linear(WIDTHS[t], HIDDEN) for t in SIZES})
        self.convs = nn.ModuleList(map(self._layer, [kind] * len(FANOUTS)))
        self.out = nn.Linear(HIDDEN, CLASSES)

    @staticmethod
    def _layer(kind: str) -> nn.Module:
        if kind == "hgt":
            return HGTConv(HIDDEN, HIDDEN, (list(SIZES), EDGES), heads=2)

        def conv(i: int) -> nn.Module:
            if kind == "sage" or (kind == "mixed" and i == 1):
                return SAGEConv(HIDDEN, HIDDEN)
            return GATConv(HIDDEN, HIDDEN // 2, heads=2, add_self_loops=False)

        return HeteroConv({t: conv(i) for i, t in enumerate(EDGES)})

    def forward(self, batch: Any) -> Tensor:
        x = {t: self.maps[t](rows).relu() for t, rows in batch.x_dict.items()}
        edges = batch.edge_index_dict
        for i, conv in enumerate(self.convs):
            x, edges, _ = trim_to_layer(
                i, batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict, x, edges
            )
            x = {t: rows.relu() for t, rows in conv(x, edges).items()}
        out: Tensor = self.out(x["paper"])
        return out


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    size = batch["paper"].batch_size
    return F.cross_entropy(model(batch)[:size], batch["paper"].y[:size])


def make_loader(plain: HeteroData, device: torch.device) -> NeighborLoader:
    shared = peergraph_pyg.share(plain, device=device)
    nodes = "paper", torch.arange(50, 250)
    return NeighborLoader(shared, FANOUTS, input_nodes=nodes, batch_size=BATCH, shuffle=True)


def make_model(kind: str, device: torch.device, fast: bool) -> nn.Module:
    torch.manual_seed(5)
    model = Typed(kind).to(device)
    return peergraph_pyg.accelerate(model) if fast else model


@pytest.mark.parametrize(
    ("kind", "fast"),
    [("gat", True), ("gat", False), ("mixed", True), ("sage", True), ("hgt", False)],
)
def test_losses_are_those_of_the_loop(
    plain: HeteroData, device: torch.device, kind: str, fast: bool
) -> None:
    loader = make_loader(plain, device)
    check(loader, lambda: make_model(kind, device, fast), loss_of, scale=2.5)


@pytest.mark.parametrize("kind", ["gat", "sage"])
def test_relations_are_joined(plain: HeteroData, device: torch.device, kind: str) -> None:
    """In steps of fixed shapes, too."""
    loader, model = make_loader(plain, device), make_model(kind, device, True)
    shapes = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if has_static_shapes():
            with torch.no_grad():
                reasons = str(explain(model, batch))
            assert "relations in one pass" in reasons
            shapes.append([tuple(t.shape) for t in batch.edge_index_dict.values()])
        return loss_of(model, batch)

    iterator = iter(peergraph_pyg.capture(loader, model, adam(model), loss))
    for _ in range(3):
        next(iterator)
    assert len(shapes) >= 3
    assert all(each == shapes[0] for each in shapes)
