"""Writes to edges on a GPU: those that torch counts change the results, others raise an error."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GAT, GCN, GraphSAGE, to_hetero

import peergraph
import peergraph_pyg
from peergraph_pyg import accelerate
from tests.named_case import named_cases

from .graphs import random_data, random_hetero
from .layer_cases import NAMES, arguments, assert_same, edge_inputs, pair, x_and_edges
from .test_changed_edges import WRITES

pytestmark = pytest.mark.gpus(1)

GPU = torch.device("cuda", 0)
NOT_COUNTED = "was written in a way that torch does not count"


def _through_dlpack(tensor: Tensor, values: Tensor) -> None:
    torch.from_dlpack(tensor.detach()).copy_(values)


def _by_replay(tensor: Tensor, values: Tensor) -> None:
    graph, source = torch.cuda.CUDAGraph(), values.clone()
    version = tensor._version
    with torch.cuda.graph(graph), torch.autograd._unsafe_preserve_version_counter(tensor):  # type: ignore[attr-defined]
        tensor.copy_(source)
    graph.replay()
    torch.cuda.synchronize()
    assert tensor._version == version


NOT_COUNTED_WRITES: dict[str, Callable[[Tensor, Tensor], None]] = {
    "data": WRITES["data"],
    "dlpack": _through_dlpack,
    "foreach": WRITES["foreach"],
    "replay": _by_replay,
}
COUNTED_WRITES = {name: WRITES[name] for name in ("in place", "another data")}


def layer_and_inputs(name: str) -> tuple[Any, Any, list[Tensor]]:
    theirs, ours = pair(name, *arguments(name))
    x, edge_index = x_and_edges()
    inputs = [x, edge_index, *edge_inputs(name, edge_index.shape[1])]
    return theirs.to(GPU), ours.to(GPU), [each.to(GPU) for each in inputs]


def run_and_wait(layer: Any, *inputs: Any, backward: bool = False, **options: Any) -> None:
    """Runs a layer. The comparison may be done before it has launched all of its kernels."""
    out = layer(*inputs, **options)
    torch.cuda.synchronize(GPU)
    if backward:
        out.square().sum().backward()
    peergraph.synchronize(GPU)


@named_cases("name", NAMES)
@named_cases("write", NOT_COUNTED_WRITES)
def test_writes_that_are_not_counted_cuda(name: str, write: str) -> None:
    theirs, ours, inputs = layer_and_inputs(name)
    assert_same(theirs, ours, *inputs)
    NOT_COUNTED_WRITES[write](inputs[1], (inputs[1] + 2) % 9)
    with pytest.raises(RuntimeError, match=f"^edge_index {NOT_COUNTED}"):
        run_and_wait(ours, *inputs)
    for _ in range(2):
        assert_same(theirs, ours, *inputs)
        peergraph.synchronize(GPU)


@named_cases("name", NAMES)
@named_cases("write", COUNTED_WRITES)
def test_writes_that_are_counted_cuda(name: str, write: str) -> None:
    theirs, ours, inputs = layer_and_inputs(name)
    for _ in range(3):
        assert_same(theirs, ours, *inputs)
        COUNTED_WRITES[write](inputs[1], (inputs[1] + 2) % 9)
    assert_same(theirs, ours, *inputs)
    peergraph.synchronize(GPU)


def test_writes_to_pyg_edge_indices_cuda() -> None:
    """The edge index counts them, and not the tensor in it."""
    theirs, ours, (x, edge_index) = layer_and_inputs("SAGEConv")
    typed = EdgeIndex(edge_index, sparse_size=(9, 9))
    for _ in range(3):
        torch.testing.assert_close(ours(x, typed), theirs(x, typed.as_tensor()))
        typed[:, [1, 2]] = typed[:, [0, 1]]
    peergraph.synchronize(GPU)


def test_types_of_edges_cuda() -> None:
    theirs, ours, inputs = layer_and_inputs("RGCNConv")
    assert_same(theirs, ours, *inputs)
    inputs[2].data[...] = inputs[2].max() - inputs[2]
    with pytest.raises(RuntimeError, match=f"^edge_type or x {NOT_COUNTED}"):
        run_and_wait(ours, *inputs)
    assert_same(theirs, ours, *inputs)


def test_an_error_before_the_step_of_the_optimizer_cuda() -> None:
    """The backward pass raises, so that no optimizer uses the gradients."""
    _, ours, inputs = layer_and_inputs("SAGEConv")
    ours(*inputs)
    inputs[1].data[0, 3] = (inputs[1][0, 3] + 1) % 9
    with pytest.raises(RuntimeError, match=f"^edge_index {NOT_COUNTED}"):
        run_and_wait(ours, *inputs, backward=True)
    peergraph.synchronize(GPU)


def test_many_calls_without_writes_cuda() -> None:
    """Nothing is reported that was not written, whatever memory is freed and used again."""
    models = [accelerate(kind(6, 8, 2, 4).to(GPU)) for kind in (GraphSAGE, GCN, GAT)]
    x = torch.randn(60, 6, device=GPU)
    for step in range(60):
        edge_index = torch.randint(0, 60, (2, 100 + 37 * step), device=GPU)
        for model in models:
            model(x, edge_index).sum().backward()
            model(x, edge_index)
    peergraph.synchronize(GPU)


@named_cases("kind", {"SAGE": GraphSAGE, "GCN": GCN, "GAT": GAT})
@pytest.mark.parametrize("trim", [False, True])
def test_batches_cuda(kind: str, trim: bool) -> None:
    data = random_data()
    data.x = torch.randn(60, 6)
    loader = NeighborLoader(peergraph_pyg.share(data, device=GPU), [3, 2], batch_size=20)
    loader = peergraph_pyg.prefetch(loader, 0)  # a batch made ahead is a later operation, too
    theirs = {"SAGE": GraphSAGE, "GCN": GCN, "GAT": GAT}[kind](6, 8, 2, 4).to(GPU)
    ours = accelerate(copy.deepcopy(theirs))
    for batch in loader:
        options = {}
        if trim:
            options["num_sampled_nodes_per_hop"] = batch.num_sampled_nodes
            options["num_sampled_edges_per_hop"] = batch.num_sampled_edges

        def compare(batch: Any = batch, options: dict[str, Any] = options) -> None:
            expected = theirs(batch.x, batch.edge_index, **options)
            torch.testing.assert_close(
                ours(batch.x, batch.edge_index, **options), expected, rtol=1e-4, atol=1e-4
            )

        compare()
        peergraph.synchronize(GPU)
        first = batch.edge_index[0, 0].clone()
        batch.edge_index.data[0, 0] = (first + 1) % batch.num_sampled_nodes[0]
        with pytest.raises(RuntimeError, match=f"^edge_index {NOT_COUNTED}"):
            run_and_wait(ours, batch.x, batch.edge_index, **options)
        compare()
        peergraph.synchronize(GPU)


def test_batches_of_typed_graphs_cuda() -> None:
    data = random_hetero()
    del data["venue", "prints", "paper"], data["venue"]  # PyG's models need in-edges of all types
    shared = peergraph_pyg.share(data, device=GPU)
    seeds = ("paper", torch.arange(8))
    batch = next(iter(NeighborLoader(shared, [3, 2], input_nodes=seeds, batch_size=8)))
    theirs = to_hetero(GraphSAGE((-1, -1), 8, num_layers=2, out_channels=4), data.metadata())
    theirs = theirs.to(GPU)
    with torch.no_grad():
        theirs(batch.x_dict, batch.edge_index_dict)
    ours = accelerate(copy.deepcopy(theirs))

    def compare() -> None:
        expected = theirs(batch.x_dict, batch.edge_index_dict)["paper"]
        actual = ours(batch.x_dict, batch.edge_index_dict)["paper"]
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)

    for edge_type in batch.edge_types:
        edge_index = batch[edge_type].edge_index
        if not edge_index.numel():
            continue
        compare()
        peergraph.synchronize(GPU)
        edge_index.data[1] = edge_index[1].roll(1)
        if torch.equal(edge_index[1], edge_index[1].roll(1)):
            continue
        with pytest.raises(RuntimeError, match=f"^edge_index {NOT_COUNTED}"):
            run_and_wait(ours, batch.x_dict, batch.edge_index_dict)
    compare()


def test_a_captured_layer_cuda() -> None:
    """A replay compares the edges; new edges in the static tensor are an error, not old results."""
    theirs, ours, inputs = layer_and_inputs("SAGEConv")
    stream = torch.cuda.Stream(GPU)
    with torch.no_grad(), torch.cuda.stream(stream):
        ours(*inputs)
    torch.cuda.synchronize(GPU)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, stream=stream):
        out = ours(*inputs)
    inputs[0].copy_(torch.randn_like(inputs[0]))
    graph.replay()
    torch.testing.assert_close(out, theirs(*inputs).detach())
    peergraph.synchronize(GPU)
    inputs[1].copy_((inputs[1] + 2) % 9)
    graph.replay()
    with pytest.raises(RuntimeError, match=f"^edge_index {NOT_COUNTED}"):
        peergraph.synchronize(GPU)
