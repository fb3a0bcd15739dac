"""Plans of offloaded training count the bytes that an epoch moves between host and device."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv

import peergraph_pyg
from peergraph.fullgraph.plan.full_graph_plan import FullGraphPlan
from peergraph.fullgraph.plan.offload_cost import place_rows
from peergraph.fullgraph.plan.offload_pass import pass_cost
from peergraph.fullgraph.plan.offload_schedule import make_schedule
from peergraph.fullgraph.plan.offload_spread import expected_spread
from peergraph.memory import Group

NODES, EDGES, CHUNKS, HEADS = 3000, 36_000, 4, 2
PLENTY = 1 << 40


class Model(nn.Module):
    """Layers of one kind with ReLU between them."""

    def __init__(self, kind: str, widths: list[int]) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.layers = nn.ModuleList(
            GCNConv(before, after)
            if kind == "GCN"
            else GATConv(before, after // HEADS, HEADS, add_self_loops=False)
            for before, after in pairs
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x, edge_index))
        return self.layers[-1](x, edge_index)


def moved_by_engine(
    kind: str, widths: list[int], labelled: float
) -> tuple[FullGraphPlan, tuple[int, int]]:
    """Returns the plan, and bytes from and to the host in an epoch without rows on the device."""
    draw = torch.Generator().manual_seed(1)
    data = Data(
        x=torch.randn(NODES, widths[0], generator=draw),
        edge_index=torch.randint(NODES, (2, EDGES), generator=draw),
        y=torch.randint(widths[-1], (NODES,), generator=draw),
        train_mask=torch.rand(NODES, generator=draw) < labelled,
    )
    group = Group(0, 1, torch.device("cpu"), 60.0)
    data = peergraph_pyg.full_graph(
        data, 1 << 30, offload=True, num_chunks=CHUNKS, widths=widths, group=group
    )
    graph = peergraph_pyg.partition_of(data)
    assert graph.offloaded is not None
    stores = graph.offloaded.stores
    stores.use["device"].budget = 0
    data.x = graph.node_rows(data.x.full_tensor())
    model = peergraph_pyg.accelerate(Model(kind, widths))
    before = (0, 0)
    for _ in range(3):  # From the third epoch on, the sum of the features is kept.
        before = stores.moved.to_device, stores.moved.from_device
        out = model(data.x, data.edge_index)
        F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
    after = stores.moved.to_device, stores.moved.from_device
    return graph.plan, (after[0] - before[0], after[1] - before[1])


def moved_by_plan(
    plan: FullGraphPlan, widths: list[int], heads: int, labelled: float
) -> tuple[int, int]:
    """Returns the same bytes as they are planned."""
    schedule = make_schedule(widths, heads, labelled)
    row_bytes = {r.name: int(r.share * NODES) * r.columns * 4 for r in schedule.rows}
    placement = place_rows(schedule, row_bytes, (0, PLENTY, 0))
    assert placement is not None
    spread = expected_spread(plan.facts, CHUNKS)
    passes = [
        pass_cost(number, schedule, plan.facts, row_bytes, placement, spread, plan.topology, 4)
        for number in range(len(schedule.passes))
    ]
    return sum(p.from_host for p in passes), sum(p.to_host for p in passes)


@pytest.mark.parametrize(
    ("kind", "widths", "labelled"),
    [
        ("GCN", [16, 32, 8], 0.9),
        ("GCN", [16, 16, 16, 8], 0.5),
        ("GCN", [64, 16, 24, 8], 0.1),
        ("GAT", [16, 16, 8], 0.7),
        ("GAT", [16, 16, 8], 0.2),
    ],
)
def test_bytes_between_host_and_device(kind: str, widths: list[int], labelled: float) -> None:
    plan, found = moved_by_engine(kind, widths, labelled)
    heads = HEADS if kind == "GAT" else 0
    expected = moved_by_plan(plan, widths, heads, labelled)
    assert expected == pytest.approx(found, rel=0.05)
