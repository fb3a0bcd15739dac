"""The exchange of distinct rows, on plain tensors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from peergraph.fullgraph.exchange.halo import HaloPlan, add_to_owners
from peergraph.fullgraph.exchange.route import linear
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.fullgraph.gpu_numbers import each_place
from tests.named_case import named_case

SIZE = 23
LAYOUTS = {
    "even": lambda ranks: [SIZE // ranks + (rank < SIZE % ranks) for rank in range(ranks)],
    "all on the last rank": lambda ranks: [0] * (ranks - 1) + [SIZE],
    "few on the first rank": lambda ranks: (
        [2, *[0] * (ranks - 2), SIZE - 2][-ranks:] if ranks > 1 else [SIZE]
    ),
}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool]


def layout_of(group: Group, name: str) -> RowLayout:
    order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(1), device="cpu")
    counts = LAYOUTS[name](group.world_size)
    return RowLayout.from_order(group, order, counts)


def needed_rows(group: Group, ids: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(group.rank)
    count = 30 * (group.rank != 1)
    rows = torch.randint(SIZE, (count,), generator=generator, device="cpu")
    return rows.to(group.device, ids)


def check_exchange() -> None:
    group = Group.current()
    for name in LAYOUTS:
        for ids in (torch.int32, torch.int64):
            with group.device, named_case(name, ids):
                check_plan(layout_of(group, name), needed_rows(group, ids))


def check_plan(layout: RowLayout, rows: Tensor) -> None:
    plan, extended = HaloPlan.make(layout, rows)
    first = layout.offsets[layout.group.rank]
    own = torch.arange(first, first + layout.local_count)
    halo = [row for row in sorted(set(rows.tolist())) if row not in own.tolist()]
    assert plan.halo_rows.tolist() == halo
    assert plan.num_extended == layout.local_count + len(halo)
    for dtype in DTYPES:
        for shape in ((), (3,), (2, 0), (2, 3)):
            with named_case(dtype, shape):
                full = torch.arange(SIZE * 6).view(SIZE, 2, 3)
                full = full[:, 0, 0] if not shape else full[:, : shape[0], : shape[-1]]
                full = full[:, :, 0] if len(shape) == 1 else full
                full = full[:, :1].expand(-1, 3) if shape == (3,) else full
                check_gather(plan, full.to(dtype), own, torch.cat([own, plan.halo_rows]))
    assert torch.equal(plan.gather(own)[extended.long()], rows.long())
    check_gradients(plan, own)


def check_gather(plan: HaloPlan, full: Tensor, own: Tensor, rows: Tensor) -> None:
    result = plan.gather(full[own])
    assert torch.equal(result, full[rows])
    if full.dtype == torch.bool:
        return
    total = plan.add_to_owners(result)
    times = torch.zeros(SIZE, dtype=torch.int64).index_add_(0, rows, torch.ones_like(rows))
    times = sum(plan.row_layout.group.all_gather(times.cpu())).to(own.device)
    factor = times[own].view(-1, *[1] * (full.dim() - 1))
    assert torch.equal(total, (full[own].double() * factor).to(full.dtype))


def check_gradients(plan: HaloPlan, own: Tensor) -> None:
    x = torch.randn(len(own), 2, dtype=torch.float64, requires_grad=True)
    y = linear(x, plan.gather, plan.add_to_owners)
    weight = torch.randn(y.shape, dtype=torch.float64)
    (grad,) = torch.autograd.grad(y, x, weight, create_graph=True)
    assert torch.equal(grad, plan.add_to_owners(weight))
    z = torch.randn(plan.num_extended, 2, dtype=torch.float64, requires_grad=True)
    w = torch.randn(len(own), 2, dtype=torch.float64)
    (grad,) = torch.autograd.grad(add_to_owners(plan, z), z, w)
    assert torch.equal(grad, plan.gather(w))


@each_place(1, 2, 3)
def test_rows_of_others_are_gathered_and_gradients_are_added(
    world_size: int, device_type: str
) -> None:
    run_ranks(check_exchange, world_size, device=device_type)


def check_order_of_sums() -> None:
    group = Group.current()
    with group.device:
        layout = layout_of(group, "even")
        plan, extended = HaloPlan.make(layout, torch.zeros(1, dtype=torch.int64))
        rows = torch.zeros(plan.num_extended, 1)
        rows[extended] = [0.0, 1e8, -1e8, 1.0][group.rank]
        total = plan.add_to_owners(rows)
    if group.rank == 0:
        assert total[0].item() == 1.0  # 0.0 if 1.0 were added before -1e8


def test_peers_are_added_in_rank_order() -> None:
    run_ranks(check_order_of_sums, 4)


def check_bad_rows() -> None:
    layout = layout_of(Group.current(), "even")
    with pytest.raises(IndexError, match="internal_rows must be in 0..22, got 0 to 23"):
        HaloPlan.make(layout, torch.tensor([0, 23]))


def test_rows_out_of_range() -> None:
    run_ranks(check_bad_rows, 1)
