"""Products of rows of batches: equal to torch's, whichever library chooses the kernel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from peergraph.aggregate.ops import row_products
from peergraph.aggregate.ops.row_products import (
    add_product,
    add_product_of_columns,
    multiply,
    product_of_columns,
    product_of_rows,
)
from tests.conftest import require_gpus

COUNTS = [0, 1, 63, 64, 65, 1000, 5003]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def numbers(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Small integers: their products and sums are exact in each dtype."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-2, 3, shape, generator=generator).to(device, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", COUNTS)
def test_products_of_rows(count: int, dtype: torch.dtype, device: torch.device) -> None:
    x = numbers(count, 16, dtype=dtype, device=device)
    weight = numbers(24, 16, dtype=dtype, device=device)
    bias = numbers(24, dtype=dtype, device=device)
    expected = x.double() @ weight.double().t()
    for matrix in (weight.t(), weight.t().contiguous()):
        assert torch.equal(product_of_rows(x, matrix).double(), expected)
        assert torch.equal(product_of_rows(x, matrix, bias).double(), expected + bias.double())
        for out_dtype in {dtype, torch.promote_types(dtype, torch.float32)}:
            out = numbers(count, 24, dtype=out_dtype, device=device)
            sums = out.double() + expected
            add_product(out, x, matrix, False)
            assert torch.equal(out.double(), sums)
            add_product(out, x, matrix, True)
            assert torch.equal(out.double(), expected)
            multiply(x, matrix, out.zero_())
            assert torch.equal(out.double(), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [each for each in COUNTS if each <= 1000])
def test_sums_over_rows(count: int, dtype: torch.dtype, device: torch.device) -> None:
    ones = torch.ones(count, 8, dtype=dtype, device=device)
    left = torch.where(torch.arange(count, device=device)[:, None] % 9 == 0, ones, 0)
    right = numbers(count, 24, dtype=dtype, device=device)
    expected = left.double().t() @ right.double()
    assert torch.equal(product_of_columns(left, right).double(), expected)
    for out_dtype in {dtype, torch.promote_types(dtype, torch.float32)}:
        out = numbers(8, 24, dtype=out_dtype, device=device)
        sums = out.double() + expected
        add_product_of_columns(out, left, right, False)
        assert torch.equal(out.double(), sums)
        add_product_of_columns(out, left, right, True)
        assert torch.equal(out.double(), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_views(dtype: torch.dtype, device: torch.device) -> None:
    """Rows and columns of other tensors, at any address."""
    x = numbers(300, 40, dtype=dtype, device=device)
    weight = numbers(40, 24, dtype=dtype, device=device)
    for rows, columns in [(slice(7, 290), slice(0, 40)), (slice(1, 258), slice(3, 21))]:
        part, matrix = x[rows, columns], weight[columns]
        out = x.new_empty(300, 24)[rows]
        add_product(out, part, matrix, True)
        assert torch.equal(out.double(), part.double() @ matrix.double())
        total = x.new_empty(24, 50)[:, : part.shape[1]]
        add_product_of_columns(total, out.sign(), part, True)
        assert torch.equal(total.double(), out.double().sign().t() @ part.double())
    flat = torch.zeros(1 + 64 * 8, dtype=dtype, device=device)[1:]
    unaligned = flat.view(64, 8).copy_(x[:64, :8])
    assert torch.equal(
        product_of_rows(unaligned, weight[:8]), product_of_rows(x[:64, :8], weight[:8])
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_compiled_module_multiplies(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In half precision on a GPU, and within a CUDA graph."""
    require_gpus(1)
    device = torch.device("cuda", 0)
    x = numbers(1003, 64, dtype=dtype, device=device)
    weight = numbers(64, 32, dtype=dtype, device=device)
    torch.mm(x, weight)  # loads cuBLAS
    monkeypatch.setattr(row_products, "_add_by_torch", None)
    monkeypatch.setattr(torch, "mm", None)
    rows = torch.zeros(1003, 32, dtype=dtype, device=device)
    columns = torch.zeros(64, 32, device=device)
    for count in (1003, 1002, 900):
        add_product(rows[:count], x[:count], weight, True)
        add_product_of_columns(columns, x[:count], rows[:count].sign(), True)
        graph = torch.cuda.CUDAGraph()
        signs = rows[:count].sign()
        with torch.cuda.graph(graph):
            add_product(rows[:count], x[:count], weight, False)
            add_product_of_columns(columns, x[:count], signs, False)
        graph.replay()
        product = x[:count].double() @ weight.double()
        assert torch.equal(rows[:count].double(), 2 * product)
        assert torch.equal(columns.double(), 2 * (x[:count].double().t() @ product.sign()))
