"""What training scripts do with modules and optimizers: on full graphs as on plain tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

import peergraph_pyg
from tests.named_case import named_cases

NODES, COLUMNS, CLASSES = 40, 8, 4
OPTIONS: dict[str, dict[str, Any]] = {
    "resident": {},
    "offloaded": {"offload": True, "num_chunks": 3},
}

Idiom = Callable[[Any, Any], Any]
IDIOMS: dict[str, Idiom] = {}


def idiom(function: Idiom) -> Idiom:
    """Adds a function of a model and data, which returns what is compared."""
    IDIOMS[function.__name__] = function
    return function


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(COLUMNS, 8), GCNConv(8, CLASSES)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        out: Tensor = self.second(F.relu(self.first(x, edge_index)), edge_index)
        return out


def graph() -> Data:
    draw = torch.Generator().manual_seed(0)
    edges = torch.unique(torch.randint(NODES, (2, 200), generator=draw), dim=1)
    data = Data(edge_index=edges, num_nodes=NODES)
    data.x = torch.randn(NODES, COLUMNS, generator=draw, dtype=torch.float64)
    data.y = torch.randint(CLASSES, (NODES,), generator=draw)
    data.mask = torch.rand(NODES, generator=draw) < 0.5
    return data


def loss_of(out: Any, data: Any) -> Tensor:
    return F.cross_entropy(out[data.mask], data.y[data.mask])


def train(model: Any, data: Any, optimizer: Any, steps: int = 3) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model(data.x, data.edge_index), data)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@idiom
def weight_norm(model: Any, data: Any) -> Any:
    parametrizations.weight_norm(model.first.lin, "weight")
    return train(model, data, torch.optim.SGD(model.parameters(), lr=0.1)), [*model.parameters()]


@idiom
def orthogonal(model: Any, data: Any) -> Any:
    torch.manual_seed(3)
    parametrizations.orthogonal(model.first.lin, "weight")
    return train(model, data, torch.optim.SGD(model.parameters(), lr=0.1)), [*model.parameters()]


@idiom
def spectral_norm(model: Any, data: Any) -> Any:
    torch.manual_seed(3)
    parametrizations.spectral_norm(model.second.lin, "weight")
    return train(model, data, torch.optim.SGD(model.parameters(), lr=0.1)), [*model.parameters()]


@idiom
def line_search(model: Any, data: Any) -> Any:
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        loss = loss_of(model(data.x, data.edge_index), data)
        loss.backward()
        return loss.item()

    return [optimizer.step(closure) for _ in range(2)], [*model.parameters()]


@idiom
def averaged_weights(model: Any, data: Any) -> Any:
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    results = []
    for _ in range(3):
        train(model, data, torch.optim.SGD(model.parameters(), lr=0.1), 1)
        average.update_parameters(model)
        results.append(average(data.x, data.edge_index))
    return results


@idiom
def optimizer_in_the_backward_pass(model: Any, data: Any) -> Any:
    optimizers = {p: torch.optim.Adam([p], lr=0.1, fused=True) for p in model.parameters()}

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        loss_of(model(data.x, data.edge_index), data).backward()
    return [*optimizers]


@idiom
def gradients_of_some(model: Any, data: Any) -> Any:
    parameters, other = [*model.parameters()], nn.Parameter(torch.ones(3).double())
    loss = loss_of(model(data.x, data.edge_index), data)
    loss.backward(inputs=parameters[:1], retain_graph=True)
    grads = torch.autograd.grad(loss, [*parameters, other], allow_unused=True)
    return [p.grad for p in parameters], grads


@idiom
def functions_of_parameters(model: Any, data: Any) -> Any:
    own = {n: (p.detach() * 0.5).requires_grad_() for n, p in model.named_parameters()}
    out = torch.func.functional_call(model, own, (data.x, data.edge_index))
    return out, torch.autograd.grad(loss_of(out, data), [*own.values()])


@idiom
def stacked_models(model: Any, data: Any) -> Any:
    second = copy.deepcopy(model)
    nn.utils.vector_to_parameters(
        nn.utils.parameters_to_vector(second.parameters()) * 0.5, second.parameters()
    )
    stacked, _ = torch.func.stack_module_state([model, second])
    inputs = data.x, data.edge_index
    outs = [
        torch.func.functional_call(model, {n: p[i] for n, p in stacked.items()}, inputs)
        for i in range(2)
    ]
    loss_of(outs[0] + outs[1], data).backward()
    return outs, [p.grad for p in stacked.values()]


@idiom
def assigned_states(model: Any, data: Any) -> Any:
    before = model(data.x, data.edge_index)
    states = {name: value * 0.5 for name, value in model.state_dict().items()}
    model.load_state_dict(states, assign=True)
    return before, model(data.x, data.edge_index)


@idiom
def scaled_gradients(model: Any, data: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model(data.x, data.edge_index), data)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    return [*model.parameters()]


@idiom
def frozen_for_a_while(model: Any, data: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = train(model, data, optimizer, 2)
    for trains in (False, True):
        model.first.requires_grad_(trains)
        losses += train(model, data, optimizer, 2)
    return losses


@idiom
def hooks_that_change_outputs(model: Any, data: Any) -> Any:
    handle = model.first.register_forward_hook(lambda module, inputs, out: out * 2)
    results = [model(data.x, data.edge_index)]
    handle.remove()
    model.second.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0.5, *inputs[1:]))
    loss_of(model(data.x, data.edge_index), data).backward()
    return results, [p.grad for p in model.parameters()]


@idiom
def replaced_features(model: Any, data: Any) -> Any:
    results = [model(data.x, data.edge_index)]
    data.x = data.x * 2
    results.append(model(data.x, data.edge_index))
    data.x = data.x.clone()
    data.x += 1
    return [*results, model(data.x, data.edge_index)]


def values(result: Any) -> list[Any]:
    """The numbers and plain tensors of a result, in a list."""
    if isinstance(result, (list, tuple)):
        return [value for part in result for value in values(part)]
    whole = result.full_tensor() if hasattr(result, "full_tensor") else result
    return [whole.detach() if isinstance(whole, Tensor) else whole]


@named_cases("name", IDIOMS)
@named_cases("options", OPTIONS)
def test_results_are_those_of_plain_tensors(name: str, options: str) -> None:
    def run(data: Any) -> list[Any]:
        torch.manual_seed(1)
        return values(IDIOMS[name](Net().double(), data))

    result = run(peergraph_pyg.full_graph(graph(), **OPTIONS[options]))
    torch.testing.assert_close(result, run(graph()), rtol=1e-6, atol=1e-7)


SPARSE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a product": lambda matrix, x: matrix @ x,
    "a sum": lambda matrix, x: x + torch.zeros(NODES, COLUMNS).double().to_sparse(),
    "torch.sparse": lambda matrix, x: torch.sparse.mm(matrix, x),
}


@named_cases("operation", SPARSE)
@named_cases("options", OPTIONS)
def test_sparse_operands_are_named(operation: str, options: str) -> None:
    data = peergraph_pyg.full_graph(graph(), **OPTIONS[options])
    matrix = torch.eye(NODES, dtype=torch.float64).to_sparse()
    with pytest.raises(NotImplementedError, match="a plain operand is sparse|_sparse_addmm"):
        SPARSE[operation](matrix, data.x)
