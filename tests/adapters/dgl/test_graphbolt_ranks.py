"""GraphBolt over a store of several ranks, each going at its own pace."""

from __future__ import annotations

from typing import Any

import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.graphs import random_graph
from tests.places import cpu_and_gpus

pytest.importorskip("peergraph_dgl.graphbolt", exc_type=ImportError)

# isort: split

import torch
from dgl import graphbolt as gb

import peergraph_dgl
from peergraph.memory import Group
from peergraph.testing import run_ranks
from peergraph_dgl.graphbolt import FeatureStore, SamplingGraph

NODES = 60


pytestmark = pytest.mark.usefixtures("one_thread_a_rank")


def _check(device: str) -> list[int]:
    """The seeds of this rank; no collective hides in an update, nor in a batch."""
    group = Group.current(device=device)
    g: Any = random_graph().int()
    shared = peergraph_dgl.share(g if group.rank == 0 else None, device=device)
    store = peergraph_dgl.store_of(shared)
    assert peergraph_dgl.from_store(store).idtype == torch.int32
    graph, features = SamplingGraph(store), FeatureStore(store)
    for _ in range(group.rank + 1):
        features.update("node", None, "h", torch.full((NODES, 7), float(group.rank)))
    items = gb.ItemSet(torch.arange(NODES), names="seed_nodes")
    pipe = gb.DistributedItemSampler(items, batch_size=8)
    pipe = pipe.copy_to(torch.device(store.device), extra_attrs=["seed_nodes"])
    pipe = pipe.sample_neighbor(graph, [3, 2])
    loader = gb.DataLoader(pipe.fetch_feature(features, node_feature_keys=["x", "h"]))
    seeds: list[int] = []
    for batch in loader:  # To begin is a collective of torch's, so all ranks pass as often.
        assert bool((batch.node_features["h"] == group.rank).all())
        rows = g.ndata["x"][batch.input_nodes.cpu()]
        assert torch.equal(batch.node_features["x"].cpu(), rows)
        seeds += batch.seed_nodes.tolist()
    group.barrier()
    store.close()
    return seeds


@cpu_and_gpus(2)
def test_ranks(device_type: str) -> None:
    first, second = run_ranks(_check, 2, device_type, device=device_type)
    assert sorted(first + second) == list(range(NODES))
