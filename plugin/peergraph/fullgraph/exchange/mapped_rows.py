"""Rows that other ranks need, in memory that every rank maps, for kernels that read them there.

MGG 3.2 keeps all rows there; here their owner copies those that another rank needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.fullgraph.exchange.flags import ARRIVED, TAKEN, FlaggedMemory, FlagWaits
from peergraph.fullgraph.exchange.halo import ROWS_OF_OTHERS, HaloPlan
from peergraph.fullgraph.exchange.mode_cost import rows_to_publish
from peergraph.memory import SharedRegion
from peergraph.memory.device.launching import launch_on
from peergraph.profiling import EXCHANGE, count_bytes, profiled

# Rows begin at multiples of this, so that kernels read them in vectors.
_ROW_UNIT = 32


@dataclass(frozen=True)
class RowAddresses:
    """Where the halo of a plan lies: the rows of other ranks, in their owners' memory.

    Args:
        addresses: [halo rows] int64.
        bits: that are set in any address.
        columns: of the rows, padding included, which is zeros.
        leases: of the memory.
    """

    addresses: Tensor
    bits: int
    columns: int
    leases: list[_C.Lease]


class MappedRows:
    """The rows of a plan that other ranks need, published by their owners. Made collectively.

    The memory is made at the first use and made anew for wider rows. Ranks wait for each other by
    flags, on GPUs in the order of the current stream.

    Args:
        plan: which rows this rank reads, and which ones others read.
    """

    def __init__(self, plan: HaloPlan) -> None:
        self._plan = plan
        self._sent, self._positions = _published_rows(plan)
        self._most_rows = max(plan.row_layout.group.all_gather(self.num_published))
        self._group = plan.row_layout.processes
        self._memory: FlaggedMemory | None = None
        self._capacity = 0
        self._round = 0
        self._addresses: dict[int, Tensor] = {}
        self._waits = FlagWaits(self._group)

    @property
    def num_published(self) -> int:
        """Rows of this rank that are published: those that another rank needs, or all of many."""
        return self._plan.num_local if self._sent is None else len(self._sent)

    def padded_columns(self, x: Tensor) -> int:
        """Returns the columns of published rows of `x`, which begin at whole vectors."""
        unit = _ROW_UNIT // x.itemsize
        return -(-x.shape[1] // unit) * unit

    @profiled(EXCHANGE)
    def publish(self, x: Tensor) -> RowAddresses:
        """Copies rows of this rank to where all ranks read them; returns where the halo is.

        Collective, asynchronous on a GPU. Rows stay until :meth:`release`, which must follow.

        Args:
            x: [local rows, columns].

        Raises:
            PeerLostError: a rank was lost before.
        """
        self._plan.transport.announce(ROWS_OF_OTHERS, x)
        columns = self.padded_columns(x)
        row_bytes = columns * x.itemsize
        memory = self._memory_for(self._most_rows * row_bytes)
        region = memory.region
        self._waits.check()
        if self._round:
            self._wait_for_all(memory, TAKEN)
        rows = region.local(x.dtype, [self.num_published, columns])
        if self._sent is not None and columns == x.shape[1]:
            torch.index_select(x, 0, self._sent, out=rows)
        else:
            sent = x if self._sent is None else x.index_select(0, self._sent)
            rows[:, : x.shape[1]].copy_(sent)
            rows[:, x.shape[1] :].zero_()
        count_bytes(EXCHANGE, rows.nbytes)
        self._round += 1
        self._signal_all(memory, ARRIVED)
        self._wait_for_all(memory, ARRIVED)
        if row_bytes not in self._addresses:
            self._addresses[row_bytes] = self._make_addresses(region, row_bytes)
        bits = row_bytes
        for address in region.addresses:
            bits |= address
        return RowAddresses(self._addresses[row_bytes], bits, columns, [region.lease])

    def release(self) -> None:
        """Tells the other ranks that this one has read their rows. Collective."""
        assert self._memory is not None
        self._signal_all(self._memory, TAKEN)

    def close(self) -> None:
        """Frees the memory. Collective."""
        if self._memory is not None:
            self._memory.close()
            self._memory, self._capacity = None, 0

    def _memory_for(self, num_bytes: int) -> FlaggedMemory:
        """Returns memory of as many bytes on each rank; all ranks ask for the same number."""
        if self._memory is None or num_bytes > self._capacity:
            self.close()
            self._capacity, self._addresses, self._round = num_bytes, {}, 0
            self._memory = FlaggedMemory(self._group, num_bytes, self._waits)
        return self._memory

    def _make_addresses(self, region: SharedRegion, row_bytes: int) -> Tensor:
        plan, device = self._plan, self._group.device
        starts = torch.tensor(region.addresses, device=device)
        counts = torch.tensor(plan.halo_counts, device=device)
        return self._positions * row_bytes + starts.repeat_interleave(counts)

    def _signal_all(self, memory: FlaggedMemory, flag: int) -> None:
        launch = launch_on(self._group.device)
        for peer in self._others():
            memory.signal(peer, flag, self._round, launch)

    def _wait_for_all(self, memory: FlaggedMemory, flag: int) -> None:
        launch = launch_on(self._group.device)
        for peer in self._others():
            memory.wait(peer, flag, self._round, launch)
        if self._group.device.type == "cpu":
            self._waits.check()

    def _others(self) -> list[int]:
        rank, world_size = self._group.rank, self._group.world_size
        return [(rank + step) % world_size for step in range(1, world_size)]


def _published_rows(plan: HaloPlan) -> tuple[Tensor | None, Tensor]:
    """Returns which local rows are published, and where the halo is among its owners' rows.

    Collective.

    Returns:
        The rows ascending, or None for all; for each row of the halo its number, int64.
    """
    sent: Tensor | None = torch.unique(plan.send_rows)
    assert sent is not None
    if rows_to_publish(len(sent), plan.num_local) == plan.num_local:
        sent, numbers = None, plan.send_rows
    else:
        numbers = torch.searchsorted(sent, plan.send_rows)
    counts = plan.route.sent_counts
    return sent, plan.transport.exchange_rows(numbers, counts, plan.halo_counts)
