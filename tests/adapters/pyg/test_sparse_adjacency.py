"""`share` and PyG's loaders with edges that are held as a sparse matrix: ``adj_t``, ``adj``."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch_geometric.transforms as T
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.nn import GCNConv, GraphConv, SAGEConv

import peergraph_pyg
from peergraph_pyg import AdjacencyTensor
from tests.adapters.pyg.graphs import random_data, random_hetero
from tests.named_case import named_cases
from tests.pairwise import pairwise

pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse .* tensor support is in beta", "ignore:Sparse invariant checks"
)

LAYOUTS = [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo]
CITES = ("paper", "cites", "paper")


def simple_data() -> Data:
    """No parallel edges, in the order of adj_t: what its ids count."""
    data = random_data()
    pairs = data.edge_index.flip(0).unique(dim=1).flip(0)
    data.edge_index = pairs
    random = torch.Generator().manual_seed(1)
    data.edge_attr = torch.randn(pairs.size(1), 2, generator=random)
    data.edge_weight = torch.rand(pairs.size(1), generator=random, dtype=torch.float64)
    return data


def as_matrix(data: Data, key: str, layout: torch.layout, weights: bool = True) -> Data:
    """The same edges in the same order as a matrix; a CSC matrix has another order."""
    data = copy.copy(data)
    row, col = data.edge_index
    if (layout is torch.sparse_csc) is (key == "adj_t"):
        order = row.argsort(stable=True)
    else:
        order = col.argsort(stable=True)
    for name in ("edge_attr", "edge_weight"):
        data[name] = data[name][order]
    data.edge_index = data.edge_index[:, order]
    values = data.edge_weight if weights else torch.ones(len(order))
    ends = data.edge_index.flip(0) if key == "adj_t" else data.edge_index
    matrix = torch.sparse_coo_tensor(
        ends, values, (60, 60), is_coalesced=True, check_invariants=False
    )
    data[key] = {
        torch.sparse_csr: matrix.to_sparse_csr,
        torch.sparse_csc: matrix.to_sparse_csc,
        torch.sparse_coo: lambda: matrix,
    }[layout]()
    return data


def without_edge_index(data: Data) -> Data:
    data = copy.copy(data)
    del data["edge_index"], data["edge_weight"]
    return data


def parts(matrix: Tensor) -> list[Tensor]:
    if matrix.layout is torch.sparse_csr:
        return [matrix.crow_indices(), matrix.col_indices(), matrix.values()]
    if matrix.layout is torch.sparse_csc:
        return [matrix.ccol_indices(), matrix.row_indices(), matrix.values()]
    return [matrix.indices(), matrix.values()]


def assert_same(actual: Tensor, expected: Tensor) -> None:
    assert actual.layout is expected.layout
    assert actual.shape == expected.shape
    for mine, other in zip(parts(actual), parts(expected), strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine.cpu(), other)


def dense(edge_index: Tensor, values: Tensor, sizes: tuple[int, int]) -> Tensor:
    """The sum of the values of the edges from column to row."""
    result = torch.zeros(*sizes, *values.shape[1:], dtype=values.dtype)
    return result.index_put_((edge_index[1].cpu(), edge_index[0].cpu()), values, accumulate=True)


@named_cases(("key", "layout", "weights"), pairwise(["adj_t", "adj"], LAYOUTS, [False, True]))
def test_shared(key: str, layout: torch.layout, weights: bool, device: torch.device) -> None:
    plain = without_edge_index(as_matrix(simple_data(), key, layout, weights))
    shared = peergraph_pyg.share(plain, device=device)
    matrix = shared[key]
    assert isinstance(matrix, AdjacencyTensor)
    assert matrix.device.type == device.type
    assert shared.keys() == plain.keys()
    assert repr(shared) == repr(plain)
    assert shared.num_edges == plain.num_edges
    assert shared.num_nodes == 60
    expected = plain[key].coalesce() if layout is torch.sparse_coo else plain[key]
    for same in (matrix, copy.deepcopy(matrix), pickle.loads(pickle.dumps(matrix)), matrix.clone()):
        assert_same(same, expected)
    x = torch.rand(60, 3, dtype=expected.dtype)
    torch.testing.assert_close((matrix @ x.to(device)).cpu(), expected @ x)
    tables = peergraph_pyg.store_of(shared).edge_table_names()
    assert tables == ([f"{key}_value"] if weights else []) + ["edge_attr"]


@pytest.mark.parametrize(("key", "layout", "workers"), pairwise(["adj_t", "adj"], LAYOUTS, [0, 2]))
def test_batches(key: str, layout: torch.layout, workers: int, device: torch.device) -> None:
    """The matrix of a batch is made of the edges that a batch of the edge list has."""
    listed = as_matrix(simple_data(), key, layout)
    plain = without_edge_index(listed)
    del listed[key]
    options: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 16, "num_workers": workers}
    torch.manual_seed(5)
    batches = list(NeighborLoader(peergraph_pyg.share(plain, device=device), **options))
    torch.manual_seed(5)
    expected = list(NeighborLoader(peergraph_pyg.share(listed, device=device), **options))
    for batch, other in zip(batches, expected, strict=True):
        assert "edge_index" not in batch
        assert torch.equal(batch.n_id, other.n_id)
        assert batch.num_sampled_edges == other.num_sampled_edges
        if layout is torch.sparse_csc:  # lists are in the order of the edge ids
            assert batch.e_id.shape == other.e_id.shape
        assert torch.equal(batch.e_id, other.e_id)
        for name in ("x", "y", "half", "edge_attr"):
            assert torch.equal(batch[name], other[name])
        matrix = batch[key]
        assert matrix.layout is layout
        assert matrix.device.type == device.type
        assert type(matrix) is Tensor
        sizes = (batch.num_nodes, batch.num_nodes)
        by_target = dense(other.edge_index, other.edge_weight.cpu(), sizes)
        want = by_target if key == "adj_t" else by_target.t()
        assert torch.equal(matrix.to_dense().cpu(), want)
        first, second = matrix.indices() if layout is torch.sparse_coo else parts(matrix)[:2]
        expected_order = want.t() if layout is torch.sparse_csc else want
        if layout is not torch.sparse_coo:
            first = torch.repeat_interleave(first.diff())
        assert torch.equal(torch.stack([first, second]).cpu(), expected_order.nonzero().t())


@named_cases("layout", LAYOUTS)
def test_prefetched(layout: torch.layout, device: torch.device) -> None:
    plain = without_edge_index(as_matrix(simple_data(), "adj_t", layout))
    loader = NeighborLoader(peergraph_pyg.share(plain, device=device), [3, 2], batch_size=16)
    torch.manual_seed(5)
    expected = [batch.adj_t for batch in loader]
    torch.manual_seed(5)
    for batch, matrix in zip(peergraph_pyg.prefetch(loader, 2), expected, strict=True):
        assert_same(batch.adj_t, matrix.cpu())


def test_sampler_without_edge_ids() -> None:
    class Mine(peergraph_pyg.NeighborSampler):
        def _sample(self, *args: Any, **kwargs: Any) -> Any:
            out = super()._sample(*args, **kwargs)
            out.edge = None
            return out

    for weights in (False, True):
        plain = without_edge_index(as_matrix(simple_data(), "adj_t", torch.sparse_csr, weights))
        del plain["edge_attr"]
        shared = peergraph_pyg.share(plain, device="cpu")
        loader = NeighborLoader(shared, [3], neighbor_sampler=Mine(shared, [3]), batch_size=60)
        if weights:
            with pytest.raises(ValueError, match="gives no edge ids, by which adj_t_value is read"):
                next(iter(loader))
        else:
            assert next(iter(loader)).adj_t._nnz() > 0


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo], ids=str)
def test_parallel_edges_and_wide_values(layout: torch.layout, device: torch.device) -> None:
    row = torch.tensor([1, 1, 2, 0])
    col = torch.tensor([0, 0, 0, 2])
    values = torch.arange(8.0).view(4, 2)
    order = col.argsort(stable=True)
    if layout is torch.sparse_coo:
        matrix = torch.sparse_coo_tensor(torch.stack([col, row]), values, (3, 3, 2))
    else:
        values = values[:, 0].clone()
        crow = torch.tensor([0, 3, 3, 4])
        matrix = torch.sparse_csr_tensor(
            crow, row[order], values[order], (3, 3), check_invariants=False
        )
    shared = peergraph_pyg.share(Data(x=torch.eye(3), adj_t=matrix), device=device)
    assert shared.num_edges == 4
    torch.testing.assert_close(shared.adj_t.to_dense().cpu(), matrix.to_dense())
    (batch,) = NeighborLoader(shared, [-1], batch_size=3)
    assert batch.adj_t._nnz() == 4
    torch.testing.assert_close(batch.adj_t.to_dense().cpu(), matrix.to_dense())
    (drawn,) = NeighborLoader(shared, [5], batch_size=3, replace=True)
    assert drawn.adj_t._nnz() == 10
    want = dense(
        torch.stack([row[drawn.e_id.cpu()], col[drawn.e_id.cpu()]]),
        values[drawn.e_id.cpu()],
        (3, 3),
    )
    torch.testing.assert_close(drawn.adj_t.to_dense().cpu(), want)


@named_cases("layer", [GCNConv, SAGEConv, GraphConv])
@pytest.mark.parametrize("accelerated", [False, True])
def test_layers(layer: Any, accelerated: bool, device: torch.device) -> None:
    data = simple_data()
    data.edge_weight = data.edge_weight.float()
    plain = T.ToSparseTensor(layout=torch.sparse_csr)(copy.copy(data))
    shared = peergraph_pyg.share(plain, device=device)
    conv = layer(5, 4)
    expected = conv(plain.x, plain.adj_t)
    conv = peergraph_pyg.accelerate(conv) if accelerated else conv
    conv = conv.to(device)
    result = conv(shared.x.clone(), shared.adj_t)
    torch.testing.assert_close(result.cpu(), expected)
    (batch,) = NeighborLoader(shared, [-1], batch_size=60)
    on_batch = conv(batch.x, batch.adj_t)
    torch.testing.assert_close(on_batch.cpu(), expected[batch.n_id.cpu()])
    on_batch.sum().backward()
    assert all(parameter.grad is not None for parameter in conv.parameters())


def test_types(device: torch.device) -> None:
    data = random_hetero()
    for edge_type in data.edge_types:
        storage = data[edge_type]
        storage.edge_index = storage.edge_index.flip(0).unique(dim=1).flip(0)
        storage.edge_weight = torch.rand(storage.num_edges)
        if "edge_attr" in storage:
            del storage["edge_attr"]
    listed = peergraph_pyg.share(data, device=device)
    plain = T.ToSparseTensor()(copy.copy(data))
    shared = peergraph_pyg.share(plain, device=device)
    assert repr(shared) == repr(plain)
    options: dict[str, Any] = {"num_neighbors": [2, 2], "batch_size": 9, "input_nodes": "paper"}
    torch.manual_seed(2)
    batches = list(NeighborLoader(shared, **options))
    torch.manual_seed(2)
    for batch, other in zip(batches, NeighborLoader(listed, **options), strict=True):
        for edge_type in data.edge_types:
            assert torch.equal(batch[edge_type].e_id, other[edge_type].e_id)
            sizes = (batch[edge_type[2]].num_nodes, batch[edge_type[0]].num_nodes)
            weights = other[edge_type].edge_weight.cpu()
            want = dense(other[edge_type].edge_index, weights, sizes)
            assert torch.equal(batch[edge_type].adj_t.to_dense().cpu(), want)
    for links in (CITES, (CITES, None), (CITES, data[CITES].edge_index)):
        ends_of_links = []
        for batch in LinkNeighborLoader(shared, [2], edge_label_index=links, batch_size=50):
            ends = batch["paper"].n_id.cpu()[batch[CITES].edge_label_index.cpu()]
            ends_of_links.append(ends)
        assert torch.equal(torch.cat(ends_of_links, dim=1), data[CITES].edge_index)


@pytest.mark.parametrize("subgraph_type", ["induced", "bidirectional"])
def test_links_and_subgraphs(subgraph_type: str, device: torch.device) -> None:
    data = simple_data()
    plain = without_edge_index(as_matrix(data, "adj_t", torch.sparse_csr))
    shared = peergraph_pyg.share(plain, device=device)
    links = []
    loader = LinkNeighborLoader(shared, [2], batch_size=50, subgraph_type=subgraph_type)
    for batch in loader:
        n_id, e_id = batch.n_id.cpu(), batch.e_id.cpu()
        links.append(n_id[batch.edge_label_index.cpu()])
        if subgraph_type == "induced":
            whole = dense(data.edge_index, data.edge_weight, (60, 60))
            assert torch.equal(batch.adj_t.to_dense().cpu(), whole[n_id][:, n_id])
        else:
            result = batch.adj_t.to_dense().cpu()
            assert torch.equal(result != 0, (result != 0).t())
            assert len(e_id) == batch.adj_t._nnz()
    assert torch.equal(torch.cat(links, dim=1), data.edge_index)


def test_beside_edge_index(device: torch.device) -> None:
    data = T.ToSparseTensor(remove_edge_index=False)(simple_data())
    shared = peergraph_pyg.share(data, device=device)
    for batch in NeighborLoader(shared, [2], batch_size=20):
        sizes = (batch.num_nodes, batch.num_nodes)
        want = dense(batch.edge_index, batch.edge_weight.cpu(), sizes)
        assert torch.equal(batch.adj_t.to_dense().cpu(), want)
    data.edge_index = data.edge_index.flip(1)
    with pytest.raises(ValueError, match="edge_index must have the edges of 'adj_t' in the order"):
        peergraph_pyg.share(data, device=device)


def test_as_a_pair_of_stores() -> None:
    data = as_matrix(simple_data(), "adj_t", torch.sparse_csr)
    store = peergraph_pyg.store_of(peergraph_pyg.share(without_edge_index(data), device="cpu"))
    for batch in NeighborLoader(peergraph_pyg.stores(store), [2], batch_size=20):
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.adj_t_value, data.edge_weight[batch.e_id])


def test_refused() -> None:
    def refuses(error: type[Exception], match: str, **attributes: Any) -> None:
        with pytest.raises(error, match=match):
            peergraph_pyg.share(Data(x=torch.rand(4, 1), **attributes), device="cpu")

    square = torch.eye(4)
    csr = square.to_sparse_csr()
    refuses(NotImplementedError, "'adj' is shared as .* got torch.strided", adj=square)
    refuses(NotImplementedError, "got torch.sparse_bsr", adj_t=square.to_sparse_bsr((2, 2)))
    refuses(NotImplementedError, "'adj_t' is shared as .* got str", adj_t="edges")
    refuses(ValueError, r"'adj_t' must be \[4, 4\] .* got \[3, 3\]", adj_t=torch.eye(3).to_sparse())
    refuses(ValueError, "'adj' and 'adj_t' both hold edges", adj=csr, adj_t=csr)
    trained = torch.eye(4).to_sparse_coo().requires_grad_()
    refuses(NotImplementedError, "'adj_t' requires gradients", adj_t=trained)
    refuses(ValueError, "'edge_attr' has 5 rows, 'adj_t' 4", adj_t=csr, edge_attr=torch.rand(5))
    five = (2 * torch.tensor([*square.tolist()[:3], [1.0, 0, 0, 1]])).to_sparse_csr()
    with_values = {"adj_t": five, "edge_attr": torch.rand(5), "adj_t_value": torch.rand(5)}
    refuses(ValueError, "'adj_t_value' is what the values of 'adj_t'", **with_values)
    shared = peergraph_pyg.share(Data(x=torch.rand(4, 1), adj_t=csr), device="cpu")
    with pytest.raises(NotImplementedError, match="writes in place"):
        shared.adj_t.mul_(2)
