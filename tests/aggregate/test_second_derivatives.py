"""Second derivatives: of sums, means and linear layers exact, of others refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from peergraph.aggregate import (
    Csc,
    attention,
    edge_softmax,
    g_sddmm,
    g_spmm,
    layers,
    spmm_add_self,
    spmm_linear,
)
from tests.named_case import named_case, named_cases

SOURCES, DESTINATIONS, EDGES = 6, 5, 11


# Products of the Jacobian with a random vector: quick, and no less sharp for wrong terms.
gradgradcheck = partial(torch.autograd.gradgradcheck, fast_mode=True)


def csc_of(destinations: int = DESTINATIONS, *, transient: bool = False) -> Csc:
    """A multigraph whose last two destinations have no edges."""
    random = torch.Generator().manual_seed(0)
    source = torch.randint(SOURCES, (EDGES,), generator=random)
    destination = torch.randint(destinations - 2, (EDGES,), generator=random)
    edge_index = torch.stack([source, destination])
    return Csc.from_edge_index(edge_index, destinations, SOURCES, transient=transient)


def leaf(*shape: int) -> Tensor:
    """Numbers that can be divided by."""
    return (torch.rand(*shape, dtype=torch.float64) + 0.5).requires_grad_()


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


@named_cases("message", ["copy_u", "copy_e", "add", "sub", "mul", "div", "dot"])
def test_sums_and_means(message: str) -> None:
    csc, x = csc_of(), leaf(SOURCES, 2, 2)
    e = leaf(EDGES, 2, 2) if message in ("copy_e", "add", "sub", "dot") else leaf(EDGES, 2)
    operands = {"copy_u": (x,), "copy_e": (e,)}.get(message, (x, e))
    for reduce in ("sum", "mean"):
        with named_case(reduce):
            if message == "copy_e":
                assert gradgradcheck(lambda e, r=reduce: g_spmm(csc, "copy_e", r, e=e), operands)
            else:
                assert gradgradcheck(lambda *o, r=reduce: g_spmm(csc, message, r, *o), operands)


@named_cases("op", ["copy", "sub", "mul", "div", "dot"])
def test_values_of_edges(op: str) -> None:
    csc, rows = csc_of(), {"u": SOURCES, "v": DESTINATIONS, "e": EDGES}
    for left, right in ("uv", "eu", "ve", "uu"):
        operands: tuple[Tensor, ...] = (leaf(rows[left], 2),)
        targets = {"lhs_target": left}
        if op != "copy":
            operands, targets["rhs_target"] = (*operands, leaf(rows[right], 2)), right
        with named_case(left, right):
            assert gradgradcheck(lambda *o, t=targets: g_sddmm(csc, op, *o, **t), operands)


def test_sums_at_sources() -> None:
    csc, x, e = csc_of(), leaf(DESTINATIONS, 2, 2), leaf(EDGES, 2)
    assert gradgradcheck(lambda x, e: csc.spmm_transposed("mul", x, e), (x, e))
    assert gradgradcheck(lambda e: csc.spmm_transposed("copy_e", None, e), (e,))


def test_products_of_sums() -> None:
    csc, x, weight, bias = csc_of(), leaf(SOURCES, 3), leaf(2, 3), leaf(2)
    for reduce in ("sum", "mean"):
        own, self_x, narrow = leaf(2, 3), leaf(DESTINATIONS, 2), leaf(2, 2)
        runs: list[tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = [
            (lambda x, w, s, b, r=reduce: spmm_linear(csc, r, x, w, s, b), (x, weight, own, bias)),
            (lambda x, w, r=reduce: spmm_linear(csc, r, x, w), (x, weight)),
            (lambda x, r=reduce: spmm_linear(csc, r, x, weight.detach()), (x,)),
            (
                lambda x, w, y, s, r=reduce: spmm_linear(csc, r, x, w, s, self_x=y),
                (x, weight, self_x, narrow),
            ),
        ]
        for number, (run, operands) in enumerate(runs):
            with named_case(reduce, number):
                assert gradgradcheck(run, operands)


def test_layers() -> None:
    square, other = csc_of(SOURCES), csc_of(SOURCES)
    x, weight, bias, one = leaf(SOURCES, 3), leaf(2, 3), leaf(2), leaf(1)
    e, wide = leaf(EDGES), leaf(3)
    assert gradgradcheck(lambda x, s, e, b: spmm_add_self(square, x, s, e, b), (x, one, e, wide))
    assert gradgradcheck(lambda x, eps: layers.gin(square, x, eps), (x, one))
    for loops in (False, True):
        assert gradgradcheck(
            lambda x, w, b, n=loops: layers.gcn(square, x, weight=w, bias=b, add_self_loops=n),
            (x, weight, bias),
        )
    assert gradgradcheck(
        lambda x, w, v: layers.rgcn([square, other], x, [w, v]), (x, weight, leaf(2, 3))
    )
    assert gradgradcheck(lambda x, w, e: layers.graph(square, x, w, edge_weight=e), (x, weight, e))


def test_gradient_penalty() -> None:
    """Two layers, relu, and the norm of the gradient of the features, beside dense products."""
    csc = csc_of(SOURCES)
    dense = torch.zeros(SOURCES, SOURCES, dtype=torch.float64)
    columns, rows = csc.edge_ends()
    dense.index_put_((rows, columns), torch.ones(EDGES, dtype=torch.float64), accumulate=True)
    mean = dense / dense.sum(1, keepdim=True).clamp(min=1)
    first, own, second = leaf(4, 3), leaf(4, 3), leaf(2, 4)

    def ours(x: Tensor) -> Tensor:
        hidden = spmm_linear(csc, "mean", x, first, own).relu()
        return spmm_linear(csc, "mean", hidden, second)

    def theirs(x: Tensor) -> Tensor:
        return mean @ (mean @ x @ first.T + x @ own.T).relu() @ second.T

    results = []
    for run in (ours, theirs):
        values = torch.linspace(-1, 1, SOURCES * 3, dtype=torch.float64)
        x = values.view(SOURCES, 3).requires_grad_()
        (gradient,) = torch.autograd.grad(run(x).square().sum(), x, create_graph=True)
        loss = (gradient.norm(dim=1) - 1).square().mean()
        results.append(torch.autograd.grad(loss, [x, first, own, second]))
    torch.testing.assert_close(results[0], results[1])


def test_others_name_themselves() -> None:
    csc, x, scores = csc_of(SOURCES), leaf(SOURCES, 2), leaf(EDGES, 2)
    left = leaf(SOURCES, 2)
    runs: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
        "max and min over edges": (lambda x: g_spmm(csc, "copy_u", "max", x), x),
        "softmax over edges": (lambda e: edge_softmax(csc, e), scores),
        "attention in one pass": (lambda x: attention(csc, x.unsqueeze(2), left, left), x),
    }
    for name, (run, operand) in runs.items():
        with named_case(name), pytest.raises(NotImplementedError, match=f"=True: {name} can be"):
            torch.autograd.grad(run(operand).square().sum(), operand, create_graph=True)
