"""What scripts do with autograd and compilers on partitioned graphs: as PyG in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import nn as pyg

import peergraph_pyg

from .graphs import CLASSES, WIDTH, small_graph, small_hetero
from .ranks import assert_close, full, partition_of_case, shared

Values = list[Any]
Run = Callable[[Any, Callable[[nn.Module], nn.Module]], Values]


class Net(nn.Module):
    """Two layers, with modules of torch around them."""

    def __init__(self, kind: Callable[..., nn.Module] = pyg.GCNConv) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = kind(WIDTH, 8), kind(8, CLASSES)
        self.act, self.head = nn.ReLU(), nn.Linear(CLASSES, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.head(self.second(self.act(self.first(x, edge_index)), edge_index))
        return out


def loss_of(out: Tensor, data: Any) -> Tensor:
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def check(run: Run) -> None:
    """Checks what `run` returns for PyG's data, with PyG's layers and with Peergraph's."""
    data = shared(small_graph)
    expected = run(data, lambda model: model)
    for accelerate in (lambda model: model, peergraph_pyg.accelerate):
        actual = run(partition_of_case(data), accelerate)
        for number, (value, right) in enumerate(zip(actual, expected, strict=True)):
            assert_close(value, right, name=f"value {number}")


def gradients(model: nn.Module) -> Values:
    return [parameter.grad for parameter in model.parameters()]


def compiled(backend: str, kind: Callable[..., nn.Module]) -> None:
    """A compiled model, and a compiled step with its backward pass, over several epochs."""

    def run(data: Any, swap: Callable[[nn.Module], nn.Module]) -> Values:
        model = swap(Net(kind))
        if type(data.x) is not Tensor:
            torch._dynamo.reset()
            forward, wrap = torch.compile(model, backend=backend), torch.compile
        else:
            forward, wrap = model, lambda function, backend: function
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        losses = []

        def step(mask: Tensor) -> Tensor:
            optimizer.zero_grad()
            out = forward(data.x, data.edge_index)
            loss = F.cross_entropy(out[mask], data.y[mask])
            loss.backward()
            optimizer.step()
            return loss.detach()

        for train in (step, wrap(step, backend=backend)):
            for mask in (data.train_mask, data.val_mask):
                losses.append(train(mask))
                model.eval()
                with torch.no_grad():
                    losses.append(forward(data.x, data.edge_index))
                model.train()
        return [*losses, *gradients(model)]

    check(run)


def compiled_of_types() -> None:
    """A compiled layer that takes dicts reads partitioned tensors after graph breaks."""
    data = shared(small_hetero)
    widths = {node_type: data[node_type].x.shape[1] for node_type in data.node_types}
    torch.manual_seed(3)
    plain = pyg.HANConv(widths, 8, data.metadata(), heads=2).double()
    torch._dynamo.reset()
    layer = torch.compile(copy.deepcopy(plain), backend="eager")
    rows = partition_of_case(data)
    for _ in range(3):
        expected = plain(data.x_dict, data.edge_index_dict)
        actual = layer(rows.x_dict, rows.edge_index_dict)
        for node_type, right in expected.items():
            assert (right is None) == (actual[node_type] is None)
            if right is not None:
                assert_close(full(actual[node_type]), right, name=node_type)


def compiled_whole() -> None:
    torch._dynamo.reset()
    data = partition_of_case(shared(small_graph))
    model = torch.compile(Net(), backend="eager", fullgraph=True)
    with pytest.raises(NotImplementedError, match="without fullgraph=True"):
        model(data.x, data.edge_index)


def module_hooks() -> None:
    """Backward hooks see the gradients of inputs and outputs, and change them."""

    def run(data: Any, swap: Callable[[nn.Module], nn.Module]) -> Values:
        model, recorded = swap(Net()), []
        model.second.register_full_backward_hook(
            lambda module, inputs, outputs: recorded.extend([full(inputs[0]), full(outputs[0])])
        )
        model.second.register_full_backward_pre_hook(
            lambda module, outputs: tuple(output * 2 for output in outputs)
        )
        model.first.register_full_backward_hook(
            lambda module, inputs, outputs: (inputs[0] * 3, None)
        )
        model.first.register_forward_hook(lambda module, inputs, output: output * 0.5)
        x = data.x.detach().clone().requires_grad_()
        loss_of(model(x, data.edge_index), data).backward()
        return [*recorded, x.grad, *gradients(model)]

    check(run)


def tensor_hooks() -> None:
    def run(data: Any, swap: Callable[[nn.Module], nn.Module]) -> Values:
        model, recorded = swap(Net()), []
        hidden = model.first(data.x, data.edge_index)
        hidden.retain_grad()
        out = model.head(model.second(model.act(hidden), data.edge_index))
        out.register_hook(lambda grad: recorded.append(full(grad)) or grad * 2)
        loss_of(out, data).backward()
        return [*recorded, hidden.grad, *gradients(model)]

    check(run)


def anomaly() -> None:
    def run(data: Any, swap: Callable[[nn.Module], nn.Module]) -> Values:
        model = swap(Net())
        with torch.autograd.detect_anomaly(check_nan=True):
            loss_of(model(data.x, data.edge_index), data).backward()
        return gradients(model)

    check(run)
    data = partition_of_case(shared(small_graph))
    x = data.x.detach().clone().requires_grad_()
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="returned nan"):
        (x * 0).sqrt().mul(0).sum().backward()


def gradient_penalty(kind: Callable[..., nn.Module]) -> Callable[[], None]:
    """Second and third derivatives, through losses and norms that add up over ranks."""

    def run(data: Any, swap: Callable[[nn.Module], nn.Module]) -> Values:
        model = swap(Net(kind))
        model.act = nn.Sequential(pyg.GraphNorm(8), nn.Tanh())
        x = data.x.detach().clone().requires_grad_()
        out = model(x, data.edge_index)
        [first] = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        [second] = torch.autograd.grad(first.square().sum(), x, create_graph=True)
        of_weights = torch.autograd.grad(
            loss_of(out, data).square(), list(model.parameters()), create_graph=True
        )
        penalty = (first.norm(dim=1) - 1).square().mean() + second.square().mean()
        (penalty + sum(grad.square().sum() for grad in of_weights)).backward()
        return [penalty, x.grad, *gradients(model)]

    return lambda: check(run)


def once_differentiable() -> None:
    data = partition_of_case(shared(small_graph))
    model = peergraph_pyg.accelerate(Net(pyg.GATConv))
    x = data.x.detach().clone().requires_grad_()
    with pytest.raises(NotImplementedError, match="differentiated once"):
        torch.autograd.grad(model(x, data.edge_index).square().sum(), x, create_graph=True)


def transforms() -> None:
    """Ways to differentiate, batch or trace that would lose rows or gradients."""
    data, model = partition_of_case(shared(small_graph)), Net()
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(parameters: Any) -> Tensor:
        out = torch.func.functional_call(model, parameters, (data.x, data.edge_index))
        return loss_of(out, data)

    def forward_mode(loss: Callable[[Any], Tensor]) -> Callable[[Any], Any]:
        return lambda x: torch.func.jvp(loss, (x,), (x,))

    for transform in (torch.func.grad, torch.func.jacrev, forward_mode):
        with pytest.raises(NotImplementedError, match=r"torch\.autograd\.grad"):
            transform(loss)(parameters)
    tangent = torch.ones(2, WIDTH)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError):
        F.linear(data.x, torch.autograd.forward_ad.make_dual(tangent, tangent))
    out = model(data.x, data.edge_index).sum(0)
    with pytest.raises(NotImplementedError, match="is_grads_batched"):
        torch.autograd.grad(out, [model.head.bias], torch.eye(CLASSES), is_grads_batched=True)
    with pytest.raises(NotImplementedError, match=r"torch\.jit\.trace"):
        torch.jit.trace(model, (data.x, data.edge_index), check_trace=False)
    with pytest.raises(NotImplementedError, match=r"torch\.export"):
        torch.export.export(model, (data.x, data.edge_index))
    trained = {name: value.requires_grad_() for name, value in parameters.items()}
    loss(trained).backward()
    model.zero_grad()
    loss_of(model(data.x, data.edge_index), data).backward()
    for name, parameter in model.named_parameters():
        assert_close(trained[name].grad, parameter.grad, name=name)


def light_gcn() -> None:
    """PyG's recommender, which trains an embedding of all nodes."""
    pairs = torch.randint(23, (2, 3, 12), generator=torch.Generator().manual_seed(0))

    def run(data: Any, swap: Callable[[nn.Module], nn.Module]) -> Values:
        torch.manual_seed(2)
        model = swap(pyg.LightGCN(23, 6, num_layers=2))
        edges = data.edge_index
        likes, others = model(edges, pairs[:, 0]), model(edges, pairs[:, 1], data.edge_weight)
        loss = model.recommendation_loss(likes, others, node_id=pairs[0, 0])
        loss = loss + model.link_pred_loss(model(edges, pairs[:, 2]), torch.arange(12) % 2)
        loss.backward()
        with torch.no_grad():
            top = model.recommend(edges, src_index=pairs[0, 0], k=2)
            probabilities = model.predict_link(edges, pairs[:, 0], prob=True)
        return [loss, top, probabilities, model.get_embedding(edges), *gradients(model)]

    check(run)


def dist_mult() -> None:
    """Scores of lists of triples, whose relations have a plain table of their own."""
    draw = torch.Generator().manual_seed(0)
    heads, tails, others = torch.randint(23, (3, 40), generator=draw)
    kinds = torch.randint(5, (40,), generator=draw)

    def run(data: Any, swap: Callable[[nn.Module], nn.Module]) -> Values:
        model = swap(Net(pyg.SAGEConv))
        torch.manual_seed(2)
        relations = nn.Parameter(torch.randn(5, CLASSES))
        rows = model(data.x, data.edge_index)
        scores = [(rows[heads] * relations[kinds] * rows[ends]).sum(1) for ends in (tails, others)]
        loss = F.softplus(scores[1] - scores[0]).mean() + rows.pow(2).mean()
        loss.backward()
        return [loss, *scores, relations.grad, *gradients(model)]

    check(run)


CASES: dict[str, Callable[[], Any]] = {
    "compiled GCN": lambda: compiled("aot_eager", pyg.GCNConv),
    "compiled GAT": lambda: compiled("eager", pyg.GATConv),
    "compiled HAN": compiled_of_types,
    "compiled whole": compiled_whole,
    "module hooks": module_hooks,
    "tensor hooks": tensor_hooks,
    "anomaly": anomaly,
    "gradient penalty of SAGE": gradient_penalty(pyg.SAGEConv),
    "gradient penalty of GCN": gradient_penalty(pyg.GCNConv),
    "once differentiable": once_differentiable,
    "transforms": transforms,
    "LightGCN": light_gcn,
    "DistMult": dist_mult,
}
