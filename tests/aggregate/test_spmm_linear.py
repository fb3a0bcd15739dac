"""Sums of neighbours that are projected, against the steps in plain torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.aggregate import Csc, g_spmm, spmm_add_self, spmm_linear
from peergraph.aggregate.sparse import edge_matrix
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.memory.device.default_machine import WORK
from tests.named_case import named_case, named_cases
from tests.pairwise import pairwise

from .graphs import DTYPES, TOLERANCE, Graph, features, random_graph, weighted_gradients

COUNT, SOURCES, WIDTH, OUT = 30, 40, 36, 5


def reference_spmm(graph: Graph, reduce: str, x: Tensor) -> Tensor:
    source, destination = graph.edge_index.long()
    index = destination.unsqueeze(1).expand(-1, x.shape[1])
    kinds = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}
    out = x.new_zeros(COUNT, x.shape[1])
    return out.scatter_reduce(0, index, x[source], kinds[reduce], include_self=False)


def operands(
    device: torch.device, dtype: torch.dtype, relations: int, self_width: int
) -> dict[str, Any]:
    return {
        "x": features(SOURCES, (WIDTH,), device, dtype),
        "self_x": features(COUNT, (self_width,), device, dtype, seed=9),
        "weights": [features(OUT, (WIDTH,), device, dtype, seed=10 + i) for i in range(relations)],
        "self_weight": features(OUT, (self_width,), device, dtype, seed=20),
        "bias": features(OUT, (), device, dtype, seed=21),
    }


def check(
    device: torch.device,
    reduce: str = "mean",
    relations: int = 1,
    self_rows: str = "first rows",
    bias: bool = True,
    dtype: torch.dtype = torch.float64,
    num_edges: int = 60,
    nonisolated: float = 0.8,
    **options: Any,
) -> None:
    graphs = [
        random_graph(
            device, SOURCES, COUNT, num_edges, grouped=bool(i % 2), seed=i, nonisolated=nonisolated
        )
        for i in range(relations)
    ]
    inputs = operands(device, dtype, relations, 7 if self_rows == "rows" else WIDTH)
    x, weights = inputs["x"], inputs["weights"]
    expected = sum(
        reference_spmm(graph, reduce, x) @ weight.t()
        for graph, weight in zip(graphs, weights, strict=True)
    )
    assert isinstance(expected, Tensor)
    leaves, self_weight = [x, *weights], None
    if self_rows != "none":
        self_weight = inputs["self_weight"]
        rows = inputs["self_x"] if self_rows == "rows" else x[:COUNT]
        expected = expected + rows @ self_weight.t()
        leaves += [self_weight] + ([inputs["self_x"]] if self_rows == "rows" else [])
    if bias:
        expected = expected + inputs["bias"]
        leaves.append(inputs["bias"])
    actual = spmm_linear(
        [graph.csc() for graph in graphs],
        reduce,
        x,
        weights,
        self_weight,
        inputs["bias"] if bias else None,
        self_x=inputs["self_x"] if self_rows == "rows" else None,
        **options,
    )
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(actual, expected, **tolerance)
    torch.testing.assert_close(
        weighted_gradients(actual, leaves), weighted_gradients(expected, leaves), **tolerance
    )


@named_cases(
    ("backward", "reduce", "relations", "self_rows"),
    pairwise(["transpose", "atomic"], ["sum", "mean"], [1, 3], ["none", "rows", "first rows"]),
)
def test_equals_the_steps(
    device: torch.device, backward: str, reduce: str, relations: int, self_rows: str
) -> None:
    for num_edges in (0, 60, 400):  # Gradients of means are weighted, or divided.
        for nonisolated in (0.8, 0.2):  # The other rows have no part in products, if they are many.
            more: dict[str, Any] = {"num_edges": num_edges, "nonisolated": nonisolated}
            check(device, reduce, relations, self_rows, backward=backward, **more)


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_extrema(device: torch.device, reduce: str) -> None:
    for nonisolated in (0.8, 0.2):
        with named_case("nonisolated", nonisolated):
            check(device, reduce, 2, "first rows", bias=False, nonisolated=nonisolated)
            check(device, reduce, 2, "none", nonisolated=nonisolated)


def test_relations_reach_differently_far(device: torch.device) -> None:
    """The first of them no row, the second few, the third all."""
    graphs = [
        random_graph(device, SOURCES, COUNT, edges, nonisolated=nonisolated, seed=i)
        for i, (edges, nonisolated) in enumerate([(0, 1.0), (50, 0.2), (200, 1.0)])
    ]
    inputs = operands(device, torch.float64, 3, WIDTH)
    leaves = [inputs["x"], inputs["bias"], *inputs["weights"]]
    for x in (inputs["x"], inputs["x"].detach()):
        sums = [reference_spmm(graph, "sum", x) for graph in graphs]
        expected = sum(a @ w.t() for a, w in zip(sums, inputs["weights"], strict=True))
        assert isinstance(expected, Tensor)
        expected = expected + inputs["bias"]
        actual = spmm_linear(
            [graph.csc() for graph in graphs], "sum", x, inputs["weights"], bias=inputs["bias"]
        )
        torch.testing.assert_close(actual, expected)
        left = leaves if x.requires_grad else leaves[1:]
        torch.testing.assert_close(
            weighted_gradients(actual, left), weighted_gradients(expected, left)
        )


def test_features_without_gradients(device: torch.device) -> None:
    """Products in place have derivatives of any order in the weights."""
    csc = random_graph(device, SOURCES, COUNT, nonisolated=0.2).csc()
    leaves = operands(device, torch.float64, 1, WIDTH)
    x = leaves["x"].detach()[:, :3].contiguous()
    matrices = [torch.randn(2, 3, device=device, dtype=torch.float64) for _ in range(2)]

    def run(weight: Tensor, self_weight: Tensor) -> Tensor:
        return spmm_linear(csc, "mean", x, weight, self_weight)

    inputs = tuple(matrix.requires_grad_() for matrix in matrices)
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_dtypes(device: torch.device, dtype: torch.dtype) -> None:
    for backward in ("transpose", "atomic"):
        with named_case(backward):
            check(device, "mean", 2, "first rows", False, dtype, backward=backward)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_low_precision(device: torch.device, dtype: torch.dtype) -> None:
    for backward in ("transpose", "atomic"):
        with named_case(backward):
            check_low_precision(device, dtype, backward)


def check_low_precision(device: torch.device, dtype: torch.dtype, backward: Any) -> None:
    csc = random_graph(device, SOURCES, COUNT).csc()
    x = (features(SOURCES, (8,), device, torch.float64).detach() / 8).to(dtype).requires_grad_()
    weight = torch.eye(8, device=device, dtype=dtype)
    actual = spmm_linear(csc, "sum", x, weight, weight, backward=backward)
    wide = x.detach().double().requires_grad_()
    expected = spmm_linear(csc, "sum", wide, weight.double(), weight.double())
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(actual.double(), expected, **tolerance)
    (of_found,) = torch.autograd.grad(actual.sum(), x)
    (of_expected,) = torch.autograd.grad(expected.sum(), wide)
    torch.testing.assert_close(of_found.double(), of_expected, **tolerance)


def test_gradcheck(device: torch.device) -> None:
    csc = random_graph(device, 6, 4, 12).csc()
    x = torch.randn(6, 33, device=device, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, 2, 33, device=device, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor, weights: Tensor) -> Tensor:
        # x is used twice.
        return spmm_linear(csc, "mean", x, weights[0], weights[1]) + x[:4, :2]

    assert torch.autograd.gradcheck(run, (x, weights))


def test_gradients_can_be_taken_again(device: torch.device) -> None:
    csc = random_graph(device, SOURCES, COUNT).csc()
    inputs = operands(device, torch.float32, 1, WIDTH)
    leaves = [inputs["x"], *inputs["weights"]]
    out = spmm_linear(csc, "mean", inputs["x"], inputs["weights"], inputs["self_weight"])
    first, second = (torch.autograd.grad(out.sum(), leaves, retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, second)


def test_frozen_weights_and_features(device: torch.device) -> None:
    csc = random_graph(device, SOURCES, COUNT).csc()
    inputs = operands(device, torch.float32, 1, WIDTH)
    x, weight, self_weight = inputs["x"], inputs["weights"][0], inputs["self_weight"]
    whole = torch.autograd.grad(
        spmm_linear(csc, "mean", x, weight, self_weight).sum(), [x, weight, self_weight]
    )
    for position in range(3):
        parts = [t if i == position else t.detach() for i, t in enumerate((x, weight, self_weight))]
        out = spmm_linear(csc, "mean", *parts)
        (result,) = torch.autograd.grad(out.sum(), parts[position])
        torch.testing.assert_close(result, whole[position])
    with torch.no_grad():
        assert not spmm_linear(csc, "mean", x, weight, self_weight).requires_grad


def test_autocast_and_compilers_see_the_steps(device: torch.device) -> None:
    csc = random_graph(device, SOURCES, COUNT).csc()
    inputs = operands(device, torch.float32, 1, WIDTH)
    args = (csc, "mean", inputs["x"], inputs["weights"][0], inputs["self_weight"], inputs["bias"])
    expected = spmm_linear(*args)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        low = spmm_linear(*args)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), expected, rtol=0.1, atol=0.5)
    torch.testing.assert_close(torch.compile(spmm_linear, backend="eager")(*args), expected)


def test_bad_arguments() -> None:
    csc = random_graph(torch.device("cpu"), SOURCES, COUNT).csc()
    x, weight = torch.ones(SOURCES, 4), torch.ones(2, 4)
    with pytest.raises(ValueError, match="reduce must be one of"):
        spmm_linear(csc, "median", x, weight)
    with pytest.raises(ValueError, match="each structure needs a weight, got 1 and 2"):
        spmm_linear(csc, "sum", x, [weight, weight])
    other = random_graph(torch.device("cpu"), SOURCES, COUNT - 1).csc()
    with pytest.raises(ValueError, match="structures must have the same nodes"):
        spmm_linear([csc, other], "sum", x, [weight, weight])
    with pytest.raises(ValueError, match=r"x must be \[40, columns\], got \[39, 4\]"):
        spmm_linear(csc, "sum", x[1:], weight)
    with pytest.raises(ValueError, match=r"weights\[0\] must be \[2, 4\], got \[2, 3\]"):
        spmm_linear(csc, "sum", x, weight[:, 1:])
    with pytest.raises(ValueError, match=r"self_weight must be \[2, 3\], got \[2, 4\]"):
        spmm_linear(csc, "sum", x, weight, weight, self_x=x[:COUNT, 1:])
    with pytest.raises(ValueError, match=r"self_x must be \[30, columns\], got \[40, 4\]"):
        spmm_linear(csc, "sum", x, weight, weight, self_x=x)
    with pytest.raises(ValueError, match=r"bias must be \[2\], got \[3\]"):
        spmm_linear(csc, "sum", x, weight, bias=torch.ones(3))
    with pytest.raises(ValueError, match="self_x needs self_weight"):
        spmm_linear(csc, "sum", x, weight, self_x=x[:COUNT])
    few = Csc(torch.zeros(4, dtype=torch.int64), torch.zeros(0).long(), 2)
    with pytest.raises(ValueError, match="destinations must be the first sources"):
        spmm_linear(few, "sum", x[:2], weight, weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_over_grouped_edges(
    device: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over the transpose: of products, of weighted sums, and of sums with own rows."""
    csc, other = (random_graph(device, SOURCES, COUNT, 200, seed=seed).csc() for seed in (0, 1))
    inputs = operands(device, dtype, 2, WIDTH)
    x, weights, own = inputs["x"], inputs["weights"], inputs["self_weight"]
    e = features(200, (), device, dtype, seed=6)
    one = torch.full((1,), 1.5, device=device, dtype=dtype)

    def run() -> list[Tensor]:
        outs = [
            spmm_linear([csc, other], "mean", x, weights, own),
            g_spmm(csc, "mul", "sum", x, e),
            spmm_add_self(csc, x, one, e),
        ]
        expected_result = [x, e, *weights]
        total = torch.stack([out.float().square().sum() for out in outs]).sum()
        return list(torch.autograd.grad(total, expected_result))

    expected = run()
    monkeypatch.setattr(
        EdgeMatrix, "gradient_matrix", lambda matrix, *_: matrix.grouped_by_column()
    )
    for actual, expected_result in zip(run(), expected, strict=True):
        scale = float(expected_result.abs().max())
        torch.testing.assert_close(actual, expected_result, rtol=2e-2, atol=1e-2 * scale)


def test_when_edges_are_grouped(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """For batches with many values to sum, on a GPU, where any order is allowed."""
    graph = random_graph(device, SOURCES, COUNT)
    matrix = Csc.from_edge_index(graph.edge_index, COUNT, SOURCES, transient=True)
    if device.type == "cuda":
        assert matrix.gradient_matrix("auto", False, 8) is None
        monkeypatch.setattr(edge_matrix, "WORK", replace(WORK, grouped_values=8 * 300))
        assert matrix.gradient_matrix("auto", False, 7) is None
        assert matrix.gradient_matrix("auto", False, 8) is matrix.grouped_by_column()
        assert matrix.gradient_matrix("atomic", False, 8) is None
        unknown = Csc.from_edge_index(graph.edge_index, COUNT, SOURCES, transient=None)
        assert unknown.gradient_matrix("auto", False, 8) is None
    assert matrix.gradient_matrix("auto", True, 8) is matrix.transpose()
