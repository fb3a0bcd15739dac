"""The feature and graph stores: PyG's contract, and its loaders on the pair."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch_geometric.data import Data, EdgeAttr, HeteroData, TensorAttr
from torch_geometric.data.feature_store import AttrView
from torch_geometric.data.graph_store import EdgeLayout
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

import peergraph_pyg
from peergraph.store import EDGE, GraphSource, Store
from peergraph_pyg import FeatureStore, GraphStore, NeighborSampler
from tests.adapters.pyg.graphs import full_hops, random_data, random_hetero

CITES = ("paper", "cites", "paper")
WRITES = ("author", "writes", "paper")


def stores_of(
    data: Data | HeteroData, device: torch.device | str = "cpu"
) -> tuple[FeatureStore, GraphStore]:
    shared = peergraph_pyg.share(data, device=device)
    return peergraph_pyg.stores(peergraph_pyg.store_of(shared))


def three_nodes(device: torch.device | str = "cpu") -> FeatureStore:
    source = GraphSource(num_nodes={"A": 3}, edges={})
    return FeatureStore(Store.build(source, device=device))


def test_put_get_update_remove(device: torch.device) -> None:
    store = three_nodes(device)
    tensor = torch.tensor([[0, 0, 0], [1, 1, 1], [2, 2, 2]], device=device)
    index = torch.tensor([0, 1, 2])
    attr = TensorAttr("A", "feat", index)

    assert store.put_tensor(tensor, attr)
    assert torch.equal(store.get_tensor(attr), tensor)
    some = torch.tensor([0, 2])
    assert torch.equal(store.get_tensor("A", "feat", index=some), tensor[[0, 2]])
    assert store.update_tensor(tensor + 1, attr)
    assert torch.equal(store.get_tensor(attr), tensor + 1)
    assert store.remove_tensor(attr)
    assert not store.remove_tensor(attr)
    with pytest.raises(KeyError, match="no tensor 'feat' of 'A'"):
        store.get_tensor(attr)


def test_views_and_indexing() -> None:
    store = three_nodes()
    tensor = torch.arange(9.0).view(3, 3)
    index = torch.tensor([0, 1, 2])
    view = store.view(group_name="A")
    view.attr_name = "feat"
    view["index"] = index
    # On Python 3.13 PyG cannot compare attributes that hold tensors.
    assert repr(view) == repr(AttrView(store, TensorAttr("A", "feat", index)))

    store["A", "feat", index] = tensor
    assert torch.equal(store[TensorAttr("A", "feat", index)], tensor)
    assert torch.equal(store["A", "feat", index], tensor)
    assert torch.equal(store["A", "feat", None], tensor)
    assert torch.equal(store["A", "feat", :], tensor)
    assert torch.equal(store["A"]["feat"][:], tensor)
    assert torch.equal(store["A"].feat[:], tensor)
    assert torch.equal(store.view().A.feat[:], tensor)
    assert torch.equal(store["A"].feat[1:], tensor[1:])
    assert torch.equal(store["A"].feat[2], tensor[2])
    assert torch.equal(store["A"].feat[tensor[:, 0] > 0], tensor[1:])
    assert torch.equal(store["A", "feat"](), tensor)

    del store["A", "feat", index]
    with pytest.raises(KeyError):
        _ = store["A", "feat", index]
    del store["A"]


def test_put_again_after_removal() -> None:
    store = three_nodes()
    store.put_tensor(torch.zeros(3), "A", "feat", None)
    store.remove_tensor("A", "feat", None)
    store.put_tensor(torch.ones(3), "A", "feat", None)
    assert store.get_tensor("A", "feat", None).tolist() == [1, 1, 1]


def test_partial_put(device: torch.device) -> None:
    store = three_nodes(device)
    store.put_tensor(torch.tensor([[5.0, 6.0]]), "A", "new", torch.tensor([2]))
    assert store.get_tensor("A", "new", None).tolist() == [[0, 0], [0, 0], [5, 6]]
    store.put_tensor(torch.ones(2, 2), "A", "new", slice(0, 2))
    assert store.get_tensor("A", "new", None).tolist() == [[1, 1], [1, 1], [5, 6]]
    store.update_tensor(torch.zeros(1, 2), "A", "new", torch.tensor([1]))
    assert store.get_tensor("A", "new", None).tolist() == [[1, 1], [0, 0], [5, 6]]


def test_sizes_and_attrs() -> None:
    features, _ = stores_of(random_hetero())
    assert features.get_tensor_size("paper", "x") == (40, 4)
    assert features.get_tensor_size("paper", "x", torch.tensor([1, 2])) == (2, 4)
    assert features.get_tensor_size("paper", "z") is None
    listed = {(attr.group_name, attr.attr_name) for attr in features.get_all_tensor_attrs()}
    assert listed == {
        ("paper", "x"),
        ("paper", "y"),
        ("paper", "train_mask"),
        ("author", "x"),
        (WRITES, "edge_attr"),
    }


def test_attrs_are_fresh() -> None:
    """PyG's loaders write `attr.index` on what they get."""
    features, _ = stores_of(random_data())
    for attr in features.get_all_tensor_attrs():
        attr.index = torch.tensor([1])
    assert not any(attr.is_set("index") for attr in features.get_all_tensor_attrs())


def test_multi_get(device: torch.device) -> None:
    data = random_hetero()
    features, _ = stores_of(data, device)
    index = torch.tensor([3, 3, 0])
    tensors = features.multi_get_tensor(
        [TensorAttr("paper", "x", index), TensorAttr("author", "x", None)]
    )
    assert torch.equal(tensors[0].cpu(), data["paper"].x[index])
    assert torch.equal(tensors[1].cpu(), data["author"].x)
    with pytest.raises(ValueError, match="not fully specified"):
        features.multi_get_tensor([TensorAttr("paper", "x")])
    with pytest.raises(KeyError, match="'z' of 'paper'"):
        features.multi_get_tensor([TensorAttr("paper", "z", None)])


def test_homogeneous_groups() -> None:
    data = random_data()
    features, _ = stores_of(data)
    assert torch.equal(features[None, "x", None], data.x)
    assert torch.equal(features[EDGE, "edge_attr", 4:6], data.edge_attr[4:6])
    names = {attr.attr_name for attr in features.get_all_tensor_attrs()}
    assert names == {"x", "y", "train_mask", "half"}


def test_put_errors() -> None:
    store = three_nodes()
    store.put_tensor(torch.zeros(3, 2), "A", "feat", None)
    with pytest.raises(ValueError, match=r"must be \[3, 2\] as stored, got \[3, 1\]"):
        store.put_tensor(torch.zeros(3, 1), "A", "feat", None)
    with pytest.raises(ValueError, match=r"must be torch.float32 as stored, got torch.int64"):
        store.put_tensor(torch.zeros(3, 2).long(), "A", "feat", None)
    with pytest.raises(KeyError, match="B"):
        store.put_tensor(torch.zeros(3, 2), "B", "feat", None)
    with pytest.raises(ValueError, match="rows"):
        store.put_tensor(torch.zeros(4, 2), "A", "other", None)


def test_edge_attrs() -> None:
    _, graph = stores_of(random_hetero())
    attrs = {attr.edge_type: attr for attr in graph.get_all_edge_attrs()}
    assert set(attrs) == set(random_hetero().edge_types)
    assert attrs[WRITES].size == (25, 40)
    assert attrs[WRITES].layout is EdgeLayout.COO
    _, graph = stores_of(random_data())
    (attr,) = graph.get_all_edge_attrs()
    assert attr.edge_type is None
    assert attr.size == (60, 60)


def as_pairs(row: torch.Tensor, col: torch.Tensor, layout: str) -> list[tuple[int, int]]:
    """The edges of a layout, sorted: PyG does not keep the order within a row or column."""
    if layout == "csr":
        row = torch.arange(len(row) - 1).repeat_interleave(row.diff())
    if layout == "csc":
        col = torch.arange(len(col) - 1).repeat_interleave(col.diff())
    return sorted(zip(row.tolist(), col.tolist(), strict=True))


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_layouts(layout: str) -> None:
    data = random_hetero()
    _, graph = stores_of(data)
    expected = getattr(data, layout)()
    converted = getattr(graph, layout)()
    for edge_type in data.edge_types:
        pairs = as_pairs(expected[0][edge_type], expected[1][edge_type], layout)
        assert as_pairs(*graph.get_edge_index(edge_type, layout), layout) == pairs
        assert as_pairs(converted[0][edge_type], converted[1][edge_type], layout) == pairs


def test_order_within_a_column_is_that_of_the_edge_ids() -> None:
    data = random_data()
    _, graph = stores_of(data)
    order = data.edge_index[1].argsort(stable=True)
    row, colptr = graph.get_edge_index(None, "csc")
    assert torch.equal(row, data.edge_index[0][order])
    assert torch.equal(colptr.diff(), torch.bincount(data.edge_index[1], minlength=60))
    sources, targets = graph[EdgeAttr(None, "coo", is_sorted=True)]
    assert torch.equal(torch.stack([sources, targets]), data.edge_index[:, order])


def test_conversion_by_pyg_keeps_edge_ids() -> None:
    data = random_data()
    _, graph = stores_of(data)
    assert torch.equal(torch.stack(graph.get_edge_index(None, "coo")), data.edge_index)
    row, _, perm = graph.csc()
    assert torch.equal(data.edge_index[0][perm], row)


def test_missing_and_fixed_edges() -> None:
    _, graph = stores_of(random_hetero())
    with pytest.raises(KeyError, match="not found"):
        graph.get_edge_index(("a", "b", "c"), "coo")
    with pytest.raises(KeyError, match="not found"):
        graph.get_edge_index(None, "coo")
    with pytest.raises(KeyError, match="not found"):
        graph.get_edge_index(CITES, "coo", size=(1, 1))
    edges = (torch.tensor([0]), torch.tensor([1]))
    with pytest.raises(NotImplementedError, match="put_edge_index"):
        graph.put_edge_index(edges, CITES, "coo")
    with pytest.raises(NotImplementedError, match="put_edge_index of .*'b'"):
        graph.put_edge_index(edges, ("a", "b", "c"), "coo")


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_edges_are_removed_from_the_view(layout: str) -> None:
    data = random_hetero()
    features, graph = stores_of(data)
    edges = graph.get_edge_index(CITES, layout)
    assert graph.remove_edge_index(CITES, layout)
    assert not graph.remove_edge_index(CITES, layout)
    assert CITES not in [attr.edge_type for attr in graph.get_all_edge_attrs()]
    with pytest.raises(KeyError, match="not found"):
        graph.get_edge_index(CITES, layout)
    loader = NeighborLoader((features, graph), [2], input_nodes="paper", batch_size=9)
    for batch in loader:
        assert set(batch.edge_types) == set(data.edge_types) - {CITES}
        assert batch[WRITES].num_edges > 0
    _, other = peergraph_pyg.stores(graph.store)
    assert other.get_edge_index(CITES, layout)
    with pytest.raises(NotImplementedError, match="not the edges that it has"):
        graph.put_edge_index((edges[0][:-1], edges[1][:-1]), CITES, layout)
    assert graph.put_edge_index(edges, CITES, layout)
    assert torch.equal(graph.get_edge_index(CITES, layout)[0], edges[0])
    assert graph.put_edge_index((edges[0].int(), edges[1].int()), CITES, layout)


def test_a_homogeneous_view_without_edges() -> None:
    features, graph = stores_of(random_data())
    del graph[None, "coo"]
    with pytest.raises(ValueError, match="the edges were removed from the graph store"):
        NeighborLoader((features, graph), [2])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_homogeneous_loader(num_workers: int, device: torch.device) -> None:
    data = random_data()
    pair = stores_of(data, device)
    for loader in (
        NeighborLoader(pair, [3, 2], batch_size=8, num_workers=num_workers),
        NeighborLoader(pair, [9], batch_size=8, neighbor_sampler=NeighborSampler(pair, [3, 2])),
    ):
        seeds = []
        for batch in loader:
            n_id, e_id = batch.n_id.cpu(), batch.e_id.cpu()
            row, col = batch.edge_index.cpu()
            ends = torch.stack([n_id[row], n_id[col]])
            assert torch.equal(ends, data.edge_index[:, e_id])
            assert torch.equal(batch.x.cpu(), data.x[n_id])
            assert torch.equal(batch.edge_attr.cpu(), data.edge_attr[e_id])
            assert batch.num_nodes == len(n_id)
            assert len(batch.num_sampled_nodes) == 3
            seeds.append(n_id[: batch.batch_size])
        assert torch.equal(torch.cat(seeds), torch.arange(60))


def test_all_neighbours(device: torch.device) -> None:
    data = random_data()
    seeds = torch.tensor([8, 2])
    loader = NeighborLoader(stores_of(data, device), [-1, -1], input_nodes=seeds, batch_size=2)
    batch = next(iter(loader))
    expected = full_hops(data.edge_index, seeds, 2)
    assert torch.equal(batch.n_id.cpu(), expected["n_id"])
    assert torch.equal(batch.edge_index.cpu(), expected["edge_index"])
    assert torch.equal(batch.e_id.cpu(), expected["e_id"])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_heterogeneous_loader(num_workers: int, device: torch.device) -> None:
    data = random_hetero()
    loader = NeighborLoader(
        stores_of(data, device),
        [3, 2],
        input_nodes=("paper", data["paper"].train_mask),
        batch_size=8,
        num_workers=num_workers,
    )
    for batch in loader:
        n_id = batch["paper"].n_id.cpu()
        assert torch.equal(batch["paper"].x.cpu(), data["paper"].x[n_id])
        assert batch["venue"].num_nodes == len(batch["venue"].n_id)
        e_id = batch[WRITES].e_id.cpu()
        row, col = batch[WRITES].edge_index.cpu()
        ends = torch.stack([batch["author"].n_id.cpu()[row], n_id[col]])
        assert torch.equal(ends, data[WRITES].edge_index[:, e_id])
        assert torch.equal(batch[WRITES].edge_attr.cpu(), data[WRITES].edge_attr[e_id])


def test_custom_class() -> None:
    class Batch(Data):
        pass

    loader = NeighborLoader(stores_of(random_data()), [2], batch_size=4, custom_cls=Batch)
    assert type(next(iter(loader))) is Batch


@pytest.mark.parametrize("edges", [None, (None, None)])
def test_homogeneous_link_loader(edges: object, device: torch.device) -> None:
    data = random_data()
    loader = LinkNeighborLoader(
        stores_of(data, device), [2], edge_label_index=edges, neg_sampling="binary", batch_size=50
    )
    for batch in loader:
        ends = batch.n_id.cpu()[batch.edge_label_index[:, : len(batch.input_id)].cpu()]
        assert torch.equal(ends, data.edge_index[:, batch.input_id])
        assert torch.equal(batch.edge_attr.cpu(), data.edge_attr[batch.e_id.cpu()])


def test_heterogeneous_link_loader(device: torch.device) -> None:
    data = random_hetero()
    loader = LinkNeighborLoader(
        stores_of(data, device), [2], edge_label_index=(WRITES, None), batch_size=50
    )
    for batch in loader:
        authors, papers = batch[WRITES].edge_label_index.cpu()
        ends = torch.stack([batch["author"].n_id.cpu()[authors], batch["paper"].n_id.cpu()[papers]])
        assert torch.equal(ends, data[WRITES].edge_index[:, batch[WRITES].input_id])


def test_pickle() -> None:
    data = random_data()
    pair = stores_of(data)
    features, graph = pickle.loads(pickle.dumps(pair))
    assert torch.equal(features[None, "x", None], data.x)
    assert torch.equal(torch.stack(graph.get_edge_index(None, "coo")), data.edge_index)
    assert next(iter(NeighborLoader((features, graph), [2], batch_size=4))).batch_size == 4


def test_mixed_stores() -> None:
    first, second = stores_of(random_data()), stores_of(random_data())
    with pytest.raises(ValueError, match="of different stores"):
        NeighborLoader((first[0], second[1]), [2])
