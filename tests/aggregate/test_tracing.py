"""Aggregation under what looks at torch's operations, or changes what tensors are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from peergraph.aggregate import (
    Csc,
    attention,
    edge_softmax,
    g_sddmm,
    g_spmm,
    message,
    spmm_add_self,
    spmm_linear,
)
from tests.aggregate.graphs import features, random_graph
from tests.named_case import named_case

Operation = Callable[[Csc, Tensor], Tensor]


def of_heads(csc: Csc, x: Tensor) -> Tensor:
    heads = x.view(-1, 2, 4)
    return attention(csc, heads, None, heads, att=x[:2, :4])


OPERATIONS: dict[str, Operation] = {
    "mean": lambda csc, x: g_spmm(csc, "copy_u", "mean", x),
    "max": lambda csc, x: g_spmm(csc, "copy_u", "max", x),
    "dot": lambda csc, x: g_sddmm(csc, "dot", x, x),
    "softmax": lambda csc, x: edge_softmax(csc, g_sddmm(csc, "add", x, x)),
    "attention": of_heads,
    "own": lambda csc, x: spmm_add_self(csc, x, x.new_ones(1)),
    "linear": lambda csc, x: spmm_linear(csc, "mean", x, x[:3], x[3:6]),
    "message": lambda csc, x: message("relu(u * v)", "mean")(csc, u=x, v=x),
}


def gradient(run: Operation, csc: Csc, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(run(csc, x).square().sum(), x)[0]


@pytest.fixture(params=OPERATIONS)
def run(request: pytest.FixtureRequest) -> Operation:
    return OPERATIONS[request.param]


def square_graph(device: torch.device) -> tuple[Csc, Tensor]:
    graph = random_graph(device, num_sources=7, num_destinations=7, num_edges=15)
    return graph.csc(), features(7, (8,), device, grad=False)


def test_make_fx(run: Operation, device: torch.device) -> None:
    csc, x = square_graph(device)
    traced = make_fx(lambda x: run(csc, x))(x)
    torch.testing.assert_close(traced(x + 1), run(csc, x + 1))
    csc, x = square_graph(device)  # Whose transpose the trace makes.
    traced = make_fx(lambda x: gradient(run, csc, x))(x)
    expected = gradient(run, square_graph(device)[0], x + 1)
    torch.testing.assert_close(traced(x + 1), expected)
    torch.testing.assert_close(gradient(run, csc, x + 1), expected)


def test_fake_tensors(run: Operation, device: torch.device) -> None:
    csc, x = square_graph(device)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        shapes = [t.shape for t in (run(csc, mode.from_tensor(x)),
                                    gradient(run, csc, mode.from_tensor(x)))]  # fmt: skip
    assert shapes == [run(csc, x).shape, x.shape]
    torch.testing.assert_close(gradient(run, csc, x), gradient(run, square_graph(device)[0], x))


def test_transforms_are_refused(device: torch.device) -> None:
    for name, run in OPERATIONS.items():
        with named_case(name):
            check_transforms_are_refused(run, device)


def check_transforms_are_refused(run: Operation, device: torch.device) -> None:
    csc, x = square_graph(device)
    with pytest.raises(NotImplementedError, match=r"transforms of torch\.func"):
        torch.func.grad(lambda x: run(csc, x).sum())(x)
    with pytest.raises(NotImplementedError, match=r"transforms of torch\.func"):
        torch.func.vmap(lambda x: run(csc, x))(x.expand(2, -1, -1))
    out = run(csc, x.requires_grad_())
    with pytest.raises(NotImplementedError, match="is_grads_batched"):
        torch.autograd.grad(out, x, torch.ones(2, *out.shape).to(out), is_grads_batched=True)


def test_sparse_operands_are_refused(device: torch.device) -> None:
    csc, x = square_graph(device)
    with pytest.raises(
        TypeError, match=r"x must be a dense tensor .*sparse_coo; pass to_dense\(\)"
    ):
        g_spmm(csc, "copy_u", "sum", x.to_sparse())
