"""Rows whose last ones are equal: the values, gradients and writes of a plain tensor."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph_pyg.data import tailed_rows
from peergraph_pyg.data.tailed_rows import TailedRows

_WEIGHT = torch.linspace(-1, 1, 15, dtype=torch.float64).view(5, 3)


@pytest.fixture(autouse=True)
def _no_least_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tailed_rows, "_FEWEST_BYTES", 0)


def parts() -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    first = torch.randn(4, 3, dtype=torch.float64, generator=draws).requires_grad_()
    return first, torch.randn(3, dtype=torch.float64, generator=draws).requires_grad_()


def rows() -> Tensor:
    tensor = TailedRows.of(*parts(), 10)
    assert type(tensor) is TailedRows
    return tensor


class _Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad * 3


_IN_MEMORY: dict[str, Callable[[Tensor], Tensor]] = {
    "leaky_relu": lambda x: F.leaky_relu(x)[:3],
    "narrow": lambda x: x.narrow(0, 0, 4).exp(),
    "linear": lambda x: F.linear(torch.relu(x), _WEIGHT)[:4],
    "layer_norm": lambda x: F.layer_norm(x, (3,))[:2],
    "conversion": lambda x: x.to(torch.float32).double()[:4],
    "dropout of evaluation": lambda x: F.dropout(x, 0.5, False)[:4],
}
_OF_ALL_ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "more than are in memory": lambda x: x[:6] * 2,
    "last": lambda x: x[5:],
    "strided": lambda x: x[::2],
    "sum": lambda x: x.sum(0),
    "function of rows": lambda x: F.silu(x).sum(1),
    "in place": lambda x: F.leaky_relu(x, 0.1, True),
    "module in place": lambda x: torch.nn.ReLU(inplace=True)(x),
    "cat": lambda x: torch.cat([x, x]),
    "product": lambda x: x.T @ x,
    "with itself": lambda x: torch.addcmul(x, x, x),
    "index": lambda x: x[torch.tensor([0, 9, 9])],
    "function of autograd": lambda x: _Tripled.apply(x),  # type: ignore[no-untyped-call]
    "written": lambda x: x.clone().index_fill_(0, torch.tensor([8]), 2.0),
}


@pytest.mark.parametrize("name", [*_IN_MEMORY, *_OF_ALL_ROWS])
def test_values_and_gradients(name: str) -> None:
    function = (_IN_MEMORY | _OF_ALL_ROWS)[name]
    results = []
    for plain in (True, False):
        first, last = parts()
        x = torch.cat([first, last.expand(6, 3)]) * 1 if plain else TailedRows.of(first, last, 10)
        out = function(x)
        scale = torch.arange(1, out.numel() + 1, dtype=torch.float64).view(out.shape)
        gradients = torch.autograd.grad(
            (out * scale).sum(), (first, last), allow_unused=True, materialize_grads=True
        )
        results.append((out.detach(), *gradients))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one)


@pytest.mark.parametrize("name", list(_IN_MEMORY))
def test_nothing_else_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TailedRows, "materialize", None)
    assert type(_IN_MEMORY[name](rows())) is Tensor


def test_attributes() -> None:
    x = rows()
    assert (x.shape, len(x), x.dtype) == ((10, 3), 10, torch.float64)
    assert x.requires_grad
    assert not x.is_leaf
    assert x.grad_fn is not None
    assert not x.detach().requires_grad


def test_dropout_draws_each_row() -> None:
    x = TailedRows.of(torch.ones(4, 300), torch.ones(300), 10)
    out = F.relu(F.dropout(x, 0.25))
    assert type(out) is TailedRows
    whole = out.clone()
    assert torch.equal(whole, out.clone())
    assert torch.equal(whole.unique(), torch.tensor([0, 1 / 0.75]))
    assert len(whole.unique(dim=0)) == 10
    assert abs(float((whole == 0).double().mean()) - 0.25) < 0.05
    with pytest.raises(NotImplementedError, match=r"x\.clone"):
        _Tripled.apply(F.dropout(rows(), 0.5)).sum().backward()  # type: ignore[no-untyped-call]


def test_looks_without_gradients_lose_none() -> None:
    first, last = parts()
    x = TailedRows.of(first, last, 10)
    with torch.no_grad():
        assert not x.sum().requires_grad
    x.sum().backward()
    assert torch.equal(first.grad, torch.ones(4, 3))
    assert torch.equal(last.grad, torch.full((3,), 6.0))


def test_writes_are_kept() -> None:
    x = TailedRows.of(torch.zeros(4, 3), torch.ones(3), 10)
    alias = x
    x[7] = 5
    x += 1
    assert float(alias.sum()) == 18 + 12 + 30
    alias[:2].zero_()
    assert float(x[:2].sum()) == 0


def test_writes_that_leading_rows_or_all_rows_would_miss() -> None:
    for is_view in (True, False):
        x = TailedRows.of(torch.zeros(4, 3), torch.ones(3), 10)
        first = x[:2]
        first += 1  # before all rows are made
        assert float(x.sum()) == 18 + 6
        if is_view:
            first.zero_()
            with pytest.raises(NotImplementedError, match=r"x\.clone"):
                x.sum()
        else:
            with pytest.raises(NotImplementedError, match=r"x\.clone"):
                x[0] = 7


@pytest.mark.parametrize(
    "alias",
    [
        lambda x: x.double(),
        lambda x: x.to(torch.float64),
        lambda x: F.dropout(x, 0.5, False),
        lambda x: F.dropout(x, 0.0),
        lambda x: x[:7],
        lambda x: x.narrow(0, 0, 10).double(),
    ],
)
@pytest.mark.parametrize("writes_alias", [False, True])
def test_writes_to_what_shares_memory_in_torch(
    alias: Callable[[Tensor], Tensor], writes_alias: bool
) -> None:
    """They are seen through the other tensor, or raise."""
    first, last = parts()
    for read in (lambda x: x.sum(0), lambda x: x[:2]):
        results = []
        for plain in (True, False):
            x = torch.cat([first, last.expand(6, 3)]) if plain else TailedRows.of(first, last, 10)
            other = alias(x)
            try:
                (other if writes_alias else x).mul_(3)
                results.append(read(x if writes_alias else other).detach())
            except NotImplementedError as error:
                assert "were written to" in str(error)  # noqa: PT017
                assert not plain
                results.append(results[0])
        torch.testing.assert_close(results[1], results[0])


def test_functions_that_are_not_of_each_row() -> None:
    x = TailedRows.of(torch.zeros(4, 3), torch.ones(3), 10)
    whole = torch.cat([torch.zeros(4, 3), torch.ones(6, 3)])
    torch.testing.assert_close(F.layer_norm(x, (10, 3)), F.layer_norm(whole, (10, 3)))
    out = torch.empty(10, 3)
    torch.sigmoid(x, out=out)
    torch.testing.assert_close(out, whole.sigmoid())


def test_in_inference_mode() -> None:
    with torch.inference_mode():
        x = TailedRows.of(torch.zeros(4, 3), torch.ones(3), 10)
        assert float(F.relu(x)[:3].sum()) == 0
        assert float(x.sum()) == 18


def test_copies() -> None:
    x = TailedRows.of(torch.zeros(4, 3), torch.ones(3), 10)
    for copied in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), x.clone()):
        assert type(copied) is Tensor
        assert float(copied.sum()) == 18
    assert x.numpy().sum() == 18
    assert x.tolist()[9] == [1, 1, 1]


def test_few_rows_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = parts()
    assert TailedRows.of(first, last, 4) is first
    assert type(TailedRows.of(first, last, 6)) is Tensor
    monkeypatch.setattr(tailed_rows, "_FEWEST_BYTES", 1 << 20)
    assert type(TailedRows.of(first, last, 10)) is Tensor
