"""Which machine has which rows of a table that is split over machines."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class MachineSplit:
    """The hottest rows are on each machine, the others on one machine each.

    Rows are counted in internal order, hottest first. Row ``hot + c`` is on machine ``c %
    machines``, so that every machine has rows of every hotness. A machine stores its hot rows, then
    its other rows, in ascending order; their positions are its local rows.

    Args:
        rows: of the table.
        hot: how many of them every machine has.
        machines: how many machines there are.
        index: this machine.
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
    def local_rows(self) -> int:
        """Rows that this machine stores."""
        return self.rows_on(self.index)

    def rows_on(self, machine: int) -> int:
        """Rows that a machine stores."""
        return self.hot + len(range(machine, self.rows - self.hot, self.machines))

    def internal_rows(self) -> torch.Tensor:
        """int64 on the CPU: the internal row of each local row."""
        cold = torch.arange(self.hot + self.index, self.rows, self.machines, device="cpu")
        return torch.cat([torch.arange(self.hot, device="cpu"), cold])

    def local_row(self, internal: torch.Tensor) -> torch.Tensor:
        """The local row of each internal row; -1 where another machine has it."""
        cold = internal - self.hot
        own = self.hot + torch.div(cold, self.machines, rounding_mode="floor")
        own = torch.where(cold % self.machines == self.index, own, -1)
        return torch.where(cold < 0, internal, own)

    def machine_of(self, internal: torch.Tensor) -> torch.Tensor:
        """The machine of each internal row that is not hot."""
        return (internal - self.hot) % self.machines

    def turn_of(self, internal: torch.Tensor) -> torch.Tensor:
        """The number of each row among the rows of its machine that are not hot. Modulo the ranks
        of a machine it says which of them transfers the row.
        """
        return torch.div(internal - self.hot, self.machines, rounding_mode="floor")
