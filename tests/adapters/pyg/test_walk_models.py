"""PyG's unmodified Node2Vec and MetaPath2Vec on the walks of shared data."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import MetaPath2Vec, Node2Vec

import peergraph_pyg
from peergraph.testing import run_ranks
from peergraph_pyg import EdgeIndexTensor
from tests.adapters.pyg.graphs import random_data, random_hetero
from tests.sampling.uniformity import assert_distributed

WRITES, REV_WRITES = ("author", "writes", "paper"), ("paper", "rev_writes", "author")
CITES = ("paper", "cites", "paper")


def node2vec(shared: Data, **options: Any) -> Node2Vec:
    return Node2Vec(shared.edge_index, 8, walk_length=5, context_size=3, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_node2vec(workers: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    peergraph_pyg.store_of(shared).reversed()
    monkeypatch.delattr(EdgeIndexTensor, "materialize")
    model = node2vec(shared, walks_per_node=2, num_negative_samples=3)
    assert isinstance(model, Node2Vec)
    assert model.embedding.weight.shape == (60, 8)
    edges = set(map(tuple, data.edge_index.T.tolist()))
    ends = {u for u in range(60) if u not in data.edge_index[0].tolist()}
    batches = list(model.loader(batch_size=20, num_workers=workers))
    for number, (positive, negative) in enumerate(batches):
        assert positive.shape == (20 * 2 * 3, 3)
        assert negative.shape == (20 * 2 * 3 * 3, 3)
        starts = positive[:20, 0].tolist()
        assert starts == list(range(20 * number, 20 * number + 20))
        for walk in positive.tolist():
            for u, v in pairwise(walk):
                assert (u, v) in edges or (u == v and u in ends)


def test_node2vec_prefers_by_p_and_q(device: torch.device) -> None:
    """From 1 after 0: back to 0, to 2 that is a neighbour of 0, and to 3 that is none."""
    edges = torch.tensor([[0, 1], [0, 2], [1, 0], [1, 2], [1, 3], [2, 0], [2, 1], [3, 1]]).T
    shared = peergraph_pyg.share(Data(edge_index=edges, num_nodes=4), device=device)
    model = Node2Vec(shared.edge_index, 4, walk_length=3, context_size=3, p=0.25, q=2.0)
    torch.manual_seed(0)
    walks = model.pos_sample(torch.zeros(6000, dtype=torch.long)).cpu()
    after = walks[walks[:, 1] == 1][:, 2]
    counts = np.bincount(after, minlength=4)
    assert counts[1] == 0
    assert_distributed(counts[[0, 2, 3]], np.array([4.0, 1.0, 0.5]))


def test_node2vec_trains(device: torch.device) -> None:
    shared = peergraph_pyg.share(random_data(), device=device)
    torch.manual_seed(0)
    model = node2vec(shared, sparse=True).to(device)
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.05)
    losses = []
    for _ in range(30):
        for positive, negative in model.loader(batch_size=30, shuffle=True):
            optimizer.zero_grad()
            loss = model.loss(positive.to(device), negative.to(device))
            loss.backward()
            optimizer.step()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    twin = copy.deepcopy(model)
    assert torch.equal(twin(), model())
    assert list(model.state_dict()) == ["embedding.weight"]


def metapath2vec(shared: HeteroData, metapath: Any, length: int, **options: Any) -> MetaPath2Vec:
    return MetaPath2Vec(shared.edge_index_dict, 8, metapath, length, 3, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_metapath2vec(workers: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks follow the path, and go to the dummy node after a node without edges."""
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=device)
    peergraph_pyg.store_of(shared).reversed()
    monkeypatch.delattr(EdgeIndexTensor, "materialize")
    path = [WRITES, CITES, REV_WRITES]
    model = metapath2vec(shared, path, 6, walks_per_node=2)
    counts = {"author": 25, "paper": 40, "venue": 6}
    plain = MetaPath2Vec(data.edge_index_dict, 8, path, 6, 3, num_nodes_dict=counts)
    assert model.embedding.weight.shape == plain.embedding.weight.shape
    assert model.start == plain.start
    steps = {t: set(map(tuple, data[t].edge_index.T.tolist())) for t in path}
    dummy, types = model.dummy_idx, ["author", *(t[2] for t in path * 2)]
    for positive, negative in model.loader(batch_size=10, num_workers=workers):
        size = len(positive) // 5  # windows of a walk
        assert len(negative) == len(positive)
        for window, walks in enumerate(positive.split(size)):
            for walk in walks.tolist():
                for step, (u, v) in enumerate(pairwise(walk), window):
                    t = path[step % 3]
                    u -= model.start[types[step]] if u != dummy else 0
                    reached = {b for a, b in steps[t] if a == u}
                    if v == dummy:
                        assert u == dummy or not reached
                    else:
                        assert v - model.start[types[step + 1]] in reached


def test_metapath2vec_distribution(device: torch.device) -> None:
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 2, 3
    data["a", "to", "b"].edge_index = torch.tensor([[0, 0, 0, 1], [0, 1, 1, 2]])
    shared = peergraph_pyg.share(data, device=device)
    model = MetaPath2Vec(shared.edge_index_dict, 4, [("a", "to", "b")], 1, 2)
    torch.manual_seed(0)
    walks = model._pos_sample(torch.zeros(3000, dtype=torch.long)).cpu()
    counts = np.bincount(walks[:, 1] - model.start["b"], minlength=3)
    assert counts[2] == 0
    assert_distributed(counts[:2], np.array([1.0, 2.0]))


def _walks() -> list[Any]:
    rank = torch.distributed.get_rank()
    shared = peergraph_pyg.share(random_data() if rank == 0 else None, device="cpu")
    typed = peergraph_pyg.share(random_hetero() if rank == 0 else None, device="cpu")
    models = node2vec(shared, q=0.5), metapath2vec(typed, [WRITES, REV_WRITES], 4)
    torch.manual_seed(5)
    return [[p.tolist() for p, _ in model.loader(batch_size=8)] for model in models]


def test_two_ranks() -> None:
    [alone] = run_ranks(_walks, 1)
    assert run_ranks(_walks, 2) == [alone, alone]


def test_errors() -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    typed = peergraph_pyg.share(random_hetero(), device="cpu")
    with pytest.raises(ValueError, match="is 60, got 70"):
        node2vec(shared, num_nodes=70)
    with pytest.raises(ValueError, match="context_size"):
        Node2Vec(shared.edge_index, 8, 2, 3)
    with pytest.raises(NotImplementedError, match="MetaPath2Vec"):
        Node2Vec(typed[WRITES].edge_index, 8, 3, 2)
    with pytest.raises(KeyError):
        metapath2vec(typed, [("a", "b", "c")], 2)
    with pytest.raises(AttributeError, match="cycle"):
        metapath2vec(typed, [WRITES], 5)
