"""Table.scatter, load, read and as_tensor against plain indexing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import peergraph
from peergraph.memory import Group, Table, Tiers
from tests.memory.tables import DTYPES, TIER_KINDS, random_rows, same_bits, split, table_of
from tests.named_case import named_cases


def scatter_and_wait(table: Table, ids: torch.Tensor, values: torch.Tensor) -> None:
    table.scatter(ids, values)
    peergraph.synchronize()


@named_cases(
    ("kind", "width"),
    [(kind, 31) for kind in TIER_KINDS] + [("all", width) for width in (1, 8, 64, 513)],
)
def test_scatter(group: Group, kind: str, width: int) -> None:
    rows = random_rows((70, width), torch.uint8)
    table = table_of(rows, split(70, kind), group)
    ids = torch.randperm(70, generator=torch.Generator().manual_seed(2))[:40]
    values = random_rows((40, width), torch.uint8, seed=1)
    rows[ids] = values
    table.scatter(ids.to(group.device).int(), values.to(group.device))
    assert same_bits(table.read(), rows)
    table.scatter(ids.view(5, 8), values.view(5, 8, width))
    assert same_bits(table.read(), rows)
    table.close()


def test_scatter_through_an_order(group: Group) -> None:
    rows = random_rows((30, 2), torch.float32)
    order = torch.arange(29, -1, -1)
    table = table_of(rows, split(30, "mixed"), group, order=order.to(group.device))
    table.scatter(torch.tensor([3]), torch.ones(1, 2))
    rows[3] = 1
    assert same_bits(table.read(), rows)
    table.close()


def test_duplicate_ids_leave_one_of_the_values(group: Group) -> None:
    table = table_of(torch.zeros(4, dtype=torch.int64), split(4, "mixed"), group)
    table.scatter(torch.tensor([2, 2, 2]), torch.tensor([5, 6, 7]))
    assert table.read().tolist()[2] in (5, 6, 7)
    table.close()


def test_bad_scatter(group: Group) -> None:
    rows = random_rows((20, 3), torch.float32)
    table = table_of(rows, split(20, "mixed"), group)
    ids = torch.tensor([1, 2])
    with pytest.raises(ValueError, match=r"values must be torch\.float32, got torch\.float64"):
        table.scatter(ids, torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"values must have shape \(2, 3\), got \(3,\)"):
        table.scatter(ids, torch.zeros(3))
    with pytest.raises(TypeError, match="values must be a tensor, got int"):
        table.scatter(ids, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="values must be on cpu"):
        table.scatter(ids, torch.zeros(2, 3, device="meta"))
    bad = torch.tensor([1, 2, 20], device=group.device)
    with pytest.raises(IndexError, match=r"ids\[2\] = 20 is out of range for a table of 20 rows"):
        scatter_and_wait(table, bad, rows[:3])
    table.close()


@named_cases("dtype", DTYPES[::2])
def test_load_and_read_in_chunks(group: Group, dtype: torch.dtype) -> None:
    rows = random_rows((53, 3), dtype)
    table = Table.create((53, 3), dtype, split(53, "mixed"), group)
    table.load(rows[:20], chunk_bytes=1)
    table.load(rows[20:].to(group.device), 20, chunk_bytes=100)
    assert same_bits(table.read(), rows)
    assert same_bits(table.read(5, 48), rows[5:48])
    out = torch.empty(3, 3, dtype=dtype)
    assert table.read(50, out=out) is out
    assert same_bits(out, rows[50:])
    assert table.read(7, 7).shape == (0, 3)
    table.close()


def test_load_from_strided_tensor_and_array(group: Group) -> None:
    rows = random_rows((2, 40), torch.float64)
    table = Table.create((40, 2), torch.float64, split(40, "mixed"), group)
    table.load(rows.t(), chunk_bytes=100)
    assert same_bits(table.read(), rows.t())
    table.load(np.zeros((40, 2)))
    table.load(rows.numpy().T, chunk_bytes=100, progress=True)
    assert same_bits(table.read(), rows.t())
    table.close()


@pytest.mark.filterwarnings("error")
def test_load_from_read_only_memory_map(group: Group, tmp_path: Path) -> None:
    rows = random_rows((100, 5), torch.float32)
    np.save(tmp_path / "rows.npy", rows.numpy())
    source = np.load(tmp_path / "rows.npy", mmap_mode="r")
    table = Table.create((100, 5), torch.float32, split(100, "mixed"), group)
    table.load(source, chunk_bytes=1000)
    assert same_bits(table.read(), rows)
    table.close()


def test_bad_load(group: Group) -> None:
    table = table_of(random_rows((20, 3), torch.float32), split(20, "mixed"), group)
    for source, start, message in [
        (torch.zeros(20, 3).double(), 0, r"source must be torch\.float32, got torch\.float64"),
        (np.zeros((20, 3)), 0, r"source must be torch\.float32, got float64"),
        (np.array([["a", "b", "c"]]), 0, r"source must be torch\.float32"),
        (torch.zeros(20, 4), 0, r"source must have shape \[n, 3\], got \(20, 4\)"),
        (torch.tensor(1.0), 0, "source must have shape"),
        (torch.zeros(20, 3), 1, r"rows \[1, 21\) are not within a table of 20 rows"),
        (torch.zeros(2, 3), -1, r"rows \[-1, 1\) are not within"),
    ]:
        with pytest.raises(ValueError, match=message):
            table.load(source, start)
    with pytest.raises(TypeError, match="source must be a tensor or an array, got list"):
        table.load([1.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="chunk_bytes must be positive, got 0"):
        table.load(torch.zeros(20, 3), chunk_bytes=0)
    with pytest.raises(ValueError, match=r"rows \[3, 21\) are not within a table of 20 rows"):
        table.read(3, 21)
    table.close()


@named_cases("kind", ["replicated", "sharded", "host"])
def test_as_tensor(group: Group, kind: str) -> None:
    rows = random_rows((20, 3), torch.bfloat16)
    table = table_of(rows, split(20, kind), group)
    view = table.as_tensor()
    assert same_bits(view, rows)
    view[3] = 1
    peergraph.synchronize()
    assert table.read(3, 4).tolist() == [[1, 1, 1]]
    table.close()


@pytest.mark.parametrize("read", [Table.as_tensor, Table.local_shard])
def test_autograd_sees_writes_to_the_memory_of_a_tensor(
    group: Group, read: Callable[[Table], torch.Tensor]
) -> None:
    table = table_of(torch.ones(20, 3), split(20, "sharded"), group)
    weights = torch.ones(20, 3, device=group.device, requires_grad=True)
    for write in (
        lambda: table.scatter(torch.tensor([1]), torch.full((1, 3), 2.0)),
        lambda: table.load(torch.full((2, 3), 3.0)),
    ):
        total = (weights[:5] * read(table)[:5]).sum()  # of a view
        write()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            total.backward()
    (weights * read(table)).sum().backward()
    assert weights.grad is not None
    assert weights.grad[:3, 0].tolist() == [3, 3, 1]
    table.close()


def test_as_tensor_of_several_tiers(group: Group) -> None:
    table = table_of(random_rows((20, 3), torch.float32), split(20, "mixed"), group)
    with pytest.raises(ValueError, match="are not contiguous"):
        table.as_tensor()
    table.close()


def test_bad_create(group: Group) -> None:
    def create(**changes: object) -> None:
        arguments = {"shape": (4, 2), "dtype": torch.float32, "tiers": Tiers(4), "group": group}
        Table.create(**(arguments | changes))  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="do not add up to the table's 4 rows"):
        create(tiers=Tiers(2, 1))
    with pytest.raises(ValueError, match="at least one dimension"):
        create(shape=())
    with pytest.raises(ValueError, match="each size of shape must not be negative"):
        create(shape=(4, -2))
    with pytest.raises(TypeError, match=r"dtype must be a torch\.dtype, got 'float'"):
        create(dtype="float")
    with pytest.raises(ValueError, match="order must be int32 or int64"):
        create(order=torch.zeros(4, device=group.device))
    with pytest.raises(ValueError, match=r"order must be contiguous, of shape \(4,\)"):
        create(order=torch.arange(3, device=group.device))
    with pytest.raises(ValueError, match="order must be on"):
        create(order=torch.empty(4, dtype=torch.int64, device="meta"))
    with pytest.raises(ValueError, match="host must not be negative, got -1"):
        Tiers(host=-1)
    with pytest.raises(TypeError, match="sharded must be an int"):
        Tiers(sharded=2.0)  # type: ignore[arg-type]
