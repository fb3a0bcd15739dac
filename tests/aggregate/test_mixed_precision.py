"""Sums and products under autocast: no operand is cast beside the sums, and TF32 changes little."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate import Csc, spmm_linear
from peergraph.aggregate.ops.side_by_side import sums_and_self_rows
from peergraph.memory import TableRows
from tests.aggregate.graphs import TOLERANCE, features, random_graph
from tests.aggregate.test_spmm_table_rows import rows_of
from tests.named_case import named_case, named_cases
from tests.pairwise import pairwise

COUNT, SOURCES, WIDTH, OUT = 30, 40, 16, 5
HALVES = [torch.bfloat16, torch.float16]


def weights_of(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Of neighbours, of the nodes themselves, and a bias; float32."""
    return (
        features(OUT, (WIDTH,), device, seed=10),
        features(OUT, (WIDTH,), device, seed=20),
        features(OUT, (), device, seed=21),
    )


def by_steps(csc: Csc, mean: bool, x: Tensor, params: tuple[Tensor, ...], own: Tensor) -> Tensor:
    """The same in plain torch, under the same autocast: sums in float32, as PyG scatters them."""
    source, destination = csc.edge_ends()
    sums = x.new_zeros(COUNT, WIDTH, dtype=torch.float32)
    sums = sums.index_add(0, destination, x[source].float())
    if mean:
        sums = sums / csc.in_degrees().clamp(min=1).unsqueeze(1)
    weight, self_weight, bias = params
    return F.linear(sums, weight) + F.linear(own, self_weight, bias)


@named_cases(
    ("dtype", "x_dtype", "reduce", "backward", "own", "grad"),
    pairwise(
        HALVES,
        [torch.float32, torch.bfloat16, torch.float16],
        ["sum", "mean"],
        ["transpose", "atomic"],
        ["first rows", "rows"],
        [True, False],
    ),
)
def test_products_under_autocast(
    device: torch.device,
    dtype: torch.dtype,
    x_dtype: torch.dtype,
    reduce: str,
    backward: Any,
    own: str,
    grad: bool,
) -> None:
    for nonisolated in (1.0, 0.2):
        csc = random_graph(device, SOURCES, COUNT, 90, nonisolated=nonisolated).csc()
        x = features(SOURCES, (WIDTH,), device, x_dtype, grad=grad)
        rows = features(COUNT, (WIDTH,), device, x_dtype, seed=9, grad=grad)
        self_x = rows if own == "rows" else None
        params = weights_of(device)
        with torch.autocast(device.type, dtype):
            actual = spmm_linear(
                csc, reduce, x, params[0], params[1], params[2], self_x=self_x, backward=backward
            )
            self_rows = x[:COUNT] if self_x is None else self_x
            expected = by_steps(csc, reduce == "mean", x, params, self_rows)
        assert actual.dtype == expected.dtype == dtype
        torch.testing.assert_close(actual, expected, rtol=4e-2, atol=0.3)
        inputs = [*params, *([x] if grad else []), *([rows] if grad and self_x is not None else [])]
        gradients = torch.autograd.grad(actual.float().sum(), inputs)
        for one, other in zip(
            gradients, torch.autograd.grad(expected.float().sum(), inputs), strict=True
        ):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, rtol=4e-2, atol=0.5)


def test_narrow_sums_are_rounded_once(device: torch.device) -> None:
    for dtype in HALVES:
        for width in (1, 7, 16, 33):
            csc = random_graph(device, SOURCES, COUNT, 200).csc()
            x = features(SOURCES, (width,), device, grad=False)
            own = features(COUNT, (5,), device, seed=9, grad=False)
            for mean in (False, True):
                result = sums_and_self_rows(csc, x, mean, own, dtype)
                sums = csc.sum_messages(x, None, "copy_u", mean)
                with named_case(dtype, width, mean):
                    assert torch.equal(result, torch.cat([sums, own], 1).to(dtype))
                    assert torch.equal(csc.sum_rows_as(dtype, x, mean), sums.to(dtype))
                result = sums_and_self_rows(csc, x, mean, None, dtype)
                assert torch.equal(result, torch.cat([sums, x[:COUNT]], 1).to(dtype))


@pytest.mark.parametrize("plan", ["replicated", "mixed"])
def test_rows_of_a_table(device: torch.device, plan: str) -> None:
    table, ids, x = rows_of(device, (WIDTH,), plan)
    csc, params = (
        random_graph(device, SOURCES, COUNT, 90, nonisolated=1.0).csc(),
        weights_of(device),
    )
    for dtype in (None, *HALVES):
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            actual = spmm_linear(csc, "mean", TableRows(table, ids), *params)
            expected = spmm_linear(csc, "mean", x, *params)
        tolerance = TOLERANCE[actual.dtype]
        torch.testing.assert_close(actual, expected, **tolerance)
        gradients = [torch.autograd.grad(out.sum(), params) for out in (actual, expected)]
        torch.testing.assert_close(*gradients, rtol=2e-2, atol=0.1)
    table.close()


@pytest.fixture
def casts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the tensors that ``Tensor.to`` casts."""
    shapes: list[tuple[int, ...]] = []
    to = Tensor.to

    def counted(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out = to(self, *args, **kwargs)
        if out.dtype != self.dtype and self.is_floating_point():
            shapes.append(tuple(self.shape))
        return out

    monkeypatch.setattr(Tensor, "to", counted)
    return shapes


def test_features_are_not_cast(device: torch.device, casts: list[tuple[int, ...]]) -> None:
    csc = random_graph(device, SOURCES, COUNT, 90, nonisolated=1.0).csc()
    params = weights_of(device)
    x = features(SOURCES, (WIDTH,), device, grad=False)
    casts.clear()
    with torch.autocast(device.type, torch.bfloat16):
        spmm_linear(csc, "mean", x, *params)
        assert set(casts) == {(OUT, 2 * WIDTH), (OUT,)}


@pytest.mark.gpus(1)
def test_tf32() -> None:
    """Products in TF32 are near those in float32, and gradients too."""
    device = torch.device("cuda", 0)
    csc = random_graph(device, 400, 300, 3000).csc()
    x = features(400, (256,), device)
    inputs = [features(64, (256,), device, seed=seed) for seed in (10, 20)]
    results = []
    before = torch.get_float32_matmul_precision()
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        try:
            out = spmm_linear(csc, "mean", x, *inputs)
            results.append([out, *torch.autograd.grad(out.square().mean(), [x, *inputs])])
        finally:
            torch.set_float32_matmul_precision(before)
    for one, other in zip(*results, strict=True):
        scale = float(one.abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=4e-3 * scale)
