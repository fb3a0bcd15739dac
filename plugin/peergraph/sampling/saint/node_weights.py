"""Draws of nodes by weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from peergraph.memory import host_rows

if TYPE_CHECKING:
    from peergraph.memory import Group
    from peergraph.store import Store


class NodeWeights:
    """Integer weights of nodes, as their running sum, in host memory once on the machine. A GPU
    that has 8 bytes a node free has a copy and draws there; the draws are the same.

    Args:
        store: its ranks make the weights together. Collective.
        count: the number of nodes, at least 1.
        read: returns the [count] int64 weights; called on rank 0.
    """

    total: int
    """The sum of all weights."""

    def __init__(self, store: Store, count: int, read: Callable[[], Tensor]) -> None:
        def fill(ends: Tensor) -> None:
            torch.cumsum(read(), 0, out=ends)

        self._table = host_rows(ranks_of(store), (count,), torch.int64, fill)
        self._on_device: Tensor | None = None
        self.total = int(self._table.read(count - 1))
        if store.device.type == "cuda":
            with suppress(torch.OutOfMemoryError):
                self._on_device = self._table.as_tensor().to(store.device)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draws [count] int64 nodes with replacement, on the store's device or on the CPU.

        Args:
            count: of draws; the total must not be 0.
            generator: of the CPU.
        """
        values = torch.rand(count, generator=generator, dtype=torch.float64, device="cpu")
        values = (values * self.total).long().clamp_(max=self.total - 1)
        ends = self._table.as_tensor() if self._on_device is None else self._on_device
        return torch.searchsorted(ends, values.to(ends.device), right=True)


def ranks_of(store: Store) -> Group:
    """Returns the ranks of a store; ``RuntimeError`` in a process that unpickled it."""
    if store.group is None:
        raise RuntimeError("only the ranks that built a store can make a SaintSampler of it")
    return store.group
