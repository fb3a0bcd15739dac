"""Shared tensors in the modes of torch: inference, no gradients, autocast, torch.func."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader

import peergraph_pyg
from peergraph_pyg import LazyRows, StoreTensor
from tests.adapters.pyg.graphs import random_data, random_hetero
from tests.named_case import named_cases
from tests.pairwise import pairwise

MODES = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "x[:10]": lambda x: x[:10],
    "x[:]": lambda x: x[:],
    "x[...]": lambda x: x[...],
    "x[:, 1]": lambda x: x[:, 1],
    "x[3]": lambda x: x[3],
    "x[None]": lambda x: x[None],
    "x[3][1]": lambda x: x[3][1],
    "view": lambda x: x.view(-1),
    "view of another dtype": lambda x: x.view(torch.int32),
    "reshape": lambda x: x.reshape(-1),
    "flatten": lambda x: x.flatten(),
    "t": lambda x: x.t(),
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(1, 0),
    "movedim": lambda x: x.movedim(0, 1),
    "narrow": lambda x: x.narrow(0, 2, 3),
    "unbind": lambda x: x.unbind()[1],
    "split": lambda x: x.split(7)[1],
    "chunk": lambda x: x.chunk(3)[2],
    "tensor_split": lambda x: x.tensor_split(3)[1],
    "expand": lambda x: x.expand(2, *x.shape),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2)),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "contiguous": lambda x: x.contiguous(),
    "float": lambda x: x.float(),
    "double": lambda x: x.double(),
    "iteration": lambda x: next(iter(x)),
}


def value(tensor: Tensor) -> Tensor:
    return tensor if type(tensor) is Tensor else tensor.clone()


@named_cases("name", VIEWS)
def test_views(name: str, device: torch.device) -> None:
    """Views are as those of plain tensors in each mode, and serve gradients after it."""
    data = random_data()
    shared, plain = peergraph_pyg.share(data, device=device), data.x.to(device)
    for mode in MODES.values():
        lazy = peergraph_pyg.lazy(shared).x[torch.arange(60, device=device)]
        assert isinstance(lazy, LazyRows)
        with mode():
            expected = VIEWS[name](plain)
            for x in (shared.x, lazy):
                result = VIEWS[name](x)
                assert torch.equal(value(result), expected), mode
                assert not result.is_inference() or expected.is_inference(), mode
        if not expected.is_inference() and expected.is_floating_point():
            weight = torch.ones((), dtype=expected.dtype, device=device, requires_grad=True)
            (value(result) * weight).sum().backward()
            assert weight.grad is not None, mode


@pytest.mark.parametrize("mode", MODES)
def test_edges(mode: str, device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    with MODES[mode]():
        for view in (
            lambda e: e[0],
            lambda e: e[:, :7],
            lambda e: e[:],
            lambda e: e.flip(0),
            lambda e: e.t(),
            lambda e: torch.stack(tuple(e)),
        ):
            expected = view(data.edge_index)
            assert torch.equal(view(shared.edge_index).cpu(), expected)


CONVS = ("GCNConv", "SAGEConv", "GATConv", "GATv2Conv", "GraphConv", "TransformerConv", "GENConv")


@named_cases(("name", "accelerated", "mode"), pairwise(CONVS, [False, True], list(MODES)))
def test_models_of_whole_graphs(
    name: str, accelerated: bool, mode: str, device: torch.device
) -> None:
    data = random_data()
    model = getattr(pyg, name)(5, 4).eval()
    expected = model(data.x, data.edge_index).detach()
    model = model.to(device)
    if accelerated:
        model = peergraph_pyg.accelerate(model)
    shared = peergraph_pyg.share(data, device=device)
    with MODES[mode]():
        torch.testing.assert_close(model(shared.x, shared.edge_index).cpu(), expected)
        for of in (shared, peergraph_pyg.lazy(shared)):
            (batch,) = NeighborLoader(of, [-1], batch_size=60, shuffle=False)
            out = model(batch.x, batch.edge_index)
            torch.testing.assert_close(out.cpu(), expected[batch.n_id.cpu()])


@pytest.mark.parametrize("mode", MODES)
def test_models_of_matrices_and_types(mode: str, device: torch.device) -> None:
    data = random_data().coalesce()
    values = torch.ones(data.num_edges)
    matrix = torch.sparse_coo_tensor(data.edge_index.flip(0), values, (60, 60)).to_sparse_csr()
    shared = peergraph_pyg.share(Data(x=data.x, adj_t=matrix), device=device)
    model = pyg.SAGEConv(5, 4).to(device)
    types = random_hetero()
    of_types = peergraph_pyg.share(types, device=device)
    edge_types = [t for t in types.edge_types if t[0] != "venue"]
    typed = pyg.HeteroConv({t: pyg.SAGEConv((-1, -1), 4) for t in edge_types}).to(device)

    def run_typed(graph: Any) -> dict[str, Tensor]:
        out: dict[str, Tensor] = typed(graph.x_dict, {t: graph[t].edge_index for t in edge_types})
        return out

    with torch.no_grad():
        expected = model(data.x.to(device), matrix.to(device))
        expected_types = run_typed(types.to(device))
    with MODES[mode]():
        torch.testing.assert_close(model(shared.x, shared.adj_t), expected)
        torch.testing.assert_close(run_typed(of_types), expected_types)


def test_shared_in_inference_mode(device: torch.device) -> None:
    """Handles, and batches of lazy rows, that were made there can be trained on afterwards."""
    data = random_data()
    with torch.inference_mode():
        shared = peergraph_pyg.share(data, device=device)
        (batch,) = NeighborLoader(peergraph_pyg.lazy(shared), [-1], batch_size=60)
        shared.x[0] = 3.0
        shared.x.copy_(shared.x + 1)
    linear = torch.nn.Linear(5, 2).to(device)
    linear(shared.x).sum().backward()
    linear(batch.x).sum().backward()
    data.x[0] = 3.0
    assert torch.equal(shared.x.cpu(), data.x + 1)
    with torch.inference_mode():
        result = shared.x + 1
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        linear(result)  # as of a plain tensor


def test_functions_of_functions(device: torch.device) -> None:
    data = random_data()
    shared, plain = peergraph_pyg.share(data, device=device).x, data.x.to(device)
    ids = torch.tensor([4, 1], device=device)
    weight = torch.ones(5, device=device)
    for call in (
        lambda x: torch.vmap(lambda row: row.sum())(x),
        lambda x: torch.vmap(lambda i: x.index_select(0, i.view(1)) * 2)(ids),
        lambda x: torch.func.grad(lambda w: (x @ w).square().sum())(weight),
        lambda x: torch.func.grad(lambda y: y.square().sum())(x),
        lambda x: torch.func.jvp(lambda y: y.square(), (x,), (torch.ones_like(x),))[1],
    ):
        torch.testing.assert_close(call(shared), call(plain))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        result = torch.nn.functional.linear(shared, weight[None])
        assert result.dtype is torch.bfloat16
        assert torch.equal(result, torch.nn.functional.linear(plain, weight[None]))
    assert isinstance(shared, StoreTensor)
