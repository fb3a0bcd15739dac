"""Views that are made in `no_grad` or in inference mode need gradients, and pass none on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fullgraph.fuzz.report import Configuration
from tests.fullgraph.fuzz.scene import Scene
from tests.named_case import named_case

Function = Callable[[Tensor], Any]
SHAPES: dict[str, Function] = {
    "a column": lambda w: w[:, 1],
    "columns": lambda w: w[:, :2],
    "a range of rows": lambda w: w[:3],
    "a column of rows": lambda w: w[:14, ..., 1],
    "one row": lambda w: w[2],
    "all": lambda w: w[...],
    "a new dimension": lambda w: w[None],
    "narrow": lambda w: w.narrow(1, 0, 2),
    "narrow of rows": lambda w: w.narrow(0, 1, 3),
    "select": lambda w: w.select(1, 0),
    "unbind": lambda w: w.unbind(1)[0],
    "unbind of rows": lambda w: w.unbind(0)[0],
    "split": lambda w: w.split(2, 1)[0],
    "split of rows": lambda w: w.split(3)[0],
    "chunk": lambda w: w.chunk(2, 1)[0],
    "chunk of rows": lambda w: w.chunk(2)[0],
    "tensor_split": lambda w: w.tensor_split(2, 1)[0],
    "t": lambda w: w.t(),
    "T": lambda w: w.T,
    "mT": lambda w: w.mT,
    "transpose": lambda w: w.transpose(0, 1),
    "permute": lambda w: w.permute(1, 0),
    "movedim": lambda w: w.movedim(0, 1),
    "view": lambda w: w.view(w.shape[0], -1, 1),
    "view_as": lambda w: w.view_as(w),
    "reshape": lambda w: w.reshape(w.shape[0], -1, 1),
    "unflatten": lambda w: w.unflatten(1, (-1, 1)),
    "squeeze": lambda w: w.squeeze(),
    "unsqueeze": lambda w: w.unsqueeze(1),
    "expand": lambda w: w.unsqueeze(1).expand(-1, 2, -1),
    "expand_as": lambda w: w.expand_as(w),
}
OTHERS: dict[str, Function] = {
    "detach": lambda w: w.detach(),
    "data": lambda w: w.data,
    "contiguous": lambda w: w.contiguous(),
    "flatten": lambda w: w.flatten(1),
    "a product": lambda w: w * 2,
    "a mask": lambda w: w[w[:, 0].detach() > 0],
    "ids": lambda w: w[[0, 1]],
}
MODES = [torch.no_grad, torch.inference_mode]


def _names(chunks: int, is_plain: bool) -> dict[str, Any]:
    return Scene(3, Configuration(chunks=chunks), is_plain).names


def _leaf(names: dict[str, Any]) -> Tensor:
    x: Tensor = names["x"].detach().clone().requires_grad_()
    return x


def _gradient(x: Tensor) -> Tensor | None:
    return None if x.grad is None else x.grad.full_tensor() if hasattr(x, "full_tensor") else x.grad


def _described(make: Function, mode: Any, names: dict[str, Any]) -> tuple[Any, ...]:
    """What a result is, and the gradients of functions of it alone, and with its tensor."""
    x = _leaf(names)
    w = x * 2
    with mode():
        v = make(w)
    loss = (v * 2).sum()
    properties: list[Any] = [v.requires_grad, v.is_leaf, v.is_inference(), loss.requires_grad]
    if loss.requires_grad:
        loss.backward(retain_graph=True)
        properties += [x.grad is None, v.is_leaf and v.grad is None]
    x.grad = None
    (loss * (w * w).sum()).backward()
    return (*properties, _gradient(x))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_gradients_end_at_a_view(chunks: int, mode: Any) -> None:
    names, plain_names = _names(chunks, False), _names(0, True)
    for name, make in (SHAPES | OTHERS).items():
        with named_case(name):
            *properties, gradient = _described(make, mode, names)
            *expected, right = _described(make, mode, plain_names)
            if chunks:  # no offloaded tensor is one of inference mode
                properties[2] = expected[2] = None
            assert properties == expected
            torch.testing.assert_close(gradient, right)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunks", [0, 2])
def test_a_view_is_not_changed_with_gradients(chunks: int, mode: Any) -> None:
    for name, make in SHAPES.items():
        w = _leaf(_names(chunks, False)) * 2
        with mode():
            v = make(w)
        with named_case(name), pytest.raises(RuntimeError, match=r"in-?place"):
            v.mul_(2)


@pytest.mark.parametrize("chunks", [0, 2])
def test_a_change_without_gradients_reaches_the_tensor(chunks: int) -> None:
    plain = _leaf(_names(0, True)) * 2
    w: Any = _leaf(_names(chunks, False)) * 2
    with torch.no_grad():
        for tensor in (plain, w):
            rows = tensor[2:5]
            rows.mul_(3)
            del rows
            row = tensor[2]
            row.add_(1)
            tensor[4] += 1
            tensor[3].add_(row)
            del row
        torch.testing.assert_close(w.full_tensor(), plain)


@pytest.mark.parametrize("chunks", [0, 2])
def test_one_row_follows_a_change_without_gradients(chunks: int) -> None:
    w: Any = _leaf(_names(chunks, False)) * 2
    with torch.no_grad():
        row = w[2]
        row += 1
        w.mul_(3)
        torch.testing.assert_close(row * 1, w[2] * 1)


@pytest.mark.parametrize("chunks", [0, 1, 3])
@pytest.mark.parametrize("make", [torch.zeros_like, torch.ones_like, torch.rand_like])
def test_a_new_leaf_of_rows_gets_its_gradient(chunks: int, make: Any) -> None:
    """Of offloaded rows it got none: a disturbance of the features was never trained."""
    x = _names(chunks, False)["x"]
    new: Any = make(x, requires_grad=True)
    assert new.is_leaf
    (x * new).sum().backward()
    torch.testing.assert_close(new.grad.full_tensor(), x.full_tensor())
