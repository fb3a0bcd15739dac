"""Products of rows in pieces of few shapes: equal to whole products."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from peergraph.aggregate.ops import row_products
from peergraph.aggregate.ops.row_products import (
    add_product,
    add_product_of_columns,
    columns_times,
    multiply,
    row_pieces,
    rows_times,
)

COUNTS = [0, 1, 255, 256, 257, 511, 512, 1000, 4095, 5003]


@pytest.fixture(autouse=True)
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU divides rows as a GPU does."""
    monkeypatch.setattr(row_products, "_chooses_by_shape", lambda _: True)


def numbers(*shape: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(device)


def test_pieces_cover_the_rows_and_have_few_lengths() -> None:
    lengths = set()
    for count in range(300_000, 310_000, 7):
        pieces = row_pieces(torch.empty(count, 0))
        assert pieces[0].start == 0
        assert pieces[-1].stop == count
        assert all(a.stop >= b.start for a, b in pairwise(pieces))
        lengths |= {piece.stop - piece.start for piece in pieces}
    assert len(lengths) <= 4
    for count in COUNTS:
        covered = torch.zeros(count)
        for piece in row_pieces(torch.empty(count, 0)):
            covered[piece] = 1
        assert covered.all()


@pytest.mark.parametrize("count", COUNTS)
def test_products_of_rows(count: int, device: torch.device) -> None:
    x, weight = numbers(count, 6, device=device), numbers(6, 5, device=device)
    bias, out = numbers(5, device=device), numbers(count, 5, device=device)
    torch.testing.assert_close(rows_times(x, weight), x @ weight)
    torch.testing.assert_close(rows_times(x, weight, bias), x @ weight + bias)
    expected = out + x @ weight
    add_product(out, x, weight, False)
    torch.testing.assert_close(out, expected)
    add_product(out, x, weight, True)
    torch.testing.assert_close(out, x @ weight)


@pytest.mark.parametrize("count", COUNTS)
def test_sums_of_products(count: int, device: torch.device) -> None:
    left, right = numbers(count, 6, device=device), numbers(count, 5, device=device)
    out = numbers(6, 5, device=device)
    torch.testing.assert_close(columns_times(left, right), left.mT @ right)
    expected = out + left.mT @ right
    add_product_of_columns(out, left, right, False)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("count", COUNTS)
def test_several_products(count: int, device: torch.device) -> None:
    left, right = numbers(3, count, 6, device=device), numbers(3, count, 5, device=device)
    weight = numbers(3, 6, 5, device=device)
    torch.testing.assert_close(rows_times(left, weight), left @ weight)
    out = left.new_empty(3, 6, 5)
    add_product_of_columns(out, left, right, True)
    torch.testing.assert_close(out, left.mT @ right)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_added_in_float32(dtype: torch.dtype, device: torch.device) -> None:
    left = numbers(3001, 6, device=device).to(dtype)
    right = numbers(3001, 5, device=device).to(dtype)
    weight = numbers(6, 5, device=device).to(dtype)
    total = torch.empty(6, 5, device=device)
    add_product_of_columns(total, left, right, True)
    expected = left.double().mT @ right.double()
    torch.testing.assert_close(total.double(), expected, rtol=1e-2, atol=0.5)
    rows = torch.empty(3001, 5, device=device)
    multiply(left, weight, rows)
    torch.testing.assert_close(rows.double(), left.double() @ weight.double(), rtol=1e-5, atol=1e-5)
