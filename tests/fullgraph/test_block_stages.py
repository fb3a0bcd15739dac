"""The exchange in stages, on plain tensors."""

from __future__ import annotations

import pytest
import torch

from peergraph.fullgraph.exchange.block_stages import BlockStages
from peergraph.fullgraph.exchange.halo import HaloPlan
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.fullgraph.gpu_numbers import each_place
from tests.named_case import named_case

from .test_halo import LAYOUTS, SIZE, layout_of, needed_rows


def check_stages() -> None:
    group = Group.current()
    for name in LAYOUTS:
        plan, _ = HaloPlan.make(layout_of(group, name), needed_rows(group, torch.int64))
        for mode in ("halo", "blocks"):
            with group.device, named_case(name, mode):
                check_mode(plan, mode)


def rows_of(plan: HaloPlan, rank: int, mode: str) -> torch.Tensor:
    """The internal rows of another rank that this rank reads."""
    first = plan.row_layout.offsets[rank]
    last = first + plan.row_layout.counts[rank]
    if mode == "blocks":
        return torch.arange(first, last)
    return plan.halo_rows[(plan.halo_rows >= first) & (plan.halo_rows < last)]


def check_mode(plan: HaloPlan, mode: str) -> None:
    layout = plan.row_layout
    rank, first = layout.group.rank, layout.offsets[layout.group.rank]
    x = torch.arange(SIZE * 2, dtype=torch.float64).view(SIZE, 2)
    own = slice(first, first + layout.local_count)
    stages = BlockStages(plan, mode)
    order, partial = [], {}
    for source, rows in stages.gather(x[own]):
        order.append(source)
        partial[source] = rows.clone() * (rank + 1)
        expected = x[own] if source == rank else x[rows_of(plan, source, mode)]
        assert torch.equal(rows, expected)
        assert source == rank or rows.shape[0] <= stages.max_rows
    assert order[0] == rank
    assert order == sorted(order, key=lambda peer: (peer - rank) % layout.group.world_size)
    sums = stages.add_to_owners(x, lambda: partial[rank], partial.__getitem__)
    readers = torch.zeros(SIZE, dtype=torch.float64)
    readers[own] += rank + 1
    for source in order[1:]:
        readers[rows_of(plan, source, mode)] += rank + 1
    total = sum(layout.group.all_gather(readers.cpu())).to(x.device)
    assert torch.equal(sums, x[own] * total[own].unsqueeze(1))


@each_place(1, 2, 3, 4)
def test_stages_bring_the_rows_and_add_partial_sums(world_size: int, device_type: str) -> None:
    run_ranks(check_stages, world_size, device=device_type)


def test_unknown_mode() -> None:
    plan, _ = HaloPlan.make(layout_of(Group.current(), "even"), torch.arange(0))
    with pytest.raises(ValueError, match="mode must be 'halo' or 'blocks', got 'row'"):
        BlockStages(plan, "row")  # type: ignore[arg-type]
