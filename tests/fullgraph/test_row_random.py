"""The kernels of random numbers keyed by (seed, row id, column), and dropout with them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.fullgraph.random.kernels import (
    DISTRIBUTIONS,
    dropout_rows,
    fill_random,
    keep_rows,
)
from peergraph.memory.device.launching import launch_on
from peergraph.reference.philox import philox
from tests.named_case import named_case, named_cases
from tests.vector_width import running

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
IDS = (0, 1, 5, 2**32 - 1, 2**32, 2**40, 5)
SEED = 2**63 - 2


def row_ids(device: torch.device) -> Tensor:
    return torch.tensor(IDS, device=device)


def words(row: int, column: int, columns_per_block: int) -> list[int]:
    block = philox(SEED, row, column // columns_per_block)
    width = 4 // columns_per_block
    first = column % columns_per_block * width
    return block[first : first + width]


def bits(row: int, column: int) -> int:
    low, high = words(row, column, 2)
    return high << 32 | low


@named_cases("columns", [1, 2, 3, 4, 5, 64, 131])
def test_bits_are_those_of_philox(columns: int, device: torch.device) -> None:
    uniform = fill_random("uniform", SEED, row_ids(device), columns, torch.float64)
    factors = keep_rows(0.3, SEED, row_ids(device), columns, torch.float32)
    for i, row in enumerate(IDS):
        for column in range(columns):
            assert uniform[i, column] == (bits(row, column) >> 11) * 2.0**-53
            assert factors[i, column] == (words(row, column, 4)[0] >= int(0.3 * 2**32))


def test_narrower_types_have_fewer_digits_of_the_same_numbers(device: torch.device) -> None:
    ids = torch.arange(3000, device=device)
    for distribution in DISTRIBUTIONS:
        wide = fill_random(distribution, SEED, ids, 7, torch.float64)
        for dtype in DTYPES:
            with named_case(distribution, dtype):
                values = fill_random(distribution, SEED, ids, 7, dtype)
                assert values.dtype == dtype
                if distribution == "uniform":
                    step = torch.finfo(dtype).eps / 2
                    assert torch.equal(values.double(), (wide / step).floor() * step)
                    assert bool((values < 1).all())
                else:
                    assert torch.equal(
                        values, wide.float().to(dtype) if dtype != wide.dtype else wide
                    )


def test_normal_numbers_are_quantiles(device: torch.device) -> None:
    """Tails included: the rows 0 .. 10^5 reach four and a half standard deviations."""
    ids = torch.arange(100_000, device=device)
    normal = fill_random("normal", SEED, ids, 2, torch.float64)
    exponential = fill_random("exponential", SEED, ids, 2, torch.float64)
    uniform = fill_random("uniform", SEED, ids, 2, torch.float64)
    middle = (uniform * 2.0**52).floor() * 2.0**-52 + 2.0**-53
    torch.testing.assert_close(normal, torch.special.ndtri(middle), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(exponential, -middle.log(), rtol=1e-14, atol=1e-15)
    assert normal.min() < -4
    assert normal.max() > 4


@pytest.mark.parametrize("dtype", DTYPES)
@named_cases("columns", [1, 3, 4, 8, 47, 128])
def test_dropout(columns: int, dtype: torch.dtype, device: torch.device) -> None:
    ids = torch.randperm(501, device=device) + 2**40
    # One element behind the start of an allocation: not aligned for vectors.
    for offset in (0, 1):
        flat = torch.randn(501 * columns + offset, device=device).to(dtype)
        x = flat[offset:].view(501, columns)
        for p in (0.0, 0.25, 0.6, 1.0):
            with named_case(offset, p):
                result = dropout_rows(x, p, SEED, ids)
                is_kept = keep_rows(p, SEED, ids, columns, dtype) != 0
                scale = 1 / (1 - p) if p < 1 else 0.0
                wide = x if dtype == torch.float64 else x.float()
                scaled = (wide * torch.tensor(scale, dtype=wide.dtype)).to(dtype)
                assert torch.equal(result, torch.where(is_kept, scaled, 0))
                assert p not in (0.0, 1.0) or bool((is_kept == (p == 0.0)).all())


@pytest.mark.gpus(1)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gpu_has_the_bits_of_the_cpu(dtype: torch.dtype) -> None:
    ids = torch.randint(0, 2**40, (3001,))
    for columns in (1, 2, 3, 7, 8, 256):
        x = torch.randn(3001, columns).to(dtype)
        for make in (
            *(partial(_filled, distribution, columns, dtype) for distribution in DISTRIBUTIONS),
            lambda ids, x=x: dropout_rows(x.to(ids.device), 0.4, SEED, ids),
        ):
            assert torch.equal(make(ids.cuda()).cpu(), make(ids))


def _filled(distribution: str, columns: int, dtype: torch.dtype, ids: Tensor) -> Tensor:
    return fill_random(distribution, SEED, ids, columns, dtype)


def test_vectors_and_threads_change_nothing() -> None:
    ids, x = torch.randperm(5000), torch.randn(5000, 13)

    def make() -> list[Tensor]:
        filled = [_filled(name, 13, torch.float32, ids) for name in DISTRIBUTIONS]
        return [*filled, dropout_rows(x, 0.5, SEED, ids), keep_rows(0.5, SEED, ids, 13, x.dtype)]

    expected = make()
    for vector_bytes, threads in ((16, 1), (32, 3), (64, 2)):
        with running(vector_bytes, threads):
            for actual, want in zip(make(), expected, strict=True):
                assert torch.equal(actual, want)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_empty(shape: tuple[int, int], device: torch.device) -> None:
    ids = torch.arange(shape[0], device=device)
    assert fill_random("normal", SEED, ids, shape[1], torch.float32).shape == shape
    assert dropout_rows(torch.empty(shape, device=device), 0.5, SEED, ids).shape == shape


def test_rejects() -> None:
    ids, x, launch = torch.arange(3), torch.ones(3, 2), launch_on(torch.device("cpu"))
    arguments = {"seed": 1, "device_seed": None, "p": 0.5, "scale": 2.0, "launch": launch}
    with pytest.raises(ValueError, match="row_ids must be int64"):
        _C.dropout_rows(row_ids=ids.int(), x=x, out=x, **arguments)
    with pytest.raises(ValueError, match="a row for each of row_ids"):
        _C.dropout_rows(row_ids=ids, x=x, out=torch.ones(5), **arguments)
    with pytest.raises(ValueError, match=r"p must be in 0\.\.1"):
        _C.dropout_rows(row_ids=ids, x=x, out=x, **{**arguments, "p": 1.5})
    with pytest.raises(ValueError, match="must be float32"):
        _C.dropout_rows(row_ids=ids, x=None, out=torch.ones(3, 2).long(), **arguments)


def test_masks_are_independent() -> None:
    """Over columns of a row, over rows and over calls: correlations are within 4.5 deviations."""
    p, ids = 0.3, torch.arange(20_000)
    mask, other = (keep_rows(p, seed, ids, 64, torch.float64) - (1 - p) for seed in (11, 12))
    variance = p * (1 - p)
    assert abs(float(mask.mean())) < 4.5 * (variance / mask.numel()) ** 0.5
    by_column = mask.sum(0) / (variance * len(ids)) ** 0.5
    assert bool((by_column.abs() < 4.5).all())
    pairs = {
        "columns": (mask[:, :-1], mask[:, 1:]),
        "columns of other blocks": (mask[:, :-4], mask[:, 4:]),
        "rows": (mask[:-1], mask[1:]),
        "rows 2^k apart": (mask[:-4096], mask[4096:]),
        "calls": (mask, other),
    }
    for name, (a, b) in pairs.items():
        with named_case(name):
            assert abs(float((a * b).mean())) < 4.5 * variance / a.numel() ** 0.5


def test_uniform_numbers_fill_the_interval_evenly() -> None:
    values = fill_random("uniform", 5, torch.arange(50_000), 16, torch.float32)
    counts = torch.histc(values, 256, 0, 1).double()
    expected = values.numel() / 256
    chi_square = float(((counts - expected) ** 2).sum()) / expected
    assert abs(chi_square - 255) < 5 * (2 * 255) ** 0.5
