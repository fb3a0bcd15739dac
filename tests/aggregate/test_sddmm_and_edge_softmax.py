"""g_sddmm and edge_softmax against plain torch."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from peergraph.aggregate import Csc, edge_softmax, g_sddmm
from peergraph.aggregate.kernels.sddmm import sddmm
from peergraph.reference import aggregate as reference
from tests.aggregate.graphs import (
    DTYPES,
    Graph,
    assert_same_with_gradients,
    features,
    hub_graph,
    random_graph,
)
from tests.named_case import named_case, named_cases

OPERATIONS = ["add", "sub", "mul", "div", "dot"]


def check(
    graph: Graph,
    op: str,
    lhs_target: str,
    rhs_target: str,
    lhs_shape: tuple[int, ...],
    rhs_shape: tuple[int, ...],
    dtype: torch.dtype = torch.float64,
    **options: object,
) -> None:
    device = graph.edge_index.device
    operands = [features(graph.rows(lhs_target), lhs_shape, device, dtype)]
    if op != "copy":
        operands.append(features(graph.rows(rhs_target), rhs_shape, device, dtype, seed=6))
    twins = [operand.detach().double().requires_grad_() for operand in operands]
    rhs = operands[1] if op != "copy" else None
    actual = g_sddmm(graph.csc(), op, operands[0], rhs, lhs_target, rhs_target, **options)
    expected = reference.g_sddmm(
        graph.edge_index, op, twins[0], *twins[1:], lhs_target=lhs_target, rhs_target=rhs_target
    )
    assert actual.dtype == dtype
    assert_same_with_gradients(actual, expected, operands, twins)


@named_cases("op", OPERATIONS)
def test_operations_and_targets(device: torch.device, op: str) -> None:
    for lhs, rhs in product("uve", "uve"):
        with named_case(lhs, rhs):
            check(random_graph(device), op, lhs, rhs, (2, 4), (2, 4))


def test_copy(device: torch.device) -> None:
    for target in "uve":
        with named_case(target):
            check(random_graph(device), "copy", target, "v", (5,), ())


@named_cases("dtype", DTYPES)
def test_dtypes(device: torch.device, dtype: torch.dtype) -> None:
    for op in ("add", "dot"):
        with named_case(op):
            check(random_graph(device, num_edges=80), op, "u", "v", (2, 8), (2, 8), dtype)


@named_cases(
    ("op", "dtype"),
    [
        ("sub", torch.float32),
        ("sub", torch.bfloat16),
        ("dot", torch.float32),
        ("dot", torch.float64),
    ],
)
def test_widths(device: torch.device, op: str, dtype: torch.dtype) -> None:
    for width in (1, 2, 3, 4, 7, 8, 33, 64, 100, 128, 160, 602):
        with named_case(width):
            check(random_graph(device, 12, 9, 60), op, "u", "v", (width,), (width,), dtype)


@named_cases(
    ("lhs", "rhs"),
    [
        ((), ()),
        ((3,), ()),
        ((2, 4), (2, 1)),
        ((1, 4), (2, 1)),
        ((4,), (2, 4)),
        ((7, 33), (7, 33)),
    ],
)
def test_broadcast(device: torch.device, lhs: tuple[int, ...], rhs: tuple[int, ...]) -> None:
    for op, targets in product(["add", "div"], ["uv", "eu", "ve"]):
        with named_case(op, targets):
            check(random_graph(device), op, targets[0], targets[1], lhs, rhs)


@named_cases("grouped", [False, True])
@named_cases("dtype", [torch.int32, torch.int64])
def test_structures(device: torch.device, dtype: torch.dtype, grouped: bool) -> None:
    graph = random_graph(device, dtype=dtype, grouped=grouped)
    for op, targets in product(["mul", "dot"], ["uv", "ve", "eu"]):
        with named_case(op, targets):
            check(graph, op, targets[0], targets[1], (4, 5), (4, 5))


@pytest.mark.parametrize("backward", ["transpose", "atomic"])
def test_hubs(device: torch.device, backward: str) -> None:
    for op in ("add", "dot"):
        with named_case(op):
            check(hub_graph(device, 20_000), op, "u", "v", (6,), (6,), backward=backward)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_wide_sums(device: torch.device, dtype: torch.dtype) -> None:
    """The kernel can return sums in the dtype in which it adds, rather than the operands' dtype."""
    graph = random_graph(device)
    matrix = graph.csc().tensors
    for (message, op), depth, targets in product(
        (("mul", "mul"), ("add", "add"), ("copy_u", "copy")), (1, 3, 64), ("uu", "uv", "ve")
    ):
        with named_case(op, depth, targets):
            operands = [
                features(graph.rows(target), (2, depth), device, dtype, seed).detach()
                for seed, target in enumerate(targets)
            ]
            rows = [operand.flatten(1) for operand in operands]
            actual = sddmm(*rows, matrix, message, targets, 2, depth, wide=True)
            assert actual.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            twins = [operand.double() for operand in operands[: 1 if op == "copy" else 2]]
            values = reference.g_sddmm(
                graph.edge_index, op, *twins, lhs_target=targets[0], rhs_target=targets[1]
            )
            torch.testing.assert_close(actual.double(), values.sum(-1), rtol=1e-5, atol=1e-5)


def softmax_check(graph: Graph, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    scores = features(graph.num_edges, shape, graph.edge_index.device, dtype)
    twin = scores.detach().double().requires_grad_()
    actual = edge_softmax(graph.csc(), scores)
    expected = reference.edge_softmax(graph.edge_index, graph.num_destinations, twin)
    assert actual.dtype == dtype
    assert_same_with_gradients(actual, expected, [scores], [twin])


SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (8,)]


@named_cases("dtype", DTYPES)
def test_softmax(device: torch.device, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        with named_case(shape):
            softmax_check(random_graph(device), shape, dtype)


def test_softmax_of_heads(device: torch.device) -> None:
    for heads in (2, 3, 4, 5, 7, 16, 31, 32, 33, 70):
        with named_case(heads):
            softmax_check(random_graph(device, num_edges=200), (heads,), torch.float64)


@named_cases("grouped", [False, True])
@named_cases("dtype", [torch.int32, torch.int64])
def test_softmax_of_structures(device: torch.device, dtype: torch.dtype, grouped: bool) -> None:
    softmax_check(random_graph(device, dtype=dtype, grouped=grouped), (2, 3), torch.float64)


def test_softmax_of_hubs(device: torch.device) -> None:
    for shape in SHAPES:
        with named_case(shape):
            softmax_check(hub_graph(device, 100_000), shape, torch.float64)


def test_softmax_of_small_graphs(device: torch.device) -> None:
    for size in (0, 1, 40):
        with named_case(size):
            softmax_check(random_graph(device, 1, 1, size), (2,), torch.float32)
            softmax_check(random_graph(device, 3, 5, size), (), torch.float32)


def test_softmax_is_stable(device: torch.device) -> None:
    csc = Csc(
        torch.tensor([0, 3, 5], device=device), torch.zeros(5, dtype=torch.int64, device=device), 1
    )
    scores = torch.tensor([1e4, 1e4, -1e4, float("-inf"), 0.0], device=device)
    assert edge_softmax(csc, scores).tolist() == [0.5, 0.5, 0.0, 0.0, 1.0]
    lost = torch.full((5,), float("-inf"), device=device)
    assert edge_softmax(csc, lost).isnan().all()
