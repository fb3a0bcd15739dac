"""Prefetching threads on GPUs: their streams, the memory of batches, captured graphs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GATConv, HeteroConv, SAGEConv

import peergraph_pyg
from peergraph.aggregate.sparse import relation_blocks
from peergraph_pyg.prefetching.thread_state import _idle_streams, record_stream
from tests.adapters.pyg.graphs import check_batch, random_data
from tests.adapters.pyg.prefetching.loops import node_loader
from tests.adapters.pyg.typed_batches import EDGE_TYPES, TrimmedModel, shared_graph


class Recorded:
    """Stands for a stream: what is recorded on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tensors: list[Tensor] = []
        monkeypatch.setattr(Tensor, "is_cuda", True)
        monkeypatch.setattr(Tensor, "record_stream", lambda t, stream: stream.tensors.append(t))


class Slotted:
    """An object without a dict."""

    __slots__ = ("t",)

    def __init__(self, t: Tensor) -> None:
        self.t = t


def test_all_tensors_of_a_batch_change_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tensor is recorded once, wherever a transform has put it."""
    x = [torch.full((1,), i) for i in range(10)]
    loader = node_loader("cpu")
    batch = Data(x=x[0], own=[x[1], {"a": (x[2],)}], again=x[0])
    batch._hidden = x[3]
    batch.thing = SimpleNamespace(t=x[4], deeper=Slotted(x[5]))
    batch.thing.itself = batch.thing
    x[6].of_it = x[7]
    tree = (batch, {x[6]}, defaultdict(list, a=[x[8]]), "text", 5, None, loader.data)
    stream = Recorded(monkeypatch)
    record_stream(stream, tree)  # type: ignore[arg-type]
    numbers = [int(t) for t in stream.tensors if t.dtype == torch.int64 and t.numel() == 1]
    assert sorted(numbers) == list(range(9))


def test_shared_memory_changes_streams_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.arange(10)
    stream = Recorded(monkeypatch)
    batch = Data(first=whole[:4], last=whole[4:].data, other=torch.arange(4))
    record_stream(stream, batch)  # type: ignore[arg-type]
    assert sorted(tensor.numel() for tensor in stream.tensors) in ([4, 4], [4, 6])


@pytest.mark.gpus(1)
def test_memory_of_batches_is_not_reused_too_early() -> None:
    """A slow consumer must see its batch whole, though newer ones are made all the time."""
    data = random_data(2000, 40000)
    shared = peergraph_pyg.share(data, device="cuda:0")
    loader = NeighborLoader(shared, [5, 5], batch_size=100, shuffle=True)
    x = data.x.cuda()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for depth in (1, 4):
        for _ in range(3):
            for batch in peergraph_pyg.prefetch(loader, depth):
                torch.cuda._sleep(2_000_000)
                wrong += (batch.x != x[batch.n_id]).sum()
                del batch
    assert int(wrong) == 0


@pytest.mark.gpus(1)
def test_memory_is_bounded_where_the_loop_runs_ahead() -> None:
    """The loop queues work without waiting for it; batches must not pile up behind."""
    data = Data(x=torch.rand(1000, 1 << 14), edge_index=torch.zeros(2, 0, dtype=torch.int64))
    shared = peergraph_pyg.share(data, device="cuda:0")
    loader = NeighborLoader(shared, [2], batch_size=50)
    list(peergraph_pyg.prefetch(loader, 2))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for batch in peergraph_pyg.prefetch(loader, 2):
        torch.cuda._sleep(20_000_000)
        del batch
    # 20 batches of 3 MiB; at most 2 in the making, 1 in use, and as many not yet given back, beside
    # the sampler's scratch memory.
    assert torch.cuda.max_memory_allocated() - before < 8 * 50 * 65536 + (16 << 20)


@pytest.mark.gpus(1)
def test_streams_are_used_again() -> None:
    loader = peergraph_pyg.prefetch(node_loader("cuda:0"), 2)
    for _ in range(5):
        list(loader)
    streams = len(_idle_streams[torch.device("cuda", 0), -1])
    for _ in range(5):
        list(loader)
    assert len(_idle_streams[torch.device("cuda", 0), -1]) == streams


@pytest.mark.gpus(1)
def test_values_written_before_the_loop_are_seen() -> None:
    shared = peergraph_pyg.share(random_data(), device="cuda:0")
    loader = peergraph_pyg.prefetch(NeighborLoader(shared, [3], batch_size=60), 2)
    for value in range(1, 6):
        torch.cuda._sleep(5_000_000)
        shared.y[torch.arange(60)] = torch.full((60,), value, device="cuda:0")
        for batch in loader:
            assert bool((batch.y == value).all())


@pytest.mark.gpus(1)
def test_a_graph_is_captured_in_the_loop() -> None:
    """What the thread does meanwhile, allocating memory too, neither fails nor breaks it."""
    data = random_data()
    loader = peergraph_pyg.prefetch(node_loader("cuda:0"), 2)
    x = torch.zeros(4, device="cuda:0")
    for count, batch in enumerate(loader):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x += 1
            time.sleep(0.02)
        graph.replay()
        check_batch(batch, data)
        assert x.tolist() == [count + 1.0] * 4


@pytest.mark.gpus(2)
def test_no_memory_is_taken_on_the_first_gpu() -> None:
    """A thread's work is on its store's GPU alone; processes of other GPUs stay away from GPU 0."""
    program = """
import torch, peergraph_pyg
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
torch.cuda.set_device(1)
data = peergraph_pyg.share(Data(x=torch.rand(50, 2), edge_index=torch.randint(50, (2, 99))),
                           device="cuda:1")
before = torch._C._cuda_hasPrimaryContext(0)
for batch in peergraph_pyg.prefetch(NeighborLoader(data, [2], batch_size=3), 2):
    pass
print(torch._C._cuda_hasPrimaryContext(0) == before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=250, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@pytest.mark.gpus(1)
@pytest.mark.parametrize("conv", [SAGEConv, GATConv])
def test_structures_of_batches_do_not_wait_for_the_loop(
    conv: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads the sizes of a batch's structures waits for the batch, not for an earlier step."""
    monkeypatch.setattr(relation_blocks, "_FEW_ROWS", {"cpu": 0, "cuda": 0})
    options = {"add_self_loops": False} if conv is GATConv else {}

    def layer(width: int) -> HeteroConv:
        return HeteroConv({t: conv((width, width), 32, **options) for t in EDGE_TYPES})

    model = peergraph_pyg.accelerate(TrimmedModel(layer).cuda())
    shared, seeds = shared_graph(torch.device("cuda", 0), None), ("paper", torch.arange(60))
    loader = NeighborLoader(shared, [4, 3], input_nodes=seeds, batch_size=10)
    batches = iter(loader)
    for _ in range(3):  # Memory and libraries are there then.
        model(next(batches)).sum().backward()
    torch.cuda.synchronize()
    torch.cuda._sleep(4_000_000_000)
    model(next(batches)).sum().backward()
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
