"""Tables that are added to a store: placed by its links and reads, within its budget."""

from __future__ import annotations

import pytest
import torch
from benchmarks.placing.machines import machine

from peergraph.memory import Group
from peergraph.sampling import presample
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Store
from peergraph.testing import run_ranks
from tests.named_case import named_case
from tests.places import cpu_and_gpus
from tests.store.graphs import build, homogeneous_source, random_coo

NODES = 400
VALUES = torch.arange(NODES * 16.0).view(NODES, 16)


def source() -> GraphSource:
    return GraphSource.homogeneous(
        NODES, EdgeSource(coo=random_coo(NODES, NODES, 3000)), {"y": torch.arange(NODES)}
    )


def _by_links(device: str) -> None:
    group = Group.current(device=device)
    local_source = source() if group.rank == 0 else None
    with Store.build(local_source, plan="host", group=group) as store:
        hotness = presample(store, [4, 3], torch.arange(100), 20)
    for budget in (12_000, 24_000, 60_000):
        with Store.build(
            local_source,
            topology=machine("full2"),
            memory_budget=budget,
            hotness=hotness,
            first="structure",
            group=group,
        ) as store:
            before = store.plan
            table = store.add_node_table("x", VALUES if group.rank == 1 else None)
            assert torch.equal(table.read(), VALUES)
            assert store.plan.placements[:-1] == before.placements
            assert store.plan.tiers("node table", "_N.x") == table.tiers
            assert store.plan.predictions[-1].name == "_N.x"
            assert group.all_gather(store.plan) == [store.plan] * 2
            use = store.memory()
            for rank in range(2):
                assert use.tier("replicated", rank) + use.tier("sharded", rank) <= budget
            if budget == 60_000:
                assert table.tiers.host == 0
            if budget == 12_000:
                assert table.tiers.host > 0
            with store.measure() as measured:
                table.gather(torch.arange(NODES))
            assert "_N.x" in str(measured)
            edge_table = store.add_edge_table("w", torch.arange(3000) if group.rank == 0 else None)
            assert torch.equal(edge_table.read(), torch.arange(3000))
            group.barrier()


@cpu_and_gpus(2)
def test_by_links(device_type: str) -> None:
    run_ranks(_by_links, 2, device_type, device=device_type)


def test_takes_what_is_left() -> None:
    graph = source()
    options = {"topology": machine("single"), "device": "cpu", "memory_budget": 16_000}
    with Store.build(graph, graph_ratio=0.2, **options) as store:  # type: ignore[arg-type]
        bare = store.plan
        added = store.add_node_table("x", VALUES)
        tiers = added.tiers
        assert 16_000 - VALUES.size(1) * 4 < store.memory().tier("replicated") <= 16_000
    graph.node_tables[NODE]["x"] = VALUES  # type: ignore[index]
    with Store.build(graph, graph_ratio=0.2, **options) as store:  # type: ignore[arg-type]
        assert store.plan.tiers("structure", "_N-_E-_N") == bare.tiers("structure", "_N-_E-_N")
        together = store.node_table("x").tiers
    # Its hottest rows would have come before the coldest of the other table.
    assert 0 < tiers.replicated <= together.replicated


def test_without_links(device: torch.device) -> None:
    for plan in ("replicated", "host", "mixed"):
        with named_case(plan), build(homogeneous_source(), plan, device=device) as store:
            values = torch.arange(60)
            for name, table_plan in (
                ("a", "auto"),
                ("b", "sharded"),
                ("c", "host"),
                ("d", "replicated"),
            ):
                table = store.add_node_table(name, values, plan=table_plan)
                assert torch.equal(table.read(), values)
                assert store.plan.tiers("node table", f"_N.{name}") == table.tiers
            assert store.node_table("b").tiers.sharded == 60
            expected = "host" if device.type == "cpu" else "replicated"
            assert getattr(store.node_table("a").tiers, expected) == 60


def test_beyond_what_is_left() -> None:
    with Store.build(
        source(),
        topology=machine("single"),
        memory_budget=40_000,
        graph_ratio=1.0,
        feature_ratio=0.0,
        device="cpu",
    ) as store:
        before = store.plan
        with pytest.raises(ValueError, match=r"memory_budget: table '_N.x' needs \d+ bytes"):
            store.add_node_table("x", VALUES, plan="replicated")
        assert store.plan == before
        assert store.node_table_names() == ["y"]
        with pytest.raises(ValueError, match="plan must be a Plan or one of"):
            store.add_node_table("x", VALUES, plan="somewhere")
        assert store.edge_table_names(EDGE) == []


def test_host_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.build(source(), device="cpu") as store:
        monkeypatch.setenv("PEERGRAPH_HOST_MEMORY", "20000")
        with pytest.raises(MemoryError, match="20000 bytes"):
            store.add_node_table("x", VALUES)
