"""Which machine has which rows of a table that is split over machines."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import peergraph._C as _C


@dataclass(frozen=True)
class MachineSplit:
    """The hottest rows are on each machine, the others on one machine each.

    Rows are counted in internal order, hottest first. Row ``hot + c`` is on machine ``c %
    machines``, so that every machine has rows of every hotness. A machine stores its hot rows, then
    its other rows, in ascending order; their positions are its local rows.

    Args:
        rows: the number of rows of the table.
        hot: the number of rows that every machine has.
        machines: the number of machines.
        index: the index of this machine.
    """

    rows: int
    hot: int
    machines: int
    index: int

    def __post_init__(self) -> None:
        if not 0 <= self.hot <= self.rows:
            raise ValueError(f"hot must be of 0..{self.rows}, got {self.hot}")
        if not 0 <= self.index < self.machines:
            raise ValueError(f"index must be of 0..{self.machines - 1}, got {self.index}")

    @property
    def view(self) -> _C.MachineSplit:
        """The split, as kernels take it."""
        return _C.MachineSplit(
            rows=self.rows, hot=self.hot, machines=self.machines, index=self.index
        )

    @property
    def local_rows(self) -> int:
        """The number of rows that this machine stores."""
        return self.rows_on(self.index)

    def rows_on(self, machine: int) -> int:
        """Returns the number of rows that a machine stores."""
        return self.hot + len(range(machine, self.rows - self.hot, self.machines))

    def local_row(self, internal: torch.Tensor) -> torch.Tensor:
        """Returns the local row of each internal row; -1 where another machine has the row."""
        cold = internal - self.hot
        local = torch.div(cold, self.machines, rounding_mode="floor").add_(self.hot)
        local.masked_fill_(cold.remainder(self.machines) != self.index, -1)
        return torch.where(cold < 0, internal, local)

    def machine_of(self, internal: torch.Tensor) -> torch.Tensor:
        """Returns the machine that stores each internal row; the rows must not be hot."""
        return (internal - self.hot) % self.machines
