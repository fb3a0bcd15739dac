"""How plain tensors of all rows are made from leaves of autograd."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

_Made = tuple[Tensor, Tensor]


def _whole(full: Tensor, needs_grad: bool) -> _Made:
    return full.requires_grad_(needs_grad), full


def _computed(full: Tensor, needs_grad: bool) -> _Made:
    leaf = full.reshape(-1).requires_grad_(needs_grad)
    return leaf, leaf.clone().view(full.shape)


def _expanded(full: Tensor, needs_grad: bool) -> _Made:
    leaf = full[:1].clone().requires_grad_(needs_grad)
    return leaf, leaf.expand(full.shape)


def _number(full: Tensor, needs_grad: bool) -> _Made:
    leaf = full.reshape(-1)[0].clone().requires_grad_(needs_grad)
    return leaf, leaf.expand(full.shape)


def _equal(full: Tensor, needs_grad: bool) -> _Made:
    leaf = full[:1].expand(full.shape).contiguous().requires_grad_(needs_grad)
    return leaf, leaf


def _equal_columns(full: Tensor, needs_grad: bool) -> _Made:
    if full.dim() == 1:
        return _whole(full, needs_grad)
    leaf = full.select(-1, 0).unsqueeze(-1).clone().requires_grad_(needs_grad)
    return leaf, leaf.expand(full.shape)


def _one_row(full: Tensor, needs_grad: bool) -> _Made:
    return _whole(full[:1].clone(), needs_grad)


def _without_rows(full: Tensor, needs_grad: bool) -> _Made:
    return _whole(full[0].clone(), needs_grad)


def _scalar(full: Tensor, needs_grad: bool) -> _Made:
    return _whole(full.reshape(-1)[0].clone(), needs_grad)


def _some_rows(full: Tensor, needs_grad: bool) -> _Made:
    """About as many rows as each of three ranks has."""
    return _whole(full[: max(2, (full.shape[0] + 2) // 3)].clone(), needs_grad)


def _no_rows(full: Tensor, needs_grad: bool) -> _Made:
    return _whole(full[:0].clone(), needs_grad)


OF_ALL_ROWS: dict[str, Callable[[Tensor, bool], _Made]] = {
    "whole": _whole,
    "computed": _computed,
    "one row expanded": _expanded,
    "a number expanded": _number,
    "equal rows": _equal,
    "equal columns": _equal_columns,
}
BROADCAST = {"one row": _one_row, "without rows": _without_rows, "scalar": _scalar}
PLAIN_FORMS = {
    **OF_ALL_ROWS,
    **BROADCAST,
    "some rows": _some_rows,
    "no rows": _no_rows,
}
"""Each returns the leaf of autograd, and the tensor that a call is made with."""
