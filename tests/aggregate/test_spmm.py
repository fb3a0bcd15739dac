"""g_spmm against plain torch."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from peergraph.aggregate import Csc, g_sddmm, g_spmm
from peergraph.reference import aggregate as reference
from tests.aggregate.graphs import (
    DTYPES,
    Graph,
    assert_same,
    assert_same_with_gradients,
    features,
    hub_graph,
    random_graph,
)
from tests.named_case import named_case, named_cases
from tests.pairwise import pairwise

MESSAGES = ["copy_u", "copy_e", "add", "sub", "mul", "div", "dot"]
REDUCTIONS = ["sum", "mean", "max", "min"]


def check(
    graph: Graph,
    message: str,
    reduce: str,
    x_shape: tuple[int, ...],
    e_shape: tuple[int, ...],
    dtype: torch.dtype = torch.float64,
    csc: Csc | None = None,
    **options: object,
) -> None:
    device = graph.edge_index.device
    names, operands = [], []
    if message != "copy_e":
        names.append("x")
        operands.append(features(graph.num_sources, x_shape, device, dtype))
    if message != "copy_u":
        names.append("e")
        operands.append(features(graph.num_edges, e_shape, device, dtype, seed=6))
    twins = [operand.detach().double().requires_grad_() for operand in operands]
    actual = g_spmm(
        csc or graph.csc(), message, reduce, **dict(zip(names, operands, strict=True)), **options
    )
    expected = reference.g_spmm(
        graph.edge_index,
        graph.num_destinations,
        message,
        reduce,
        **dict(zip(names, twins, strict=True)),
    )
    assert actual.dtype == dtype
    assert_same_with_gradients(actual, expected, operands, twins)


@named_cases("message", MESSAGES)
def test_messages_and_reductions(device: torch.device, message: str) -> None:
    for reduce in REDUCTIONS:
        with named_case(reduce):
            check(random_graph(device), message, reduce, (2, 4), (2, 4))


@named_cases("dtype", DTYPES)
def test_dtypes(device: torch.device, dtype: torch.dtype) -> None:
    for message, reduce in product(["copy_u", "mul"], ["sum", "mean"]):
        with named_case(message, reduce):
            check(random_graph(device, num_edges=90), message, reduce, (16,), (), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_dtypes_of_extrema(device: torch.device, dtype: torch.dtype) -> None:
    for reduce in ("max", "min"):
        with named_case(reduce):
            check(random_graph(device), "mul", reduce, (16,), (16,), dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_extrema_of_half_precision(device: torch.device, dtype: torch.dtype) -> None:
    # Ties are likely, so gradients have no reference that says which edge is to have them.
    graph = random_graph(device)
    x = features(graph.num_sources, (24,), device, dtype)
    actual = g_spmm(graph.csc(), "copy_u", "max", x)
    expected = reference.g_spmm(graph.edge_index, graph.num_destinations, "copy_u", "max", x)
    assert torch.equal(actual, expected)
    (gradient,) = torch.autograd.grad(actual.float().sum(), x)
    nonempty = graph.csc().in_degrees().count_nonzero()
    assert gradient.float().sum() == nonempty * 24


@named_cases(
    ("reduce", "dtype"),
    [
        ("sum", torch.float32),
        ("sum", torch.float16),
        ("max", torch.float32),
        ("max", torch.float64),
    ],
)
def test_widths(device: torch.device, reduce: str, dtype: torch.dtype) -> None:
    for width in (1, 2, 3, 4, 7, 8, 33, 64, 100, 128, 160, 602):
        with named_case(width):
            check(random_graph(device, 12, 9, 60), "mul", reduce, (width,), (), dtype)


SHAPES = [
    ((5,), ()),
    ((5,), (1,)),
    ((4, 8), (4,)),
    ((4, 8), (4, 1)),
    ((3, 5), (3,)),
    ((3, 5), (3, 5)),
    ((2, 3, 4), (2, 3)),
    ((2, 3, 4), (2,)),
    ((5, 1, 2), (5, 1)),
    ((), ()),
    ((4, 1), (4, 8)),
    ((1, 8), (4, 8)),
]


@named_cases("shapes", SHAPES)
def test_shapes(device: torch.device, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    for message, reduce in product(["add", "mul", "div", "dot"], ["sum", "max"]):
        if message == "dot" and not shapes[0]:
            continue
        with named_case(message, reduce):
            check(random_graph(device), message, reduce, *shapes)


@named_cases(
    ("grouped", "dtype", "reduce"),
    pairwise([False, True], [torch.int32, torch.int64], ["mean", "min"]),
)
def test_structures(device: torch.device, dtype: torch.dtype, grouped: bool, reduce: str) -> None:
    graph = random_graph(device, dtype=dtype, grouped=grouped)
    check(graph, "mul", reduce, (8,), ())


@named_cases("message", ["copy_u", "copy_e", "mul", "div"])
def test_hubs(device: torch.device, message: str) -> None:
    for reduce in REDUCTIONS:
        with named_case(reduce):
            check(hub_graph(device, 100_000), message, reduce, (6,), (6,))


@pytest.mark.parametrize("width", [4, 5])
def test_hub_of_wide_rows(device: torch.device, width: int) -> None:
    check(hub_graph(device, 3_000), "mul", "sum", (width, 40), (width,), torch.float32)


@named_cases("sizes", [(0, 0, 0), (5, 4, 0), (1, 1, 1), (1, 1, 700), (0, 3, 0)])
def test_small_graphs(device: torch.device, sizes: tuple[int, int, int]) -> None:
    for message, reduce in product(["copy_u", "copy_e", "mul"], ["mean", "max"]):
        # All edges of the graph of 700 have the same source, so copies of it are ties.
        if sizes[2] == 700 and (message, reduce) == ("copy_u", "max"):
            continue
        with named_case(message, reduce):
            check(random_graph(device, *sizes), message, reduce, (4,), (4,))


@named_cases("message", MESSAGES)
def test_no_columns(device: torch.device, message: str) -> None:
    e_shapes: list[tuple[int, ...]] = [(0,)] if message in ("dot", "copy_e") else [(), (0,)]
    for e_shape, reduce in product(e_shapes, REDUCTIONS):
        with named_case(e_shape, reduce):
            check(random_graph(device), message, reduce, (0,), e_shape)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_unaligned_and_strided_inputs(device: torch.device, offset: int) -> None:
    graph = random_graph(device)
    storage = features(graph.num_sources * 8 + offset, (), device, grad=False)
    x = storage[offset:].view(graph.num_sources, 8).requires_grad_()
    strided = features(8, (graph.num_sources,), device, grad=False).t().requires_grad_()
    for rows in (x, strided):
        twin = rows.detach().double().requires_grad_()
        actual = g_spmm(graph.csc(), "copy_u", "sum", rows)
        expected = reference.g_spmm(graph.edge_index, graph.num_destinations, "copy_u", "sum", twin)
        assert_same_with_gradients(actual, expected, [rows], [twin])


@named_cases("message", ["copy_u", "mul", "div"])
def test_backward_choices(device: torch.device, message: str) -> None:
    shapes: list[tuple[int, ...]] = [(8,), (3,), (2, 80)]
    for backward, shape in product(["transpose", "atomic"], shapes):
        for graph in (random_graph(device), hub_graph(device, 1500)):
            with named_case(backward, shape, graph.num_edges):
                check(graph, message, "mean", shape, (), backward=backward)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_duplicate_counts(device: torch.device, dtype: torch.dtype) -> None:
    graph = random_graph(device, num_sources=200, num_edges=150, grouped=True)
    plain = graph.csc()
    counts = torch.bincount(graph.edge_index[0], minlength=200).int()
    assert (counts == 1).any()
    assert (counts > 1).any()
    csc = Csc(
        plain.indptr,
        plain.indices,
        200,
        duplicate_counts=counts,
        transient=True,
    )
    for shape in ((8,), (7,)):
        check(graph, "mul", "sum", shape, (), dtype, csc, backward="atomic")


@named_cases("reduce", REDUCTIONS)
def test_deterministic(device: torch.device, reduce: str) -> None:
    graph = hub_graph(device, 1500)
    check(graph, "mul", reduce, (3, 4), (3,), torch.float64, deterministic=True)
    csc = graph.csc()
    x = features(graph.num_sources, (32,), device)
    e = features(graph.num_edges, (), device)
    results = []
    for _ in range(3):
        out = g_spmm(csc, "mul", reduce, x, e, deterministic=True)
        results.append((out, *torch.autograd.grad(out.square().sum(), (x, e))))
    for again in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], again, strict=True))


def test_first_extremum_has_the_gradient(device: torch.device) -> None:
    indptr = torch.tensor([0, 3, 3], device=device)
    csc = Csc(indptr, torch.tensor([2, 1, 0], device=device), 3)
    # The edges come from sources 2, 1, 0.
    for values, first in (([1.0, 1.0, 1.0], 2), ([1.0, 1.0, 0.0], 1)):
        x = torch.tensor(values, device=device).requires_grad_()
        out = g_spmm(csc, "copy_u", "max", x)
        assert out.tolist() == [1.0, 0.0]
        (gradient,) = torch.autograd.grad(out.sum(), x)
        assert gradient.nonzero().tolist() == [[first]]


def test_nan_and_infinity_go_through(device: torch.device) -> None:
    csc = Csc(torch.tensor([0, 2, 4], device=device), torch.tensor([0, 1, 2, 1], device=device), 3)
    x = torch.tensor([[1.0], [float("inf")], [float("nan")]], device=device)
    assert g_spmm(csc, "copy_u", "max", x)[0].item() == float("inf")
    assert g_spmm(csc, "copy_u", "min", x)[0].item() == 1.0
    for reduce in REDUCTIONS:
        assert g_spmm(csc, "copy_u", reduce, x)[1].isnan()


def test_a_sum_of_half_precision_is_kept_in_float32(device: torch.device) -> None:
    degree = 5_000
    csc = Csc(torch.tensor([0, degree], device=device),
              torch.zeros(degree, dtype=torch.int64, device=device), 1)  # fmt: skip
    x = torch.ones(1, 8, dtype=torch.bfloat16, device=device)
    assert_same(g_spmm(csc, "copy_u", "sum", x)[0], torch.full((8,), 4992.0, device=device))
    assert torch.equal(g_spmm(csc, "copy_u", "mean", x), x)


@pytest.mark.parametrize("weighted", [False, True])
def test_means_of_more_edges_than_float16_can_count(device: torch.device, weighted: bool) -> None:
    degree = 70_000
    sources = torch.arange(degree, device=device) % 50
    csc = Csc(torch.tensor([0, degree], device=device), sources, 50)
    x = torch.ones(50, 2, dtype=torch.float16, device=device, requires_grad=True)
    e = torch.ones(degree, dtype=torch.float16, device=device, requires_grad=True)
    out = g_spmm(csc, "mul", "mean", x, e) if weighted else g_spmm(csc, "copy_u", "mean", x)
    (of_x,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
    assert_same(of_x, torch.full((50, 2), 0.02, device=device))
    if weighted:
        (of_e,) = torch.autograd.grad(out.sum(), e)
        assert_same(of_e, torch.full((degree,), 2 / degree, device=device))


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float16, 300.0), (torch.float16, 1e-3), (torch.float32, 1e20)]
)
def test_divisors_whose_squares_are_out_of_range(
    device: torch.device, dtype: torch.dtype, size: float
) -> None:
    for reduce in ("sum", "max"):
        with named_case(reduce):
            check_divisors(device, dtype, size, reduce)


def check_divisors(device: torch.device, dtype: torch.dtype, size: float, reduce: str) -> None:
    csc = Csc(torch.tensor([0, 2], device=device), torch.tensor([0, 1], device=device), 2)
    small = min(1.0, size)
    x = (torch.tensor([[1.0], [3.0]], device=device) * max(1.0, size)).to(dtype)
    e = (torch.tensor([1.0, 2.0], device=device) * size).to(dtype).requires_grad_()
    (actual,) = torch.autograd.grad(g_spmm(csc, "div", reduce, x, e), e, x.new_full((1, 1), small))
    expected = -small * x.double().squeeze(1) / e.detach().double().square()
    if reduce == "max":
        expected[0] = 0
    torch.testing.assert_close(actual.double(), expected, rtol=1e-2, atol=0)
    right = e.detach().requires_grad_()
    quotient = g_sddmm(csc, "div", x, right, "u", "u")
    (actual,) = torch.autograd.grad(quotient, right, x.new_full((2, 1), small))
    expected = -small * x.double().squeeze(1) / e.detach().double().square()
    torch.testing.assert_close(actual.double(), expected, rtol=1e-2, atol=0)


def test_extrema_over_a_transpose(device: torch.device) -> None:
    for reduce in ("max", "min"):
        check(random_graph(device), "mul", reduce, (6,), (), backward="transpose")
        check(hub_graph(device, 1500), "copy_u", reduce, (6,), (), backward="transpose")
