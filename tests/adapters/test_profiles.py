"""Ranges of Peergraph's work, by name, in the profiles that torch.profiler records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

import peergraph
from peergraph import profiling
from peergraph.memory import Group
from peergraph.profiling import (
    ALL_REDUCE,
    CHUNK,
    EXCHANGE,
    GATHER,
    NAMES,
    SAMPLE,
    UPDATE,
    WAIT_BATCH,
    profile_range,
    profiled,
)
from peergraph.testing import run_ranks

NODES, EDGES = 200, 1500


def names_in_profile(work: Callable[[], object]) -> dict[str, int]:
    """Names of Peergraph's ranges in a profile of `work`, and how many there are."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        work()
    counts = {event.key: event.count for event in recorded.key_averages()}
    return {name: count for name, count in counts.items() if name.startswith("peergraph::")}


def edges() -> torch.Tensor:
    return torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(0))


def pyg_data() -> Any:
    geometric = pytest.importorskip("torch_geometric")
    return geometric.data.Data(
        x=torch.randn(NODES, 8), y=torch.randint(0, 3, (NODES,)), edge_index=edges()
    )


def test_pyg_loader() -> None:
    data = pyg_data()
    from torch_geometric.loader import NeighborLoader

    import peergraph_pyg

    loader = NeighborLoader(peergraph_pyg.share(data), [3, 2], batch_size=50)
    counts = names_in_profile(lambda: list(loader))
    assert counts.keys() == {SAMPLE, GATHER}
    assert counts[SAMPLE] == len(loader)
    assert counts[GATHER] >= len(loader)
    counts = names_in_profile(lambda: list(peergraph_pyg.prefetch(loader, 1)))
    assert counts[WAIT_BATCH] >= len(loader)


def test_dgl_loader() -> None:
    peergraph_dgl = pytest.importorskip("peergraph_dgl", exc_type=ImportError)
    import dgl

    graph = dgl.graph(tuple(edges()), num_nodes=NODES)
    graph.ndata["x"] = torch.randn(NODES, 8)
    shared = peergraph_dgl.share(graph)
    sampler = dgl.dataloading.NeighborSampler([3, 2], prefetch_node_feats=["x"])
    loader = dgl.dataloading.DataLoader(shared, torch.arange(NODES), sampler, batch_size=50)
    counts = names_in_profile(lambda: [blocks[0].srcdata["x"] for _, _, blocks in loader])
    assert counts.keys() == {SAMPLE, GATHER}
    assert counts[SAMPLE] == len(loader)


def _train_full_graphs() -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Ranges of an epoch in memory, of one that is offloaded, and of a step of an embedding."""
    torch.manual_seed(0)
    from torch_geometric.nn import GraphSAGE

    import peergraph_pyg

    epochs = []
    for options in ({}, {"offload": True, "num_chunks": 3}):
        data = peergraph_pyg.full_graph(pyg_data(), **options)
        model = peergraph_pyg.accelerate(GraphSAGE(8, 16, 2, 3))

        def epoch(data: Any = data, model: Any = model) -> None:
            F.cross_entropy(model(data.x, data.edge_index), data.y).backward()

        epochs.append(names_in_profile(epoch))
    embedding = peergraph.Embedding(Group.current("cpu"), 4, num_embeddings=NODES)
    optimizer = peergraph.optim.SparseAdam([embedding])
    embedding(torch.arange(20)).sum().backward()
    updates = names_in_profile(optimizer.step)
    embedding.close()
    return (*epochs, updates)


def test_full_graphs_and_updates() -> None:
    pytest.importorskip("torch_geometric")
    for plain, offloaded, updates in run_ranks(_train_full_graphs, 2):
        assert plain.keys() == {EXCHANGE, ALL_REDUCE}
        assert offloaded.keys() == {EXCHANGE, ALL_REDUCE, CHUNK}
        assert offloaded[CHUNK] >= 6  # Three chunks, forward and backward.
        assert updates.keys() == {UPDATE, EXCHANGE}
        assert updates[UPDATE] == 1


class Sums:
    """An observer."""

    def __init__(self) -> None:
        self.ranges: list[str] = []
        self.num_bytes = 0

    def add_time(self, name: str, seconds: float) -> None:
        assert seconds >= 0
        self.ranges.append(name)

    def add_bytes(self, name: str, num_bytes: int) -> None:
        assert name == EXCHANGE
        self.num_bytes += num_bytes


def test_observer_counts_the_outermost_range_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    @profiled(EXCHANGE)
    def send(depth: int) -> None:
        """Sends."""
        profiling.count_bytes(EXCHANGE, 28)
        if depth:
            with profile_range(GATHER):
                send(depth - 1)

    assert (send.__name__, send.__doc__) == ("send", "Sends.")
    sums = Sums()
    monkeypatch.setattr(profiling, "_observer", sums)
    send(2)
    assert sorted(sums.ranges) == [EXCHANGE, GATHER]
    assert sums.num_bytes == 3 * 28
    with pytest.raises(ZeroDivisionError), profile_range(EXCHANGE):
        _ = 1 / 0
    send(0)
    assert sums.ranges.count(EXCHANGE) == 3


def test_nothing_is_made_while_nothing_records(monkeypatch: pytest.MonkeyPatch) -> None:
    assert profile_range(SAMPLE) is profile_range(GATHER)
    pushed = []
    monkeypatch.setattr(profiling, "_nvtx", True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", pushed.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: pushed.append("end"))
    for name in NAMES:
        with profile_range(name):
            pass
    assert pushed[::2] == list(NAMES)
    assert set(pushed[1::2]) == {"end"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"PEERGRAPH_NVTX": "1"}, True),
        ({"NVTX_INJECTION64_PATH": "/opt/nsight"}, True),
        ({"NVTX_INJECTION64_PATH": "/opt/nsight", "PEERGRAPH_NVTX": "0"}, False),
    ],
)
def test_variables_turn_nvtx_on(
    variables: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PEERGRAPH_NVTX", "NVTX_INJECTION64_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert profiling._wants_nvtx() is expected
    monkeypatch.setenv("PEERGRAPH_NVTX", "yes")
    with pytest.raises(ValueError, match="PEERGRAPH_NVTX must be 0 or 1, got 'yes'"):
        profiling._wants_nvtx()
