"""Training with offloaded rows gives the losses and gradients of rows on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peergraph.aggregate.layers import gat, gatv2, gcn, gin, sage
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.fullgraph.gpu_numbers import GPU_NUMBERS
from tests.fullgraph.partitioned_cases import assert_none_failed

from .offloaded_runs import (
    CLASSES,
    FEATURES,
    NODES,
    PLENTY,
    Data,
    compare,
    is_offloaded,
    make_graph,
    offload,
    train,
)

HIDDEN = 8


class TwoLayers(nn.Module):
    """Two layers of a kind with dropout between."""

    def __init__(self, layer: Callable[..., nn.Module], *, norm: Any = nn.Identity) -> None:
        super().__init__()
        self.first = layer(FEATURES, HIDDEN)
        self.norm = norm(HIDDEN)
        self.second = layer(HIDDEN, CLASSES)

    def forward(self, data: Data) -> Tensor:
        h = F.relu(self.norm(self.first(data, data.x)))
        h = F.dropout(h, 0.3, self.training)
        out: Tensor = self.second(data, h)
        return out


class Layer(nn.Module):
    """A linear layer, applied around an aggregation."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)


class SumThenLinear(Layer):
    def forward(self, data: Data, x: Tensor) -> Tensor:
        return self.linear(data.structure.spmm("copy_u", "sum", x))


class LinearThenMean(Layer):
    def forward(self, data: Data, x: Tensor) -> Tensor:
        return data.structure.spmm("copy_u", "mean", self.linear(x))


class Weighted(Layer):
    def forward(self, data: Data, x: Tensor) -> Tensor:
        return data.structure.spmm("mul", "sum", self.linear(x), data.weights)


class Gcn(Layer):
    def forward(self, data: Data, x: Tensor) -> Tensor:
        weight, bias = self.linear.weight, self.linear.bias
        return gcn(data.structure, x, weight=weight, bias=bias)


class GcnWithLoops(Layer):
    def forward(self, data: Data, x: Tensor) -> Tensor:
        weight, bias = self.linear.weight, self.linear.bias
        return gcn(data.structure, x, weight=weight, bias=bias, add_self_loops=True)


class Sage(Layer):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.own = nn.Linear(inputs, outputs, bias=False)

    def forward(self, data: Data, x: Tensor) -> Tensor:
        return sage(
            data.structure,
            x,
            self.linear.weight,
            self_weight=self.own.weight,
            bias=self.linear.bias,
        )


class Maximum(Layer):
    def forward(self, data: Data, x: Tensor) -> Tensor:
        return sage(data.structure, x, self.linear.weight, reduce="max")


class Gin(Layer):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.eps = nn.Parameter(torch.zeros(1))

    def forward(self, data: Data, x: Tensor) -> Tensor:
        return self.linear(gin(data.structure, x, self.eps))


class GinWithFixedShare(Gin):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.eps.requires_grad_(False).fill_(0.3)


class Gat(nn.Module):
    def __init__(self, inputs: int, outputs: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 2 * outputs)
        self.source = nn.Parameter(torch.randn(2, outputs))
        self.destination = nn.Parameter(torch.randn(2, outputs))
        self.dropout = dropout

    def forward(self, data: Data, x: Tensor) -> Tensor:
        h = self.linear(x).view(-1, 2, self.source.shape[1])
        dropout = self.dropout if self.training else 0.0
        out = gat(data.structure, h, self.source, self.destination, dropout=dropout)
        return out.mean(1)


class GatWithDropout(Gat):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 0.4)


class Gatv2(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.left = nn.Linear(inputs, 2 * outputs)
        self.right = nn.Linear(inputs, 2 * outputs)
        self.att = nn.Parameter(torch.randn(2, outputs))

    def forward(self, data: Data, x: Tensor) -> Tensor:
        shape = -1, 2, self.att.shape[1]
        left, right = self.left(x).view(shape), self.right(x).view(shape)
        return gatv2(data.structure, left, right, self.att).flatten(1)[:, : self.att.shape[1]]


class Residual(nn.Module):
    """Hidden rows are used twice, and the last layers' outputs are concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, HIDDEN)
        self.inner = nn.ModuleList(SumThenLinear(HIDDEN, HIDDEN) for _ in range(2))
        self.last = nn.Linear(3 * HIDDEN, CLASSES)

    def forward(self, data: Data) -> Tensor:
        h = F.elu(self.first(data.x))
        layers = [h]
        for layer in self.inner:
            h = F.layer_norm(layer(data, h), (HIDDEN,)).tanh() + h
            layers.append(h)
        out: Tensor = self.last(torch.cat(layers, dim=-1))
        return out


def masked_loss(model: nn.Module, data: Data) -> Tensor:
    return F.cross_entropy(model(data)[data.mask], data.y[data.mask])


def full_loss(model: nn.Module, data: Data) -> Tensor:
    out = model(data)
    return F.cross_entropy(out, data.y) + 0.1 * out.square().mean()


def normalised_loss(model: nn.Module, data: Data) -> Tensor:
    """Of functions over all rows whose gradients need sums over all rows."""
    out = model(data)
    normalised = (out - out.mean(0)) / (out.std(0) + 0.1)
    attention = (normalised.softmax(0) * out).sum(0)
    return F.cross_entropy(normalised, data.y) + attention.square().sum() + out.amax()


MODELS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "sum": (lambda: TwoLayers(SumThenLinear), masked_loss),
    "sum, loss of all rows": (lambda: TwoLayers(SumThenLinear), full_loss),
    "sum, normalised over all rows": (lambda: TwoLayers(SumThenLinear), normalised_loss),
    "mean": (lambda: TwoLayers(LinearThenMean), masked_loss),
    "weights": (lambda: TwoLayers(Weighted), masked_loss),
    "gcn": (lambda: TwoLayers(Gcn), masked_loss),
    "gcn with loops": (lambda: TwoLayers(GcnWithLoops), masked_loss),
    "sage": (lambda: TwoLayers(Sage), masked_loss),
    "max": (lambda: TwoLayers(Maximum), masked_loss),
    "gin": (lambda: TwoLayers(Gin), masked_loss),
    "gin with a fixed share": (lambda: TwoLayers(GinWithFixedShare), masked_loss),
    "gat": (lambda: TwoLayers(Gat), masked_loss),
    "gat with dropout": (lambda: TwoLayers(GatWithDropout), masked_loss),
    "gatv2": (lambda: TwoLayers(Gatv2), masked_loss),
    "batch norm": (lambda: TwoLayers(Sage, norm=nn.BatchNorm1d), masked_loss),
    "layer norm": (lambda: TwoLayers(Sage, norm=nn.LayerNorm), masked_loss),
    "residual": (Residual, full_loss),
}
# Chunks and bytes of the device's budget, by the number of ranks; models take them in turn.
CHUNKS = {1: ((1, PLENTY), (3, 0), (7, PLENTY)), 2: ((3, 0),), 3: ((2, PLENTY),), 4: ((3, 0),)}


def failures_on_rank(names: list[str]) -> dict[str, str]:
    group = Group.current(timeout=60)
    data, layout = make_graph(group)
    failed = {}
    choices = CHUNKS[group.world_size]
    for number, name in enumerate(names):
        make, loss_of = MODELS[name]
        expected = train(make, loss_of, data, steps=2)
        count, device_bytes = choices[number % len(choices)]
        chunked = offload(data, layout, Chunks.even(layout, count), device_bytes)
        try:
            compare(train(make, loss_of, chunked, steps=2), expected)
        except Exception as error:
            failed[f"{name}, {count} chunks"] = f"{type(error).__name__}: {error}"
    return failed


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_equals_resident(world_size: int) -> None:
    # All models on one rank; those of even numbers on three, the others on two.
    names = list(MODELS)[slice(None) if world_size == 1 else slice(3 - world_size, None, 2)]
    assert_none_failed(run_ranks(failures_on_rank, world_size, names, timeout_s=300))


@pytest.mark.parametrize("world_size", GPU_NUMBERS)
def test_equals_resident_on_gpus(world_size: int) -> None:
    ranks = run_ranks(failures_on_rank, world_size, list(MODELS), device="cuda", timeout_s=300)
    assert not any(ranks), ranks


def two_runs_on_rank() -> bool:
    group = Group.current(timeout=60)
    data, layout = make_graph(group)
    for make, loss_of in (MODELS["gat"], MODELS["sum"]):
        traces = [
            train(make, loss_of, offload(data, layout, Chunks.even(layout, 4), 0)) for _ in range(2)
        ]
        first, second = traces
        assert first.losses == second.losses
        for a, b in zip(first.gradients, second.gradients, strict=True):
            assert torch.equal(a, b)
    return True


def test_two_runs_are_equal() -> None:
    assert all(run_ranks(two_runs_on_rank, 2))


@pytest.mark.parametrize("world_size", GPU_NUMBERS)
def test_two_runs_are_equal_on_gpus(world_size: int) -> None:
    assert all(run_ranks(two_runs_on_rank, world_size, device="cuda"))


def as_many_chunks_as_rows() -> bool:
    group = Group.current(timeout=60)
    data, layout = make_graph(group)
    make, loss_of = MODELS["sage"]
    expected = train(make, loss_of, data)
    chunked = offload(data, layout, Chunks.even(layout, NODES + 2), 0)
    assert is_offloaded(chunked.x)
    compare(train(make, loss_of, chunked), expected)
    return True


def test_more_chunks_than_rows() -> None:
    assert all(run_ranks(as_many_chunks_as_rows, 2))


def test_gradients_of_inner_tensors_by_inputs() -> None:
    data, layout = make_graph(Group.current("cpu"))
    results = []
    for graph in (data, offload(data, layout, Chunks.even(layout, 3), PLENTY)):
        w = torch.eye(data.x.shape[1], dtype=torch.float64, requires_grad=True)
        hidden = graph.structure.spmm("copy_u", "sum", F.linear(graph.x, w)) * 2
        hidden.retain_grad()
        total = hidden.sigmoid().sum()
        total.backward(inputs=[hidden], retain_graph=True)
        assert w.grad is None
        total.backward(inputs=[w])
        results.append((hidden.grad.full_tensor(), w.grad))  # type: ignore[union-attr]
    torch.testing.assert_close(results[1], results[0])
