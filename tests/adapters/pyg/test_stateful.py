"""Loaders that come back: the batches after a restart are those without one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

import peergraph_pyg
from tests.adapters.batch_tensors import have_equal_tensors
from tests.adapters.pyg.graphs import random_data


def _loaders(device: torch.device) -> Iterator[Any]:
    shared = peergraph_pyg.share(random_data(), device=device)
    yield NeighborLoader(shared, [3, 2], batch_size=9, shuffle=True)
    yield LinkNeighborLoader(shared, [2], batch_size=99, shuffle=True, neg_sampling="binary")
    if device.type == "cpu":
        yield NeighborLoader(shared, [3], batch_size=20, shuffle=True, num_workers=2)


def _tensors_of(batch: Any) -> list[torch.Tensor]:
    seeds = batch.input_id if "edge_label_index" not in batch else batch.edge_label_index
    return [batch.n_id.cpu(), batch.edge_index.cpu(), seeds.cpu()]


def test_batches_follow_from_seed_epoch_and_number(device: torch.device) -> None:
    for loader in _loaders(device):
        torch.manual_seed(0)
        first = peergraph_pyg.stateful(loader, seed=5)
        expected = [[_tensors_of(batch) for batch in first] for _ in range(3)]
        assert not have_equal_tensors(expected[0], expected[1])
        assert len(first) == len(expected[0])
        # The training draws numbers of its own, and fails in the second epoch.
        torch.manual_seed(1)
        second = peergraph_pyg.stateful(loader, seed=5)
        assert have_equal_tensors([_tensors_of(batch) for batch in second], expected[0])
        for number, batch in enumerate(second):
            torch.rand(3)
            assert have_equal_tensors([_tensors_of(batch)], [expected[1][number]])
            if number == 1:
                state = second.state_dict()
                break
        assert state == {"seed": 5, "epoch": 1, "batch": 2}
        third = peergraph_pyg.stateful(loader, seed=5)
        third.load_state_dict(state)
        assert have_equal_tensors([_tensors_of(batch) for batch in third], expected[1][2:])
        assert third.state_dict() == {"seed": 5, "epoch": 2, "batch": 0}
        assert have_equal_tensors([_tensors_of(batch) for batch in third], expected[2])
        # The epoch that was left early is over for the loader that left it.
        assert have_equal_tensors([_tensors_of(batch) for batch in second], expected[2])
        third.set_epoch(0, start_batch=1000)
        assert list(third) == []
        other = peergraph_pyg.stateful(loader, seed=6)
        assert not have_equal_tensors([_tensors_of(batch) for batch in other], expected[0])


def test_wrong_states_are_named() -> None:
    loader = peergraph_pyg.stateful(torch.utils.data.DataLoader(range(5)), seed=5)
    with pytest.raises(ValueError, match="seed 6, this one has 5"):
        loader.load_state_dict({"seed": 6, "epoch": 0, "batch": 0})
    with pytest.raises(ValueError, match="expected the state"):
        loader.load_state_dict({"epoch": 0})
    with pytest.raises(ValueError, match="start_batch must be an int of at least 0, got -1"):
        loader.set_epoch(0, -1)
    with pytest.raises(TypeError, match="seed must be an int"):
        peergraph_pyg.stateful(loader, seed=0.5)  # type: ignore[arg-type]
