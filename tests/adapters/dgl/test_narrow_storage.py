"""Shared DGL graphs with narrow storage: batches are those of graphs with the decoded values."""

from __future__ import annotations

from typing import Any

import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.graphs import random_graph, random_hetero

# isort: split

import torch
from dgl.dataloading import DataLoader, NeighborSampler
from torch import Tensor

import peergraph_dgl
from peergraph.memory import NarrowTable
from tests.memory.narrow_rows import STORAGES, expected_rows
from tests.named_case import named_case


def _floats(frame: Any) -> dict[str, Tensor]:
    return {name: value for name, value in frame.items() if value.dtype == torch.float32}


def _pair(storage: str, make: Any, **options: Any) -> tuple[Any, Any]:
    """Shared graphs with narrow storage, and with the decoded values as they are."""
    plain, named = make(), {}
    for frames, types in ((plain.nodes, plain.ntypes), (plain.edges, plain.canonical_etypes)):
        for kind in types:
            data = frames[kind].data
            for name, value in _floats(data).items():
                data[name] = expected_rows(value, storage)
                named.setdefault(kind, {})[name] = storage
    assert named
    narrow = peergraph_dgl.share(make(), storage=named, **options)
    return narrow, peergraph_dgl.share(plain, **options)


def _close(*graphs: Any) -> None:
    for graph in graphs:
        peergraph_dgl.store_of(graph).close()


def _check_frames(mine: Any, other: Any) -> None:
    for left, right in zip(
        (*mine._node_frames, *mine._edge_frames),
        (*other._node_frames, *other._edge_frames),
        strict=True,
    ):
        assert left.keys() == right.keys()
        for name in left:
            assert left[name].dtype == right[name].dtype
            assert torch.equal(torch.as_tensor(left[name]), torch.as_tensor(right[name]))


@pytest.mark.parametrize("make", [random_graph, random_hetero])
def test_blocks(make: Any, device: torch.device) -> None:
    plans = ["replicated", "sharded", "host", "auto"]
    for i, storage in enumerate(STORAGES):
        with named_case(storage):
            pair = _pair(storage, make, device=device, plan=plans[i % len(plans)])
            results = []
            for graph in pair:
                torch.manual_seed(0)
                seeds: Any = torch.arange(9)
                if len(graph.ntypes) > 1:
                    seeds = {graph.ntypes[0]: seeds}
                sampler = NeighborSampler([3, 3])
                loader = DataLoader(graph, seeds, sampler, batch_size=4, device=device)
                results.append([blocks for _, _, blocks in loader])
            for mine, other in zip(*results, strict=True):
                for left, right in zip(mine, other, strict=True):
                    _check_frames(left, right)
            _close(*pair)


def test_values_of_the_shared_graph(device: torch.device) -> None:
    narrow, plain = _pair("int8", random_graph, device=device)
    ids = torch.tensor([5, 0, 2])
    for frame, other in ((narrow.ndata, plain.ndata), (narrow.edata, plain.edata)):
        for name, value in _floats(other).items():
            assert torch.equal(frame[name][ids], value[ids])
            assert torch.equal(torch.as_tensor(frame[name])[:], torch.as_tensor(value)[:])
    _check_frames(narrow.subgraph([1, 2, 5]), plain.subgraph([1, 2, 5]))
    _close(narrow, plain)


def test_features_of_graphbolt(device: torch.device) -> None:
    graphbolt = pytest.importorskip("peergraph_dgl.graphbolt", exc_type=ImportError)
    narrow, plain = _pair("float8_e4m3", random_graph, device=device)
    store = peergraph_dgl.store_of(narrow)
    features = [
        graphbolt.FeatureStore(store),
        graphbolt.FeatureStore(peergraph_dgl.store_of(plain)),
    ]
    ids = torch.tensor([7, 1, 1])
    checked = 0
    for name, value in _floats(plain.ndata).items():
        assert isinstance(store.node_table(name), NarrowTable)
        storage = peergraph_dgl.TableStorage(store, name)
        assert torch.equal(storage.fetch(ids, "cpu").wait(), torch.as_tensor(value)[ids])
        mine, other = (f.read("node", None, name, ids) for f in features)
        assert mine.dtype == torch.float32
        assert torch.equal(mine, other)
        assert torch.equal(*(f.read("node", None, name) for f in features))
        checked += 1
    assert checked
    _close(narrow, plain)
