"""Layers on batches of the loader: they run over the sampler's own structure."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GAT, GIN, GraphSAGE, HeteroConv, SAGEConv, to_hetero

import peergraph
import peergraph_pyg
from peergraph.aggregate import RelationBlocks
from peergraph.aggregate.sparse import relation_blocks
from peergraph_pyg import accelerate, explain, revert
from peergraph_pyg.data import batch_structures, csc_cache
from peergraph_pyg.loader.batch_csc import BatchCsc
from tests.named_case import named_cases

from .graphs import random_data, random_hetero
from .layer_cases import NAMES, arguments, assert_same, edge_inputs, pair
from .typed_batches import EDGE_TYPES, TrimmedModel, shared_graph

MODELS = [GraphSAGE, GIN, GAT]


def batch_of(device: torch.device, **options: Any) -> Any:
    """A batch of three hops with a seed that occurs twice."""
    data = random_data()
    data.x = torch.randn(60, 6)
    shared = peergraph_pyg.share(data, device=device)
    torch.manual_seed(0)
    seeds = torch.tensor([3, 1, 59, 3, 7])
    loader = NeighborLoader(shared, [3, 2, 2], input_nodes=seeds, batch_size=5, **options)
    return next(iter(loader))


def trimmed(model: Any, batch: Any, x: Tensor | None = None) -> Tensor:
    out: Tensor = model(
        batch.x if x is None else x,
        batch.edge_index,
        num_sampled_nodes_per_hop=batch.num_sampled_nodes,
        num_sampled_edges_per_hop=batch.num_sampled_edges,
    )
    return out


@pytest.fixture
def no_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails whoever makes a structure from the edges."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a structure was made from the edges")

    monkeypatch.setattr(csc_cache.Csc, "from_edge_index", refuse)


@named_cases("name", ["SAGEConv", "GINConv", "GraphConv", "GINEConv"])
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.usefixtures("no_sorting")
def test_blocks_serve_layers(name: str, disjoint: bool, device: torch.device) -> None:
    batch = batch_of(device, disjoint=disjoint)
    theirs, ours = (layer.to(device) for layer in pair(name, *arguments(name)))
    ends = [sum(batch.num_sampled_edges[:hops]) for hops in range(4)]
    nodes = [sum(batch.num_sampled_nodes[: hops + 1]) for hops in range(4)]
    for hops in (3, 2, 1, 0):
        edge_index = batch.edge_index[:, : ends[hops]]
        inputs = edge_inputs(name, ends[hops], device)
        x = batch.x[: nodes[hops]]
        if hops:
            assert "the loader's" in explain(ours, x, edge_index, *inputs)
        assert_same(theirs, ours, x, edge_index, *inputs)


@pytest.mark.parametrize("options", [{}, {"add_self_loops": False}, {"improved": True}])
@pytest.mark.usefixtures("no_sorting")
def test_blocks_serve_gcn(options: dict[str, Any], device: torch.device) -> None:
    batch = batch_of(device)
    theirs, ours = (layer.to(device) for layer in pair("GCNConv", 6, 5, **options))
    assert "edges weighted by the degrees" in explain(ours, batch.x, batch.edge_index)
    for _ in range(2):
        assert_same(theirs, ours, batch.x, batch.edge_index)


@pytest.mark.gpus(1)
@pytest.mark.parametrize(
    "name", ["SAGEConv", "GCNConv", "GATConv", "GATv2Conv", "GINConv", "GraphConv"]
)
def test_nothing_waits_for_the_gpu(name: str) -> None:
    device = torch.device("cuda", 0)
    options = {"heads": 2} if name.startswith("GAT") else {}
    layer = (
        peergraph_pyg.nn.GINConv(torch.nn.Linear(6, 8))
        if name == "GINConv"
        else getattr(peergraph_pyg.nn, name)(6, 8, **options)
    ).to(device)
    for _ in range(2):  # The first call may set up libraries.
        batch = batch_of(device)
        x = batch.x.clone().requires_grad_()
        out = layer(x, batch.edge_index)
        out.sum().backward()
    batch = batch_of(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer(x, batch.edge_index).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@named_cases("name", NAMES)
def test_all_layers_on_batches(name: str, device: torch.device) -> None:
    batch = batch_of(device)
    theirs, ours = (layer.to(device) for layer in pair(name, *arguments(name)))
    inputs = edge_inputs(name, batch.edge_index.shape[1], device)
    assert_same(theirs, ours, batch.x, batch.edge_index, *inputs)


@pytest.mark.parametrize("kind", MODELS)
@named_cases("norm", [None, "batch_norm"])
def test_models_on_batches(kind: Any, norm: str | None, device: torch.device) -> None:
    batch = batch_of(device)
    torch.manual_seed(1)
    theirs = kind(6, 8, num_layers=3, out_channels=4, norm=norm).to(device)
    ours = accelerate(copy.deepcopy(theirs))
    for _ in range(2):
        actual, expected = trimmed(ours, batch), trimmed(theirs, batch)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        pairs = zip(
            torch.autograd.grad(actual.square().sum(), list(ours.parameters())),
            torch.autograd.grad(expected.square().sum(), list(theirs.parameters())),
            strict=True,
        )
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(
        ours(batch.x, batch.edge_index), theirs(batch.x, batch.edge_index), rtol=1e-4, atol=1e-4
    )
    revert(ours)
    assert "FastTrim" not in repr(ours)
    torch.testing.assert_close(trimmed(ours, batch), trimmed(theirs, batch))


def test_rows_that_are_dropped_are_not_computed() -> None:
    batch = batch_of(torch.device("cpu"))
    model = accelerate(GraphSAGE(6, 8, num_layers=3, out_channels=4))
    rows: list[int] = []
    for conv in model.convs:
        conv.lin_l.register_forward_hook(lambda _, args, __: rows.append(args[0].shape[0]))
    trimmed(model, batch)
    nodes = batch.num_sampled_nodes
    assert rows == [sum(nodes[:3]), sum(nodes[:2]), sum(nodes[:2])]
    rows.clear()
    model(batch.x, batch.edge_index)
    assert rows == [sum(nodes)] * 3


def test_rows_that_no_edge_reaches_are_left_out(device: torch.device) -> None:
    batch = batch_of(device)
    count = batch.num_nodes
    targets = sum(batch.num_sampled_nodes[:-1])
    blocks = csc_cache.csc_of(batch.edge_index, count, count)
    assert blocks.trim_isolated_tail().num_destinations == targets < count
    sorted_edges = csc_cache.csc_of(batch.edge_index.clone(), count, count)
    assert sorted_edges.trim_isolated_tail().num_destinations == int(batch.edge_index[1].max()) + 1
    first = batch.edge_index[:, : batch.num_sampled_edges[0]]
    part = csc_cache.csc_of(first, count, count)
    assert part.trim_isolated_tail().num_destinations == batch.batch_size


def test_models_with_more_layers_than_hops() -> None:
    batch = batch_of(torch.device("cpu"))
    theirs = GraphSAGE(6, 8, num_layers=4, out_channels=4)
    ours = accelerate(copy.deepcopy(theirs))
    try:
        expected = trimmed(theirs, batch)
    except Exception as error:
        with pytest.raises(type(error)):
            trimmed(ours, batch)
    else:
        torch.testing.assert_close(trimmed(ours, batch), expected)


def test_edges_that_were_changed_lose_their_blocks() -> None:
    batch = batch_of(torch.device("cpu"))
    edge_index = batch.edge_index
    assert batch_structures.attached(edge_index) is not None
    assert batch_structures.attached(edge_index[:, 1:]) is None
    assert batch_structures.attached(edge_index.clone()) is None
    assert batch_structures.attached(edge_index.flip(0)) is None
    assert batch_structures.attached(torch.eye(3).to_sparse_csr()) is None
    whole = batch_structures.attached(edge_index)
    assert whole is not None
    count = batch.num_nodes
    assert whole.csc(edge_index[:, :1], count, count) is None
    assert whole.csc(edge_index, count - 1, count - 1) is None
    edge_index[0, 0] = 0
    assert batch_structures.attached(edge_index) is None


def test_too_few_rows_are_found() -> None:
    batch = batch_of(torch.device("cpu"))
    layer = peergraph_pyg.nn.SAGEConv(6, 3)
    with pytest.raises(IndexError, match="out of range"):
        layer(batch.x[:-1], batch.edge_index)


def test_blocks_go_with_the_batch() -> None:
    before = len(batch_structures._attached)
    batch = batch_of(torch.device("cpu"))
    assert len(batch_structures._attached) == before + 1
    del batch
    assert len(batch_structures._attached) == before


def test_blocks_stay_when_an_earlier_batch_of_the_same_memory_dies() -> None:
    batch = batch_of(torch.device("cpu"))
    structure = batch_structures.attached(batch.edge_index)
    assert structure is not None
    memory = batch.edge_index
    first, second = memory.view_as(memory), memory.view_as(memory)
    batch_structures.attach([first], lambda _: structure)
    batch_structures.attach([second], lambda _: structure)
    del first
    assert batch_structures.attached(memory) is structure
    del second
    assert batch_structures.attached(memory) is None


@pytest.mark.parametrize("kind", [GraphSAGE, GIN, GAT])
def test_blocks_that_served_go_with_the_batch(kind: Any, device: torch.device) -> None:
    gc.collect()  # what earlier tests left in cycles
    before = len(batch_structures._attached), len(csc_cache._entries)
    batch = batch_of(device)
    model = accelerate(kind(batch.num_features, 8, 3, 4)).to(device)
    trimmed(model, batch).sum().backward()
    edge_index = weakref.ref(batch.edge_index)
    gc.disable()
    try:
        del batch
        assert edge_index() is None  # not only once cycles are looked for
    finally:
        gc.enable()
    assert (len(batch_structures._attached), len(csc_cache._entries)) == before


@pytest.mark.parametrize("subgraph_type", ["induced", "bidirectional"])
def test_other_subgraphs_have_no_blocks(subgraph_type: str) -> None:
    batch = batch_of(torch.device("cpu"), subgraph_type=subgraph_type)
    assert batch_structures.attached(batch.edge_index) is None
    theirs, ours = pair("SAGEConv", *arguments("SAGEConv"))
    assert_same(theirs, ours, batch.x, batch.edge_index)


def hetero_model(data: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    model = to_hetero(GraphSAGE((-1, -1), 8, num_layers=2, out_channels=4), data.metadata())
    return model


def test_blocks_of_relations(device: torch.device) -> None:
    data = random_hetero()
    del data["venue", "prints", "paper"], data["venue"]  # PyG's models need in-edges of all types
    shared = peergraph_pyg.share(data, device=device)
    seeds = ("paper", torch.arange(8))
    batch = next(iter(NeighborLoader(shared, [3, 2], input_nodes=seeds, batch_size=8)))
    is_attached = [
        batch_structures.attached(batch[key].edge_index) is not None for key in batch.edge_types
    ]
    assert all(
        is_attached[i] or not batch[key].edge_index.numel()
        for i, key in enumerate(batch.edge_types)
    )
    reference = hetero_model(data).to(device)
    with torch.no_grad():
        reference(batch.x_dict, batch.edge_index_dict)
    ours = accelerate(copy.deepcopy(reference))
    expected = reference(batch.x_dict, batch.edge_index_dict)
    result = ours(batch.x_dict, batch.edge_index_dict)
    for node_type, values in expected.items():
        if values is not None:
            torch.testing.assert_close(result[node_type], values, rtol=1e-4, atol=1e-4)


def test_relations_of_a_batch_are_compared_together(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of a batch are not verified, though a relation has no edges; written edges are read."""
    data = random_hetero()
    del data["venue", "prints", "paper"], data["venue"]
    data["paper", "retracts", "paper"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    shared = peergraph_pyg.share(data, device=device)
    seeds = ("paper", torch.arange(8))
    batch = next(iter(NeighborLoader(shared, [3, 2], input_nodes=seeds, batch_size=8)))
    x = {key: rows.double() for key, rows in batch.x_dict.items()}
    widths = {key: rows.shape[1] for key, rows in x.items()}
    theirs = HeteroConv({t: SAGEConv((widths[t[0]], widths[t[2]]), 5) for t in batch.edge_types})
    theirs = theirs.to(device, torch.float64)
    ours = accelerate(copy.deepcopy(theirs))

    def compare() -> None:
        expected, result = (layer(x, batch.edge_index_dict) for layer in (theirs, ours))
        for node_type, values in expected.items():
            torch.testing.assert_close(result[node_type] + 0, values, rtol=1e-10, atol=1e-10)

    def refuse(*_: Any) -> None:
        raise AssertionError("ids were verified")

    with monkeypatch.context() as patches:
        patches.setattr("peergraph.aggregate.sparse.typed_edges.check_range", refuse)
        compare()
    written = batch["author", "writes", "paper"].edge_index
    written[0] = written[0].flip(0).clone()
    compare()
    assert batch_structures.attached(written) is None
    assert batch_structures.attached(batch["paper", "cites", "paper"].edge_index) is not None
    peergraph.synchronize(device)


def test_structures_of_slices_are_made_once(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pass over a batch makes slices of its edges anew; the structures go with the batch."""
    shared = shared_graph(device, None)
    seeds = ("paper", torch.arange(8))
    batch = next(iter(NeighborLoader(shared, [3, 2], input_nodes=seeds, batch_size=8)))

    def layer(width: int) -> HeteroConv:
        return HeteroConv({t: SAGEConv((width, width), 32) for t in EDGE_TYPES})

    model = accelerate(TrimmedModel(layer).to(device))
    structures: list[weakref.ref[RelationBlocks]] = []
    make = RelationBlocks.__init__

    def record(blocks: RelationBlocks, *args: Any, **options: Any) -> None:
        structures.append(weakref.ref(blocks))
        make(blocks, *args, **options)

    monkeypatch.setattr(RelationBlocks, "__init__", record)
    first, second = model(batch), model(batch)
    assert torch.equal(first, second)
    assert len(structures) == len(model.convs)
    del first, second, batch
    gc.collect()
    assert not any(blocks() for blocks in structures)


def test_rows_with_edges_are_known(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers choose by them how sums lie in memory, which they count where they are not known."""
    monkeypatch.setattr(relation_blocks, "_FEW_ROWS", {"cpu": 0, "cuda": 0})
    shared = shared_graph(device, None)
    seeds = ("paper", torch.arange(40))
    loader = NeighborLoader(shared, [3, 2], input_nodes=seeds, batch_size=40)
    batches = []
    for _ in range(2):
        torch.manual_seed(0)
        batches.append(next(iter(loader)))
    batch, same = batches
    for hops in (2, 1):
        for edge_type, edges in batch.edge_index_dict.items():
            first = edges[:, : sum(batch[edge_type].num_sampled_edges[:hops])]
            structure = batch_structures.attached(first)
            if structure is not None:
                count = structure.num_rows_with_edges(first.shape[1])
                assert count == first[1].unique().numel()
                fewest = structure.min_rows_with_edges(first.shape[1])
                assert fewest <= count
                assert (fewest > 0) == (count > 0)
                assert structure.num_rows_with_edges(first.shape[1] + 1) is None

    def layer(width: int) -> HeteroConv:
        return HeteroConv({t: SAGEConv((width, width), 32) for t in EDGE_TYPES})

    model = accelerate(TrimmedModel(layer).to(device))
    expected = model(batch)
    monkeypatch.setattr(BatchCsc, "num_rows_with_edges", lambda *_: None)
    assert torch.equal(model(same), expected)


def test_rows_are_not_counted_where_fanouts_bound_them(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting them would make the host wait for the GPU."""
    monkeypatch.setattr(relation_blocks, "_FEW_ROWS", {"cpu": 0, "cuda": 0})
    shared = shared_graph(device, None)
    loader = NeighborLoader(shared, [2, 1], input_nodes=("paper", torch.arange(40)), batch_size=40)
    batches = []
    for _ in range(2):
        torch.manual_seed(0)
        batches.append(next(iter(loader)))
    batch, same = batches

    def layer(width: int) -> HeteroConv:
        return HeteroConv({t: SAGEConv((width, width), 32) for t in EDGE_TYPES})

    model = accelerate(TrimmedModel(layer).to(device))
    expected = model(batch)

    def count(*_: Any) -> int:
        raise AssertionError("rows were counted")

    monkeypatch.setattr(relation_blocks, "_MOST_ROWS", 4)
    monkeypatch.setattr(BatchCsc, "num_rows_with_edges", count)
    torch.testing.assert_close(model(same), expected)


def test_blocks_of_stores(device: torch.device) -> None:
    store = peergraph_pyg.store_of(peergraph_pyg.share(random_data(), device=device))
    loader = NeighborLoader(
        peergraph_pyg.stores(store), [3, 2], input_nodes=torch.arange(6), batch_size=6
    )
    batch = next(iter(loader))
    assert batch_structures.attached(batch.edge_index) is not None
    theirs, ours = (layer.to(device) for layer in pair("SAGEConv", 5, 4))
    assert_same(theirs, ours, batch.x, batch.edge_index)
