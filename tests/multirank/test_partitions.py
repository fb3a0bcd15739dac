"""Stores on links that are not all there: partitions in several copies, masked links unread."""

from __future__ import annotations

import pickle

import pytest
import torch
from benchmarks.placing.machines import machine

from peergraph.memory import Group, Table, Tiers
from peergraph.memory.table.partitions import Partitions
from peergraph.store import Store
from peergraph.store.placement.partition_solver import solve
from peergraph.testing import run_ranks
from tests.store.graphs import heterogeneous_source, homogeneous_source
from tests.store.same_graph import assert_same_graph

RING = machine("full4").masked([(0, 2), (1, 3)])


def _overwrite(table: Table, rank: int, value: float) -> None:
    """Writes into the memory of one rank only, past the table."""
    region = table._regions["sharded"]
    size = region.sizes[rank]
    region.part(rank, torch.float32, (size // 4,)).fill_(value)


def _table(device: str) -> None:
    group = Group.current(device=device)
    partitions = solve(RING)
    assert partitions.copies == 2
    tiers = Tiers(3, 11, 2)
    values = torch.arange(16 * 3, dtype=torch.float32).view(16, 3)
    table = Table.create((16, 3), torch.float32, tiers, group, partitions=partitions)
    if group.rank == 0:
        table.load(values)
    group.barrier()
    assert torch.equal(table.read(), values)
    assert torch.equal(pickle.loads(pickle.dumps(table)).read(), values)
    group.barrier()
    if group.rank == 1:
        values = -values
        table.scatter(torch.arange(16), -values.abs())
    group.barrier()
    assert torch.equal(table.read(), -torch.arange(48, dtype=torch.float32).view(16, 3))
    # The rank on the other side of the ring is not read, whatever lies there.
    group.barrier()
    if group.rank == 2:
        _overwrite(table, 2, 99.0)
        group.synchronize()
    group.barrier()
    if group.rank == 0:
        assert not bool((table.read() == 99.0).any())
    if group.rank == 1:
        assert bool((table.read() == 99.0).any())
    group.barrier()
    table.close()


def _other_size(device: str) -> None:
    group = Group.current(device=device)
    with pytest.raises(ValueError, match="partitions are for 4 GPUs, the group has 2 ranks"):
        Table.create((4,), torch.int64, Tiers(0, 4, 0), group, partitions=solve(RING))


def _store(device: str, plan: str, budget: int) -> None:
    group = Group.current(device=device)
    for make in (lambda: homogeneous_source(300, 2000), lambda: heterogeneous_source(10)):
        torch.manual_seed(0)
        source = make()
        local_source = source if group.rank == 0 else None
        with Store.build(
            local_source, plan=plan, memory_budget=budget, topology=RING, group=group
        ) as store:
            assert isinstance(store.plan.partitions, Partitions)
            assert store.plan.copies == 2
            assert any(p.tiers.sharded for p in store.plan.placements)
            assert len(store.plan.predictions) > 0
            assert all(p.link_bytes[0][2] == 0 for p in store.plan.predictions)
            assert_same_graph(store, source)
            node_type = store.node_types[0]
            extra = torch.arange(store.num_nodes(node_type))
            table = store.add_node_table("extra", extra, node_type)
            assert torch.equal(table.read(), extra)
            group.barrier()


def test_table() -> None:
    run_ranks(_table, 4, "cpu")


def test_table_of_another_size() -> None:
    run_ranks(_other_size, 2, "cpu")


@pytest.mark.parametrize("plan", ["auto", "solver"])
def test_store(plan: str) -> None:
    run_ranks(_store, 4, "cpu", plan, 15000)


@pytest.mark.gpus(4)
def test_on_gpus() -> None:
    run_ranks(_table, 4, "cuda", device="cuda")
    run_ranks(_store, 4, "cuda", "solver", 15000, device="cuda")
