"""Plain tensors that meet partitioned rows: right values and gradients, or an error on all ranks.

:mod:`tests.fullgraph.operators` compares all functions of torch so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.conversions import distribute
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.named_case import named_case

SIZE = 6
_GROUPS = torch.tensor([0, 0, 3, 3, 0, 4])


def _values(*shape: int) -> Tensor:
    draw = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=draw, dtype=torch.float64)


def _reduce(plain: Tensor, index: Tensor, rows: Tensor, name: str) -> Tensor:
    index = index[:, None].expand(SIZE, 3)
    return plain.scatter_reduce(0, index, rows, name, include_self=False)


def _check_gradients_of_groups_without_rows() -> None:
    """Groups that no row is in have the plain tensor's values, and pass gradients on to it."""
    group = Group.current()
    layout = RowLayout.from_order(group, torch.arange(SIZE), [SIZE - 1, 1, 0][: group.world_size])
    for name in ("amax", "amin", "sum", "mean"):
        for rows_need in (False, True):
            with named_case(f"{name}, gradients of rows: {rows_need}"):
                plain, whole = _values(5, 3).requires_grad_(), _values(SIZE, 3)
                right = plain.detach().clone().requires_grad_()
                rows = distribute(whole, layout).requires_grad_(rows_need)
                loss = _reduce(plain, distribute(_GROUPS, layout), rows, name).square().sum()
                right_loss = _reduce(right, _GROUPS, whole, name).square().sum()
                loss.backward()
                right_loss.backward()
                torch.testing.assert_close(loss, right_loss)
                torch.testing.assert_close(plain.grad, right.grad)


def _check_means_of_integers() -> None:
    """They are rounded down, as torch rounds them."""
    layout = RowLayout.from_order(Group.current(), torch.arange(SIZE), [4, 2, 0])
    plain, whole = torch.arange(15).view(5, 3), torch.arange(-9, 9).view(SIZE, 3)
    value = _reduce(plain, distribute(_GROUPS, layout), distribute(whole, layout), "mean")
    torch.testing.assert_close(value, _reduce(plain, _GROUPS, whole, "mean"), rtol=0, atol=0)


def _check_scaled_products_of_integers() -> None:
    """`alpha` and `beta` of integers are truncated, as in torch, also in sums over rows."""
    layout = RowLayout.from_order(Group.current(), torch.arange(SIZE), [4, 2, 0])
    whole, plain = torch.arange(-9, 9).view(SIZE, 3), torch.arange(9).view(3, 3)
    rows = distribute(whole, layout)
    for scales in ({"beta": 0.2, "alpha": 0.6}, {"beta": 2.5, "alpha": 3}):
        value = torch.addmm(plain, rows.t(), rows, **scales)
        torch.testing.assert_close(value, torch.addmm(plain, whole.t(), whole, **scales))
        value = torch.addmm(plain[0], rows, plain, **scales)
        right = torch.addmm(plain[0], whole, plain, **scales)
        torch.testing.assert_close(value.full_tensor(), right)  # type: ignore[attr-defined]


_REFUSED: dict[str, tuple[int, Callable[[Any, Any], Any], type[Exception], str]] = {
    "columns by a partitioned index": (
        SIZE,
        lambda x, ids: x.index_select(1, ids),
        NotImplementedError,
        "meet other dimensions",
    ),
    "a factor of one row": (
        SIZE,
        lambda x, _: x.t() @ _values(1, 2),
        ValueError,
        f"must have {SIZE} rows",
    ),
    # The write used to be lost: it went to a distributed copy of the row.
    "writing into one plain row": (
        1,
        lambda x, _: (
            _values(1, 3).requires_grad_().clone().index_add_(0, torch.tensor([0]), x, alpha=-1)
        ),
        ValueError,
        "like",
    ),
    "a tensor without dimensions": (
        1,
        lambda _, ids: torch.zeros(()).index_add(0, ids, torch.ones(())),
        NotImplementedError,
        "without dimensions",
    ),
    "a bool without dimensions": (
        SIZE,
        lambda x, _: x.detach().index_put_((torch.tensor(True),), _values(3)),
        NotImplementedError,
        "bool without dimensions",
    ),
    "partitioned weights of a norm": (
        SIZE,
        lambda x, _: torch.nn.functional.group_norm(_values(2, SIZE, 3), 2, x[:, 0], x[:, 1]),
        NotImplementedError,
        "weights are partitioned",
    ),
    "places at which a plain tensor is split": (
        SIZE,
        lambda _, ids: torch.tensor_split(torch.zeros(9), ids),
        NotImplementedError,
        "memory of all rows",
    ),
}


def _check_refusals() -> None:
    group = Group.current()
    for name, (size, function, error, text) in _REFUSED.items():
        layout = RowLayout.from_order(
            group, torch.arange(size), [size - size // 2, size // 2, 0][: group.world_size]
        )
        x = distribute(_values(size, 3), layout).requires_grad_()
        ids = distribute(torch.arange(size), layout)
        with named_case(name), pytest.raises(error, match=text):
            function(x, ids)


def test_means_of_integers_are_rounded_down() -> None:
    run_ranks(_check_means_of_integers, 3)


def test_scales_of_integers_are_truncated() -> None:
    run_ranks(_check_scaled_products_of_integers, 3)


def test_groups_without_rows_pass_gradients_on() -> None:
    run_ranks(_check_gradients_of_groups_without_rows, 3)


def test_operands_that_do_not_meet_rows_are_refused_on_all_ranks() -> None:
    run_ranks(_check_refusals, 3)
