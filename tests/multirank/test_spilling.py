"""A store that several ranks share, with rows on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from peergraph.memory import Group
from peergraph.store import NODE, Store
from peergraph.testing import run_ranks
from tests.store.graphs import homogeneous_source
from tests.store.same_graph import assert_same_graph


def _spilled(spill: str, plan: str, device: str) -> None:
    source = homogeneous_source(2000, 9000)
    group = Group.current(device=device)
    local_source = source if group.rank == 0 else None
    budget = {"cpu": 50_000, "cuda": 125_000}[device]
    with Store.build(
        local_source, plan=plan, spill=spill, host_budget=budget, group=group
    ) as store:
        assert store.plan.bytes_disk() > 0
        assert store.memory().host_bytes() <= budget
        assert_same_graph(store, source)
        x = store.node_table("x")
        group.barrier()  # nobody writes while another still compares
        if group.rank == 1:
            x.scatter(torch.arange(2000), torch.ones(2000, 7))
        group.synchronize()
        group.barrier()
        assert (x.gather(torch.arange(2000)) == 1).all()
        group.barrier()
    with Store.build(
        local_source, plan="host", spill=spill, host_budget=budget, group=group
    ) as store:
        assert_same_graph(store, source)
        assert store.num_nodes(NODE) == 2000


@pytest.mark.parametrize("plan", ["auto", "host"])
def test_without_gpus(plan: str, tmp_path: Path) -> None:
    run_ranks(_spilled, 2, str(tmp_path), plan, "cpu")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("world_size", [pytest.param(n, marks=pytest.mark.gpus(n)) for n in (2, 4)])
def test_on_gpus(world_size: int, tmp_path: Path) -> None:
    run_ranks(_spilled, world_size, str(tmp_path), "host", "cuda", device="cuda")
