"""On the CPU, results have the same bits for any width of vectors and any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate import Csc, attention, edge_softmax, g_sddmm, g_spmm
from tests.named_case import named_case
from tests.vector_width import running

NODES, SOURCES = 70, 400
# Fewer than a vector, tails, whole vectors, and several blocks of them.
WIDTHS = [1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 31, 33, 47, 48, 64, 66, 100, 128, 160, 602]
OTHERS = [torch.float64, torch.float16, torch.bfloat16]

Op = Callable[[Csc], tuple[Tensor, ...]]


def graph(id_dtype: torch.dtype, by_edge_id: bool) -> Csc:
    """Random rows, empty ones, and a hub that has most of the edges."""
    random = torch.Generator().manual_seed(3)
    degrees = torch.randint(0, 6, (NODES,), generator=random)
    degrees[::7] = 0
    degrees[NODES // 2] = 900
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)]).to(id_dtype)
    edges = int(degrees.sum())
    indices = torch.randint(0, SOURCES, (edges,), generator=random).to(id_dtype)
    order = torch.randperm(edges, generator=random).to(id_dtype) if by_edge_id else None
    return Csc(indptr, indices, SOURCES, edge_ids=order)


def values(rows: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    random = torch.Generator().manual_seed(rows)
    return torch.randn(rows, *shape, generator=random).to(dtype).requires_grad_()


def with_gradients(out: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    scale = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.dtype)
    return out.detach(), *torch.autograd.grad((out * scale).sum(), inputs)


def check(op: Op) -> None:
    for csc in (graph(torch.int32, False), graph(torch.int64, True)):
        with running(16, 1):
            expected = op(csc)
        for width, threads in ((16, 3), (32, 1), (64, 1), (64, 3)):
            if width > _C.vector_bytes():
                continue
            with running(width, threads):
                actual = op(csc)
            for one, other in zip(actual, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("reduce", ["mean", "min"])
def test_sources(reduce: str) -> None:
    def op(csc: Csc, x: Tensor) -> tuple[Tensor, ...]:
        return with_gradients(g_spmm(csc, "copy_u", reduce, x), x)

    for width in WIDTHS:
        with named_case(width):
            check(partial(op, x=values(SOURCES, width)))


def with_other_dtypes(*cases: int | tuple[int, int]) -> list[tuple[Any, torch.dtype]]:
    """All cases in float32, the last one in the other dtypes too."""
    return [*((case, torch.float32) for case in cases), *((cases[-1], dtype) for dtype in OTHERS)]


@pytest.mark.parametrize(("heads", "dtype"), with_other_dtypes(1, 3, 48, 4), ids=str)
def test_messages(dtype: torch.dtype, heads: int) -> None:
    x = values(SOURCES, heads, 48 // heads, dtype=dtype)

    def op(csc: Csc, message: str) -> tuple[Tensor, ...]:
        e = values(csc.num_edges, heads, dtype=dtype)
        out = [g_spmm(csc, message, reduce, x, e) for reduce in ("sum", "max")]
        return with_gradients(torch.cat(out), x, e)

    for message in ("add", "sub", "mul", "div"):
        with named_case(message):
            check(partial(op, message=message))


@pytest.mark.parametrize("width", WIDTHS[::2])
def test_edges(width: int) -> None:
    x, y = values(SOURCES, 2, width), values(NODES, 2, width)
    one = values(NODES, 2, 1)

    def op(csc: Csc) -> tuple[Tensor, ...]:
        dots = with_gradients(g_sddmm(csc, "dot", x, y), x, y)
        differences = with_gradients(g_sddmm(csc, "sub", x, y), x, y)
        return *dots, *differences, *with_gradients(g_sddmm(csc, "div", x, one), x, one)

    check(op)


@pytest.mark.parametrize(("heads", "dtype"), with_other_dtypes(1, 2, 8, 17, 3, 4), ids=str)
def test_softmax(heads: int, dtype: torch.dtype) -> None:
    def op(csc: Csc) -> tuple[Tensor, ...]:
        scores = values(csc.num_edges, heads, dtype=dtype)
        return with_gradients(edge_softmax(csc, scores), scores)

    check(op)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    with_other_dtypes((1, 1), (2, 3), (4, 8), (3, 16), (1, 37), (8, 20)),
    ids=str,
)
def test_attention(shape: tuple[int, int], dtype: torch.dtype) -> None:
    for dynamic in (False, True):
        with named_case("dynamic", dynamic):
            check_attention(dynamic, shape, dtype)


def check_attention(dynamic: bool, shape: tuple[int, int], dtype: torch.dtype) -> None:
    heads, depth = shape
    x = values(SOURCES, heads, depth, dtype=dtype)
    left, att = values(SOURCES, heads), values(heads, depth)
    right = values(NODES, heads, depth, dtype=dtype) if dynamic else values(NODES, heads)

    def op(csc: Csc) -> tuple[Tensor, ...]:
        if dynamic:
            out = attention(csc, x, right=right, att=att, self_loops=NODES)
            return with_gradients(out, x, right, att)
        return with_gradients(attention(csc, x, left, right), x, left, right)

    check(op)


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_extrema_of_copies_with_nan(reduce: str) -> None:
    # Where no value is NaN, a shorter way is taken.
    x = values(SOURCES, 37).detach()
    plain = graph(torch.int64, False)
    x[plain.indices[:5].long(), 3] = torch.nan
    x.requires_grad_()
    check(lambda csc: with_gradients(g_spmm(csc, "copy_u", reduce, x), x))
    result = g_spmm(plain, "copy_u", reduce, x)
    assert result[1:3].isnan().any()
    # As messages that are no copies have it, which never go that way.
    ones = torch.ones(plain.num_edges)
    assert_close = torch.testing.assert_close
    assert_close(result, g_spmm(plain, "mul", reduce, x, ones), rtol=0, atol=0, equal_nan=True)


def test_exp_of_far_scores() -> None:
    scores = torch.tensor([0.0, -1e-3, -1.0, -30.0, -87.5, -95.0, -103.0, -200.0, -torch.inf])
    indptr = torch.tensor([0, len(scores)])
    csc = Csc(indptr, torch.zeros(len(scores), dtype=torch.int64), 1)
    for values in (scores, scores + 1000):
        expected = values.double().softmax(0).float()
        torch.testing.assert_close(edge_softmax(csc, values), expected, rtol=5e-7, atol=2e-45)
    for special in (torch.nan, torch.inf):
        assert edge_softmax(csc, scores.clone().fill_(special)).isnan().all()
