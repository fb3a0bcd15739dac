"""Rows that rank 0 brings for all ranks of its machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.group.group import Group
from peergraph.memory.table.table import Table
from peergraph.memory.table.tiers import Tiers


def host_rows(
    group: Group,
    shape: Sequence[int],
    dtype: torch.dtype,
    fill: Callable[[torch.Tensor], None] = lambda rows: None,
) -> Table:
    """Makes a table in host memory, once on the machine; rank 0 fills it. Collective.

    :meth:`Table.as_tensor` is the rows in the CPU's memory, on every rank. Dropping the table on
    all ranks frees them.

    Args:
        group: the ranks.
        shape, dtype: as for :meth:`Table.create`; equal on all ranks.
        fill: writes to the rows, which are 0 at first; called on rank 0. Other ranks wait for it
            at most the group's timeout.

    Raises as :meth:`Table.create`, and every rank what `fill` raises.
    """
    table = Table.create(shape, dtype, Tiers.all_host(shape[0]), group)

    def write() -> None:
        if group.rank == 0:
            fill(table.as_tensor())

    collective_call(group, write)
    return table
