"""Bias, ReLU and dropout in one pass, against torch's steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from peergraph.aggregate.layers import activate
from peergraph.aggregate.ops.activate import activation_of, draw_seed
from tests.aggregate.graphs import DTYPES, assert_same, assert_same_with_gradients, features
from tests.named_case import named_case, named_cases
from tests.pairwise import pairwise

ROWS = 33


def plain(x: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    out = x if bias is None else x + bias
    return out.relu() if relu else out


def inputs(
    device: torch.device, columns: int, dtype: torch.dtype, with_bias: bool
) -> tuple[Tensor, Tensor | None]:
    x = features(ROWS, (columns,), device, dtype)
    return x, features(columns, (), device, dtype, seed=7) if with_bias else None


@named_cases(
    ("dtype", "columns", "with_bias", "relu"),
    pairwise(DTYPES, [1, 7, 8, 47, 256, 2100], [True, False], [True, False]),
)
def test_equals_the_steps(
    device: torch.device, dtype: torch.dtype, columns: int, with_bias: bool, relu: bool
) -> None:
    x, bias = inputs(device, columns, dtype, with_bias)
    leaves = [x] if bias is None else [x, bias]
    out = activate(x, bias, relu=relu)
    assert_same_with_gradients(out, plain(x, bias, relu), leaves, leaves)
    with torch.no_grad():
        assert_same(activate(x, bias, relu=relu), plain(x, bias, relu))


@pytest.mark.parametrize("columns", [8, 13])
def test_dropout(device: torch.device, columns: int) -> None:
    for dtype in DTYPES:
        for p in (0.1, 0.5, 1.0):
            with named_case(dtype, p):
                check_dropout(device, dtype, columns, p)


def check_dropout(device: torch.device, dtype: torch.dtype, columns: int, p: float) -> None:
    """Elements are scaled or 0, as often as asked for; gradients reach the kept ones."""
    x = features(4000, (columns,), device, dtype)
    bias = features(columns, (), device, dtype, seed=7)
    out = activate(x, bias, dropout=p)
    whole = plain(x, bias, True)
    is_nonzero = out != 0
    positive = int((whole > 0).sum())
    assert (
        abs(int(is_nonzero.sum()) / positive - (1 - p)) < 5 * (p * (1 - p) / positive) ** 0.5 + 1e-9
    )
    scale = 0.0 if p == 1 else 65536 / (65536 - round(p * 65536))
    assert_same(out, torch.where(is_nonzero, whole.double() * scale, 0))
    weight = features(4000, (columns,), device, seed=9, grad=False).to(dtype)
    of_x, of_bias = torch.autograd.grad(out, (x, bias), weight)
    expected = torch.where(is_nonzero, weight.double() * scale, 0)
    assert_same(of_x, expected)
    torch.testing.assert_close(of_bias.double(), expected.sum(0), rtol=2e-2, atol=2e-2)


def test_seeds(device: torch.device) -> None:
    x = torch.ones(100, 20, device=device)
    torch.manual_seed(5)
    first, second = activate(x, dropout=0.5), activate(x, dropout=0.5)
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(activate(x, dropout=0.5), first)
    torch.manual_seed(6)
    assert not torch.equal(activate(x, dropout=0.5), first)


def test_cpu_and_gpu_drop_the_same(device: torch.device) -> None:
    seed = torch.tensor([-(2**62) + 3])
    for dtype in DTYPES:
        for columns in (8, 13):
            x = features(ROWS, (columns,), device, dtype, grad=False)
            bias = features(columns, (), device, dtype, seed=7, grad=False)
            actual = activation_of(x, bias, True, 0.3, seed.to(device))
            expected = activation_of(x.cpu(), bias.cpu(), True, 0.3, seed)
            for one, other in zip(actual, expected, strict=True):
                assert one is not None
                assert other is not None
                assert torch.equal(one.cpu(), other)


def test_rows_and_columns_are_independent(device: torch.device) -> None:
    """Element (r, c) is dropped by seed, row and column alone."""
    seed = draw_seed(device)
    whole = activation_of(torch.ones(50, 40, device=device), None, False, 0.5, seed)[0]
    part = activation_of(torch.ones(20, 40, device=device), None, False, 0.5, seed)[0]
    assert torch.equal(whole[:20], part)
    correlation = torch.corrcoef(whole.double().flatten(1))
    assert float(correlation.fill_diagonal_(0).abs().max()) < 0.8


def test_not_finite(device: torch.device) -> None:
    values = [torch.nan, torch.inf, -torch.inf, -1.0, 0.0, 2.0, -0.0, torch.nan]
    x = torch.tensor([values], device=device, requires_grad=True)
    out = activate(x)
    torch.testing.assert_close(out, x.relu(), equal_nan=True)
    (result,) = torch.autograd.grad(out.sum(), x)
    assert result[0].tolist() == [1, 1, 0, 0, 0, 1, 0, 1]
    assert not activate(x, dropout=1.0).any()


def test_second_derivatives(device: torch.device) -> None:
    x = features(5, (9,), device, torch.float64)
    bias = features(9, (), device, torch.float64, seed=7)

    def run(x: Tensor, bias: Tensor) -> Tensor:
        torch.manual_seed(3)
        return activate(x, bias, dropout=0.25).square()

    assert torch.autograd.gradcheck(run, (x, bias))
    assert torch.autograd.gradgradcheck(run, (x, bias))


def test_a_gradient_depends_on_the_features_as_with_torch(device: torch.device) -> None:
    for relu in (True, False):
        x = features(5, (9,), device)
        bias = features(9, (), device, seed=7)
        right = (x + bias).relu() if relu else x + bias
        gradients, right_ones = (
            torch.autograd.grad(out.sum(), (x, bias), create_graph=True)
            for out in (activate(x, bias, relu=relu), right)
        )
        for gradient, right_one in zip(gradients, right_ones, strict=True):
            assert gradient.requires_grad == right_one.requires_grad == relu
            if relu:
                second, right_second = (
                    torch.autograd.grad(g.sum(), (x, bias), retain_graph=True)
                    for g in (gradient, right_one)
                )
                torch.testing.assert_close(second, right_second)


def test_other_tensors_take_the_steps(device: torch.device) -> None:
    x = features(4, (3, 8), device)
    bias = features(8, (), device, seed=7)
    assert_same_with_gradients(activate(x, bias), (x + bias).relu(), [x, bias], [x, bias])
    half, wide = features(4, (8,), device, torch.float16), features(8, (), device, seed=7)
    assert activate(half, wide).dtype == torch.float32
    with torch.autocast(device.type, torch.bfloat16):
        out = activate(half.bfloat16(), wide)
    assert out.dtype == torch.bfloat16
    assert activate(half[:0], None).shape == (0, 8)
    compiled = torch.compile(activate, backend="eager", fullgraph=True)
    assert_same(compiled(x[:, 0], bias), activate(x[:, 0], bias))
    columns = features(8, (4,), device).t()
    assert_same(activate(columns, bias), (columns + bias).relu())


def test_bad_arguments() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"dropout must be in 0\.\.1, got 1\.5"):
        activate(x, dropout=1.5)
    with pytest.raises(ValueError, match=r"bias must be \[3\], got \[2\]"):
        activate(x, torch.ones(2))
