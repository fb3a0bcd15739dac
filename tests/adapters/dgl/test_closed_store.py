"""DGL's loaders and graphs whose store is closed while they are in use."""

from __future__ import annotations

import pytest

pytest.importorskip("peergraph_dgl", exc_type=ImportError)

import dgl
import torch
from dgl.dataloading import DataLoader, NeighborSampler

import peergraph_dgl
from peergraph.testing import run_ranks

CLOSED = "this (store|table) has been closed"


def _after_close(from_store: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    source, destination = torch.randint(500, (2, 4000), generator=generator)
    plain = dgl.graph((source, destination), num_nodes=500)
    plain.ndata["x"] = torch.rand(500, 4)
    shared = peergraph_dgl.share(plain, device="cpu", plan="sharded")
    store = peergraph_dgl.store_of(shared)
    graph = peergraph_dgl.from_store(store) if from_store else shared
    sampler = NeighborSampler([5, 5], prefetch_node_feats=["x"])
    iterator = iter(DataLoader(graph, torch.arange(500), sampler, batch_size=10))
    next(iterator)
    storage = graph.get_node_storage("x")
    store.close()
    with pytest.raises(RuntimeError, match=CLOSED):
        next(iterator)
    with pytest.raises(RuntimeError, match=CLOSED):
        storage.fetch(torch.arange(10), "cpu").wait()
    if from_store:
        with pytest.raises(RuntimeError, match=CLOSED):
            graph.in_degrees()
    else:  # DGL's own graph keeps the memory of its structure
        assert torch.equal(graph.in_degrees(), plain.in_degrees())


@pytest.mark.parametrize("from_store", [False, True])
def test_use_after_close(from_store: bool) -> None:
    run_ranks(_after_close, 1, from_store)
