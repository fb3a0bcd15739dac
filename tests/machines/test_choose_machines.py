"""machines="auto": a store on each machine, or rows split over machines, by their memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from peergraph.memory import DistributedTable, Group
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Plan, Store
from tests.machines.hosts import run_on_hosts
from tests.named_case import named_case

NODES, COLUMNS = 2000, 64


def _source() -> GraphSource:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, COLUMNS, generator=random)
    edges = torch.randint(NODES, (2, 300), generator=random)
    return GraphSource({NODE: NODES}, {EDGE: EdgeSource(coo=edges)}, {NODE: {"x": x}})


def _builds() -> list[tuple[bool, str]]:
    group = Group.current(device="cpu", timeout=200)
    source = _source() if group.rank == 0 else None
    results = []

    def build(room: int, **options: Any) -> None:
        # Only the second machine has little memory.
        budget = room if group.machines.index == 1 else 10_000_000
        store = Store.build(
            source, group=group, machines="auto", host_budget=budget, hot_ratio=0.1, **options
        )
        is_split = isinstance(store.node_table("x"), DistributedTable)
        assert is_split == (store.exchange is not None)
        assert Plan.from_dict(store.plan.to_dict()) == store.plan
        results.append((is_split, str(store.plan).splitlines()[1].strip()))
        ids = torch.arange(group.machines.rank, NODES, 3)
        rows = store.node_table("x")
        values = rows.collective_read(ids) if is_split else rows.gather(ids)  # type: ignore[attr-defined]
        assert torch.equal(values, _source().node_tables[NODE]["x"][ids])
        store.close()

    with named_case("every machine has room for everything"):
        build(1_000_000)
    with named_case("one machine has not"):
        build(400_000)
    with named_case("a copy for each rank"):
        build(600_000, plan="host")
        build(800_000, plan="replicated")
    return results


@pytest.mark.timeout(500)
def test_what_fits_each_machine_is_replicated() -> None:
    results = run_on_hosts(_builds, "abb", timeout_s=240)
    assert results[0] == results[1] == results[2]
    assert [is_split for is_split, _ in results[0]] == [False, True, False, True]
    reasons = [reason for _, reason in results[0]]
    assert reasons[0].startswith("machines='replicate': a whole store takes 5")
    assert reasons[1].startswith("machines='shard': a whole store takes 5")
    assert "of machine 1 (b), which may give 390.6 KiB" in reasons[1]
    assert run_on_hosts(_alone, "a", timeout_s=240) == [
        "machines='replicate': there is one machine"
    ]


def _alone() -> str:
    with Store.build(_source(), device="cpu", machines="auto") as store:
        return str(store.plan).splitlines()[1].strip()
