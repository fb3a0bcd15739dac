"""Which parameters have no gradient: on full graphs the same ones as on plain tensors.

An optimizer with weight decay or momentum moves a parameter whose gradient is zero, and leaves one
that has none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import HeteroConv, MessagePassing
from torch_geometric.utils import softmax

import peergraph_pyg
from peergraph.fullgraph.tensor.conversions import replicated_together
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.fullgraph.fuzz.graphs import CLASSES, RELATIONS, graph_names
from tests.fullgraph.fuzz.models import CONVS, TYPED
from tests.fullgraph.fuzz.report import Configuration

SEED = 5
REFUSED = ["unused ids of rows"]
"""By offloaded rows."""
Gradients = dict[str, Tensor | None]
Case = Callable[[dict[str, Any], Callable[[nn.Module], nn.Module]], Gradients]


class Chain(nn.Module):
    """A layer and what users write behind it."""

    def __init__(self, conv: nn.Module, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.then = conv, then
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Takes features and edges."""
        return self.then(self.head(self.conv(x, edge_index)))


class Pair(nn.Module):
    """Two results, of which a loss may use one; a hook on it passes on no gradient for another."""

    def __init__(self, columns: int, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(columns, CLASSES), second
        self.register_full_backward_hook(lambda module, of_inputs, of_results: None)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        """Takes features and edges."""
        return self.first(x), self.second(x, edge_index)


def gradients(model: nn.Module, **others: Tensor) -> Gradients:
    """Gradients by name; those of rows are all rows."""
    tensors = {**dict(model.named_parameters()), **others}
    return {
        name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad
        for name, tensor in tensors.items()
        for grad in (tensor.grad,)
    }


def unused_result(make: Callable[[int], nn.Module], then: Callable[[Tensor], Tensor]) -> Case:
    def run(names: dict[str, Any], accelerate: Callable[[nn.Module], nn.Module]) -> Gradients:
        torch.manual_seed(0)
        x = names["x"].detach().clone().requires_grad_()
        pair = Pair(x.shape[1], Chain(make(x.shape[1]), then)).double()
        first, _ = accelerate(pair)(x, names["edge_index"])
        first.pow(2).sum().backward()
        return gradients(pair, x=x)

    return run


class Messages(MessagePassing):
    """Messages of two features of sources, one of them without its history."""

    def forward(self, a: Tensor, b: Tensor, edge_index: Tensor) -> Tensor:
        """Takes both features and edges."""
        out: Tensor = self.propagate(edge_index, a=a, b=b)
        return out

    def message(self, a_j: Tensor, b_j: Tensor) -> Tensor:
        """Of an edge."""
        return a_j.detach().tanh() * b_j


def constant_argument(function: Callable[..., Tensor]) -> Case:
    def run(names: dict[str, Any], accelerate: Callable[[nn.Module], nn.Module]) -> Gradients:
        torch.manual_seed(0)
        x, edges = names["x"].detach().clone().requires_grad_(), names["edge_index"]
        layers = nn.ModuleList([CONVS["SAGE"](x.shape[1], CLASSES) for _ in range(2)])
        model = accelerate(layers.double())
        a, b = (layer(x, edges) for layer in model)
        function(a, b, names).pow(2).sum().backward()
        return gradients(model, x=x)

    return run


def unused_type(kind: str) -> Case:
    def run(names: dict[str, Any], accelerate: Callable[[nn.Module], nn.Module]) -> Gradients:
        torch.manual_seed(0)
        x, z = names["x"].detach().clone().requires_grad_(), names["z"]
        layers = [
            HeteroConv({relation: TYPED[kind](a, CLASSES) for relation in RELATIONS})
            for a in (x.shape[1], CLASSES)
        ]
        model = accelerate(nn.ModuleList(layers).double())
        rows = {"a": x, "b": z}
        for layer in model:
            rows = layer(rows, names["edges"])
        F.cross_entropy(rows["b"], rows["b"].argmax(1)).backward()
        return gradients(model, x=x)

    return run


def unused_steps(make: Callable[[], nn.Module]) -> Case:
    def run(names: dict[str, Any], accelerate: Callable[[nn.Module], nn.Module]) -> Gradients:
        torch.manual_seed(0)
        x, network = names["x"], make().double()
        x = x[:, :2].detach().clone().requires_grad_()
        _, last = network(torch.stack([x, x * 2], 1))
        last = last[0] if isinstance(last, tuple) else last
        last[0].pow(2).sum().backward()
        return gradients(network, x=x)

    return run


def _same(x: Tensor) -> Tensor:
    return x


def _scores(x: Tensor, names: dict[str, Any]) -> Tensor:
    destination = names["edge_index"][1]
    return softmax(x[destination].sum(1), destination).unsqueeze(1)


def _layer(kind: str, columns: int) -> nn.Module:
    return CONVS[kind](columns, 4)


THEN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x.relu(),
    "dropout": lambda x: F.dropout(x, 0.5),
    "batch norm": nn.BatchNorm1d(CLASSES).double(),
    "frozen batch norm": nn.BatchNorm1d(CLASSES).double().eval(),
    "layer norm": lambda x: F.layer_norm(x, [CLASSES]),
    "softmax of rows": lambda x: x.softmax(0),
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),
    "max": lambda x: x.max(0).values,
    "norm": lambda x: x.norm(),
    "mask": lambda x: x[x.detach()[:, 0] > 0],
    "ids": lambda x: x[[0, 3, 3]],
    "row": lambda x: x[2],
    "ids of rows": lambda x: x[x.detach().argmax(1)],
    "product": lambda x: x.t() @ x,
    "loss": lambda x: F.cross_entropy(x, x.detach().argmax(1)),
    "copy": lambda x: x.clone(),
    "write": lambda x: torch.where(x > 0, x, 0.5),
    "join": lambda x: torch.cat([x, x * 2], 1),
}
WITH_WEIGHTS = [kind for kind in CONVS if kind != "LG"]
CASES: dict[str, Case] = {
    **{f"unused {kind}": unused_result(partial(_layer, kind), _same) for kind in WITH_WEIGHTS},
    **{f"unused {key}": unused_result(partial(_layer, "SAGE"), then) for key, then in THEN.items()},
    "unused LSTM": unused_steps(lambda: nn.LSTM(2, 3, num_layers=2, batch_first=True)),
    "unused GRU": unused_steps(lambda: nn.GRU(2, 3, num_layers=2, batch_first=True)),
}
CONSTANT: dict[str, Callable[..., Tensor]] = {
    "factor": lambda a, b, names: a.detach() * b,
    "messages": lambda a, b, names: Messages()(a, b, names["edge_index"]),
    "choice": lambda a, b, names: torch.where(a > 0, a.detach(), b),
    "class": lambda a, b, names: F.cross_entropy(b, a.argmax(1)),
    "teacher": lambda a, b, names: F.kl_div(b.log_softmax(1), a.detach().softmax(1)),
    "columns": lambda a, b, names: torch.cat([a.detach(), b], 1),
    "rows": lambda a, b, names: torch.cat([a.detach()[names["mask"]], b[names["mask"]]], 0),
    "sum": lambda a, b, names: b * a.sum().detach(),
    "norm": lambda a, b, names: b / a.norm().detach(),
    "mean": lambda a, b, names: b - a.mean(0).detach(),
    "product": lambda a, b, names: b.t() @ a.detach(),
    "scores": lambda a, b, names: b[names["edge_index"][0]] * _scores(a.detach(), names),
    "no gradient of one": lambda a, b, names: b + torch.zeros_like(a),
    "selected rows": lambda a, b, names: b[a.detach()[:, 0] > 0],
    "greatest": lambda a, b, names: b.masked_fill(b < a.detach(), 0.0),
    "parts": lambda a, b, names: torch.cat([a, b], 1).split(CLASSES, 1)[1],
    "stack": lambda a, b, names: torch.stack([a, b]).unbind(0)[1],
}
CASES |= {f"constant {name}": constant_argument(function) for name, function in CONSTANT.items()}
TYPED_CASES = {f"unused type, {kind}": unused_type(kind) for kind in TYPED}


def check(graph: str, chunks: int, is_full: bool = True) -> None:
    where = Configuration(chunks=chunks, graph=graph)
    for name, case in (CASES if graph == "pyg" else TYPED_CASES).items():
        right = case(graph_names(SEED, where, is_plain=True), lambda model: model)
        for is_accelerated in (False, True) if is_full else (True,):
            accelerate = peergraph_pyg.accelerate if is_accelerated else lambda model: model
            names = graph_names(SEED, where, is_plain=not is_full)
            try:
                values = case(names, accelerate)
            except NotImplementedError:
                assert chunks, name
                assert name in REFUSED, name
                continue
            for parameter, expected in right.items():
                place = f"{name}, accelerated: {is_accelerated}, {parameter}"
                grad = values[parameter]
                assert (grad is None) == (expected is None), f"{place}: {grad}"
                if grad is not None:
                    torch.testing.assert_close(grad, expected, msg=place)


@pytest.mark.parametrize("chunks", [0, 2])
@pytest.mark.parametrize("graph", ["pyg", "typed"])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.timeout(280)
def test_the_same_parameters_have_no_gradient(ranks: int, graph: str, chunks: int) -> None:
    if ranks == 1:
        check(graph, chunks)
    else:
        run_ranks(check, ranks, graph, chunks, device="cpu")


@pytest.mark.parametrize("graph", ["pyg", "typed"])
def test_the_same_parameters_of_layers_on_plain_tensors_have_no_gradient(graph: str) -> None:
    check(graph, 0, is_full=False)


def _use_some(dtypes: tuple[torch.dtype, ...]) -> None:
    group = Group.current(device="cpu")
    weights = [torch.ones(2, dtype=dtype, requires_grad=True) for dtype in dtypes]
    entered = replicated_together(group, *weights, None)
    parts = [entered[0]] if group.rank == 1 else [entered[0], entered[1]]
    sum(part.double().sum() for part in parts).backward()
    values = [None if weight.grad is None else weight.grad.tolist() for weight in weights]
    assert values == [[3, 3], [2, 2], None]
    assert weights[1].grad.dtype == dtypes[1]


@pytest.mark.parametrize(
    "dtypes", [(torch.float64,) * 3, (torch.float64, torch.float32, torch.half)]
)
def test_a_rank_that_does_not_use_a_parameter_gets_its_gradient(
    dtypes: tuple[torch.dtype, ...],
) -> None:
    run_ranks(_use_some, 3, dtypes, device="cpu")
