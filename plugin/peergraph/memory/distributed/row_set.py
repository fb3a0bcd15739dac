"""The rows of one node or edge type, which all its tables keep on the same machines."""

from __future__ import annotations

from dataclasses import replace

import torch

from peergraph.memory.distributed.machine_split import MachineSplit
from peergraph.memory.table.table import Table


class RowSet:
    """Maps users' ids to rows in the tables of one node or edge type.

    Args:
        name: the name of the type, for errors.
        split: the machine of each internal row.
        order: the internal row of each user id; None: they are equal.
    """

    def __init__(self, name: str, split: MachineSplit, order: Table | None) -> None:
        self.name = name
        self.split = split
        self.order = order

    @property
    def is_ordered(self) -> bool:
        """Whether internal rows differ from users' ids."""
        return self.order is not None

    def internal_row(self, ids: torch.Tensor, *, padded: bool = False) -> torch.Tensor:
        """Returns the internal rows of users' ids, flattened, as int64. If they differ from the
        ids, ids out of range are reported as by :meth:`Table.gather`.

        Args:
            ids: users' ids on the device of the tables.
            padded: whether an id of -1 is padding; its internal row is without meaning.
        """
        ids = ids.flatten()
        internal = ids if self.order is None else self.order.gather(ids, padded=padded)
        return internal if internal.dtype == torch.int64 else internal.long()

    def kept_rows(
        self, start: int, count: int, machine: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Finds the rows that a machine has among the users' rows [start, start + count).

        Args:
            start: the first row.
            count: the number of rows.
            machine: the index of the machine; None: this one.

        Returns:
            The positions of these rows, counted from `start`, and their local rows: both int64 on
            the order's device.
        """
        split = self.split if machine is None else replace(self.split, index=machine)
        device = "cpu" if self.order is None else self.order.device
        ids = torch.arange(start, start + count, device=device)
        local = split.local_row(self.internal_row(ids))
        positions = (local >= 0).nonzero().squeeze(1)
        return positions, local[positions]
