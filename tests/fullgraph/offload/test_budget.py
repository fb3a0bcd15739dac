"""Row stores within the budget of a plan."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from benchmarks.placing.machines import machine

from peergraph.fullgraph import named_model
from peergraph.fullgraph.graph import FullGraph
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.layout.volume import Volume
from peergraph.fullgraph.offload.rows.budget import make_allocator
from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
from peergraph.fullgraph.plan.full_graph_plan import FullGraphPlan
from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.fullgraph.plan.offload_plan import OffloadPlan
from peergraph.fullgraph.plan.plan_limits import PlanLimits
from peergraph.memory import Group
from peergraph.store import EDGE

NODES, EDGES = 10_000, 100_000
ROW = 4 * 64 * NODES


def plan(budget: int, host_memory: int | None = None, file_memory: int = 0) -> OffloadPlan:
    facts = GraphFacts(
        {"_N": (NODES,)},
        {("_N", "_E", "_N"): Volume(((NODES,),), ((EDGES,),))},
        {"_N": 4 * 64},
    )
    limits = PlanLimits(
        memory_budget=budget,
        offload=True,
        num_chunks=100,
        host_memory=host_memory,
        file_memory=file_memory,
    )
    model = named_model([64, 64, 64, 64])
    offload = FullGraphPlan.make(facts, machine("single"), limits, model=model).offload
    assert offload is not None
    return offload


def test_rows_of_sources_come_first() -> None:
    group = Group(0, 1, torch.device("cpu"), 60.0)
    layout = RowLayout.contiguous(group, NODES)
    # Two row sets fit: those of sources that exist at the same time.
    offload_plan = plan(int(2.5 * ROW) + 12 * EDGES, host_memory=10 * ROW)
    assert offload_plan.source_bytes == 2 * ROW
    stores = make_allocator(group, offload_plan)
    assert stores.use["device"].budget == offload_plan.device_room
    sequential = [stores.allocate(layout, (64,), torch.float32, "sequential") for _ in range(2)]
    sources = [stores.allocate(layout, (64,), torch.float32, "source") for _ in range(2)]
    assert [s.tier for s in (*sequential, *sources)] == ["host", "host", "device", "device"]
    # With more memory, rows that are read in order take the rest.
    roomy = plan(20 * ROW)
    stores = make_allocator(group, roomy)
    assert set(roomy.placement.tiers.values()) == {"device"}
    sequential = [stores.allocate(layout, (64,), torch.float32, "sequential") for _ in range(3)]
    assert [s.tier for s in sequential] == ["device"] * 3
    limit = stores.sequential_device_bytes
    assert stores.has_device_room(limit - 3 * ROW)
    assert not stores.has_device_room(limit - 3 * ROW + 1)
    sequential[0].release()
    assert stores.has_device_room(limit - 2 * ROW)


def test_host_and_files(tmp_path: object) -> None:
    group = Group(0, 1, torch.device("cpu"), 60.0)
    layout = RowLayout.contiguous(group, NODES)
    offload_plan = plan(int(2.5 * ROW) + 12 * EDGES, host_memory=2 * ROW, file_memory=ROW)
    stores = make_allocator(group, offload_plan, folder=str(tmp_path))
    tiers = [stores.allocate(layout, (64,), torch.float32, tier=None) for _ in range(3)]
    assert [s.tier for s in tiers] == ["host", "host", "file"]
    with pytest.raises(MemoryError, match="file 0 of"):
        stores.allocate(layout, (64,), torch.float32, what="gradients")


def test_graph_with_rows_in_files(tmp_path: object) -> None:
    group = Group(0, 1, torch.device("cpu"), 60.0)
    generator = torch.Generator().manual_seed(5)
    edges = torch.randint(0, NODES, (2, EDGES), generator=generator)
    x = torch.randn(NODES, 64, generator=generator)
    graph = FullGraph.build(
        group, NODES, edges, order="original", offload=True, num_chunks=40,
        model=named_model([64, 8]),
        memory_budget=3 * ROW // 2, host_memory=ROW // 2, folder=str(tmp_path),
    )  # fmt: skip
    assert graph.plan.offload is not None
    assert graph.plan.offload.file_room > 0
    assert graph.offloaded is not None
    rows = graph.node_rows(x)
    with torch.no_grad():
        sums = graph.structures[EDGE].spmm("copy_u", "sum", rows)
        twice = graph.structures[EDGE].spmm("copy_u", "sum", sums * 2)
        actual = twice.full_tensor()
    # Of the sums, which the second sum reads; features stay where they are.
    assert graph.offloaded.allocator.use["file"].peak == ROW
    adjacency = torch.zeros(NODES, 64).index_add_(0, edges[1], x[edges[0]]) * 2
    expected = torch.zeros(NODES, 64).index_add_(0, edges[1], adjacency[edges[0]])
    torch.testing.assert_close(actual, expected)
    with pytest.raises(FileNotFoundError):
        FullGraph.build(group, NODES, edges, memory_budget=2 * ROW, folder=f"{tmp_path}/none")


def test_memory_goes_with_the_graph() -> None:
    group = Group(0, 1, torch.device("cpu"), 60.0)
    generator = torch.Generator().manual_seed(6)
    edges = torch.randint(0, NODES, (2, EDGES), generator=generator)

    def train() -> weakref.ref[RowAllocator]:
        graph = FullGraph.build(
            group, NODES, edges, offload=True, num_chunks=3, memory_budget=40 * ROW
        )
        assert graph.offloaded is not None
        x = graph.node_rows(torch.randn(NODES, 8, generator=generator))
        mask = graph.node_rows(torch.arange(NODES) % 50 == 0)
        weight = torch.randn(8, 8, generator=generator).requires_grad_()
        hidden = torch.relu(graph.structures[EDGE].spmm("copy_u", "sum", x) @ weight)
        graph.structures[EDGE].spmm("copy_u", "sum", hidden)[mask].sum().backward()
        assert weight.grad is not None
        return weakref.ref(graph.offloaded.allocator)

    stores = train()
    gc.collect()
    assert stores() is None
