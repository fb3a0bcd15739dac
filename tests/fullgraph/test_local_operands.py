"""Gradients of functions of several partitioned tensors, some of which get none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from peergraph.errors import CollectiveMismatchError
from peergraph.fullgraph.exchange.halo import HaloPlan
from peergraph.fullgraph.exchange.local_operands import local_operands
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.named_case import named_case

SIZE, COLUMNS = 23, 3


def _plan(group: Group) -> tuple[HaloPlan, Tensor, Tensor]:
    """An exchange where one rank has no rows; the rows of this rank, and those that it reads."""
    counts = [0, *[SIZE // (group.world_size - 1)] * (group.world_size - 1)]
    counts[-1] += SIZE - sum(counts)
    layout = RowLayout.from_order(group, torch.arange(SIZE), counts)
    draw = torch.Generator().manual_seed(group.rank)
    reads = torch.randint(SIZE, (17,), generator=draw)
    plan, extended = HaloPlan.make(layout, reads)
    return plan, layout.positions, extended.long()


def _values(seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(SIZE, COLUMNS, generator=draw, dtype=torch.float64)


def _check_gradients() -> None:
    """Every subset of the sources has gradients, others are unused or need none."""
    group = Group.current()
    plan, own, reads = _plan(group)
    of_all = torch.cat([torch.randint(SIZE, (17,), generator=_draw(r)) for r in _ranks(group)])
    for uses in range(8):
        for needs in range(8):
            with named_case(f"uses {uses:03b}, needs {needs:03b}"):
                used = [i for i in range(3) if uses >> i & 1]
                wholes = [_values(i).requires_grad_() for i in range(3)]
                rows = [
                    wholes[i].detach()[own].requires_grad_(bool(needs >> i & 1)) for i in range(3)
                ]
                weight = torch.ones(COLUMNS, dtype=torch.float64, requires_grad=True)
                whole_weight = weight.detach().clone().requires_grad_()
                sources, [entered] = local_operands(plan, rows, [weight])
                assert entered is not None
                loss = (entered * len(used)).sum() * 0
                right = (whole_weight * len(used)).sum() * 0
                for i in used:
                    source = sources[i]
                    assert source is not None
                    loss = loss + ((i + 1) * source[reads].square() * entered).sum()
                    right = right + ((i + 1) * wholes[i][of_all].square() * whole_weight).sum()
                loss.backward()
                right.backward()
                torch.testing.assert_close(weight.grad, whole_weight.grad)
                for i in range(3):
                    gradient = rows[i].grad
                    if i not in used or not needs >> i & 1:
                        assert gradient is None
                        continue
                    expected = wholes[i].grad
                    assert expected is not None
                    torch.testing.assert_close(gradient, expected[own])


def _draw(rank: int) -> torch.Generator:
    return torch.Generator().manual_seed(rank)


def _ranks(group: Group) -> range:
    return range(group.world_size)


@pytest.mark.timeout(200)
def test_gradients_of_some_sources() -> None:
    run_ranks(_check_gradients, 3)


def _check_mismatch() -> None:
    group = Group.current(timeout=20)
    plan, own, reads = _plan(group)
    rows = [_values(i)[own].requires_grad_() for i in range(2)]
    sources, _ = local_operands(plan, rows)
    used = sources if group.rank else sources[:1]
    loss = sum(source[reads].sum() for source in used if source is not None)
    with pytest.raises(CollectiveMismatchError, match="rank 0"):
        loss.backward()  # type: ignore[union-attr]


@pytest.mark.timeout(120)
def test_ranks_that_use_other_sources() -> None:
    """An error on all ranks, and no sum of gradients of different operands."""
    run_ranks(_check_mismatch, 2)
