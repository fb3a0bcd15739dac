"""Draws of nodes by weights that are in memory once on the machine."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from peergraph.memory import Group, host_rows


class NodeWeights:
    """Integer weights of nodes, as their running sum, in host memory once on the machine.

    Args:
        group: the ranks. Collective.
        count: the number of nodes, at least 1.
        read: returns the [count] int64 weights; called on rank 0.
    """

    total: int
    """The sum of all weights."""

    def __init__(self, group: Group, count: int, read: Callable[[], Tensor]) -> None:
        def fill(ends: Tensor) -> None:
            torch.cumsum(read(), 0, out=ends)

        self._table = host_rows(group, (count,), torch.int64, fill)
        self.total = int(self._table.read(count - 1))

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draws [count] int64 nodes with replacement, on the CPU.

        Args:
            count: of draws; the total must not be 0.
            generator: of the CPU.
        """
        values = torch.rand(count, generator=generator, dtype=torch.float64, device="cpu")
        values = (values * self.total).long().clamp_(max=self.total - 1)
        return torch.searchsorted(self._table.as_tensor(), values, right=True)
