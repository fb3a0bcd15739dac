"""Offloaded training stays within its budget by the bytes that torch reserves on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from peergraph.fullgraph import named_model
from peergraph.testing import run_ranks

pytest.importorskip("torch_geometric")

NODES, EDGES, WIDTH, CLASSES = 400_000, 8_000_000, 128, 64
BUDGET = 700 << 20


def loss_of(model: Any, data: Any) -> torch.Tensor:
    out = model(data.x, data.edge_index)[data.train_mask]
    return F.cross_entropy(out, data.y[data.train_mask])


def reserved_by_attention(is_recorded: bool) -> tuple[int, int]:
    from torch_geometric.data import Data
    from torch_geometric.nn import GAT

    import peergraph_pyg

    torch.manual_seed(0)
    data = Data(
        x=torch.randn(NODES, WIDTH),
        edge_index=torch.randint(0, NODES, (2, EDGES)),
        y=torch.randint(0, CLASSES, (NODES,)),
        train_mask=torch.rand(NODES) < 0.1,
    )
    model = GAT(WIDTH, WIDTH, 2, CLASSES, heads=4, add_self_loops=False).cuda()
    model = peergraph_pyg.accelerate(model)
    named = named_model([WIDTH, WIDTH, 4 * CLASSES], "gat", 4, 0.1)  # the last layer averages heads
    before = torch.cuda.memory_reserved()
    data = peergraph_pyg.full_graph(
        data, BUDGET, offload=True, model=model if is_recorded else named, loss=loss_of
    )
    optimizer = torch.optim.Adam(model.parameters())
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, data).backward()
        optimizer.step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_reserved() - before, torch.cuda.max_memory_allocated()


@pytest.mark.gpus(1)
@pytest.mark.alone
@pytest.mark.parametrize("is_recorded", [False, True])
def test_reserved_memory_is_within_the_budget(is_recorded: bool) -> None:
    [(reserved, allocated)] = run_ranks(
        reserved_by_attention, 1, is_recorded, device="cuda", start="fresh", timeout_s=200
    )
    assert allocated <= BUDGET
    assert reserved <= 1.05 * BUDGET, f"{reserved} bytes reserved, {allocated} allocated"
