"""Rows that training keeps: one buffer of hidden features for each layer, with dropout, too."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn.models import GCN

import peergraph_pyg
from peergraph.memory import Group

NODES, HIDDEN, WIDTH, CLASSES = 1024, 128, 16, 4


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes that are allocated on the CPU while some work runs, above those before."""
    gc.collect()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        work()
    assert profile.profiler is not None
    events = profile.profiler.kineto_results.events()
    sizes = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    allocated = most = 0
    for _, size in sizes:
        allocated += size
        most = max(most, allocated)
    return most


@pytest.mark.parametrize("layers", [2, 4, 8])
def test_buffers_of_a_gcn(layers: int) -> None:
    """At most layers + 5 buffers of rows (MG-GCN 4.2, 4.3), and dropout adds none."""
    generator = torch.Generator().manual_seed(1)
    data = Data(
        x=torch.randn(NODES, WIDTH, generator=generator),
        y=torch.randint(CLASSES, (NODES,), generator=generator),
        edge_index=torch.randint(NODES, (2, 4 * NODES), generator=generator),
    )
    data = peergraph_pyg.full_graph(data, group=Group.current("cpu"))
    buffers = {}
    for dropout in (0.0, 0.5):
        torch.manual_seed(3)
        model = peergraph_pyg.accelerate(GCN(WIDTH, HIDDEN, layers, CLASSES, dropout=dropout))
        optimizer = torch.optim.Adam(model.parameters())

        def step(model: torch.nn.Module = model, optimizer: torch.optim.Adam = optimizer) -> None:
            F.cross_entropy(model(data.x, data.edge_index), data.y).backward()
            optimizer.step()
            # Torch's profiler does not know the sizes of tensors that were made before.
            optimizer.zero_grad()

        for _ in range(3):
            step()
        buffers[dropout] = peak_bytes(step) / (4 * NODES * HIDDEN)
    assert layers - 1 < buffers[0.0] <= layers + 5
    # What is dropped is drawn again in the backward pass.
    assert buffers[0.5] == buffers[0.0]
