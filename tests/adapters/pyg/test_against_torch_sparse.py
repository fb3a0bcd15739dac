"""Batches beside those of PyG's own sampler, where torch-sparse is there for it to run.

All neighbours are taken, so that both must agree. PyG sorts edges in no stable order: nodes and
edges are compared as sets, seeds and all that is said of them in order. torch-sparse does not
count nodes and edges by hop.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.sampler import NegativeSampling
from torch_geometric.transforms import ToSparseTensor

import peergraph_pyg
from tests.adapters.pyg.graphs import random_data, random_hetero
from tests.named_case import named_cases

pytestmark = [
    pytest.mark.skipif(
        not torch_geometric.typing.WITH_TORCH_SPARSE, reason="torch-sparse is not installed"
    ),
    pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib'"),
]

WRITES = ("author", "writes", "paper")
CITES = ("paper", "cites", "paper")
OF_HOPS = {"num_sampled_nodes", "num_sampled_edges"}
LOCAL = {"edge_label_index", "src_index", "dst_pos_index", "dst_neg_index"}


def same_batch(actual: Any, expected: Any) -> None:
    for mine, other in zip(actual.stores, expected.stores, strict=True):
        assert mine._key == other._key
        assert set(mine.keys()) - OF_HOPS == set(other.keys()) - OF_HOPS, mine._key
    for (node_type, mine), (_, other) in zip(nodes(actual), nodes(expected), strict=True):
        seeds = actual[node_type].get("batch_size", 0) if node_type else actual.get("batch_size", 0)
        assert torch.equal(mine.n_id.cpu()[:seeds], other.n_id[:seeds])
        assert mine.n_id.dtype == other.n_id.dtype
    for mine, other in zip(actual.stores, expected.stores, strict=True):
        for key, value in other.items():
            if key in OF_HOPS:
                continue
            if not isinstance(value, Tensor):
                assert mine[key] == value or key in ("batch", "edge_label"), key
                continue
            assert mine[key].dtype == value.dtype, key
            assert mine[key].shape == value.shape, key
            if key in LOCAL or key == "edge_index":
                ends = endpoints(actual, mine, key), endpoints(expected, other, key)
                assert torch.equal(*(e if key in LOCAL else in_order(e.t()) for e in ends)), key
            elif other.is_node_attr(key) or (other.is_edge_attr(key) and key != "edge_label"):
                ids = "n_id" if other.is_node_attr(key) else "e_id"
                rows = mine[key].cpu()[mine[ids].cpu().argsort()], value[other[ids].argsort()]
                # Which of parallel edges an undirected one gets its id from is anybody's guess.
                if len(other[ids].unique()) == len(other[ids]):
                    assert torch.equal(*rows), key
            else:
                assert torch.equal(mine[key].cpu(), value), key


def nodes(batch: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(batch, Data):
        yield None, batch
    else:
        yield from batch.node_items()


def endpoints(batch: Any, storage: Any, key: str) -> Tensor:
    """Local ids as ids of the whole graph."""
    index = storage[key].cpu()
    if isinstance(batch, Data):
        return batch.n_id.cpu()[index]
    if isinstance(storage._key, str):
        return storage.n_id.cpu()[index]
    ends = [batch[node_type].n_id.cpu() for node_type in storage._key[::2]]
    return torch.stack([ends[0][index[0]], ends[1][index[1]]])


def in_order(rows: Tensor) -> Tensor:
    return torch.tensor(sorted(rows.tolist()))


def both(data: Any, kind: type, device: torch.device, **options: Any) -> None:
    shared = peergraph_pyg.share(data, device=device)
    loaders = [kind(d, [-1, -1], batch_size=8, **options) for d in (shared, data)]
    for start in range(0, 24, 8):
        batches = []
        for loader in loaders:
            torch.manual_seed(start)
            batches.append(loader(list(range(start, start + 8))))
        same_batch(*batches)


NODES = {
    "all": {},
    "ids": {"input_nodes": torch.arange(59, 10, -1)},
    "mask": {"input_nodes": torch.arange(60) % 2 == 0},
    "induced": {"subgraph_type": "induced"},
    "bidirectional": {"subgraph_type": "bidirectional"},
    "in the main process": {"filter_per_worker": False},
}


@named_cases("name", NODES)
def test_nodes(name: str, device: torch.device) -> None:
    both(random_data(), NeighborLoader, device, **NODES[name])


@named_cases("subgraph_type", ["directional", "induced", "bidirectional"])
@pytest.mark.parametrize("start", ["paper", "author"])
def test_typed_nodes(start: str, subgraph_type: str, device: torch.device) -> None:
    options = {"input_nodes": (start, torch.arange(24)), "subgraph_type": subgraph_type}
    both(random_hetero(), NeighborLoader, device, **options)


LINKS: dict[str, dict[str, Any]] = {
    "positive": {},
    "labelled": {"edge_label": torch.arange(400) % 3},
    "binary": {"neg_sampling": "binary"},
    "labelled binary": {"edge_label": torch.arange(400) % 3, "neg_sampling": "binary"},
    "more": {"neg_sampling": NegativeSampling("binary", 2.5)},
    "weighted": {"neg_sampling": NegativeSampling("binary", 2, torch.arange(60.0), torch.ones(60))},
    "triplet": {"neg_sampling": "triplet"},
    "triplets": {"neg_sampling": NegativeSampling("triplet", 3, dst_weight=torch.arange(60.0))},
}


@named_cases("name", LINKS)
def test_links(name: str, device: torch.device) -> None:
    data = random_data()
    both(data, LinkNeighborLoader, device, edge_label_index=data.edge_index, **LINKS[name])


@pytest.mark.parametrize("links", [WRITES, CITES])
@named_cases("neg_sampling", [None, "binary", "triplet"])
def test_typed_links(links: Any, neg_sampling: Any, device: torch.device) -> None:
    options = {"edge_label_index": links, "neg_sampling": neg_sampling}
    both(random_hetero(), LinkNeighborLoader, device, **options)


@pytest.mark.parametrize("weights", [False, True])
def test_matrices(weights: bool, device: torch.device) -> None:
    """Batches of all neighbours are those of PyG's own sampler, which torch-sparse makes run."""
    data = random_data()
    if not weights:
        del data["edge_weight"]
    plain = ToSparseTensor()(data)
    shared = peergraph_pyg.share(plain, device=device)
    assert isinstance(shared.adj_t, torch_geometric.typing.SparseTensor)
    for same in (shared.adj_t, pickle.loads(pickle.dumps(shared.adj_t))):
        _same_sparse(same, plain.adj_t)
    assert repr(shared) == repr(plain)
    conv = SAGEConv(5, 3)
    expected = conv(plain.x, plain.adj_t.set_value(None))
    actual = conv.to(device)(shared.x.clone(), shared.adj_t.set_value(None))
    torch.testing.assert_close(actual.cpu(), expected)
    for workers in (0, 2):
        options: dict[str, Any] = {"num_neighbors": [-1, -1], "batch_size": 7}
        mine = NeighborLoader(shared, num_workers=workers, **options)
        for batch, other in zip(mine, NeighborLoader(plain, **options), strict=True):
            assert torch.equal(batch.n_id.cpu(), other.n_id)
            assert torch.equal(batch.e_id.cpu(), other.e_id)
            assert torch.equal(batch.edge_attr.cpu(), other.edge_attr)
            _same_sparse(batch.adj_t, other.adj_t)


def _same_sparse(actual: Any, expected: Any) -> None:
    """torch-sparse puts parallel edges into any order."""
    assert actual.sparse_sizes() == expected.sparse_sizes()
    (row, col, value), (other_row, other_col, other_value) = actual.coo(), expected.coo()
    assert torch.equal(row.cpu(), other_row)
    assert torch.equal(col.cpu(), other_col)
    assert (value is None) is (other_value is None)
    if value is not None:
        assert value.dtype == other_value.dtype
        pairs = other_row * expected.size(1) + other_col
        assert torch.equal(_in_order(pairs, value.cpu()), _in_order(pairs, other_value))


def _in_order(pairs: Tensor, values: Tensor) -> Tensor:
    values, order = values.sort()
    return values[pairs[order].argsort(stable=True)]
