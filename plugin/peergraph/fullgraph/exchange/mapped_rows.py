"""Rows that other ranks need, in memory that every rank maps, for kernels that read them there.

MGG 3.2 keeps all rows there; here their owner copies those that another rank needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.errors import PeerLostError
from peergraph.fullgraph.exchange.flags import FLAG_BYTES, clear_flags
from peergraph.fullgraph.exchange.halo import ROWS_OF_OTHERS, HaloPlan
from peergraph.fullgraph.exchange.mode_cost import rows_to_publish
from peergraph.memory import SharedRegion
from peergraph.memory.device.launching import launch_on
from peergraph.memory.group.device_waits import register_wait
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
        self._region: SharedRegion | None = None
        self._capacity = 0
        self._round = 0
        self._addresses: dict[int, Tensor] = {}
        on_gpu = self._group.device.type == "cuda"
        self._given_up = torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=on_gpu)
        register_wait(self._given_up)

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
        region = self._region_for(self._most_rows * row_bytes)
        self._check()
        if self._round:
            self._wait_for_all(region, of_release=True)
        rows = region.local(x.dtype, [self.num_published, columns])
        if self._sent is not None and columns == x.shape[1]:
            torch.index_select(x, 0, self._sent, out=rows)
        else:
            sent = x if self._sent is None else x.index_select(0, self._sent)
            rows[:, : x.shape[1]].copy_(sent)
            rows[:, x.shape[1] :].zero_()
        count_bytes(EXCHANGE, rows.nbytes)
        self._round += 1
        self._signal_all(region, of_release=False)
        self._wait_for_all(region, of_release=False)
        if row_bytes not in self._addresses:
            self._addresses[row_bytes] = self._make_addresses(region, row_bytes)
        bits = row_bytes
        for address in region.addresses:
            bits |= address
        return RowAddresses(self._addresses[row_bytes], bits, columns, [region.lease])

    def release(self) -> None:
        """Tells the other ranks that this one has read their rows. Collective."""
        assert self._region is not None
        self._signal_all(self._region, of_release=True)

    def close(self) -> None:
        """Frees the memory. Collective."""
        if self._region is not None:
            self._region.close()
            self._region, self._capacity = None, 0

    def _region_for(self, num_bytes: int) -> SharedRegion:
        """Returns memory of as many bytes on each rank; all ranks ask for the same number."""
        if self._region is None or num_bytes > self._capacity:
            if self._region is not None:
                self._region.close()
            self._capacity = -(-num_bytes // FLAG_BYTES) * FLAG_BYTES
            flags = 2 * self._group.world_size * FLAG_BYTES
            self._region = SharedRegion.create(self._capacity + flags, self._group)
            memory = self._region.local(torch.uint8, [self._capacity + flags])
            self._addresses, self._round = {}, 0
            clear_flags(memory[self._capacity :], self._group)
        return self._region

    def _make_addresses(self, region: SharedRegion, row_bytes: int) -> Tensor:
        plan, device = self._plan, self._group.device
        starts = torch.tensor(region.addresses, device=device)
        counts = torch.tensor(plan.halo_counts, device=device)
        return self._positions * row_bytes + starts.repeat_interleave(counts)

    def _flag(self, region: SharedRegion, owner: int, other: int, *, of_release: bool) -> int:
        index = other + self._group.world_size * of_release
        return region.addresses[owner] + self._capacity + index * FLAG_BYTES

    def _signal_all(self, region: SharedRegion, *, of_release: bool) -> None:
        launch = launch_on(self._group.device)
        for peer in self._others():
            flag = self._flag(region, peer, self._group.rank, of_release=of_release)
            _C.signal_flag(flag, self._round & 0xFFFFFFFF, launch)

    def _wait_for_all(self, region: SharedRegion, *, of_release: bool) -> None:
        launch, given_up = launch_on(self._group.device), self._given_up.data_ptr()
        for peer in self._others():
            flag = self._flag(region, self._group.rank, peer, of_release=of_release)
            value = self._round & 0xFFFFFFFF
            _C.wait_for_flag(flag, value, self._group.timeout, given_up, launch)
        if self._group.device.type == "cpu":
            self._check()

    def _others(self) -> list[int]:
        rank, world_size = self._group.rank, self._group.world_size
        return [(rank + step) % world_size for step in range(1, world_size)]

    def _check(self) -> None:
        if int(self._given_up[0]):
            self._group.all_gather(None)  # Raises PeerLostError, which names the rank.
            raise PeerLostError(
                "a wait for the rows of other ranks was given up: a rank was lost, or took no part "
                f"within {self._group.timeout:g} s"
            )


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
