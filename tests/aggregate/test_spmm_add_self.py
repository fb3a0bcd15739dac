"""Sums of neighbours and of self rows against the steps in plain torch."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.aggregate import Csc, spmm_add_self
from tests.named_case import named_case, named_cases
from tests.pairwise import pairwise

from .graphs import DTYPES, TOLERANCE, features, random_graph, weighted_gradients

COUNT, SOURCES = 30, 40


def reference(
    edge_index: Tensor, x: Tensor, self_weight: Tensor, e: Tensor | None, bias: Tensor | None = None
) -> Tensor:
    source, destination = edge_index.long()
    messages = x[source] if e is None else x[source] * e.unsqueeze(1)
    out = torch.zeros_like(x[:COUNT]).index_add(0, destination, messages) + self_weight * x[:COUNT]
    return out if bias is None else out + bias


@named_cases(
    ("backward", "weighted", "weight_shape", "width"),
    pairwise(["transpose", "atomic"], [False, True], [(), (1,), (COUNT, 1)], [1, 7, 64]),
)
def test_equals_the_steps(
    device: torch.device, backward: Any, weighted: bool, weight_shape: tuple[int, ...], width: int
) -> None:
    for grouped, nonisolated, shifted in product((True, False), (0.8, 0.2), (True, False)):
        graph = random_graph(device, SOURCES, COUNT, grouped=grouped, nonisolated=nonisolated)
        x = features(SOURCES, (width,), device, torch.float64)
        bias = features(width, (), device, torch.float64, seed=4) if shifted else None
        self_weight = torch.rand(weight_shape, device=device, dtype=torch.float64).requires_grad_()
        e = features(graph.num_edges, (), device, torch.float64, seed=3) if weighted else None
        leaves = [t for t in (x, self_weight, e, bias) if t is not None]
        expected = reference(graph.edge_index, x, self_weight, e, bias)
        actual = spmm_add_self(graph.csc(), x, self_weight, e, bias, backward=backward)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(
            weighted_gradients(actual, leaves), weighted_gradients(expected, leaves)
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(device: torch.device, dtype: torch.dtype) -> None:
    for backward in ("transpose", "atomic"):
        with named_case(backward):
            check_dtype(device, dtype, backward)


def check_dtype(device: torch.device, dtype: torch.dtype, backward: Any) -> None:
    graph = random_graph(device, SOURCES, COUNT, dtype=torch.int32)
    x = features(SOURCES, (8,), device, dtype)
    self_weight = torch.full((1,), 1.5, device=device, dtype=dtype)
    actual = spmm_add_self(graph.csc(), x, self_weight, backward=backward)
    expected = reference(graph.edge_index, x, self_weight, None)
    torch.testing.assert_close(actual, expected, **TOLERANCE[dtype])
    torch.testing.assert_close(
        weighted_gradients(actual, [x]), weighted_gradients(expected, [x]), **TOLERANCE[dtype]
    )


def test_few_rows(device: torch.device) -> None:
    for sources, destinations in ((0, 0), (3, 0), (1, 1)):
        indptr = torch.zeros(destinations + 1, dtype=torch.int64, device=device)
        csc = Csc(indptr, indptr[:0], sources)
        x = torch.ones(sources, 4, device=device, requires_grad=True)
        out = spmm_add_self(csc, x, torch.tensor([2.0], device=device))
        assert out.tolist() == [[2.0] * 4] * destinations
        out.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [[2.0] * 4] * destinations + [[0.0] * 4] * (
            sources - destinations
        )


def test_steps_where_nothing_is_saved(device: torch.device) -> None:
    graph = random_graph(device, SOURCES, COUNT)
    csc, x = graph.csc(), features(SOURCES, (8,), device).detach()
    self_weight = torch.ones(1, device=device, requires_grad=True)
    # Without a gradient of x, derivatives of any order.
    (first,) = torch.autograd.grad(
        spmm_add_self(csc, x, self_weight).square().sum(), self_weight, create_graph=True
    )
    (second,) = torch.autograd.grad(first.sum(), self_weight)
    torch.testing.assert_close(second, 2 * x[:COUNT].square().sum().reshape(1))
    wide = spmm_add_self(csc, x, self_weight.double())
    assert wide.dtype == torch.float64
    with torch.autocast(device.type, dtype=torch.bfloat16):
        low = spmm_add_self(csc, x.requires_grad_(), self_weight)
    torch.testing.assert_close(low.float(), wide.float(), **TOLERANCE[torch.bfloat16])
    compiled = torch.compile(spmm_add_self, backend="eager")
    torch.testing.assert_close(compiled(csc, x, self_weight).double(), wide, rtol=1e-4, atol=1e-4)


def test_deterministic(device: torch.device) -> None:
    csc = random_graph(device, SOURCES, COUNT).csc()
    csc.transient = True
    x, self_weight = features(SOURCES, (32,), device), torch.ones(1, device=device)
    results = [
        weighted_gradients(spmm_add_self(csc, x, self_weight, deterministic=True), [x])[0]
        for _ in range(3)
    ]
    assert all(torch.equal(results[0], again) for again in results)


def test_bad_arguments() -> None:
    csc = random_graph(torch.device("cpu"), SOURCES, COUNT).csc()
    x, self_weight = torch.ones(SOURCES, 4), torch.ones(1)
    with pytest.raises(ValueError, match=r"x must be \[40, columns\], got \[39, 4\]"):
        spmm_add_self(csc, x[1:], self_weight)
    with pytest.raises(
        ValueError, match=r"self_weight must be \[\], \[1\] or \[30, 1\], got \[2\]"
    ):
        spmm_add_self(csc, x, torch.ones(2))
    with pytest.raises(ValueError, match=r"e must be \[300\], got \[300, 1\]"):
        spmm_add_self(csc, x, self_weight, torch.ones(300, 1))
    with pytest.raises(ValueError, match=r"bias must be \[4\], got \[1, 4\]"):
        spmm_add_self(csc, x, self_weight, bias=torch.ones(1, 4))
    with pytest.raises(ValueError, match="destinations must be the first sources"):
        spmm_add_self(
            Csc(torch.zeros(4, dtype=torch.int64), torch.zeros(0).long(), 2), x[:2], self_weight
        )
    with pytest.raises(TypeError, match="x must be one of"):
        spmm_add_self(csc, x.long(), self_weight)
