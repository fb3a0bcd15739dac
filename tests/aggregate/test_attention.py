"""Attention in one pass against plain torch, and its gradients."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate import Csc, attention, attention_fits
from peergraph.aggregate.ops import attention as ops
from tests.named_case import named_case, named_cases
from tests.pairwise import pairwise

from .graphs import (
    DTYPES,
    Graph,
    assert_same_with_gradients,
    features,
    hub_graph,
    random_graph,
    short_lists,
)

SHAPES = [(1, 1), (4, 8), (2, 32), (3, 16), (1, 64), (4, 64), (5, 2), (1, 128), (2, 4)]


def operands(
    graph: Graph, kind: str, shape: tuple[int, int], device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    sources, destinations = graph.num_sources, graph.num_destinations
    tensors = {"x": features(sources, shape, device, dtype)}
    if kind == "gat":
        tensors["left"] = features(sources, shape[:1], device, dtype, seed=6)
    if kind != "left":
        wide = shape if kind == "gatv2" else shape[:1]
        tensors["right"] = features(destinations, wide, device, dtype, seed=7)
    if kind == "gatv2":
        tensors["att"] = features(shape[0], shape[1:], device, dtype, seed=8)
    if kind == "left":
        tensors["left"] = features(sources, shape[:1], device, dtype, seed=6)
    return tensors


def reference(
    graph: Graph,
    x: Tensor,
    left: Tensor | None = None,
    right: Tensor | None = None,
    att: Tensor | None = None,
    slope: float = 0.2,
    loops: int | None = None,
) -> Tensor:
    """Softmax over an explicit list of edges, in float64."""
    source, destination = graph.edge_index.long()
    if loops is not None:
        keep = source != destination
        own = torch.arange(loops, device=x.device)
        source = torch.cat([source[keep], own])
        destination = torch.cat([destination[keep], own])
    x = x.double()
    if att is not None:
        assert right is not None
        hidden = F.leaky_relu(x[source] + right.double()[destination], slope)
        score = (hidden * att.double()).sum(-1)
    else:
        assert left is not None
        score = left.double()[source]
        if right is not None:
            score = score + right.double()[destination]
        score = F.leaky_relu(score, slope)
    rows = graph.num_destinations
    top = score.new_full((rows, x.shape[1]), -math.inf)
    index = destination.unsqueeze(1).expand_as(score)
    top = top.scatter_reduce(0, index, score.detach(), "amax", include_self=True)
    weight = (score - top[destination]).exp()
    total = weight.new_zeros(rows, x.shape[1]).index_add(0, destination, weight)
    weight = weight / total[destination]
    return x.new_zeros(rows, *x.shape[1:]).index_add(
        0, destination, weight.unsqueeze(-1) * x[source]
    )


def check(
    graph: Graph,
    kind: str,
    shape: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    csc: Csc | None = None,
    **options: Any,
) -> None:
    inputs = operands(graph, kind, shape, device, dtype)
    twins = {name: value.detach().clone().requires_grad_() for name, value in inputs.items()}
    x, left, right, att = (inputs.get(name) for name in ("x", "left", "right", "att"))
    actual = attention(csc or graph.csc(), x, left, right, att=att, **options)
    loops = options.get("self_loops")
    expected = reference(graph, **twins, loops=loops)
    assert_same_with_gradients(actual, expected, list(inputs.values()), list(twins.values()))


@named_cases("shape", SHAPES)
def test_shapes(shape: tuple[int, int], device: torch.device) -> None:
    assert attention_fits(torch.empty(0, *shape, device=device))
    for kind, loops in product(["gat", "gatv2", "left"], [None, 30]):
        with named_case(kind, loops):
            check(random_graph(device), kind, shape, device, self_loops=loops)


@pytest.mark.parametrize("shape", [(4, 41), (1, 5), (3, 7)], ids=str)
def test_padded_depth(
    shape: tuple[int, int], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def has_kernel(dtype: torch.dtype, heads: int, depth: int, device: torch.device) -> bool:
        return depth & (depth - 1) == 0

    if device.type == "cpu":
        monkeypatch.setattr(ops, "has_kernel", has_kernel)
    assert attention_fits(torch.empty(0, *shape, device=device))
    for kind, loops in product(["gat", "gatv2", "left"], [None, 30]):
        with named_case(kind, loops):
            check(random_graph(device), kind, shape, device, self_loops=loops)


@named_cases("dtype", DTYPES)
def test_dtypes(dtype: torch.dtype, device: torch.device) -> None:
    graph = random_graph(device, 12, 9, 40)
    for kind, shape in product(["gat", "gatv2"], [(2, 8), (4, 1)]):
        with named_case(kind, shape):
            check(graph, kind, shape, device, dtype)


@named_cases(
    ("kind", "shape", "deterministic"),
    pairwise(["gat", "gatv2"], [(4, 8), (2, 64), (4, 2)], [False, True]),
)
def test_hubs(kind: str, shape: tuple[int, int], deterministic: bool, device: torch.device) -> None:
    for degree in (600, 5000):
        graph = hub_graph(device, degree)
        check(graph, kind, shape, device, torch.float64, deterministic=deterministic)
        check(graph, kind, shape, device, torch.float64, self_loops=5)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (torch.float32, (1, 128)),
        (torch.float32, (4, 64)),
        (torch.float64, (2, 32)),
        (torch.float64, (4, 32)),
        (torch.bfloat16, (2, 128)),
        (torch.bfloat16, (4, 128)),
        (torch.float16, (8, 64)),
        (torch.float16, (1, 512)),
    ],
    ids=str,
)
@pytest.mark.parametrize("ids", [torch.int32, torch.int64], ids=str)
def test_short_lists(
    dtype: torch.dtype, shape: tuple[int, int], ids: torch.dtype, device: torch.device
) -> None:
    for kind in ("gat", "left"):
        check(short_lists(device, ids), kind, shape, device, dtype)


@pytest.mark.parametrize("kind", ["gat", "gatv2", "left"])
def test_transient_structures(kind: str, device: torch.device) -> None:
    graphs = {
        "int32": random_graph(device, dtype=torch.int32, grouped=True),
        "int64": random_graph(device, dtype=torch.int64, grouped=True),
        "hub": hub_graph(device, 2000),
    }
    for name, graph in graphs.items():
        csc = graph.csc()
        csc.transient = True
        with named_case(name):
            check(graph, kind, (4, 8), device, torch.float64, csc=csc, self_loops=4)


@pytest.mark.parametrize("kind", ["gat", "gatv2"])
def test_gradcheck(kind: str, device: torch.device) -> None:
    graph = random_graph(device, 6, 5, 14)
    inputs = operands(graph, kind, (2, 2), device, torch.float64)
    csc = graph.csc()

    def run(*values: Tensor) -> Tensor:
        named = dict(zip(inputs, values, strict=True))
        return attention(csc, **named, self_loops=3, deterministic=True)

    torch.autograd.gradcheck(run, tuple(inputs.values()))


@pytest.mark.parametrize("kind", ["gat", "gatv2"])
def test_only_some_gradients(kind: str, device: torch.device) -> None:
    graph = random_graph(device)
    for name in operands(graph, kind, (2, 4), device, torch.float64):
        inputs = operands(graph, kind, (2, 4), device, torch.float64)
        all_of_them = torch.autograd.grad(
            attention(graph.csc(), **inputs).square().sum(), list(inputs.values())
        )
        alone = {n: v if n == name else v.detach() for n, v in inputs.items()}
        (actual,) = torch.autograd.grad(
            attention(graph.csc(), **alone).square().sum(), [alone[name]]
        )
        torch.testing.assert_close(actual, all_of_them[list(inputs).index(name)])


def test_large_scores_and_empty_rows(device: torch.device) -> None:
    graph = random_graph(device)
    inputs = operands(graph, "gat", (2, 4), device, torch.float32)
    huge = {n: v.detach() * (300 if n != "x" else 1) for n, v in inputs.items()}
    result = attention(graph.csc(), **huge)
    assert result.isfinite().all()
    torch.testing.assert_close(result, reference(graph, **huge).float(), rtol=1e-4, atol=1e-4)
    assert (result[graph.num_destinations * 4 // 5 :] == 0).all()
    none = Graph(graph.edge_index[:, :0], 4, 3)
    x = torch.ones(4, 2, 8, device=device, requires_grad=True)
    out = attention(none.csc(), x, torch.ones(4, 2, device=device))
    assert torch.equal(out, torch.zeros(3, 2, 8, device=device))
    out.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_compiled(device: torch.device) -> None:
    graph = random_graph(device)
    csc = graph.csc()
    csc.transpose()
    inputs = operands(graph, "gat", (2, 8), device, torch.float32)

    def run(x: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return attention(csc, x, left, right)

    expected = run(**inputs)
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)(**inputs)
    torch.testing.assert_close(compiled, expected)
    gradients = [
        torch.autograd.grad(out.square().sum(), list(inputs.values()))
        for out in (compiled, expected)
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_several_vectors(dtype: torch.dtype) -> None:
    """Blocks of rows and columns with a vector each, as blocks of their own; one has no edges."""
    device = torch.device("cpu")
    rows, columns = [0, 30, 30, 37, 77], [0, 40, 45, 45, 75]
    graph = random_graph(device)
    edges = [
        graph.edge_index,
        graph.edge_index[:, :0],
        graph.edge_index[:, :0],
        graph.edge_index.flip(0),
    ]
    starts = zip(edges, columns, rows, strict=False)
    joined = torch.cat([e + torch.tensor([[c], [r]]) for e, c, r in starts], 1)
    csc = Csc.from_edge_index(joined, num_sources=75, num_destinations=77)
    x, right = features(75, (2, 8), device, dtype), features(77, (2, 8), device, dtype, seed=1)
    att = features(4, (2, 8), device, dtype, seed=2)
    out = ops.attention(
        csc, ops.AttentionSum(x, None, right, att), (torch.tensor(rows), torch.tensor(columns))
    )
    blocks = []
    for i, e in enumerate(edges):
        x_cut, right_cut = slice(*columns[i : i + 2]), slice(*rows[i : i + 2])
        counts = {"num_sources": len(x[x_cut]), "num_destinations": len(right[right_cut])}
        block = Csc.from_edge_index(e, **counts)
        blocks.append(attention(block, x[x_cut], right=right[right_cut], att=att[i]))
    assert_same_with_gradients(out, torch.cat(blocks), [x, right, att], [x, right, att])


def test_errors(device: torch.device) -> None:
    graph = random_graph(device)
    csc, inputs = graph.csc(), operands(graph, "gatv2", (2, 4), device, torch.float32)
    x, right, att = inputs["x"], inputs["right"], inputs["att"]
    left = torch.zeros(40, 2, device=device)
    with pytest.raises(ValueError, match="either left or att must be given, got both"):
        attention(csc, x, left, right, att=att)
    with pytest.raises(ValueError, match="either left or att must be given, got none"):
        attention(csc, x)
    with pytest.raises(ValueError, match="att needs right"):
        attention(csc, x, att=att)
    with pytest.raises(ValueError, match=r"x must be \[sources, heads, depth\], got \[40, 8\]"):
        attention(csc, x.flatten(1), left)
    with pytest.raises(ValueError, match=r"left must be \[40, 2\], got \[40, 3\]"):
        attention(csc, x, torch.zeros(40, 3, device=device))
    with pytest.raises(ValueError, match=r"self_loops must be in 0..30, got 31"):
        attention(csc, x, left, self_loops=31)
    with pytest.raises(TypeError, match="x and right must have one dtype"):
        attention(csc, x, None, right.double(), att=att)
    if device.type == "cuda":
        with pytest.raises(NotImplementedError, match="over 1 heads of 300 does not fit"):
            attention(csc, torch.zeros(40, 1, 300, device=device), left[:, :1])
