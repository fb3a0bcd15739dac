"""What transforms and methods of PyG make of shared data is loaded as it is, or shared again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.transforms as T
import torch_geometric.typing
from torch import Tensor
from torch_geometric import seed_everything
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

import peergraph_pyg
from peergraph_pyg import StoreTensor
from tests.adapters.pyg.graphs import random_data, random_hetero
from tests.named_case import named_cases

CITES = ("paper", "cites", "paper")
WRITES = ("author", "writes", "paper")

# Of these, the store is still that of the data: its loaders work as they are.
KEPT: dict[str, Callable[[Any], Any]] = {
    "NormalizeFeatures": T.NormalizeFeatures(),
    "RandomNodeSplit": T.RandomNodeSplit(),
    "Constant": T.Constant(),
    "a new column": lambda data: _with(data, "z", torch.rand(60, 3)),
    "generate_ids": lambda data: (data.generate_ids(), data)[1],
    "detach": lambda data: data.detach(),
}
CHANGED: dict[str, Callable[[Any], Any]] = {
    "ToUndirected": T.ToUndirected(),
    "AddSelfLoops": T.AddSelfLoops(),
    "GCNNorm": T.GCNNorm(),
    "RandomLinkSplit": lambda data: T.RandomLinkSplit()(data)[0],
    "LargestConnectedComponents": T.LargestConnectedComponents(),
    "RemoveIsolatedNodes": T.RemoveIsolatedNodes(),
    "RemoveDuplicatedEdges": T.RemoveDuplicatedEdges(),
    "subgraph": lambda data: data.subgraph(_first(30, data)),
    "edge_subgraph": lambda data: data.edge_subgraph(_first(90, data)),
    "coalesce": lambda data: data.coalesce(),
    "sort": lambda data: data.sort(),
    "clone": lambda data: data.clone(),
    "no edge_index": lambda data: _with(data, "edge_index", None),
    "more nodes": lambda data: _with(Data(edge_index=data.edge_index), "num_nodes", 70),
}
HETERO_KEPT: dict[str, Callable[[Any], Any]] = {
    "NormalizeFeatures": T.NormalizeFeatures(),
    "node_type_subgraph": lambda data: data.node_type_subgraph(["paper", "author"]),
    "edge_type_subgraph": lambda data: data.edge_type_subgraph([WRITES]),
}


def _with_metapaths(data: Any) -> Any:
    """With paths of two edges. MKL's product of sparse matrices, which PyG takes where torch has
    MKL, reads beyond its memory on some processors, and ends the process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_geometric.typing, "NO_MKL", True)
        return T.AddMetaPaths([[("author", "paper"), ("paper", "paper")]])(data)


HETERO_CHANGED: dict[str, Callable[[Any], Any]] = {
    "ToUndirected": T.ToUndirected(),
    "AddSelfLoops": T.AddSelfLoops(),
    "AddMetaPaths": lambda data: _with_metapaths(data),
    "RandomLinkSplit": lambda data: T.RandomLinkSplit(edge_types=[WRITES])(data)[0],
    "subgraph": lambda data: data.subgraph({t: _first(5, data[CITES]) for t in data.node_types}),
    "a renamed type": lambda data: _renamed(data),
    "a new type": lambda data: _with_type(data),
}


def _first(count: int, data: Any) -> Tensor:
    return torch.arange(count, device=data.edge_index.device)


def _with(data: Any, key: str, value: Any) -> Any:
    data[key] = value
    return data


def _renamed(data: HeteroData) -> HeteroData:
    data["paper", "quotes", "paper"].edge_index = data[CITES].edge_index
    del data[CITES]
    return data


def _with_type(data: HeteroData) -> HeteroData:
    data["author", "knows", "author"].edge_index = torch.tensor([[0, 1], [1, 2]])
    return data


@pytest.fixture(autouse=True)
def _without_pyg_lib(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one of these libraries, PyG's own sampler takes what the store cannot sample."""
    for name in ("WITH_PYG_LIB", "WITH_TORCH_SPARSE"):
        monkeypatch.setattr(torch_geometric.typing, name, False)


def loader(data: Any) -> NeighborLoader:
    nodes = "paper" if isinstance(data, HeteroData) else None
    return NeighborLoader(data, [3, 2], input_nodes=nodes, batch_size=16)


def assert_same(data: Any, expected: Any) -> None:
    assert type(data) is type(expected)
    for storage, other in zip(data.stores, expected.stores, strict=True):
        assert list(storage.keys()) == list(other.keys())
        for key, value in other.items():
            if isinstance(value, Tensor):
                assert storage[key].dtype == value.dtype
                torch.testing.assert_close(storage[key].cpu(), value.cpu(), equal_nan=True)
            elif key not in ("input_id", "num_sampled_nodes"):
                assert storage[key] == value


def assert_same_batches(shared: Any, other: Any) -> None:
    seed_everything(3)
    batches = list(loader(shared))
    seed_everything(3)
    for batch, expected in zip(batches, loader(other), strict=True):
        assert_same(batch, expected)


def on_cpu(data: Any) -> Any:
    """The data with its tensors there; data.cpu() would make lists of tuples as well."""
    for storage in data.stores:
        for key, value in storage.items():
            storage[key] = value.cpu() if isinstance(value, Tensor) else value
    return data


def changed(data: Any, change: Callable[[Any], Any]) -> Any:
    seed_everything(1)
    return change(data)


@named_cases("change", KEPT)
def test_data_with_the_edges_of_its_store_is_loaded(change: str, device: torch.device) -> None:
    expected = changed(random_data(), KEPT[change])
    data = changed(peergraph_pyg.share(random_data(), device=device), KEPT[change])
    assert_same(data, expected)
    assert_same_batches(data, peergraph_pyg.share(expected, device="cpu"))


@named_cases("change", CHANGED)
def test_data_with_other_edges_is_shared_again(change: str, device: torch.device) -> None:
    first_data = random_data()
    if device.type == "cuda":  # where PyG takes equal edges in any order
        first_data = T.RemoveDuplicatedEdges(key=["edge_attr", "edge_weight"])(first_data)
    expected = changed(copy.copy(first_data).to(device), CHANGED[change])
    first = peergraph_pyg.share(first_data, device=device)
    data = changed(copy.copy(first), CHANGED[change])
    assert_same(data, expected)
    with pytest.raises(ValueError, match=r"changed after share\(\): .* is no longer the store's"):
        loader(data)
    second = peergraph_pyg.share(data, device=device)
    assert_same(second, expected)
    store = peergraph_pyg.store_of(first)
    assert peergraph_pyg.store_of(second) is not store
    store.close()
    assert_same_batches(second, peergraph_pyg.share(on_cpu(expected), device="cpu"))


@named_cases("change", HETERO_KEPT)
def test_types_with_the_edges_of_the_store_are_loaded(change: str, device: torch.device) -> None:
    expected = changed(random_hetero(), HETERO_KEPT[change])
    data = changed(peergraph_pyg.share(random_hetero(), device=device), HETERO_KEPT[change])
    assert_same(data, expected)
    # The relations are numbered otherwise in a store that was made of what is left.
    assert all(batch.node_types == expected.node_types for batch in loader(data))


@named_cases("change", HETERO_CHANGED)
def test_types_with_other_edges_are_shared_again(change: str, device: torch.device) -> None:
    expected = changed(random_hetero().to(device), HETERO_CHANGED[change])
    first = peergraph_pyg.share(random_hetero(), device=device)
    data = changed(copy.copy(first), HETERO_CHANGED[change])
    assert_same(data, expected)
    with pytest.raises(ValueError, match=r"edge_index of \('.*'\) (is|are) no longer the store's"):
        loader(data)
    second = peergraph_pyg.share(data, device=device)
    peergraph_pyg.store_of(first).close()
    assert_same(second, expected)
    assert_same_batches(second, peergraph_pyg.share(on_cpu(expected), device="cpu"))


def test_a_type_that_has_lost_its_edges_is_named(device: torch.device) -> None:
    data = peergraph_pyg.share(random_hetero(), device=device)
    edge_type = data.edge_types[0]
    del data[edge_type].edge_index
    with pytest.raises(ValueError, match=r"edge_index of \('.*'\) is no longer the store's"):
        loader(data)
    del data[edge_type]
    assert all(edge_type not in batch.edge_types for batch in loader(data))


@pytest.mark.parametrize("form", ["adj_t", "edge_index"])
def test_matrices_are_shared_again(form: str, device: torch.device) -> None:
    plain = T.ToSparseTensor(layout=torch.sparse_csr)(Data(x=torch.rand(9, 2), edge_index=ring(9)))
    expected = changed(copy.copy(plain), T.NormalizeFeatures())
    if form == "adj_t":
        data = changed(peergraph_pyg.share(plain, device=device), T.NormalizeFeatures())
    else:
        first = Data(x=plain.x, edge_index=ring(9))
        data = changed(peergraph_pyg.share(first, device=device), T.NormalizeFeatures())
        data = T.ToSparseTensor(layout=torch.sparse_csr)(data)
    second = peergraph_pyg.share(data, device=device)
    assert torch.equal(second.adj_t.to_dense().cpu(), expected.adj_t.to_dense())
    assert torch.equal(second.x.cpu(), expected.x)
    assert all(
        batch.adj_t.shape == (9, 9) for batch in NeighborLoader(second, [-1] * 9, batch_size=3)
    )


def ring(nodes: int) -> Tensor:
    at = torch.arange(nodes)
    return torch.stack([at, at.roll(1)])


def test_splits_for_links() -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    splits = [peergraph_pyg.share(part) for part in T.RandomLinkSplit()(shared)]
    peergraph_pyg.store_of(shared).close()
    for part in splits:
        label, index = part.edge_label, part.edge_label_index
        assert isinstance(part.x, StoreTensor)
        for batch in LinkNeighborLoader(part, [2], index, edge_label=label, batch_size=32):
            assert torch.equal(batch.x, random_data().x[batch.n_id])
            pairs = batch.n_id[batch.edge_label_index]
            assert torch.equal(pairs, torch.as_tensor(index)[:, batch.input_id])


def test_what_stays_of_the_first_store() -> None:
    """Columns that are no longer of nodes or edges are read, and depend on that store no more."""
    shared = peergraph_pyg.share(random_data(), device="cpu")
    small = Data(edge_index=torch.tensor([[0], [1]]), x=torch.rand(2, 1), of_all=shared.y)
    second = peergraph_pyg.share(small)
    assert not isinstance(second.of_all, StoreTensor)
    peergraph_pyg.store_of(shared).close()
    assert torch.equal(second.of_all, random_data().y)


def test_unchanged_data_is_not_shared_twice() -> None:
    shared = peergraph_pyg.share(random_data(), device="cpu")
    with pytest.raises(ValueError, match=r"shared already; .* share data.clone\(\)"):
        peergraph_pyg.share(shared)
    assert_same(peergraph_pyg.share(shared.clone()), random_data())


@pytest.mark.parametrize(
    "make", [HeteroData.to_homogeneous, lambda data: Batch.from_data_list([data])]
)
def test_new_objects_say_what_to_do(make: Callable[[Any], Any]) -> None:
    data = make(
        peergraph_pyg.share(
            random_hetero() if make is HeteroData.to_homogeneous else random_data(), device="cpu"
        )
    )
    with (
        pytest.warns(UserWarning, match="pyg-lib"),
        pytest.raises(ImportError, match=r"pyg-lib.*peergraph_pyg.share\(data\)"),
    ):
        next(iter(NeighborLoader(data, [2])))
    assert next(iter(NeighborLoader(peergraph_pyg.share(data), [2]))).num_nodes > 0
