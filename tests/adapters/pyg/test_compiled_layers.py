"""torch.compile of accelerated layers and models: one graph for all batches, the same results."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GAT, GraphSAGE, HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

import peergraph_pyg
from peergraph_pyg import nn as fast
from peergraph_pyg.compat import compiles_layers
from peergraph_pyg.data import csc_cache
from tests.named_case import named_case

from .graphs import random_data
from .layer_cases import NAMES, WIDTH, arguments, edge_inputs, edges, pair

pytestmark = pytest.mark.skipif(
    torch.__version__ < "2.6", reason="torch.compile sees PyG's layers below torch 2.6"
)


@pytest.fixture(autouse=True)
def _leave_no_compiled_code() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@pytest.fixture
def structures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets an entry for each structure that is made from edges."""
    results: list[int] = []
    make = csc_cache.Csc.from_edge_index

    def record(edge_index: Tensor, *args: Any, **options: Any) -> Any:
        results.append(edge_index.shape[1])
        return make(edge_index, *args, **options)

    monkeypatch.setattr(csc_cache.Csc, "from_edge_index", record)
    return results


def compiled(model: Any, backend: str = "aot_eager", fullgraph: bool = True) -> Any:
    """The model in one graph for all shapes; :func:`graph_count` counts anew."""
    torch._dynamo.reset()
    counters.clear()
    return torch.compile(model, fullgraph=fullgraph, dynamic=True, backend=backend)


def traces_gru_cells(device: torch.device) -> bool:
    """Whether torch can trace its own GRUCell for any number of rows; on GPUs some cannot."""
    cell = torch.nn.GRUCell(2, 2).to(device)
    try:
        compiled(cell)(torch.ones(3, 2, device=device))
    except torch._dynamo.exc.Unsupported:
        return False
    return True


def graph_count() -> int:
    return counters["stats"]["unique_graphs"]


def results(model: Any, parameters: Any, x: Tensor, *args: Any, **options: Any) -> list[Tensor]:
    """The result and the gradients of features, weights of edges and parameters."""
    x = x.detach().clone().requires_grad_()
    leaves = [x, *(arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad)]
    out = model(x, *args, **options)
    return [out, *torch.autograd.grad(out.square().sum(), [*leaves, *parameters])]


def assert_equal(model: Any, call: Any, *args: Any, **options: Any) -> None:
    parameters = list(model.parameters())
    actual = results(call, parameters, *args, **options)
    expected = results(model, parameters, *args, **options)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


CASES: dict[str, dict[str, Any]] = {
    "SAGEConv": {},
    "SAGEConv max": {"aggr": "max"},
    "GCNConv": {},
    "GINConv": {},
    "GINEConv": {},
    "GraphConv": {},
    "GATConv": {"heads": 2},
    "GATv2Conv": {"heads": 2},
    "GATConv with edges": {"heads": 2, "edge_dim": 3, "add_self_loops": False},
    "RGCNConv with bases": {"num_bases": 2},
    "GatedGraphConv": {},
}


@pytest.mark.parametrize("case", list(CASES))
def test_layers(case: str, device: torch.device, structures: list[int]) -> None:
    name = case.split()[0]
    layer = pair(name, *arguments(name), **CASES[case])[1].to(device)
    weighted = name in ("GINEConv", "GraphConv", "FastRGCNConv", "RGCNConv")
    fullgraph = name != "GatedGraphConv" or traces_gru_cells(device)
    call = compiled(layer, fullgraph=fullgraph)
    for nodes, count in ((9, 40), (13, 70), (11, 31)):
        x = torch.randn(nodes, WIDTH, device=device)
        edge_index = edges(nodes, nodes, count, device=device)
        inputs = edge_inputs(name, count, device) if weighted else ()
        if case == "GATConv with edges":
            inputs = (torch.randn(count, 3, device=device, requires_grad=True),)
        with named_case(nodes):
            assert_equal(layer, call, x, edge_index, *inputs)
            # Later calls, and the backward pass, find the structure.
            structures.clear()
            results(call, [], x, edge_index, *inputs)
            assert not structures
    assert graph_count() == 1 or not fullgraph


def test_all_layers_have_a_case() -> None:
    # The code of this one is PyG's where it is compiled.
    assert {case.split()[0] for case in CASES} == set(NAMES) - {"FastRGCNConv"}


def batches(count: int, **options: Any) -> list[Any]:
    data = random_data(300, 3000)
    data.x = torch.randn(300, WIDTH)
    loader = NeighborLoader(peergraph_pyg.share(data), [3, 2], batch_size=20, **options)
    return [batch for _, batch in zip(range(count), loader, strict=False)]


@pytest.mark.parametrize("kind", [GraphSAGE, GAT])
def test_batches(kind: Any, structures: list[int]) -> None:
    """After the first batch nothing is compiled, and no structure is made at all."""
    model = peergraph_pyg.accelerate(kind(WIDTH, 8, 2, 3))
    call = compiled(model)
    for number, batch in enumerate(batches(4)):
        trimmed = {
            "num_sampled_nodes_per_hop": batch.num_sampled_nodes,
            "num_sampled_edges_per_hop": batch.num_sampled_edges,
        }
        with torch._dynamo.config.patch(error_on_recompile=number > 1):
            assert_equal(model, call, batch.x, batch.edge_index, **trimmed)
    assert graph_count() <= 2
    assert not structures


class Hetero(torch.nn.Module):
    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        layers = [{kind: SAGEConv((6, 6), 6) for kind in data.edge_types} for _ in range(2)]
        self.convs = torch.nn.ModuleList(map(HeteroConv, layers))

    def forward(self, x: Any, edge_index: Any, nodes: Any, edges: Any) -> Tensor:
        for number, conv in enumerate(self.convs):
            x, edge_index, _ = trim_to_layer(number, nodes, edges, x, edge_index)
            x = {name: rows.relu() for name, rows in conv(x, edge_index).items()}
        total: Tensor = sum(rows.sum() for rows in x.values())  # type: ignore[assignment]
        return total


def test_heterogeneous_batches(structures: list[int]) -> None:
    data = HeteroData()
    for name, count in (("author", 25), ("paper", 40)):
        data[name].x = torch.randn(count, 6)
    for source, kind, target in (("author", "writes", "paper"), ("paper", "by", "author")):
        ends = (25, 40) if source == "author" else (40, 25)
        data[source, kind, target].edge_index = edges(*ends, 150)
    data["paper", "cites", "paper"].edge_index = edges(40, 40, 200)
    loader = NeighborLoader(
        peergraph_pyg.share(data), [3, 2], input_nodes=data.node_types[0], batch_size=5
    )
    model = peergraph_pyg.accelerate(Hetero(data))
    call = compiled(model)
    for number, batch in enumerate(loader):
        arguments = (
            batch.x_dict,
            batch.edge_index_dict,
            batch.num_sampled_nodes_dict,
            batch.num_sampled_edges_dict,
        )
        expected, actual = model(*arguments), call(*arguments)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        gradients = [
            torch.autograd.grad(out, list(model.parameters()), allow_unused=True)
            for out in (actual, expected)
        ]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
        if number == 3:
            break
    assert not structures


def test_inductor(structures: list[int]) -> None:
    compiler = pytest.importorskip("torch._inductor.cpp_builder")
    try:
        compiler.get_cpp_compiler()
    except Exception as error:
        pytest.skip(f"inductor has no C++ compiler: {error}")
    layer = fast.SAGEConv(WIDTH, 8)
    call = compiled(layer, "inductor")
    (batch,) = batches(1)
    assert_equal(layer, call, batch.x, batch.edge_index)
    # A slice that compiled code makes has the loader's structure too.
    count = batch.num_sampled_edges[0]
    first = torch.compile(lambda x, e: layer(x, e[:, :count]), backend="inductor")
    expected = layer(batch.x, batch.edge_index[:, :count])
    structures.clear()
    torch.testing.assert_close(first(batch.x, batch.edge_index), expected)
    assert not structures


def test_edges_that_are_written_to() -> None:
    layer = fast.SAGEConv(WIDTH, 3)
    call = compiled(layer)
    x, edge_index = torch.randn(9, WIDTH), edges()
    for step in range(3):
        edge_index[0] = (edge_index[0] + step) % 9
        assert_equal(layer, call, x, edge_index)


def test_without_edges_and_without_nodes() -> None:
    for name in ("SAGEConv", "GATConv"):
        layer = pair(name, *arguments(name))[1]
        for nodes in (4, 0):
            with named_case(name, nodes):
                call = compiled(layer)
                empty = torch.empty(2, 0, dtype=torch.int64)
                assert_equal(layer, call, torch.randn(nodes, WIDTH), empty)


def test_edges_that_pyg_makes_are_pygs() -> None:
    """A GCN with weights and self loops: PyG's code makes other edges in every call."""
    layer = fast.GCNConv(WIDTH, 3)
    call = torch.compile(layer, backend="aot_eager")
    assert_equal(layer, call, torch.randn(9, WIDTH), edges(), edge_inputs("GCNConv", 40)[0])


def test_relations_out_of_bounds() -> None:
    layer = pair("RGCNConv", *arguments("RGCNConv"))[1]
    (edge_type,) = edge_inputs("RGCNConv", 40)
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(layer)(torch.randn(9, WIDTH), edges(), edge_type + 3)


def test_reverted_layers_are_pygs() -> None:
    assert compiles_layers()
    model = peergraph_pyg.accelerate(GraphSAGE(WIDTH, 8, 2, 3))
    expected = copy.deepcopy(model)
    call = torch.compile(peergraph_pyg.revert(model), backend="aot_eager")
    x = torch.randn(9, WIDTH)
    torch.testing.assert_close(call(x, edges()), expected(x, edges()), rtol=1e-4, atol=1e-4)
