"""Samplers bisect lists in the order of their times; all ranks see that times are written."""

from __future__ import annotations

import pickle

import pytest
import torch

from peergraph.memory import Group
from peergraph.sampling import NeighborSampler
from peergraph.store import EdgeSource, GraphSource, Store
from peergraph.testing import run_ranks

NODES, DEGREE = 40, 30


def sorted_source() -> GraphSource:
    random = torch.Generator().manual_seed(3)
    target = torch.arange(NODES).repeat_interleave(DEGREE)
    source = torch.randint(NODES, (NODES * DEGREE,), generator=random)
    time = torch.randint(100, (NODES, DEGREE), generator=random).sort(dim=1).values.view(-1)
    return GraphSource.homogeneous(
        NODES,
        EdgeSource(coo=torch.stack([source, target])),
        node_tables={"x": torch.rand(NODES, 4), "y": torch.arange(NODES)},
        edge_tables={"time": time},
    )


def sample_times(sampler: NeighborSampler, store: Store, latest: int) -> torch.Tensor:
    seeds = torch.arange(NODES)
    sample = sampler.sample(seeds, 5, seed_time=torch.full((NODES,), latest))
    assert sample.edge_ids is not None
    ids = sample.edge_ids["_N", "_E", "_N"]
    return store.edge_table("time").gather(ids).reshape(-1)


def check_writes(device: str) -> None:
    group = Group.current(device=device)
    store = Store.build(sorted_source() if group.rank == 0 else None, group=group)
    assert store.node_table("x").write_mark is None
    sampler = NeighborSampler(store, [4, 4], edge_time="time")
    assert sampler._time_order is not None
    assert sampler._time_order.holds()
    table = store.edge_table("time")
    before = sample_times(sampler, store, 50)
    assert int(before.max()) <= 50
    group.barrier()
    if group.rank == group.world_size - 1:
        # The first edge of each list is the latest now: bisection would find none before 50.
        first = torch.arange(NODES, device=table.device) * DEGREE
        table.scatter(first, torch.full((NODES,), 1000, device=table.device))
    group.barrier()
    assert not sampler._time_order.holds()
    after = sample_times(sampler, store, 50)
    assert int(after.max()) <= 50
    assert len(after) > 0
    again = NeighborSampler(store, [4, 4], edge_time="time")
    assert again._time_order is None
    assert torch.equal(sample_times(again, store, 50), after)
    group.barrier()
    if group.rank == 0:
        table.load(sorted_source().edge_tables["_N", "_E", "_N"]["time"])
    group.barrier()
    assert NeighborSampler(store, [4, 4], edge_time="time")._time_order is not None
    store.close()


@pytest.mark.parametrize("world_size", [1, 2])
def test_every_rank_sees_writes(world_size: int, device: torch.device) -> None:
    run_ranks(check_writes, world_size, device.type, device=device.type, timeout_s=120)


def test_copies_and_raw_memory(device: torch.device) -> None:
    with Store.build(sorted_source(), device=device) as store:
        table = store.edge_table("time")
        mark = table.write_mark
        assert mark is not None
        copy = pickle.loads(pickle.dumps(table))
        assert copy.write_mark.value == mark.value
        before = mark.value
        copy.scatter(torch.tensor([3], device=device), torch.tensor([7], device=device))
        assert mark.value not in (None, before)
        sampler = NeighborSampler(store, [4], edge_time="time")
        table.as_tensor()
        assert mark.value is None
        table.scatter(torch.tensor([3], device=device), torch.tensor([8], device=device))
        assert mark.value is None
        assert NeighborSampler(store, [4], edge_time="time")._time_order is None
    assert mark.value is None
    assert sampler is not None
