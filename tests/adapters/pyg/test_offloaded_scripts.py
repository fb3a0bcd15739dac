"""What scripts do between layers, on offloaded rows and on plain tensors."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from peergraph.testing import run_ranks

pytest.importorskip("torch_geometric")

from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

import peergraph_pyg

NODES, COLUMNS, CLASSES = 30, 6, 3
Case = Callable[[Any], Any]


def graph() -> Any:
    draw = torch.Generator().manual_seed(0)
    edges = torch.unique(torch.randint(NODES, (2, 5 * NODES), generator=draw), dim=1)
    data = Data(edge_index=edges, num_nodes=NODES)
    data.x = torch.randn(NODES, COLUMNS, generator=draw, dtype=torch.float64)
    data.y = torch.randint(CLASSES, (NODES,), generator=draw)
    data.train_mask = torch.rand(NODES, generator=draw) < 0.5
    return data


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(COLUMNS, 8), GCNConv(8, CLASSES)

    def hidden(self, data: Any) -> Tensor:
        return F.relu(self.first(data.x, data.edge_index))

    def forward(self, data: Any) -> Tensor:
        out: Tensor = self.second(self.hidden(data), data.edge_index)
        return out


def net() -> Net:
    torch.manual_seed(1)
    return Net().double()


def loss_of(out: Tensor, data: Any) -> Tensor:
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


def trained(loss: Tensor, model: nn.Module) -> list[Any]:
    loss.backward()
    return [loss, *gradients(model)]


def checkpointed(data: Any) -> Any:
    model = net()
    hidden = F.relu(checkpoint(model.first, data.x, data.edge_index, use_reentrant=False))
    out = checkpoint(model.second, hidden, data.edge_index, use_reentrant=False)
    return trained(loss_of(out, data), model)


def checkpointed_reentrant(data: Any) -> Any:
    model = net()
    out = checkpoint(model.second, model.hidden(data), data.edge_index, use_reentrant=True)
    return trained(loss_of(out, data), model)


def checkpoint_of_all(data: Any) -> Any:
    model = net()
    return trained(checkpoint(lambda: loss_of(model(data), data), use_reentrant=False), model)


def evaluated_first(data: Any) -> Any:
    model = net()
    with torch.inference_mode():
        accuracy = model(data)[data.train_mask].argmax(1).sum()
    return [accuracy, *trained(loss_of(model(data), data), model)]


def evaluated_between(data: Any) -> Any:
    model = peergraph_pyg.accelerate(net())
    wider = peergraph_pyg.accelerate(GCNConv(CLASSES, 8).double())
    out = model(data)
    columns = out[..., -1:]
    with torch.inference_mode():
        scores = wider(out, data.edge_index)
    return [scores, *trained(columns[torch.tensor([3, 7, 7])].sum(), model)]


def changed_without_gradients(data: Any) -> Any:
    model = net()
    hidden = model.first(data.x, data.edge_index) * 1.5
    with torch.no_grad():
        hidden[data.train_mask] = 0.5
        hidden.mul_(2)
    return [hidden, *trained(hidden.pow(2).sum(), model.first)]


def deeply_copied(data: Any) -> Any:
    data, model = copy.deepcopy(data), copy.deepcopy(net())
    with torch.no_grad():
        out = copy.deepcopy(model(data))
    before = out.clone()
    copied = copy.deepcopy(out)
    copied.mul_(2)
    return [out - before, copied, *trained(loss_of(model(data), data), model)]


def on_the_host(data: Any) -> Any:
    model = net()
    out = model(data).cpu()
    rows = data.x * 2
    return [
        *trained(F.cross_entropy(out, whole(data.y)), model),
        torch.from_numpy(rows.numpy()),
        torch.tensor(rows.tolist()),
        rows.to("cpu"),
    ]


def saved(data: Any) -> Any:
    file = io.BytesIO()
    torch.save({"x": data.x, "hidden": net().hidden(data).detach()}, file)
    file.seek(0)
    return list(torch.load(file).values())


def hooked(data: Any) -> Any:
    model, grads = net(), list[Tensor]()
    hidden = model.hidden(data)
    hidden.register_hook(lambda grad: grads.append(grad) or grad * 2)  # type: ignore[func-returns-value]
    out = model.second(hidden, data.edge_index)
    out.register_hook(lambda grad: grad * 3)
    return [*trained(loss_of(out, data), model), *grads]


def retained(data: Any) -> Any:
    model = net()
    first = model.first(data.x, data.edge_index)
    first.retain_grad()
    hidden = F.relu(first)
    hidden.retain_grad()
    out = model.second(hidden, data.edge_index)
    return [*trained(loss_of(out, data) + first.square().mean(), model), first.grad, hidden.grad]


def two_graphs(data: Any) -> Any:
    model, other = net(), copy.copy(data)
    other.x = data.x.flip(1)
    return trained(loss_of(model(data), data) + model(other).square().mean(), model)


def two_full_graphs(data: Any) -> Any:
    # Two views of the same nodes, as of contrastive learning, each a full graph of its own.
    other = graph()
    if hasattr(data.x, "full_tensor"):
        other = peergraph_pyg.full_graph(other, offload=True, num_chunks=2)
    model = net()
    first, second = model(data), model(other)
    hidden = model.first(data.x, other.edge_index)
    loss = F.mse_loss(first, second.sigmoid()) + hidden.square().mean()
    return trained(loss + (first * second)[other.train_mask].mean(), model)


def two_losses(data: Any) -> Any:
    model = net()
    out = model(data)
    loss_of(out, data).backward(retain_graph=True)
    return trained(out.square().mean(), model)


def anomaly(data: Any) -> Any:
    model = net()
    with torch.autograd.detect_anomaly(check_nan=True):
        return trained(loss_of(model(data), data), model)


def summary_in_bilinear(data: Any) -> Any:
    torch.manual_seed(1)
    score = nn.Bilinear(8, 8, 1).double()
    model = net()
    hidden = model.hidden(data)
    summary = hidden.mean(0, keepdim=True).sigmoid()
    scores = score(hidden, summary.expand_as(hidden)) + score(summary.expand(NODES, -1), hidden)
    return [*trained(F.softplus(-scores).mean(), model), *gradients(score)]


def summary_in_products(data: Any) -> Any:
    model = net()
    hidden = model.hidden(data)
    summary = hidden.mean(0)
    loss = (hidden * summary.expand_as(hidden)).square().mean()
    return trained(loss + (hidden - summary.expand(NODES, -1)).exp().mean(), model)


def written_through_aliases(data: Any) -> Any:
    rows = data.x * 2
    alias = rows.detach()
    alias.mul_(3)
    rows.data.add_(1)
    rows.sub_(5)
    return [rows, alias]


def clipped(data: Any) -> Any:
    table = nn.Parameter(data.x * 2)
    optimizer = torch.optim.Adam([table], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        table.square().sum().backward()
        norm = nn.utils.clip_grad_norm_([table], 1.0)
        optimizer.step()
        table.data.clamp_(-1, 1)
    return [table.detach(), norm]


def moving_average(data: Any) -> Any:
    model, teacher = net(), net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
    losses = []
    for _ in range(3):
        with torch.no_grad():
            target = teacher(data)
        out = model(data)
        for mean, parameter in zip(teacher.parameters(), model.parameters(), strict=True):
            mean.data.mul_(0.9).add_(parameter.data, alpha=0.1)
        optimizer.zero_grad()
        loss = loss_of(out, data) + F.mse_loss(out, target + 1)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    for layer in (model.first, model.second):
        layer.reset_parameters()
    return [*losses, *trained(loss_of(model(data), data), model)]


def true_classes(data: Any) -> Any:
    model = net()
    out = model(data).log_softmax(1)
    every = -out[torch.arange(NODES), data.y].mean()
    return trained(every - out[data.train_mask, data.y[data.train_mask]].mean(), model)


def triples(data: Any) -> Any:
    """DistMult: scores of lists of triples, whose relations have a plain table of their own."""
    model, draw = net(), torch.Generator().manual_seed(2)
    relations = nn.Parameter(torch.randn(5, CLASSES, generator=draw, dtype=torch.float64))
    heads, tails, others = torch.randint(NODES, (3, 40), generator=draw)
    kinds = torch.randint(5, (40,), generator=draw)
    rows = model(data)
    true, false = ((rows[heads] * relations[kinds] * rows[ends]).sum(1) for ends in (tails, others))
    scores, labels = torch.cat([true, false]), torch.arange(80) < 40
    loss = F.binary_cross_entropy_with_logits(scores, labels.double())
    loss = loss + rows.pow(2).mean() + relations.pow(2).mean()
    return [*trained(loss, model), relations.grad, scores]


def written_pairs(data: Any) -> Any:
    rows, places = data.x * 2, torch.arange(NODES)
    rows[places, data.y] = 7.0
    rows[places, places % COLUMNS - COLUMNS] = places.double()
    return [rows]


def pseudo_labels(data: Any) -> Any:
    with torch.no_grad():
        confidence, classes = net()(data).softmax(1).max(1)
    sure = (confidence > 0.4) & ~data.train_mask
    labels = data.y.clone()
    labels[sure] = classes[sure]
    return [labels, classes]


CASES: list[Case] = [
    *(true_classes, pseudo_labels, written_pairs, triples),
    *(checkpointed, checkpointed_reentrant, checkpoint_of_all, evaluated_first),
    *(evaluated_between, changed_without_gradients, deeply_copied),
    *(on_the_host, saved, hooked, retained, two_graphs, two_full_graphs, two_losses, anomaly),
    *(summary_in_bilinear, summary_in_products, written_through_aliases, clipped, moving_average),
]


def whole(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def differences(num_chunks: int, cases: list[Case]) -> list[str]:
    """The names of cases whose results are others than those of plain tensors."""
    wrong = []
    for case in cases:
        torch.manual_seed(2)
        expected = case(graph())
        torch.manual_seed(2)
        actual = case(peergraph_pyg.full_graph(graph(), offload=True, num_chunks=num_chunks))
        for place, (part, right) in enumerate(zip(actual, expected, strict=True)):
            part = whole(part)
            if part is right is None:
                continue
            if (
                part is None
                or right is None
                or part.shape != right.shape
                or not torch.allclose(part.to(right.dtype), right)
            ):
                wrong.append(f"{case.__name__}, result {place}: {part}, not {right}")
    return wrong


@pytest.mark.parametrize("case", CASES)
def test_equals_plain_tensors(case: Case) -> None:
    assert not differences(3, [case])


def test_equals_plain_tensors_on_three_ranks() -> None:
    for results in run_ranks(differences, 3, 2, CASES, timeout_s=300):
        assert not results


def test_a_hook_that_comes_too_late_is_refused() -> None:
    data = peergraph_pyg.full_graph(graph(), offload=True, num_chunks=3)
    model = net()
    first = model.first(data.x, data.edge_index)
    loss = loss_of(model.second(F.relu(first), data.edge_index), data)
    with pytest.raises(NotImplementedError, match="as soon as it is made"):
        first.register_hook(print)
    with pytest.raises(NotImplementedError, match="as soon as it is made"):
        torch.autograd.grad(loss, first)
