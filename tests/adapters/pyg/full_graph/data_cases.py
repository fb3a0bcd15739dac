"""`full_graph`: which attributes are partitioned, from which data, and what raises."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import (
    add_remaining_self_loops,
    add_self_loops,
    coalesce,
    contains_self_loops,
    degree,
    dropout_edge,
    dropout_node,
    negative_sampling,
    remove_self_loops,
    scatter,
    softmax,
    to_dense_adj,
    to_dense_batch,
    to_undirected,
)

import peergraph_pyg
from peergraph.fullgraph import PartitionedEdgeIndex, PartitionedTensor, keyed_random, like
from peergraph.memory import Group
from peergraph.store import NODE

from .graphs import WIDTH, small_graph, small_hetero
from .ranks import assert_close

PARTITIONED = ("x", "y", "train_mask", "edge_weight", "edge_attr", "edge_type", "scale")


def check_data(result: Any, data: Data) -> None:
    """Checks all attributes of partitioned data against the data that it was made of."""
    for name in PARTITIONED:
        assert isinstance(result[name], PartitionedTensor), name
        assert_close(result[name], data[name], name=name)
    assert isinstance(result.edge_index, PartitionedEdgeIndex)
    ends = torch.stack([result.edge_index[0].full_tensor(), result.edge_index[1].full_tensor()])
    assert torch.equal(ends, data.edge_index)


def attributes() -> None:
    """Nodes, edges, ids, sizes, copies, devices, gradients, printing."""
    data = small_graph()
    before = copy.copy(data)
    graph = peergraph_pyg.full_graph(data)
    check_data(graph, data)
    assert torch.equal(graph.train_idx, data.train_idx)
    assert graph.name == "small"
    assert graph.num_nodes == data.num_nodes
    assert graph.num_edges == data.num_edges
    assert graph.num_features == graph.num_node_features == WIDTH
    assert graph.num_edge_features == data.num_edge_features
    assert len(graph) == len(data) + 1  # num_nodes
    assert set(graph.keys()) == {*data.keys(), "num_nodes"}
    assert f"x=[{data.num_nodes}, {WIDTH}]" in repr(graph)
    moved = copy.copy(graph).to("cpu")
    assert moved.edge_index.structure is graph.edge_index.structure
    assert_close(moved.x, data.x)
    assert graph.x.requires_grad_().requires_grad
    assert data.edge_index is before.edge_index
    assert data.x is before.x
    assert "peergraph" not in repr(graph.to_dict().keys())
    partition = peergraph_pyg.partition_of(graph)
    assert partition.plan is not None
    assert sum(partition.node_layouts[NODE].counts) == data.num_nodes


def heterogeneous() -> None:
    """One layout for each type of nodes."""
    data = small_hetero()
    graph = peergraph_pyg.full_graph(data)
    assert isinstance(graph, HeteroData)
    assert graph.metadata() == data.metadata()
    for name in data.node_types:
        assert_close(graph[name].x, data[name].x)
        assert graph[name].num_nodes == data[name].num_nodes
    for name in data.edge_types:
        assert isinstance(graph[name].edge_index, PartitionedEdgeIndex)
        assert graph[name].edge_index.shape == data[name].edge_index.shape
    assert_close(
        graph["author", "writes", "paper"].edge_weight,
        data["author", "writes", "paper"].edge_weight,
    )
    assert graph.title == "library"
    assert graph["paper"].train_mask.row_layout.same_rows(graph["paper"].x.row_layout)


def matrices() -> None:
    """Edges as PyG's EdgeIndex and as matrices of ones."""
    data = small_graph()
    out = pyg.GCNConv(WIDTH, 4)
    expected = out(data.x, data.edge_index)
    with_type = copy.copy(data)
    with_type.edge_index = EdgeIndex(data.edge_index, sparse_size=(data.num_nodes, data.num_nodes))
    graph = peergraph_pyg.full_graph(with_type)
    assert_close(out(graph.x, graph.edge_index), expected)
    size = (data.num_nodes, data.num_nodes)
    unique = coalesce(data.edge_index)
    for layout in (torch.sparse_csr, torch.sparse_coo):
        matrix = torch.sparse_coo_tensor(unique.flip(0), torch.ones(unique.shape[1]), size)
        with_matrix = Data(x=data.x, adj_t=matrix.coalesce().to_sparse(layout=layout))
        graph = peergraph_pyg.full_graph(with_matrix)
        assert_close(out(graph.x, graph.adj_t), out(data.x, unique))


def values_of_matrices() -> None:
    """The values of a matrix are weights in layers that have them; other layers refuse them."""
    data = small_graph()
    size = (data.num_nodes, data.num_nodes)
    ends, weight = coalesce(data.edge_index.flip(0), data.edge_weight)
    matrix = torch.sparse_coo_tensor(ends, weight, size).coalesce()
    layers = (pyg.GCNConv(WIDTH, 4), pyg.GraphConv(WIDTH, 4), pyg.SGConv(WIDTH, 4, K=2))
    for layout in (torch.sparse_csr, torch.sparse_coo):
        graph = peergraph_pyg.full_graph(Data(x=data.x, adj_t=matrix.to_sparse(layout=layout)))
        assert_close(graph.adj_t.edge_weight, weight)
        for layer in layers:
            expected = layer(data.x, ends.flip(0), weight)
            for ours in (layer, peergraph_pyg.accelerate(copy.deepcopy(layer))):
                assert_close(ours(graph.x, graph.adj_t), expected)
        flipped, mask = graph.adj_t.flip(0), weight > 0.5
        assert_close(layers[1](graph.x, flipped), layers[1](data.x, ends, weight))
        some = layers[1](data.x, ends.flip(0)[:, mask], weight[mask])
        assert_close(layers[1](graph.x, graph.adj_t[:, mask]), some)
        sage = pyg.SAGEConv(WIDTH, 4)
        for refusing in (sage, peergraph_pyg.accelerate(copy.deepcopy(sage))):
            with pytest.raises(NotImplementedError, match="matrix with values"):
                refusing(graph.x, graph.adj_t)
        with pytest.raises(NotImplementedError, match="add_self_loops of a partitioned matrix"):
            add_self_loops(graph.adj_t)
        with pytest.raises(ValueError, match="pass one of them"):
            layers[0](graph.x, graph.adj_t, graph.adj_t.edge_weight)


def random_edges() -> None:
    """Dropped edges and nodes are those that PyG drops where it draws the same numbers."""
    data = small_graph()
    graph = peergraph_pyg.full_graph(data)
    conv = pyg.GraphConv(WIDTH, 4)

    def draw(count: int) -> Tensor:
        torch.manual_seed(7)
        with keyed_random():
            return torch.rand_like(torch.empty(count))

    keep = draw(data.num_edges) >= 0.3
    torch.manual_seed(7)
    edges, mask = dropout_edge(graph.edge_index, 0.3)
    assert_close(mask, keep)
    expected = conv(data.x, data.edge_index[:, keep], data.edge_weight[keep])
    assert_close(conv(graph.x, edges, graph.edge_weight[mask]), expected)
    keep &= data.edge_index[0] <= data.edge_index[1]
    half, ids = data.edge_index[:, keep], keep.nonzero().squeeze(1).repeat(2)
    torch.manual_seed(7)
    edges, found_ids = dropout_edge(graph.edge_index, 0.3, force_undirected=True)
    assert_close(found_ids, ids)
    both = torch.cat([half, half.flip(0)], 1)
    assert_close(torch.stack([end.full_tensor() for end in edges]), both)
    expected = conv(data.x, both, data.edge_weight[ids])
    assert_close(conv(graph.x, edges, graph.edge_weight[found_ids]), expected)
    nodes = draw(data.num_nodes) > 0.3
    keep = nodes[data.edge_index[0]] & nodes[data.edge_index[1]]
    torch.manual_seed(7)
    edges, mask, found_nodes = dropout_node(graph.edge_index, 0.3)
    assert_close(mask, keep)
    assert_close(found_nodes, nodes)
    assert_close(conv(graph.x, edges), conv(data.x, data.edge_index[:, keep]))
    for function in (dropout_edge, dropout_node):
        same, *masks = function(graph.edge_index, 0.3, training=False)
        assert same is graph.edge_index
        assert all(bool(mask.all()) for mask in masks)
        with pytest.raises(ValueError, match="between 0 and 1"):
            function(graph.edge_index, 1.5)
    with pytest.raises(NotImplementedError, match="relabel_nodes"):
        dropout_node(graph.edge_index, relabel_nodes=True)


def negative_pairs() -> None:
    """Pairs without an edge: distinct, equal on all ranks, of either kind of graph."""
    data = small_graph()
    graph = peergraph_pyg.full_graph(data)
    n, group = data.num_nodes, Group.current("cpu")
    existing = set(map(tuple, data.edge_index.t().tolist()))
    for options in (
        {},
        {"num_neg_samples": 20, "force_undirected": True},
        {"num_neg_samples": 0.5, "num_nodes": (n, n), "method": "dense"},
        {"num_neg_samples": n * n},
    ):
        pairs = negative_sampling(graph.edge_index, **options)
        assert len(set(map(str, group.all_gather(pairs.tolist())))) == 1
        drawn = list(map(tuple, pairs.t().tolist()))
        assert len(set(drawn)) == len(drawn)
        count = options.get("num_neg_samples", data.num_edges)
        count = int(count * data.num_edges) if isinstance(count, float) else count
        if count == n * n:
            count -= n + len({(a, b) for a, b in existing if a != b})
        assert len(drawn) == count
        if "force_undirected" in options:
            assert {(b, a) for a, b in drawn} == set(drawn)
            drawn = [(a, b) for a, b in drawn if a < b]
        assert not existing & set(drawn)
        if not isinstance(options.get("num_nodes"), tuple):
            assert all(a != b for a, b in drawn)
    with pytest.raises(ValueError, match="num_nodes must be at least"):
        negative_sampling(graph.edge_index, 3)


def shared() -> None:
    """Shared data, its stores and its store; each rank reads its rows."""
    data = small_graph()
    shared_data = peergraph_pyg.share(data)
    store = peergraph_pyg.store_of(shared_data)
    for source in (shared_data, peergraph_pyg.stores(store), store):
        check_data(peergraph_pyg.full_graph(source), data)
    hetero = small_hetero()
    shared_data = peergraph_pyg.share(hetero)
    graph = peergraph_pyg.full_graph(peergraph_pyg.store_of(shared_data))
    assert_close(graph["paper"].x, hetero["paper"].x)
    assert graph.edge_types == hetero.edge_types


def orders() -> None:
    """Numbering of nodes does not change results."""
    data = small_graph()
    group = Group.current("cpu")
    part = torch.arange(data.num_nodes) % group.world_size
    for order in ("random", "original", "communities", part):
        check_data(peergraph_pyg.full_graph(data, order=order), data)
    with pytest.raises(ValueError, match="order"):
        peergraph_pyg.full_graph(data, order="alphabetical")


def utilities() -> None:
    """PyG's functions of edges."""
    data = small_graph()
    graph = peergraph_pyg.full_graph(data)
    n = data.num_nodes

    def compare(run: Callable[[Any], Any]) -> None:
        for ours, theirs in zip(run(graph), run(data), strict=True):
            if isinstance(ours, PartitionedEdgeIndex):
                ends = torch.stack([ours[0].full_tensor(), ours[1].full_tensor()])
                assert torch.equal(ends, theirs)
            elif isinstance(theirs, Tensor):
                assert_close(ours, theirs)
            else:
                assert ours == theirs

    compare(lambda d: remove_self_loops(d.edge_index, d.edge_attr))
    for fill in (None, 2.0, "mean"):
        compare(lambda d, f=fill: add_self_loops(d.edge_index, d.edge_attr, f, n))
    compare(lambda d: add_remaining_self_loops(d.edge_index, d.edge_attr, 3.0, n))
    compare(lambda d: add_self_loops(d.edge_index, num_nodes=n))
    compare(lambda d: [contains_self_loops(d.edge_index)])
    for end in (0, 1):
        compare(lambda d, e=end: [degree(d.edge_index[e], n, torch.long)])
        for reduce in ("sum", "mean"):
            compare(
                lambda d, e=end, r=reduce: [scatter(d.edge_attr, d.edge_index[e], 0, n, reduce=r)]
            )
    for reduce in ("max", "min", "mul"):
        compare(lambda d, r=reduce: [scatter(d.edge_attr, d.edge_index[1], 0, n, reduce=r)])
    compare(lambda d: [softmax(d.edge_attr, d.edge_index[1], num_nodes=n)])


def refusals() -> None:
    """What is not exact on the rows of one rank raises, and says what to do."""
    data = small_graph()
    graph = peergraph_pyg.full_graph(data)
    for function in (coalesce, to_undirected, to_dense_adj):
        with pytest.raises(NotImplementedError, match=f"{function.__name__} on a partitioned"):
            function(graph.edge_index)
    with pytest.raises(NotImplementedError, match="to the sources"):
        scatter(graph.edge_attr, graph.edge_index[0], 0, data.num_nodes, reduce="max")
    with pytest.raises(NotImplementedError, match="target_to_source"):
        pyg.SAGEConv(WIDTH, 4, aggr="max", flow="target_to_source")(graph.x, graph.edge_index)
    conv = pyg.SAGEConv(WIDTH, 4, aggr=pyg.DeepSetsAggregation(pyg.MLP([WIDTH, 8, WIDTH])))
    with pytest.raises(NotImplementedError, match="within"):
        conv(graph.x, graph.edge_index)
    with pytest.raises(ValueError, match="pass dim_size"):
        scatter(graph.edge_attr, graph.edge_index[1])
    with pytest.raises(NotImplementedError):
        pyg.SuperGATConv(WIDTH, 4)(graph.x, graph.edge_index)
    layer = pyg.GPSConv(WIDTH, pyg.SAGEConv(WIDTH, WIDTH), heads=2)
    with pytest.raises(NotImplementedError, match="all pairs of rows.*performer"):
        layer(graph.x, graph.edge_index)
    several = torch.arange(data.num_nodes) // 10
    with pytest.raises(NotImplementedError, match="several graphs"):
        to_dense_batch(graph.x, like(graph.x, several))
    with pytest.raises(TypeError, match="data must be Data"):
        peergraph_pyg.full_graph([1])
    with pytest.raises(ValueError, match="expected data returned by"):
        peergraph_pyg.partition_of(data)


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        attributes,
        heterogeneous,
        matrices,
        values_of_matrices,
        random_edges,
        negative_pairs,
        shared,
        orders,
        utilities,
        refusals,
    )
}
