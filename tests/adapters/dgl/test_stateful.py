"""Loaders that come back: the batches after a restart are those without one."""

from __future__ import annotations

from typing import Any

# First: it skips where there is no DGL.
from tests.adapters.batch_tensors import have_equal_tensors
from tests.adapters.dgl.graphs import random_graph

# isort: split

import torch
from dgl.dataloading import DataLoader, NeighborSampler

import peergraph_dgl


def _tensors_of(batch: Any) -> list[torch.Tensor]:
    return [batch[0].cpu(), batch[1].cpu(), torch.stack(batch[2][0].edges()).cpu()]


def test_batches_follow_from_seed_epoch_and_number(device: torch.device) -> None:
    graph = peergraph_dgl.share(random_graph(), device=device)

    def make() -> Any:
        sampler = NeighborSampler([3, 2])
        seeds = torch.arange(graph.num_nodes())
        loader = DataLoader(graph, seeds, sampler, batch_size=9, shuffle=True, device=device)
        return peergraph_dgl.stateful(loader, seed=5)

    first = make()
    expected = [[_tensors_of(batch) for batch in first] for _ in range(3)]
    assert not have_equal_tensors(expected[0], expected[1])
    torch.manual_seed(1)
    second = make()
    second.set_epoch(1)
    for number, batch in enumerate(second):
        torch.rand(3)
        assert have_equal_tensors([_tensors_of(batch)], [expected[1][number]])
        if number == 1:
            break
    third = make()
    third.load_state_dict(second.state_dict())
    assert have_equal_tensors([_tensors_of(batch) for batch in third], expected[1][2:])
    assert have_equal_tensors([_tensors_of(batch) for batch in third], expected[2])
