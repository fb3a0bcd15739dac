"""Draws of nodes, uniform or by weights, and the distinct ones of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from peergraph import _C
from peergraph.memory import host_rows
from peergraph.memory.device.launching import Buffers, empty, launch_on

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

    def draw(self, count: int, seed: int, stream: int) -> Tensor:
        """Draws [count] int64 nodes with replacement, on the store's device or on the CPU.

        Args:
            count: of draws; the total must not be 0.
            seed, stream: of the random numbers.
        """
        ends = self._table.as_tensor() if self._on_device is None else self._on_device
        return draw_nodes(count, ends.numel(), seed, stream, ends.device, ends)


def draw_nodes(
    count: int,
    num_nodes: int,
    seed: int,
    stream: int,
    device: torch.device,
    ends: Tensor | None = None,
) -> Tensor:
    """Draws [count] int64 nodes with replacement on a device; asynchronous on a GPU.

    Args:
        num_nodes: at least 1.
        seed, stream: of the random numbers.
        ends: [num_nodes] int64 running sum of the weights, on the device. Default: equal weights.
    """
    nodes = empty(count, torch.int64, device)
    _C.draw_nodes(num_nodes, ends, nodes, seed, stream, launch_on(device))
    return nodes


def distinct(nodes: Tensor, num_nodes: int) -> Tensor:
    """Returns each of some int64 nodes once, in ascending order. Waits for a GPU."""
    nodes = nodes.contiguous()
    result = empty(nodes.numel(), torch.int64, nodes.device)
    launch = launch_on(nodes.device)
    count = _C.distinct_nodes(nodes, num_nodes, result, Buffers(nodes.device), launch)
    return result[:count]


def ranks_of(store: Store) -> Group:
    """Returns the ranks of a store; ``RuntimeError`` in a process that unpickled it."""
    if store.group is None:
        raise RuntimeError("only the ranks that built a store can make a SaintSampler of it")
    return store.group
