"""Rows on disk: what differs from the other tiers. Gathers and scatters are tested with those."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from peergraph.memory import Group, SharedRegion, Table, Tiers, table_argument
from peergraph.memory.training.trained_table import TrainedTable
from tests.memory.small_buffers import small_buffers
from tests.memory.tables import plain_gather, random_ids, random_rows, same_bits, split, table_of


@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("order_dtype", [torch.int32, torch.int64])
def test_through_an_order(
    group: Group, id_dtype: torch.dtype, order_dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In buffers of a few rows each."""
    small_buffers(group.device, monkeypatch)
    rows = random_rows((203, 5), torch.int16)
    order = torch.randperm(203).to(group.device, order_dtype)
    table = table_of(rows, split(203, "all"), group, order=order)
    ids = random_ids(203, (17, 31), id_dtype).to(group.device)
    assert same_bits(table.gather(ids), plain_gather(rows, ids.cpu()))
    chosen = torch.randperm(203)[:90]
    values = random_rows((90, 5), torch.int16, seed=1)
    rows[chosen] = values
    table.scatter(chosen.to(group.device, id_dtype), values.to(group.device))
    assert same_bits(table.read(), rows)
    out = torch.empty(203, 5, dtype=torch.int16)
    assert same_bits(table.gather(torch.arange(203), out), rows)
    table.close()


def test_bad_ids_among_good_ones(group: Group) -> None:
    table = table_of(random_rows((40, 3), torch.float32), split(40, "all"), group)
    for bad in (40, -1):
        with pytest.raises(IndexError, match=rf"ids\[1\] = {bad} is out of range"):
            table.gather(torch.tensor([39, bad, 2]))
        with pytest.raises(IndexError, match=rf"ids\[1\] = {bad} is out of range"):
            table.scatter(torch.tensor([39, bad, 2]), torch.zeros(3, 3))
    table.close()


def test_the_file_has_no_name(group: Group, tmp_path: Path) -> None:
    table = Table.create((1000, 8), torch.float32, Tiers(disk=1000), group, spill=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert table.read().count_nonzero() == 0
    table.close()


def test_room_is_taken_at_once(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=99))
    with pytest.raises(OSError, match=r"100 bytes on disk were asked for, 99 are available in"):
        SharedRegion.create(100, group, "cpu", tmp_path)


def test_a_folder_whose_room_is_taken_meanwhile(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=f"bytes on disk cannot be had: No space.*{tmp_path}"):
        Table.create((10, 2), torch.float32, Tiers(disk=10), group, spill=tmp_path)


def test_host_memory_is_not_asked_for(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEERGRAPH_HOST_MEMORY", "100")
    with pytest.raises(MemoryError, match="800 bytes of host memory were asked for"):
        Table.create((200,), torch.float32, Tiers(host=200), group)
    table = Table.create((200,), torch.float32, Tiers(host=20, disk=180), group, spill=tmp_path)
    table.close()


def test_bad_folder(group: Group, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="spill must be a folder for the rows on disk"):
        Table.create((4,), torch.float32, Tiers(disk=4), group)
    with pytest.raises(ValueError, match=r"spill must be a folder, got '.*nowhere'"):
        Table.create((4,), torch.float32, Tiers(disk=4), group, spill=tmp_path / "nowhere")


def test_whole_table_on_disk_as_a_tensor(group: Group) -> None:
    rows = random_rows((20, 3), torch.bfloat16)
    table = table_of(rows, split(20, "disk"), group)
    assert same_bits(table.as_tensor(), rows)
    table.close()


def test_kernels_do_not_get_rows_that_they_cannot_read(group: Group) -> None:
    table = table_of(random_rows((20, 3), torch.float32), split(20, "all"), group)
    if group.device.type == "cpu":
        assert table.view.rows == 20
    else:
        with pytest.raises(NotImplementedError, match="cannot read the 5 rows of a table"):
            table_argument(table)
    table.close()


@pytest.mark.gpus(1)
def test_in_a_side_stream() -> None:
    rows = random_rows((5000, 32), torch.float32)
    table = table_of(rows, split(5000, "all"), Group.current(device="cuda"))
    ids = random_ids(5000, (20_000,), torch.int64).cuda()
    expected = plain_gather(rows, ids.cpu())
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    for _ in range(10):
        with torch.cuda.stream(side):
            actual = table.gather(ids)
            again = actual.clone()
        side.synchronize()
        assert same_bits(actual, expected)
        assert same_bits(again, expected)
    table.close()


def test_is_not_trained(group: Group) -> None:
    table = table_of(random_rows((20, 3), torch.float32), split(20, "all"), group)
    with pytest.raises(NotImplementedError, match="rows on disk are not trained"):
        TrainedTable(table)
    table.close()
