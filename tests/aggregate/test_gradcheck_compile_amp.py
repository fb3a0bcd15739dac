"""Aggregation under gradcheck, torch.compile, torch.amp; what it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.aggregate import Csc, edge_softmax, g_sddmm, g_spmm, message
from peergraph.aggregate import attention as in_one_pass
from tests.aggregate.graphs import Graph, assert_same, features, random_graph
from tests.named_case import named_case, named_cases


@pytest.fixture
def graph(device: torch.device) -> Graph:
    return random_graph(device, num_sources=7, num_destinations=6, num_edges=15)


def double(graph: Graph, target: str, *shape: int, seed: int = 3) -> Tensor:
    device = graph.edge_index.device
    return features(graph.rows(target), shape, device, torch.float64, seed)


@named_cases("message", ["add", "sub", "mul", "div", "dot"])
def test_gradcheck_spmm(graph: Graph, message: str) -> None:
    csc = graph.csc()
    operands = double(graph, "u", 2, 3), double(graph, "e", 2, 3, seed=4)
    for reduce in ("sum", "mean", "max", "min"):
        with named_case(reduce):
            assert torch.autograd.gradcheck(partial(g_spmm, csc, message, reduce), operands)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "dot"])
def test_gradcheck_sddmm(graph: Graph, op: str) -> None:
    for lhs, rhs in ("uv", "vu", "ue", "ev"):
        operands = double(graph, lhs, 2, 3), double(graph, rhs, 2, 3, seed=4)
        run = partial(g_sddmm, graph.csc(), op, lhs_target=lhs, rhs_target=rhs)
        with named_case(lhs, rhs):
            assert torch.autograd.gradcheck(run, operands)


def test_gradcheck_softmax(graph: Graph) -> None:
    assert torch.autograd.gradcheck(partial(edge_softmax, graph.csc()), (double(graph, "e", 2),))


def attention(csc: Csc, x: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """What a layer with attention does, [destinations, heads, width]."""
    score = g_sddmm(csc, "add", (x * left).sum(-1), (x * right).sum(-1)[: csc.num_destinations])
    weight = edge_softmax(csc, torch.nn.functional.leaky_relu(score, 0.2))
    return g_spmm(csc, "mul", "sum", x, weight)


def extremum(csc: Csc, x: Tensor, left: Tensor, right: Tensor) -> Tensor:
    return g_spmm(csc, "copy_u", "max", x * left + right)


def product(csc: Csc, x: Tensor, left: Tensor, right: Tensor) -> Tensor:
    score = g_sddmm(csc, "dot", x * left, x[: csc.num_destinations] * right)
    return g_spmm(csc, "mul", "mean", x, score)


LAYERS = [attention, extremum, product]
Layer = Callable[[Csc, Tensor, Tensor, Tensor], Tensor]


def layer_inputs(graph: Graph, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    device = graph.edge_index.device
    x = features(graph.num_sources, (2, 8), device, dtype)
    parameters = [features(1, (2, 8), device, dtype, seed) for seed in (7, 8)]
    return [x, *parameters]


def result_and_gradients(layer: Layer, csc: Csc, inputs: list[Tensor]) -> list[Tensor]:
    out = layer(csc, *inputs)
    return [out, *torch.autograd.grad(out.square().sum(), inputs)]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(graph: Graph, layer: Layer, backend: str) -> None:
    if backend == "inductor":
        compiler = pytest.importorskip("torch._inductor.cpp_builder")
        try:
            compiler.get_cpp_compiler()
        except Exception as error:
            pytest.skip(f"inductor has no C++ compiler: {error}")
    torch._dynamo.reset()
    inputs = layer_inputs(graph)
    expected = result_and_gradients(layer, graph.csc(), inputs)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    csc = graph.csc()
    # The first call traces the making of the transpose, the second one finds it made.
    for _ in range(2):
        actual = result_and_gradients(compiled, csc, inputs)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)


def test_compile_of_operands_that_are_the_same(device: torch.device) -> None:
    graph = random_graph(device, num_sources=6, num_destinations=6, num_edges=6)
    of_nodes = message("relu(u * v)", "mean")
    calls: list[Callable[[Csc, Tensor], Tensor]] = [
        lambda csc, x: edge_softmax(csc, g_sddmm(csc, "dot", x, x)),
        lambda csc, x: g_sddmm(csc, "mul", x, x, "u", "u"),
        lambda csc, x: g_spmm(csc, "mul", "sum", x, x),
        lambda csc, x: in_one_pass(csc, x.unsqueeze(2), x, x),
        lambda csc, x: of_nodes(csc, u=x, v=x),
    ]
    x = features(6, (2,), device)
    for call in calls:
        torch._dynamo.reset()
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        actual, expected = compiled(graph.csc(), x), call(graph.csc(), x)
        assert_same(actual, expected)
        (one,) = torch.autograd.grad(actual.square().sum(), x)
        assert_same(one, torch.autograd.grad(expected.square().sum(), x)[0])


@pytest.mark.parametrize("layer", LAYERS)
def test_autocast(graph: Graph, layer: Layer) -> None:
    device = graph.edge_index.device
    inputs = layer_inputs(graph)
    csc = graph.csc()
    expected = result_and_gradients(layer, csc, inputs)
    with torch.autocast(device.type, torch.bfloat16):
        out = layer(csc, *inputs)
        assert edge_softmax(csc, double(graph, "e").bfloat16()).dtype == torch.float32
    assert out.dtype == torch.bfloat16
    gradients = torch.autograd.grad(out.float().square().sum(), inputs)
    for actual, expected_result in zip((out, *gradients), expected, strict=True):
        torch.testing.assert_close(actual.float(), expected_result, rtol=0.1, atol=0.5)


def test_autocast_leaves_float64(graph: Graph) -> None:
    with torch.autocast(graph.edge_index.device.type, torch.bfloat16):
        assert g_spmm(graph.csc(), "copy_u", "sum", double(graph, "u")).dtype == torch.float64


CPU = random_graph(torch.device("cpu"), num_sources=5, num_destinations=4, num_edges=6)
X, V, E = torch.ones(5, 3), torch.ones(4, 3), torch.ones(6, 3)


def test_backward_is_checked_without_gradients(device: torch.device) -> None:
    csc = random_graph(device, num_sources=5, num_destinations=4, num_edges=6).csc()
    x = X.to(device)
    for reduce in ("sum", "max"):
        with pytest.raises(ValueError, match="backward must be 'auto', 'transpose' or 'atomic'"):
            g_spmm(csc, "copy_u", reduce, x, backward="other")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="adds in no fixed order"):
            g_spmm(csc, "copy_u", reduce, x, backward="atomic", deterministic=True)
    with pytest.raises(ValueError, match="backward must be 'auto', 'transpose' or 'atomic'"):
        g_sddmm(csc, "copy", x, backward="other")  # type: ignore[arg-type]


@named_cases(
    ("arguments", "error", "text"),
    [
        (("copy_u", "median", X), ValueError, "reduce must be one of sum, mean, max, min"),
        (("copy_v", "sum", X), ValueError, "message must be one of copy_u, copy_e, add"),
        (("mul", "sum", X), ValueError, "message 'mul' needs e"),
        (("copy_e", "sum"), ValueError, "message 'copy_e' needs e"),
        (("copy_u", "sum", X, E), ValueError, "message 'copy_u' does not use e"),
        (("copy_u", "sum", V), ValueError, "x must have 5 rows (sources), got [4, 3]"),
        (("mul", "sum", X, V), ValueError, "e must have 6 rows (edges), got [4, 3]"),
        (("mul", "sum", X, E[:, :2]), ValueError, "e must have the shape of x's rows, [3]"),
        (("mul", "sum", X, E[:, None]), ValueError, "the first dimensions of it, got [1, 3]"),
        (("copy_u", "sum", X.int()), TypeError, "x must be one of float32, float64, float16"),
        (("copy_u", "sum", [1.0]), TypeError, "x must be a tensor, got list"),
        (
            ("mul", "sum", X, E.double()),
            TypeError,
            "x and e must have one dtype, got torch.float32",
        ),
        (("copy_u", "sum", X.to("meta")), ValueError, "x must be on cpu as the structure"),
        (("copy_u", "sum", torch.tensor(1.0)), ValueError, "x must have 5 rows (sources), got []"),
    ],
)
def test_bad_arguments_of_spmm(
    arguments: tuple[Any, ...], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=re.escape(text)):
        g_spmm(CPU.csc(), *arguments)


@named_cases(
    ("arguments", "error", "text"),
    [
        (("max", X, V), ValueError, "op must be one of copy, add, sub, mul, div, dot, got 'max'"),
        (("add", X), ValueError, "op 'add' needs rhs"),
        (("copy", X, V), ValueError, "op 'copy' does not use rhs"),
        (("add", X, V, "w"), ValueError, "lhs_target must be 'u', 'v' or 'e', got 'w'"),
        (("add", X, X), ValueError, "rhs must have 4 rows (destinations), got [5, 3]"),
        (("add", X, V[:, :2]), ValueError, "must have rows that broadcast, got [3] and [2]"),
        (("add", X, V.half()), TypeError, "lhs and rhs must have one dtype"),
        (("dot", X[:, 0], V[:, 0]), ValueError, "op 'dot' needs features to sum over"),
    ],
)
def test_bad_arguments_of_sddmm(
    arguments: tuple[Any, ...], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=re.escape(text)):
        g_sddmm(CPU.csc(), *arguments)


def test_bad_arguments_of_softmax() -> None:
    with pytest.raises(ValueError, match=r"scores must have 6 rows \(edges\), got \[5, 3\]"):
        edge_softmax(CPU.csc(), X)
    with pytest.raises(TypeError, match="scores must be one of float32"):
        edge_softmax(CPU.csc(), E.int())
