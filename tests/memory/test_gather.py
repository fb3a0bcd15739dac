"""Table.gather against plain indexing."""

from __future__ import annotations

import pytest
import torch

import peergraph
import peergraph._C as _C
from peergraph.memory import Group, Table, Tiers, limit_blocks
from peergraph.memory.device.launching import launch_on
from peergraph.memory.table.id_list import id_list
from tests.memory.tables import (
    DTYPES,
    TIER_KINDS,
    plain_gather,
    random_ids,
    random_rows,
    same_bits,
    split,
    table_of,
)
from tests.named_case import named_cases


def check(table: Table, rows: torch.Tensor, ids: torch.Tensor) -> None:
    expected = plain_gather(rows, ids)
    for device_of_ids in {ids.device, table.device}:
        actual = table.gather(ids.to(device_of_ids))
        assert actual.device == table.device
        assert same_bits(actual, expected)


def gather_and_wait(table: Table, ids: torch.Tensor, padded: bool = False) -> None:
    table.gather(ids, padded=padded)
    peergraph.synchronize()


@named_cases("dtype", DTYPES)
def test_every_dtype(group: Group, dtype: torch.dtype) -> None:
    rows = random_rows((50, 5), dtype)
    table = table_of(rows, split(50, "mixed"), group)
    check(table, rows, random_ids(50, (70,), torch.int64))
    table.close()


@named_cases("kind", TIER_KINDS)
def test_every_tier(group: Group, kind: str) -> None:
    rows = random_rows((101, 8), torch.float32)
    table = table_of(rows, split(101, kind), group)
    for count in (1, 2, 33, 1000):
        for id_dtype in (torch.int32, torch.int64):
            check(table, rows, random_ids(101, (count,), id_dtype))
    table.close()


@named_cases("renumbered", [False, True])
@named_cases("kind", ["host", "mixed", "disk", "all"])
def test_many_ids(group: Group, kind: str, renumbered: bool) -> None:
    """Enough ids that rows on the host are read in the order of their addresses."""
    rows = random_rows((3001, 5), torch.int32)
    order = torch.randperm(3001, generator=torch.Generator().manual_seed(1)).to(group.device)
    table = table_of(rows, split(3001, kind), group, **({"order": order} if renumbered else {}))
    check(table, rows, random_ids(3001, (100, 97), torch.int64))
    bad = random_ids(3001, (9000,), torch.int32).to(group.device)
    bad[[4321, 7654]] = torch.tensor([3001, -1], dtype=torch.int32, device=group.device)
    with pytest.raises(IndexError, match=r"ids\[4321\] = 3001 is out of range"):
        gather_and_wait(table, bad)
    table.close()


@named_cases(
    ("kind", "width"),
    [(kind, 3) for kind in TIER_KINDS] + [("all", width) for width in (1, 64, 200)],
)
def test_padding(group: Group, kind: str, width: int) -> None:
    rows = random_rows((6000, width), torch.float32)
    table = table_of(rows, split(6000, kind), group)
    for count in (5, 5000):  # ids of host rows are sorted where there are many
        ids = random_ids(6000, (count,), torch.int64)
        ids[::3] = -1
        expected = torch.where((ids < 0)[:, None], torch.zeros(()), rows[ids.clamp(min=0)])
        for device_of_ids in {ids.device, table.device}:
            assert same_bits(table.gather(ids.to(device_of_ids), padded=True), expected)
            peergraph.synchronize()
    with pytest.raises(IndexError, match=r"ids\[0\] = -1"):
        gather_and_wait(table, ids)
    ids[1] = -2
    with pytest.raises(IndexError, match=r"ids\[1\] = -2"):
        gather_and_wait(table, ids.to(table.device), padded=True)
    table.close()


@named_cases("kind", TIER_KINDS)
def test_few_blocks(group: Group, kind: str) -> None:
    rows = random_rows((6000, 40), torch.float32)
    table = table_of(rows, split(6000, kind), group)
    for blocks in (1, 3, 100_000):
        with limit_blocks(blocks):
            check(table, rows, random_ids(6000, (9000,), torch.int64))
    with pytest.raises(ValueError, match="count must be 0 or more, got -1"), limit_blocks(-1):
        pass
    table.close()


def test_out_index(group: Group) -> None:
    rows = random_rows((20, 3), torch.float32)
    table = table_of(rows, split(20, "mixed"), group)
    ids = torch.tensor([7, 3, 3, 19])
    out = torch.empty(4, 3, device=group.device)
    # An id list has addresses only, so the tensors must outlive the call.
    ids_on_device, out_index = ids.to(group.device), torch.tensor([2, 0, 3, 1], device=group.device)
    listed = id_list(ids_on_device, out_index)
    _C.gather(table.view, listed, out, launch_on(table.device))
    assert same_bits(out[out_index], rows[ids])
    table.close()


def test_sizes_of_bound_tensors_are_checked(group: Group) -> None:
    table = table_of(random_rows((20, 3), torch.float32), split(20, "mixed"), group)
    ids, launch = torch.tensor([7, 3], device=group.device), launch_on(table.device)
    small = torch.empty(5, device=group.device)
    with pytest.raises(ValueError, match="out must have 24 bytes, got 20"):
        _C.gather(table.view, id_list(ids), small, launch)
    with pytest.raises(ValueError, match="values must have 24 bytes, got 20"):
        _C.scatter(table.view, id_list(ids), small, launch)
    with pytest.raises(ValueError, match="out must be int64"):
        _C.row_addresses(table.view, id_list(ids), small, launch)
    with pytest.raises(ValueError, match="not contiguous"):
        _C.gather(table.view, id_list(ids), torch.empty(12, device=group.device)[::2], launch)
    table.close()


@named_cases("width", [1, 2, 3, 4, 8, 12, 16, 31, 512, 528, 4100, 9000])
def test_widths_in_bytes(group: Group, width: int) -> None:
    rows = random_rows((40, width), torch.uint8)
    table = table_of(rows, split(40, "mixed"), group)
    check(table, rows, random_ids(40, (300,), torch.int64))
    table.close()


@named_cases("shape", [(9,), (9, 0), (9, 3, 2), (9, 2, 1, 3, 1, 1, 2, 1, 2), (1, 4), (0, 4), (0,)])
def test_shapes(group: Group, shape: tuple[int, ...]) -> None:
    rows = random_rows(shape, torch.float32)
    table = table_of(rows, split(shape[0], "mixed"), group)
    check(table, rows, torch.empty(0, dtype=torch.int64))
    if shape[0]:
        check(table, rows, random_ids(shape[0], (6,), torch.int32))
        check(table, rows, random_ids(shape[0], (2, 3), torch.int64))
        check(table, rows, torch.tensor(0))
    table.close()


def test_strided_ids(group: Group) -> None:
    rows = random_rows((30, 3), torch.float32)
    table = table_of(rows, split(30, "mixed"), group)
    check(table, rows, torch.arange(30)[::2])
    table.close()


def test_many_ids_in_several_threads(group: Group) -> None:
    rows = random_rows((1000, 64), torch.float32)
    table = table_of(rows, split(1000, "mixed"), group)
    check(table, rows, random_ids(1000, (50_000,), torch.int64))
    table.close()


@named_cases("order_dtype", [torch.int32, torch.int64])
def test_order(group: Group, order_dtype: torch.dtype) -> None:
    rows = random_rows((60, 3), torch.float32)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1)).to(order_dtype)
    table = table_of(rows, split(60, "mixed"), group, order=order.to(group.device))
    check(table, rows, random_ids(60, (100,), torch.int64))
    assert same_bits(table.read(), rows)
    table.close()


def test_out(group: Group) -> None:
    rows = random_rows((20, 3), torch.float32)
    table = table_of(rows, split(20, "mixed"), group)
    ids = random_ids(20, (7,), torch.int64).to(group.device)
    for out_device in {group.device, torch.device("cpu")}:
        out = torch.empty(7, 3, device=out_device)
        assert table.gather(ids, out=out) is out
        assert same_bits(out, plain_gather(rows, ids.cpu()))
    # An out that is aligned to its elements only.
    out = torch.empty(22, device=group.device)[1:].view(7, 3)
    assert same_bits(table.gather(ids, out=out), plain_gather(rows, ids.cpu()))
    table.close()


def test_bad_out(group: Group) -> None:
    table = table_of(random_rows((20, 3), torch.float32), split(20, "mixed"), group)
    ids = torch.tensor([1, 2])
    device = group.device
    for out, message in [
        (torch.empty(2, 3, device=device, dtype=torch.float64), "out must be torch.float32"),
        (torch.empty(3, 3, device=device), r"out must have shape \(2, 3\), got \(3, 3\)"),
        (torch.empty(3, 2, device=device).t(), "out must be contiguous"),
        (torch.empty(2, 3, device="meta"), "out must be on cpu"),
    ]:
        with pytest.raises(ValueError, match=message):
            table.gather(ids, out=out)
    table.close()


def test_bad_ids(group: Group) -> None:
    table = table_of(random_rows((20, 3), torch.float32), split(20, "mixed"), group)
    with pytest.raises(TypeError, match=r"ids must be int32 or int64, got torch\.float32"):
        table.gather(torch.tensor([1.0]))
    with pytest.raises(TypeError, match="ids must be a tensor, got list"):
        table.gather([1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ids must be on cpu"):
        table.gather(torch.empty(2, dtype=torch.int64, device="meta"))
    table.close()


@named_cases("id_dtype", [torch.int32, torch.int64])
@named_cases("bad", [-1, 20, 2**31 - 1, -(2**31)])
def test_ids_out_of_range(group: Group, bad: int, id_dtype: torch.dtype) -> None:
    rows = random_rows((20, 3), torch.float32)
    table = table_of(rows, split(20, "mixed"), group)
    ids = torch.zeros(5000, dtype=id_dtype)
    ids[[7, 8, 4000]] = torch.tensor([bad, -5, 99], dtype=id_dtype)
    message = rf"ids\[7\] = {bad} is out of range for a table of 20 rows"
    with pytest.raises(IndexError, match=message):
        table.gather(ids)
    with pytest.raises(IndexError, match=message):
        gather_and_wait(table, ids.to(group.device))
    # Reported once, and the table still works.
    peergraph.synchronize()
    check(table, rows, torch.tensor([3, 4]))
    table.close()


def test_any_id_of_an_empty_table_is_out_of_range(group: Group) -> None:
    table = Table.create((0, 2), torch.float32, Tiers(), group)
    with pytest.raises(IndexError, match=r"ids\[0\] = 0 is out of range for a table of 0 rows"):
        gather_and_wait(table, torch.tensor([0], device=group.device))
    table.close()


def test_rows_without_bytes_are_checked(group: Group) -> None:
    table = Table.create((5, 0), torch.float32, Tiers(2, 2, 1), group)
    assert table.gather(torch.tensor([4, 0], device=group.device)).shape == (2, 0)
    with pytest.raises(IndexError, match=r"ids\[1\] = 5 is out of range for a table of 5 rows"):
        gather_and_wait(table, torch.tensor([4, 5], device=group.device))
    table.close()


@pytest.mark.gpus(1)
def test_bad_ids_on_the_gpu_give_zeros_and_a_later_error() -> None:
    group = Group.current(device="cuda:0")
    rows = random_rows((20, 3), torch.int32)
    table = table_of(rows, split(20, "mixed"), group)
    result = table.gather(torch.tensor([4, 20, 5], device="cuda:0"))
    torch.cuda.synchronize()
    assert result[1].tolist() == [0, 0, 0]
    assert same_bits(result[[0, 2]], rows[[4, 5]])
    with pytest.raises(IndexError, match=r"ids\[1\] = 20"):
        table.gather(torch.tensor([4], device="cuda:0"))
    table.close()


@pytest.mark.gpus(1)
def test_current_stream_is_used() -> None:
    group = Group.current(device="cuda:0")
    rows = random_rows((1000, 128), torch.float32)
    table = table_of(rows, split(1000, "replicated"), group)
    ids = random_ids(1000, (20_000,), torch.int64).to("cuda:0")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        late = ids.clone()
        result = table.gather(late)
    stream.synchronize()
    assert same_bits(result, plain_gather(rows, ids.cpu()))
    table.close()


def test_after_close(group: Group) -> None:
    table = table_of(random_rows((20, 3), torch.float32), split(20, "mixed"), group)
    table.close()
    table.close()
    for call in (lambda: table.gather(torch.tensor([0])), table.read, table.as_tensor):
        with pytest.raises(RuntimeError, match="this table has been closed"):
            call()
