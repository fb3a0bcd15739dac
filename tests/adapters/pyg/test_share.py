"""`share`: what comes out on a single rank, and the methods of PyG's data classes on it."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_geometric.transforms as T
from torch_geometric import EdgeIndex, seed_everything
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import DataLoader, ImbalancedSampler, NeighborLoader

import peergraph_pyg
from peergraph_pyg import EdgeIndexTensor, StoreTensor, TableTensor
from tests.adapters.pyg.graphs import check_batch, random_data, random_hetero
from tests.named_case import named_cases

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


def test_attributes(device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    assert type(shared) is Data
    assert shared.keys() == data.keys()
    assert repr(shared) == repr(data)
    assert isinstance(shared.edge_index, EdgeIndexTensor)
    for key, value in data.items():
        if data.is_node_attr(key) or (data.is_edge_attr(key) and key != "edge_index"):
            assert isinstance(shared[key], TableTensor), key
            assert shared[key].device.type == device.type
        if isinstance(value, torch.Tensor):
            assert shared[key].dtype == value.dtype
            assert torch.equal(shared[key].cpu(), value), key
    assert shared.name == "random"
    assert not isinstance(shared.graph_label, StoreTensor)


def test_hetero_attributes(device: torch.device) -> None:
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=device)
    assert type(shared) is HeteroData
    assert repr(shared) == repr(data)
    assert shared.metadata() == data.metadata()
    assert shared.title == "library"
    for original, storage in zip(data.stores, shared.stores, strict=True):
        for key, value in original.items():
            if isinstance(value, torch.Tensor):
                assert isinstance(storage[key], StoreTensor)
                assert torch.equal(storage[key].cpu(), value)


def test_source_is_untouched() -> None:
    data = random_data()
    peergraph_pyg.share(data, device="cpu")
    assert not any(isinstance(value, StoreTensor) for value in data.to_dict().values())


@named_cases("dtype", DTYPES)
def test_dtypes_and_shapes(dtype: torch.dtype, device: torch.device) -> None:
    index = torch.tensor([[0, 1, 2, 3], [3, 3, 0, 6]])
    data = Data(x=torch.rand(7, 1), edge_index=index)
    rows = [(), (1,), (3,), (2, 5)]
    for number, row in enumerate(rows):
        data[f"value_{number}"] = torch.randint(0, 2, (7, *row)).to(dtype)
        data[f"edge_value_{number}"] = torch.randint(0, 2, (4, *row)).to(dtype)
    shared = peergraph_pyg.share(data, device=device)
    ids = torch.tensor([6, 0, 0, 3], device=device)
    for number, row in enumerate(rows):
        value, edges = f"value_{number}", f"edge_value_{number}"
        assert torch.equal(shared[value][ids].cpu(), data[value][ids.cpu()]), row
        assert torch.equal(shared[edges].cpu(), data[edges]), row


@pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'")
def test_num_nodes_is_kept() -> None:
    edge_index = torch.tensor([[0, 1], [1, 4]])
    explicit = peergraph_pyg.share(Data(edge_index=edge_index, num_nodes=9), device="cpu")
    assert explicit.num_nodes == 9
    inferred = peergraph_pyg.share(Data(edge_index=edge_index), device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert inferred.num_nodes == 5
    isolated = peergraph_pyg.share(Data(edge_index=edge_index, x=torch.rand(8, 1)), device="cpu")
    assert isolated.num_nodes == 8
    assert "num_nodes" not in isolated


def test_graph_without_edges(device: torch.device) -> None:
    shared = peergraph_pyg.share(Data(x=torch.arange(3.0)), device=device)
    assert shared.num_nodes == 3
    assert shared.num_edges == 0
    empty = torch.empty(2, 0, dtype=torch.int64)
    shared = peergraph_pyg.share(Data(x=torch.arange(3.0), edge_index=empty), device=device)
    assert torch.equal(shared.edge_index.cpu(), empty)


def test_data_methods(device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    assert shared.num_nodes == data.num_nodes
    assert shared.num_edges == data.num_edges
    assert shared.num_features == data.num_features
    assert shared.num_edge_features == data.num_edge_features
    assert shared.x.size() == data.x.size()
    assert shared.size() == data.size()
    assert shared.validate()
    assert shared.is_cuda == (device.type == "cuda")
    for method in ("is_undirected", "has_isolated_nodes", "has_self_loops", "is_coalesced"):
        assert getattr(shared, method)() == getattr(data, method)(), method
    nonzero = shared.train_mask.nonzero()
    assert torch.equal(nonzero.cpu(), data.train_mask.nonzero())
    assert torch.equal(shared.y[shared.train_mask].cpu(), data.y[data.train_mask])
    subset = torch.arange(0, 40, 3, device=device)
    for key, value in data.subgraph(subset.cpu()).items():
        other = shared.subgraph(subset)[key]
        assert other == value if isinstance(value, str) else torch.equal(other.cpu(), value), key


def test_moving_to_its_own_device_is_free(device: torch.device) -> None:
    shared = peergraph_pyg.share(random_data(), device=device)
    x, y = shared.x, shared.y
    assert shared.to(device, "x", "y").x is x
    assert shared.y is y
    assert isinstance(shared.contiguous().pin_memory("x").share_memory_().x, StoreTensor)


def test_moving_to_the_cpu_reads(device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device).to("cpu")
    assert shared.x.device == torch.device("cpu")
    assert torch.equal(shared.x, data.x)
    assert torch.equal(shared.edge_index, data.edge_index)


def test_copies_are_handles() -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device="cpu")
    store = peergraph_pyg.store_of(shared)
    for other in (copy.copy(shared), copy.deepcopy(shared)):
        assert peergraph_pyg.store_of(other) is store
        assert torch.equal(other.x, data.x)
        other.z = 1
    assert "z" not in shared


def test_clone_is_a_copy_of_ones_own() -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device="cpu")
    own = shared.clone()
    own.x.zero_()
    assert torch.equal(shared.x.clone(), data.x)
    assert torch.equal(own.edge_index, data.edge_index)


class NamedGraph(Data):
    """A user's subclass, with an attribute that is batched along another dimension."""

    def __cat_dim__(self, key: str, value: object, *args: object, **kwargs: object) -> int:
        return 1 if key == "columns" else super().__cat_dim__(key, value, *args, **kwargs)


def test_subclass_and_other_values() -> None:
    data = NamedGraph(
        x=torch.rand(4, 2),
        edge_index=EdgeIndex([[0, 1], [1, 2]], sparse_size=(4, 4)),
        columns=torch.rand(3, 4),
        array=np.arange(4),
        names=["a", "b", "c", "d"],
    )
    shared = peergraph_pyg.share(data, device="cpu")
    assert type(shared) is NamedGraph
    assert torch.equal(shared.columns, data.columns)
    assert not isinstance(shared.columns, StoreTensor)
    assert isinstance(shared.array, TableTensor)
    assert shared.array.tolist() == [0, 1, 2, 3]
    assert shared.names == data.names
    assert torch.equal(shared.edge_index.clone(), data.edge_index.as_tensor())


def test_strided_views_are_stored_by_value() -> None:
    x = torch.rand(3, 8).t()[::2]
    shared = peergraph_pyg.share(Data(x=x, edge_index=torch.zeros(2, 1).long()), device="cpu")
    assert torch.equal(shared.x.clone(), x)


def test_errors() -> None:
    with pytest.raises(TypeError, match=r"data must be Data or HeteroData on rank 0, got dict"):
        peergraph_pyg.share({}, device="cpu")
    with pytest.raises(TypeError, match="NoneType"):
        peergraph_pyg.share(None, device="cpu")
    data = random_data(10, 20)
    shared = peergraph_pyg.share(data, device="cpu")
    with pytest.raises(ValueError, match="shared already"):
        peergraph_pyg.share(shared, device="cpu")
    with pytest.raises(ValueError, match="got Data without a store"):
        peergraph_pyg.store_of(data)
    with pytest.raises(NotImplementedError, match="'x' requires gradients"):
        peergraph_pyg.share(Data(x=torch.rand(2, 2, requires_grad=True)), device="cpu")
    hetero = HeteroData()
    hetero["a"].label = torch.arange(3)
    with (
        pytest.warns(UserWarning, match="Unable to accurately infer"),
        pytest.raises(ValueError, match=r"data\['a'\]\.num_nodes is not set"),
    ):
        peergraph_pyg.share(hetero, device="cpu")
    outside = Data(x=torch.rand(3, 1), edge_index=torch.tensor([[0], [3]]))
    with pytest.raises((ValueError, IndexError), match="3"):
        peergraph_pyg.share(outside, device="cpu")
    with pytest.raises(ValueError, match="plan"):
        peergraph_pyg.share(data, device="cpu", plan="somewhere")


@pytest.mark.parametrize(
    "transform",
    [
        T.NormalizeFeatures(),
        T.ToUndirected(),
        T.RandomNodeSplit(),
        T.RandomLinkSplit(),
        T.GCNNorm(),
        T.RemoveIsolatedNodes(),
        T.LargestConnectedComponents(),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_transforms_of_pyg(transform: T.BaseTransform) -> None:
    """PyG's transforms do to shared data what they do to the original, on plain tensors."""
    data = random_data()
    shared = peergraph_pyg.share(data, device="cpu")
    seed_everything(0)
    expected = transform(copy.copy(data))
    seed_everything(0)
    result = transform(copy.copy(shared))
    pairs = (
        zip(expected, result, strict=True) if isinstance(expected, tuple) else [(expected, result)]
    )
    for plain, other in pairs:
        assert other.keys() == plain.keys()
        for key, value in plain.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(other[key], value), key
    assert torch.equal(shared.x.clone(), data.x)


def test_other_loaders_and_samplers_of_pyg() -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device="cpu")
    both = next(iter(DataLoader([shared, shared], batch_size=2)))
    assert torch.equal(both.x, torch.cat([data.x, data.x]))
    assert both.num_edges == 800
    balanced = ImbalancedSampler(shared, input_nodes=shared.train_mask)
    loader = NeighborLoader(
        shared, [2], input_nodes=shared.train_mask, sampler=balanced, batch_size=5
    )
    for batch in loader:
        check_batch(batch, data)


def test_data_as_a_feature_store() -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device="cpu")
    index = torch.tensor([4, 2])
    assert torch.equal(shared.get_tensor(attr_name="x", index=index), data.x[index])
    row, col = shared.get_edge_index("coo")
    assert torch.equal(torch.stack([row, col]), data.edge_index)


def test_rows_that_the_host_does_not_hold(device: torch.device, tmp_path: Path) -> None:
    data = random_data()
    data.x = torch.randn(60, 900)
    shared = peergraph_pyg.share(data, plan="host", device=device)
    host_bytes = peergraph_pyg.store_of(shared).memory().host_bytes()
    less = {"plan": "host", "device": device, "host_budget": host_bytes - 100_000}
    shared = peergraph_pyg.share(data, spill=tmp_path, **less)
    memory = peergraph_pyg.store_of(shared).memory()
    assert memory.tier("disk") >= 100_000
    assert memory.host_bytes() <= host_bytes - 100_000
    for batch in NeighborLoader(shared, [3, 2], batch_size=16):
        check_batch(batch, data)
    with pytest.raises(MemoryError, match="spill= names a folder"):
        peergraph_pyg.share(data, **less)
    with pytest.raises(ValueError, match="host_budget must not be negative, got -1"):
        peergraph_pyg.share(data, device=device, host_budget=-1)
