"""Orders and partitions of tables that are none: found where tables are made."""

from __future__ import annotations

import pytest
import torch

from peergraph.memory import Group, Table, Tiers
from peergraph.memory.table.partitions import Partitions
from peergraph.store import IdMap
from tests.named_case import named_cases

NO_ORDERS = [
    ([0, 1, 1], ValueError, r"order\[2\] = 1 repeats an earlier id"),
    ([0, 3, 1], IndexError, r"order\[1\] = 3 is out of range for 3 rows"),
    ([0, 1, -1], IndexError, r"order\[2\] = -1 is out of range for 3 rows"),
]


@named_cases(
    ("order", "error", "message", "dtype"),
    [(*case, torch.int64) for case in NO_ORDERS] + [(*NO_ORDERS[0], torch.int32)],
)
def test_an_order_is_a_permutation(
    device: torch.device,
    order: list[int],
    error: type[Exception],
    message: str,
    dtype: torch.dtype,
) -> None:
    group = Group.current(device=device)
    rows = torch.tensor(order, dtype=dtype, device=device)
    with pytest.raises(error, match=message):
        Table.create((3, 2), torch.float32, Tiers.all_replicated(3), group, order=rows)
    near = Table.create((3,), dtype, Tiers.all_replicated(3), group)
    near.load(rows.cpu())
    with pytest.raises(error, match=message):
        Table.create((3, 2), torch.float32, Tiers.all_replicated(3), group, order=near)
    near.close()


@named_cases(
    ("shape", "message"),
    [
        ((), "shape must have at least one dimension, the rows"),
        ((-1,), "each size of shape must not be negative, got -1"),
        ((3, -2), "each size of shape must not be negative, got -2"),
        ((4, 2), "do not add up to the table's 4 rows"),
    ],
)
def test_a_shape_has_rows_and_no_negative_sizes(shape: tuple[int, ...], message: str) -> None:
    group = Group.current(device="cpu")
    with pytest.raises(ValueError, match=message):
        Table.create(shape, torch.float32, Tiers.all_replicated(3), group)


def test_an_order_that_is_a_permutation(device: torch.device) -> None:
    group = Group.current(device=device)
    order = torch.tensor([2, 0, 1], device=device)
    table = Table.create((3, 2), torch.float32, Tiers.all_replicated(3), group, order=order)
    values = torch.arange(6.0).view(3, 2)
    table.load(values)
    assert torch.equal(table.gather(torch.arange(3)).cpu(), values)
    table.close()


def test_an_id_map_is_made_of_a_permutation() -> None:
    with pytest.raises(ValueError, match=r"order\[1\] = 0 repeats an earlier id"):
        IdMap.from_order(torch.tensor([0, 0]), Group.current(device="cpu"))


@named_cases(
    ("stored", "source", "message"),
    [
        (((0, 2), (1,)), ((0, 1), (0, 1)), r"stored\[0\] must be different partitions of 0\.\.1"),
        (((0, 0), (1,)), ((0, 1), (0, 1)), r"stored\[0\] must be different partitions of 0\.\.1"),
        (((0,), ()), ((0, 1), (0, 1)), r"source\[0\]\[1\] must be a GPU that stores the partition"),
        (((0,), (1,)), ((0, 2), (0, 1)), r"source\[0\]\[1\] must be a GPU that stores"),
        (((0,), (1,)), ((0,), (0, 1)), r"source\[0\] must name a GPU for each of 2 partitions"),
        (((0,), (1,)), ((0, 1),), "source must be given for 2 GPUs, got 1"),
    ],
)
def test_partitions_that_leave_rows_without_a_place(
    stored: tuple[tuple[int, ...], ...], source: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Partitions("test", stored, source)
