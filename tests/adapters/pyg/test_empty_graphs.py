"""Graphs without edges, without features, without nodes: shared, and loaded as PyG would."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

import peergraph_pyg
from peergraph.testing.starting import context_of
from tests.named_case import named_cases

NO_EDGES = torch.empty(2, 0, dtype=torch.int64)
TO = ("a", "to", "b")


def typed(**edges: Any) -> HeteroData:
    data = HeteroData()
    data["a"].x = torch.rand(5, 2)
    data["b"].num_nodes = 4
    for name, value in edges.items():
        data["a", name, "b"].edge_index = value
    return data


PLAIN = {
    "only a number of nodes": Data(num_nodes=7),
    "a number of nodes, no edges": Data(num_nodes=7, edge_index=NO_EDGES),
    "features": Data(x=torch.rand(7, 2)),
    "features, no edges": Data(x=torch.rand(7, 2), edge_index=NO_EDGES),
    "an empty list of edges": Data(x=torch.rand(7, 2), edge_index=torch.tensor([[], []])),
    "columns of no edges": Data(num_nodes=7, edge_index=NO_EDGES, edge_attr=torch.rand(0, 3)),
    "an isolated node": Data(num_nodes=7, edge_index=torch.tensor([[0], [1]])),
    "no nodes": Data(num_nodes=0),
    "no nodes, features": Data(x=torch.rand(0, 2), edge_index=NO_EDGES),
}
TYPED = {
    "only numbers of nodes": HeteroData({"a": {"num_nodes": 5}, "b": {"num_nodes": 4}}),
    "no edge types": typed(),
    "no edges": typed(to=NO_EDGES),
    "some edges": typed(to=NO_EDGES, x=torch.tensor([[0, 1], [2, 3]])),
    "a type without nodes": HeteroData({"a": {"num_nodes": 5}, "b": {"num_nodes": 0}}),
    "a relation with nothing": typed(x=torch.tensor([[0, 1], [2, 3]]), to=None),
}


@named_cases(
    ("kind", "workers"), [(kind, 0) for kind in PLAIN] + [(kind, 2) for kind in [*PLAIN][::4]]
)
def test_batches(kind: str, workers: int, device: torch.device) -> None:
    data = PLAIN[kind]
    shared = peergraph_pyg.share(data, device=device)
    assert repr(shared) == repr(data)
    num_edges = 0 if data.edge_index is None else data.edge_index.size(1)
    seeds = []
    for batch in NeighborLoader(shared, [2, 2], batch_size=3, num_workers=workers):
        assert ("edge_index" in batch) == ("edge_index" in data)
        assert ("x" in batch) == ("x" in data)
        results = [seed for seed in batch.input_id.tolist() if num_edges and seed == 1]
        assert batch.n_id[: batch.batch_size].tolist() == batch.input_id.tolist()
        assert batch.num_nodes == batch.batch_size + sum(0 not in batch.input_id for _ in results)
        assert batch.e_id.tolist() == [0] * len(results)
        seeds += batch.input_id.tolist()
    assert seeds == list(range(data.num_nodes))


@named_cases("kind", TYPED)
def test_batches_of_types(kind: str, device: torch.device) -> None:
    data = TYPED[kind]
    shared = peergraph_pyg.share(data, device=device)
    assert repr(shared) == repr(data)
    for node_type in ("a", "b"):
        seeds = []
        for batch in NeighborLoader(shared, [2, 2], input_nodes=node_type, batch_size=3):
            assert batch.node_types == data.node_types
            assert batch.edge_types == data.edge_types
            seeds += batch[node_type].n_id[: batch[node_type].batch_size].tolist()
        assert seeds == list(range(data[node_type].num_nodes)), node_type


def test_links(device: torch.device) -> None:
    for kind in ("a number of nodes, no edges", "no nodes, features"):
        shared = peergraph_pyg.share(PLAIN[kind], device=device)
        assert list(LinkNeighborLoader(shared, [2], neg_sampling_ratio=1.0)) == []
    shared = peergraph_pyg.share(PLAIN["only a number of nodes"], device=device)
    links = torch.tensor([[0, 1], [2, 3]])
    (batch,) = LinkNeighborLoader(shared, [2], edge_label_index=links, batch_size=2)
    assert torch.equal(batch.n_id[batch.edge_label_index].cpu(), links)
    (batch,) = LinkNeighborLoader(
        shared, [2], edge_label_index=links, neg_sampling="triplet", batch_size=2
    )
    assert batch.dst_neg_index.numel() == 2
    with pytest.raises(ValueError, match="edge_label_index is needed: data has no edges"):
        LinkNeighborLoader(shared, [2])
    shared = peergraph_pyg.share(TYPED["a relation with nothing"], device=device)
    shared[TO].some = "thing"
    with pytest.raises(ValueError, match=r"edge_label_index is needed: \('a', 'to', 'b'\) has no"):
        LinkNeighborLoader(shared, [2], edge_label_index=TO)


def test_seeds_that_are_none(device: torch.device) -> None:
    shared = peergraph_pyg.share(PLAIN["features"], device=device)
    nothing: list[int] = []
    for nodes in (torch.tensor([]), nothing, torch.zeros(7, dtype=torch.bool)):
        assert list(NeighborLoader(shared, [2], input_nodes=nodes)) == []
    pair = peergraph_pyg.stores(peergraph_pyg.store_of(shared))
    assert list(NeighborLoader(pair, [2], input_nodes=torch.tensor([]))) == []
    for data in (shared, pair):
        edges: Any = torch.empty(2, 0)
        label = edges if data is shared else (None, edges)
        assert list(LinkNeighborLoader(data, [2], edge_label_index=label)) == []


def _count(data: Data, numbers: Any) -> None:
    numbers.put(sum(batch.batch_size for batch in NeighborLoader(data, [2], batch_size=3)))


def test_copies_keep_the_store(tmp_path: Path) -> None:
    """Nothing but the data itself holds the store of a graph without tensors."""
    shared = peergraph_pyg.share(PLAIN["only a number of nodes"], device="cpu")
    for other in (copy.copy(shared), copy.deepcopy(shared), shared.clone(), shared.to("cpu")):
        assert peergraph_pyg.store_of(other) is peergraph_pyg.store_of(shared)
    context = context_of("forked")
    numbers = context.SimpleQueue()
    child = context.Process(target=_count, args=(shared, numbers))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    assert numbers.get() == 7
    # A file has no use for a store, and can be read without peergraph.
    assert b"peergraph_pyg" not in pickle.dumps(shared)
    torch.save(shared, tmp_path / "data.pt")
    read = torch.load(tmp_path / "data.pt", weights_only=False)
    assert len(list(NeighborLoader(peergraph_pyg.share(read), [2], batch_size=3))) == 3


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"data\.num_nodes is not set"):
        peergraph_pyg.share(Data(), device="cpu")
    data = typed()
    data[TO].edge_attr = torch.rand(3, 2)
    with pytest.raises(ValueError, match=r"\('a', 'to', 'b'\) has 'edge_attr', but no edge_index"):
        peergraph_pyg.share(data, device="cpu")
    empty = peergraph_pyg.share(HeteroData(), device="cpu")
    with pytest.raises(ValueError, match=r"input_nodes must be one of the node types \[\]"):
        NeighborLoader(empty, [2], input_nodes="a")
