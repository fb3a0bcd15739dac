"""Tables with rows split over machines that there are not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from peergraph.memory import Group
from peergraph.memory.distributed.distributed_table import DistributedTable
from peergraph.memory.distributed.layout import Layout
from peergraph.memory.distributed.machine_split import MachineSplit
from peergraph.memory.distributed.routes import Routes
from peergraph.memory.distributed.row_set import RowSet
from peergraph.memory.group.machines import Machines, Place
from tests.memory.tables import split, table_of


def split_layout(
    hosts: str,
    rows: int,
    hot: int,
    device: torch.device,
    order: Tensor | None = None,
    *,
    rank: int = 0,
) -> Layout:
    """A rank's layout with one table that has no memory; rank r is on host ``hosts[r]``."""
    machines = Machines(rank, [Place(host, "", "") for host in hosts])
    stored = None
    if order is not None:
        stored = table_of(order, split(rows, "mixed"), Group.current(device=device))
    row_set = RowSet("nodes", MachineSplit(rows, hot, machines.count, machines.index), stored)
    local: Any = SimpleNamespace(
        dtype=torch.float32,
        tiers=None,
        group=SimpleNamespace(device=device),
        row_bytes=4,
        split=None,
    )
    table = DistributedTable((rows, 1), local, row_set, "x")
    return Layout([table], Routes(machines, device))
