"""Arguments of full_graph that say where offloaded rows are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import peergraph_pyg
from peergraph.fullgraph import named_model
from peergraph.fullgraph.offload.tensor.offloaded_tensor import OffloadedTensor
from peergraph.memory import Group

NODES = 300
MODEL = named_model([16, 16, 16, 4])


def partition(x: Any, **options: Any) -> Data:
    edges = torch.randint(NODES, (2, 900), generator=torch.Generator().manual_seed(1))
    settings = {"offload": True, "num_chunks": 4, "memory_budget": 200_000, "order": "random"}
    data = Data(x=x, edge_index=edges, num_nodes=NODES)
    group = Group(0, 1, torch.device("cpu"), 60.0)
    result = peergraph_pyg.full_graph(data, group=group, **{**settings, **options})
    assert isinstance(result, Data)
    return result


def test_model_host_memory_and_folder(tmp_path: Path) -> None:
    x = torch.randn(NODES, 16)
    data = partition(x, model=named_model([16, 8, 4]), host_memory=1 << 20, folder=tmp_path)
    plan = peergraph_pyg.partition_of(data).plan.offload
    assert plan is not None
    assert (plan.model.name, plan.model.assumed) == ("gcn 16-8-4", False)
    assert plan.host_room == 1 << 20
    assert plan.file_room > 0
    stores = data.x._content.space.allocator
    assert stores.folder == tmp_path
    with pytest.raises(ValueError, match="host_memory must not be negative, got -1"):
        partition(x, host_memory=-1)
    with pytest.raises(TypeError, match="host_memory must be an int, got 1.5"):
        partition(x, host_memory=1.5)
    with pytest.raises(FileNotFoundError):
        partition(x, folder=tmp_path / "none")
    with pytest.raises(ValueError, match="host memory is not enough"):
        partition(
            x,
            host_memory=0,
            model=MODEL,
            num_chunks=64,
            memory_budget=50_000,
        )


def train(data: Data, steps: int = 3) -> list[float]:
    """Losses of a GCN whose rows are all outside of the device."""
    graph = peergraph_pyg.partition_of(data)
    assert graph.offloaded is not None
    stores = graph.offloaded.allocator
    stores.use["device"].budget = stores.sequential_device_bytes = 0
    x = graph.offloaded.rows(data.x.full_tensor(), graph.node_layouts["_N"], "features")
    labels, mask = (graph.node_rows(t) for t in (torch.arange(NODES) % 4, torch.arange(NODES) < 90))
    torch.manual_seed(3)
    model = peergraph_pyg.accelerate(GCN(16, 16, 3, 4))
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, data.edge_index)[mask], labels[mask])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training_with_rows_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses of rows on the host; a full disk is the system's error and leaves nothing."""
    x = torch.randn(NODES, 16)
    expected = train(partition(x, model=MODEL))
    data = partition(x, model=MODEL, host_memory=0, folder=tmp_path)
    assert train(data) == expected
    use = peergraph_pyg.partition_of(data).offloaded.allocator.use  # type: ignore[union-attr]
    assert (use["file"].peak > 0, use["host"].peak) == (True, 0)
    assert not list(tmp_path.iterdir())

    def refuse(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    data = partition(x, model=MODEL, host_memory=0, folder=tmp_path)
    with pytest.raises(OSError, match="on disk cannot be had: No space left"):
        train(data)
    assert not list(tmp_path.iterdir())


def test_hidden_dtype() -> None:
    """Half the bytes are stored and moved; chunks give the same losses to rounding."""
    x = torch.randn(NODES, 16)
    results = {}
    for dtype in (None, torch.bfloat16, torch.float16):
        for chunks in (1, 4):
            data = partition(x, model=MODEL, num_chunks=chunks, hidden_dtype=dtype,
                             memory_budget=1 << 24)  # fmt: skip
            losses = train(data)
            stores = peergraph_pyg.partition_of(data).offloaded.allocator  # type: ignore[union-attr]
            results[dtype, chunks] = losses, stores.use["host"].peak, stores.moved.from_device
    exact, *bytes_of_exact = results[None, 4]
    for dtype, tolerance in ((torch.bfloat16, 2**-8), (torch.float16, 2**-11)):
        losses, *num_bytes = results[dtype, 4]
        assert losses != exact
        assert losses == pytest.approx(exact, rel=tolerance)
        assert losses == pytest.approx(results[dtype, 1][0], rel=tolerance)
        # Gradients of labelled rows keep their dtype.
        assert num_bytes == pytest.approx([0.5 * size for size in bytes_of_exact], rel=0.1)
    with pytest.raises(ValueError, match=r"hidden_dtype must be .*, got torch.int8"):
        partition(x, hidden_dtype=torch.int8)
    with pytest.raises(TypeError, match="unexpected keyword argument hidden: expected order, "):
        partition(x, hidden=torch.bfloat16)


@pytest.mark.filterwarnings("error")
def test_mapped_features_are_read_where_they_are(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((NODES, 16)).astype(np.float32)
    np.save(tmp_path / "x.npy", values)
    # Too little memory of the device for the features, and none of the host is used.
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = partition(x, model=MODEL, num_chunks=64, memory_budget=50_000)
    assert isinstance(data.x, OffloadedTensor)
    store = data.x._content.store
    assert store is not None
    assert store.tier == "user"
    assert data.x._content.space.allocator.use["host"].used == 0
    assert torch.equal(data.x.full_tensor(), torch.from_numpy(values))


def test_three_layers_within_two_sets_of_rows_on_the_device_and_one_on_the_host() -> None:
    """Features stay where they are, their sum is on the host, and what a layer needs goes."""
    torch.manual_seed(1)
    one_set = NODES * 16 * 4
    data = partition(
        torch.randn(NODES, 16), memory_budget=1 << 24, model=named_model([16, 16, 16, 7])
    )
    data.y, data.train_mask = (
        peergraph_pyg.partition_of(data).node_rows(values)
        for values in (torch.randint(7, (NODES,)), torch.arange(NODES) % 50 == 0)
    )
    graph = peergraph_pyg.partition_of(data)
    assert graph.offloaded is not None
    stores = graph.offloaded.allocator
    stores.use["device"].budget = int(2.2 * one_set)
    stores.use["host"].budget = one_set
    stores.sequential_device_bytes = int(0.2 * one_set)
    data.x = graph.offloaded.rows(torch.randn(NODES, 16), graph.node_layouts["_N"], "features")
    model = peergraph_pyg.accelerate(GCN(16, 16, 3, 7))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)[data.train_mask]
        torch.nn.functional.cross_entropy(out, data.y[data.train_mask]).backward()
        optimizer.step()
        del out
    # The sum of the features, less what is on the device.
    assert 0.8 * one_set < stores.use["host"].used < one_set
    assert stores.use["host"].peak < one_set
    assert stores.use["device"].peak <= 2.2 * one_set
