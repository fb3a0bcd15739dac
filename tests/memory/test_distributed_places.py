"""The places of rows in tables that are split over machines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from peergraph.memory.distributed.distributed_table import DistributedTable
from peergraph.memory.distributed.machine_split import MachineSplit
from peergraph.memory.distributed.row_set import RowSet


def _table(rows: int) -> DistributedTable:
    """A table without memory: one column, no hot rows, on the second of two machines."""
    local: Any = SimpleNamespace(
        dtype=torch.float32,
        tiers=None,
        group=None,
        row_bytes=4,
        split=None,
        device=torch.device("cpu"),
    )
    row_set = RowSet("nodes", MachineSplit(rows, 0, 2, 1), None)
    return DistributedTable((rows, 1), local, row_set, "x")


def test_int32_ids_of_more_rows_than_int32_has() -> None:
    ids = torch.tensor([[-1, 0], [5, 2**31 - 1]], dtype=torch.int32)
    local, internal = _table(3 << 30)._place(ids, padded=True)
    assert local.tolist() == [-2, -1, 2, 2**30 - 1]
    assert internal.tolist() == ids.flatten().tolist()


def test_ids_out_of_range() -> None:
    local, _ = _table(4)._place(torch.tensor([-2, -1, 0, 3, 4]))
    assert local.tolist() == [-2, -2, -1, 1, -2]


def test_padding_of_a_table_without_rows() -> None:
    location = _table(0)._locate(torch.tensor([-1, -1]), None, padded=True)
    assert location.local.tolist() == [-1, -1]
    assert location.positions.numel() == 0
