"""Plans of offloaded training count what the engine takes and moves, for HongTu's models."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GatedGraphConv, GCNConv, GINConv, SAGEConv

import peergraph_pyg
from peergraph.fullgraph import FullGraphPlan
from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
from peergraph.fullgraph.plan.offload_cost import (
    chunk_bytes,
    expected_chunks,
    pass_bytes,
    place_rows,
    tier_bytes,
)
from peergraph.fullgraph.plan.spread import expected_spread
from peergraph.fullgraph.tensor import recurrent
from peergraph.memory import Group

NODES, EDGES, CHUNKS, HEADS = 3000, 36_000, 4, 2
PLENTY = 1 << 40


class Gated(nn.Module):
    """A linear map, then sums of products and gated recurrent units."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.linear, self.conv = nn.Linear(before, after), GatedGraphConv(after, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv(self.linear(x), edge_index)
        return out


LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "gcn": GCNConv,
    "sage": SAGEConv,
    "gin": lambda before, after: GINConv(nn.Linear(before, after)),
    "gat": lambda before, after: GATConv(before, after // HEADS, HEADS, add_self_loops=False),
    "ggnn": Gated,
}


class Model(nn.Module):
    """Layers of one kind with ReLU between them."""

    def __init__(self, kind: str, widths: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(LAYERS[kind](*pair) for pair in pairwise(widths))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x, edge_index))
        out: Tensor = self.layers[-1](x, edge_index)
        return out


def loss_of(model: Any, data: Any) -> Tensor:
    """Returns the loss of a model."""
    # No name for the rows of all nodes, which would keep those that they are summed of.
    out = model(data.x, data.edge_index)[data.train_mask]
    return F.cross_entropy(out, data.y[data.train_mask])


class Bytes(NamedTuple):
    """Of an epoch."""

    from_host: int
    to_host: int
    host: int
    """The most that rows take at a time."""
    chunk: int
    """The most that the work takes besides stored rows."""


def bytes_of_engine(
    kind: str, widths: list[int], labelled: float, device_bytes: int = 0
) -> tuple[FullGraphPlan, Bytes]:
    """Returns the plan, and the bytes of an epoch.

    On a CPU rank, memory of the tier "host" is not torch's: torch's own memory is the device's.
    """
    draw = torch.Generator().manual_seed(1)
    data = Data(
        x=torch.randn(NODES, widths[0], generator=draw),
        edge_index=torch.randint(NODES, (2, EDGES), generator=draw),
        y=torch.randint(widths[-1], (NODES,), generator=draw),
        train_mask=torch.rand(NODES, generator=draw) < labelled,
    )
    group = Group(0, 1, torch.device("cpu"), 60.0)
    model = peergraph_pyg.accelerate(Model(kind, widths))
    data = peergraph_pyg.full_graph(
        data, 1 << 30, offload=True, num_chunks=CHUNKS, model=model, loss=loss_of, group=group
    )
    graph = peergraph_pyg.partition_of(data)
    assert graph.offloaded is not None
    stores = graph.offloaded.allocator
    stores.use["device"].budget, stores.sequential_device_bytes = device_bytes, 0
    data.x = graph.offloaded.rows(data.x.full_tensor(), graph.node_layouts["_N"], "features")

    def step() -> None:
        loss_of(model, data).backward()
        model.zero_grad()

    for _ in range(2):  # Later epochs reuse the sum of the features that these store.
        step()
    before = stores.moved.to_device, stores.moved.from_device
    with torch.autograd.profiler.profile(profile_memory=True) as profile, _MostUsed(stores) as host:
        step()
    chunk = most_allocated(profile)
    moved = stores.moved.to_device - before[0], stores.moved.from_device - before[1]
    return graph.plan, Bytes(*moved, host.bytes, chunk)


class _MostUsed:
    """Within the context, notes the most bytes of rows on the host, without memory that is kept."""

    def __init__(self, stores: RowAllocator) -> None:
        self._stores, self.bytes = stores, 0

    def __enter__(self) -> _MostUsed:
        take = self._stores._take

        def taking(*args: object) -> Tensor | None:
            buffer = take(*args)  # type: ignore[arg-type]
            self.bytes = max(self.bytes, self._stores.use["host"].used)
            return buffer

        self._stores._take = taking  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        del self._stores._take  # type: ignore[method-assign]


def most_allocated(profile: torch.autograd.profiler.profile) -> int:
    """The most bytes that torch has allocated at a time since the profile began."""
    return max(allocated_bytes(profile), default=0)


def allocated_bytes(profile: torch.autograd.profiler.profile) -> list[int]:
    """The bytes that torch has after each allocation and release, more than before the profile."""
    assert profile.kineto_results is not None
    events = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
    sizes = (event.nbytes() for event in sorted(events, key=lambda e: e.start_ns()))
    return list(accumulate(sizes))


def bytes_of_plan(
    plan: FullGraphPlan, on_device: bool = False, device_bytes: int = 0, sums_again: int = 0
) -> Bytes:
    """Returns the same bytes as they are planned."""
    facts, model = plan.facts, plan.model
    assert model is not None
    schedule = model.schedules(facts, None)[sums_again]
    row_bytes = {rows.name: rows.stored_bytes(NODES, None) for rows in schedule.rows}
    placement = place_rows(schedule, row_bytes, (device_bytes, PLENTY, 0))
    assert placement is not None
    spread = expected_spread(facts, CHUNKS)
    passes = [
        pass_bytes(number, schedule, facts, row_bytes, placement, spread)
        for number in range(len(schedule.passes))
    ]
    [largest] = expected_chunks(facts, spread)
    chunk = chunk_bytes(schedule, largest, not on_device)
    labelled_rows = model.labelled_items(facts)[0]
    return Bytes(
        sum(p.from_host for p in passes),
        sum(p.to_host for p in passes),
        tier_bytes(schedule, row_bytes, placement)["host"],
        chunk + labelled_rows.num_bytes[0],
    )


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates are computed in parts in chunks of few rows, too."""
    monkeypatch.setattr(recurrent, "_LEAST_PART_ROWS", 16)


@pytest.mark.parametrize(
    ("kind", "widths", "labelled"),
    [
        ("gcn", [16, 32, 8], 0.9),
        ("gcn", [16, 16, 16, 8], 0.5),
        ("gcn", [64, 16, 24, 8], 0.1),
        ("gat", [16, 16, 8], 0.7),
        ("gat", [16, 16, 16, 8], 0.2),
        ("sage", [16, 16, 16], 0.5),
        ("sage", [16, 16, 8], 0.5),
        ("sage", [16, 16, 16, 8], 0.1),
        ("gin", [16, 32, 8], 0.5),
        ("gin", [16, 16, 16, 8], 0.1),
        ("ggnn", [16, 16, 16], 0.5),
        ("ggnn", [16, 16, 16, 8], 0.1),
        ("gcn", [16, 16, 16, 16, 8], 0.1),
        ("sage", [16, 16, 16, 16, 8], 0.1),
        ("ggnn", [16, 16, 16, 16, 8], 0.1),
    ],
)
def test_bytes_of_an_epoch(kind: str, widths: list[int], labelled: float) -> None:
    """All rows are on the host, and sources are staged."""
    plan, actual = bytes_of_engine(kind, widths, labelled)
    expected = bytes_of_plan(plan)
    assert expected[:2] == pytest.approx(actual[:2], rel=0.05)
    assert expected.host == pytest.approx(actual.host, rel=0.02)
    # The plan is for the worst pass with dropout, and buffers that are in use twice.
    assert actual.chunk <= expected.chunk <= 1.8 * actual.chunk


@pytest.mark.parametrize("kind", list(LAYERS))
def test_the_host_has_no_more_than_rows_and_gradients_of_layers(kind: str) -> None:
    """With the features, rows take at most vertex data, structure, and a tenth (HongTu, Table 1).

    Vertex data is a representation and a gradient of each node and layer, the input's included.
    """
    widths = [16, 16, 16, 16]
    _, result = bytes_of_engine(kind, widths, labelled=0.9)
    vertex_data, structure = 2 * NODES * sum(widths) * 4, 4 * EDGES + 8 * (NODES + 1)
    features = NODES * widths[0] * 4
    assert result.host + features <= 1.1 * (vertex_data + structure)


@pytest.mark.parametrize("kind", list(LAYERS))
def test_chunks_with_sources_on_the_device(kind: str) -> None:
    widths, labelled = [64, 64, 64, 64], 0.1
    plan, actual = bytes_of_engine(kind, widths, labelled, PLENTY)
    expected = bytes_of_plan(plan, on_device=True)
    assert actual.chunk <= expected.chunk <= 1.8 * actual.chunk


@pytest.mark.parametrize("kind", ["gcn", "gin"])
def test_sums_that_are_computed_again(kind: str) -> None:
    """The device has room for the rows that sums read, and the host gets no sum of a layer."""
    widths, labelled = [16, 16, 16, 24], 0.1
    room = int(2.12 * NODES * 16 * 4)  # two row sets, and the gradients of labelled rows
    plan, actual = bytes_of_engine(kind, widths, labelled, room)
    expected = bytes_of_plan(plan, on_device=True, device_bytes=room, sums_again=1)
    assert expected[:3] == pytest.approx(actual[:3], rel=0.05)
    assert actual.to_host == 0


@pytest.mark.parametrize(("in_hub", "budget"), [(0.0, 20 << 18), (0.03, 21 << 18)])
def test_attention_stays_within_its_budget(in_hub: float, budget: int) -> None:
    """With nodes in random order, of which one has a share of all edges."""
    nodes, edges, widths, labelled = 4000, 100_000, [64, 32, 16], 0.25
    draw = torch.Generator().manual_seed(4)
    edge_index = torch.randint(nodes, (2, edges), generator=draw)
    edge_index[1, torch.rand(edges, generator=draw) < in_hub] = 7
    data = Data(
        x=torch.randn(nodes, widths[0], generator=draw),
        edge_index=edge_index,
        y=torch.randint(widths[-1], (nodes,), generator=draw),
        train_mask=torch.rand(nodes, generator=draw) < labelled,
    )
    group = Group(0, 1, torch.device("cpu"), 60.0)
    model = peergraph_pyg.accelerate(Model("gat", widths))
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        data = peergraph_pyg.full_graph(
            data, budget, order="original", offload=True, model=model, loss=loss_of, group=group
        )
    # Without the user's ids of edges, which are in host memory.
    of_graph = allocated_bytes(profile)[-1] - 8 * edges
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        for _ in range(2):
            loss_of(model, data).backward()
            model.zero_grad()
    graph = peergraph_pyg.partition_of(data)
    assert graph.offloaded is not None
    use = graph.offloaded.allocator.use
    assert use["host"].peak > 0
    assert use["device"].peak > 0
    assert of_graph + most_allocated(profile) <= budget


def test_a_sum_that_is_partly_on_the_device() -> None:
    """The sum gets the room that the plan leaves it, and scaled features and products do not."""
    widths, draw = [256, 128, 64], torch.Generator().manual_seed(1)
    full_data = Data(
        x=torch.randn(NODES, widths[0], generator=draw),
        edge_index=torch.randint(NODES, (2, EDGES), generator=draw),
        y=torch.randint(widths[-1], (NODES,), generator=draw),
        train_mask=torch.rand(NODES, generator=draw) < 0.1,
    )
    model = peergraph_pyg.accelerate(Model("gcn", widths))
    data = peergraph_pyg.full_graph(
        full_data, 9 << 19, offload=True, num_chunks=16, model=model, loss=loss_of,
        group=Group(0, 1, torch.device("cpu"), 60.0),
    )  # fmt: skip
    graph = peergraph_pyg.partition_of(data)
    assert graph.offloaded is not None
    assert graph.plan.offload is not None
    assert 0.2 < graph.plan.offload.placement.parts["sum"] < 0.9
    moved = []
    for _ in range(3):
        before = graph.offloaded.allocator.moved.to_device
        loss_of(model, data).backward()
        moved.append(graph.offloaded.allocator.moved.to_device - before)
    planned = sum(passed.from_host for passed in graph.plan.offload.passes)
    assert moved[-1] == pytest.approx(planned, rel=0.1)
