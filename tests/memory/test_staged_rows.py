"""Rows that CPU threads bring, with streams that do nothing: which rows, from where, to where."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from peergraph.memory import Group, Table
from peergraph.memory.device.pinned_pipeline import PinnedPipeline
from peergraph.memory.table.host_gather import HostGather, Staging
from peergraph.memory.table.id_list import sort_by_row
from peergraph.memory.table.staged_rows import StagedRows, disk_launch, staging_launch
from peergraph.memory.table.table_view import cpu_view, dense_view
from tests.memory.small_buffers import small_buffers
from tests.memory.tables import random_rows, same_bits, split, table_of


class Nothing:
    """A stream or an event of a device that does everything at once."""

    def __init__(self, device: object = None) -> None:
        pass

    def _pass(self, other: object = None) -> None:
        pass

    wait_event = wait_stream = record = synchronize = _pass


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Nothing)
    monkeypatch.setattr(torch.cuda, "Event", Nothing)
    monkeypatch.setattr(torch.cuda, "current_stream", Nothing)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    small_buffers(torch.device("cpu"), monkeypatch)


def staged_rows(table: Table, order: torch.Tensor | None, with_host: bool) -> StagedRows:
    view = cpu_view(table.tiers, table.row_bytes, table._regions, with_host=with_host)
    first, cpu = table.rows - view.rows, torch.device("cpu")
    return StagedRows(view, first, table.rows, table.row_bytes, order, cpu, disk_launch())


@pytest.mark.parametrize(
    ("kind", "with_host", "order_dtype"),
    [
        ("host", True, None),
        ("mixed", True, torch.int32),
        ("all", True, torch.int64),
        ("all", True, None),
        ("all", False, torch.int32),
        ("disk", False, torch.int64),
    ],
    ids=str,
)
def test_these_rows_and_no_others(
    kind: str, with_host: bool, order_dtype: torch.dtype | None
) -> None:
    rows = random_rows((203, 5), torch.int16)
    order = None if order_dtype is None else torch.randperm(203).to(order_dtype)
    arguments = {} if order is None else {"order": order}
    table = table_of(rows, split(203, kind), Group.current(device="cpu"), **arguments)
    actual = staged_rows(table, order, with_host)

    def is_staged(ids: torch.Tensor) -> torch.Tensor:
        internal = ids.clamp(0, 202) if order is None else order[ids.clamp(0, 202)]
        behind = table.tiers.disk + (table.tiers.host if with_host else 0)
        return (internal >= 203 - behind) & (ids >= 0) & (ids < 203)

    ids = torch.randint(-2, 205, (17, 31))
    out = torch.full((17, 31, 5), 7, dtype=torch.int16)
    actual.gather(ids, out, actual.ready())
    expected = torch.full_like(out, 7)
    expected[is_staged(ids)] = rows[ids[is_staged(ids)]]
    assert same_bits(out, expected)

    # The same of a part of the ids, whose rows belong elsewhere.
    part = torch.randperm(ids.numel())[:300]
    out.fill_(7)
    actual.gather(ids.flatten()[part], out, actual.ready(), part)
    chosen_part = torch.zeros(ids.numel(), dtype=torch.bool).index_fill(0, part, True)
    expected[~chosen_part.view_as(ids)] = 7
    assert same_bits(out, expected)

    chosen = torch.randperm(203)[:90]
    changes = random_rows((90, 5), torch.int16, seed=3)
    actual.scatter(chosen, changes, actual.ready())
    changed = is_staged(chosen)
    rows[chosen[changed]] = changes[changed]
    assert same_bits(table.read(), rows)
    table.close()


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("kind", ["host", "mixed"])
def test_kernels_and_threads_together(share: float, kind: str) -> None:
    """What the threads bring comes last, and is all that the second kernel leaves out."""
    rows, order = random_rows((5000, 3), torch.int32), torch.randperm(5000)
    group = Group.current(device="cpu")
    table = table_of(rows, split(5000, kind), group, order=order)
    # Instead of a kernel that does not reach the host: rows that are zero there.
    near = table.tiers.replicated + table.tiers.sharded
    without_host = rows.clone()
    without_host[order >= near] = 0
    others = table_of(without_host, table.tiers, group, order=order)
    ids = torch.randint(-1, 5000, (6000,), dtype=torch.int32)
    out = torch.full((6000, 3), 7, dtype=torch.int32)
    staging = Staging(share, others.view, staged_rows(table, order, with_host=True))
    gather = HostGather(
        table.tiers, table.row_bytes, group.device, order, table.view, staging=staging
    )
    gather._gather_shared(ids, out, True, staging)
    expected = rows[ids.long()]
    expected[ids < 0] = 0
    assert same_bits(out, expected)
    table.close()
    others.close()


def test_rows_wider_than_a_buffer() -> None:
    rows = random_rows((40, 300), torch.uint8)
    table = table_of(rows, split(40, "host"), Group.current(device="cpu"))
    result = staged_rows(table, None, with_host=True)
    ids = torch.randint(40, (90,))
    out = torch.zeros(90, 300, dtype=torch.uint8)
    result.gather(ids, out, result.ready())
    assert same_bits(out, rows[ids])
    table.close()


def test_threads() -> None:
    assert staging_launch(10**6).num_threads == torch.get_num_threads()
    assert disk_launch().num_threads >= 32


def test_a_buffer_whose_piece_failed_waits_for_its_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[object] = []
    monkeypatch.setattr(Nothing, "record", lambda event, stream: marked.append(event))
    buffers = PinnedPipeline(torch.device("cpu"))
    stream: Any = Nothing()

    def fail() -> None:
        for _ in buffers.pieces(3, 8, stream):
            raise OSError("no such row")

    with pytest.raises(OSError, match="no such row"):
        fail()
    assert marked == buffers._copied[:1]
    # Nor do others wait for ever.
    assert [part for part, _ in buffers.pieces(3, 8, stream)] == [slice(0, 3)]


def test_more_rows_than_int32_counts() -> None:
    ids = torch.tensor([5, -1, 9, 2**31 - 1, 7], dtype=torch.int32)
    rows = 3 << 30
    ordered, positions, host_begin = sort_by_row(ids, rows, None, 8)
    assert ordered.tolist() == [-1, 5, 7, 9, 2**31 - 1]
    assert positions.tolist() == [1, 0, 4, 2, 3]
    assert host_begin.tolist() == [3]
    launch, cpu = disk_launch(), torch.device("cpu")
    view = dense_view(torch.empty(0), rows - 8, 1)
    positions, local = StagedRows(view, 8, rows, 1, None, cpu, launch)._find(ids)
    assert positions.tolist() == [2, 3]
    assert local.tolist() == [1, 2**31 - 9]
