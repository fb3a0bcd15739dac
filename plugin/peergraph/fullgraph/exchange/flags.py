"""Counts in shared memory by which ranks tell each other that rows have arrived or were read."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.errors import PeerLostError
from peergraph.memory import Group, SharedRegion
from peergraph.memory.device.launching import Launch
from peergraph.memory.group.device_waits import register_wait

# Counts are this far apart, so that two ranks do not write to the same line of a cache.
_FLAG_BYTES = 128

ARRIVED, TAKEN = 0, 1
"""The two counts of a pair of ranks: of what a rank gets from another, and of what it gave."""


class FlagWaits:
    """Waits for counts of other ranks, which end when a rank is lost.

    Args:
        group: the ranks.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        on_gpu = group.device.type == "cuda"
        self._given_up = torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=on_gpu)
        register_wait(self._given_up)

    def wait(self, flag: int, count: int, launch: Launch) -> None:
        """Waits, in the order of a launch's stream, until the count at an address is reached."""
        given_up = self._given_up.data_ptr()
        _C.wait_for_flag(flag, _wrapped(count), self._group.timeout, given_up, launch)

    def check(self) -> None:
        """Raises PeerLostError if a wait is known to have been given up."""
        if int(self._given_up[0]):
            self._group.all_gather(None)  # Raises PeerLostError, which names the rank.
            raise PeerLostError(
                "an exchange of rows was given up: a rank was lost, or took no part within "
                f"{self._group.timeout:g} s"
            )


class FlaggedMemory:
    """Memory of each rank that all ranks map, with two counts for each pair of ranks.

    Collective, as is :meth:`close`.

    Args:
        group: the ranks.
        num_bytes: of each rank; equal on all ranks.
        waits: for counts.
    """

    def __init__(self, group: Group, num_bytes: int, waits: FlagWaits) -> None:
        self._rank, self._world_size, self._waits = group.rank, group.world_size, waits
        self._flags_at = -(-num_bytes // _FLAG_BYTES) * _FLAG_BYTES
        size = self._flags_at + 2 * self._world_size * _FLAG_BYTES
        self._size = size
        self.region = SharedRegion.create(size, group)
        # Zeros that are written after other ranks have begun would erase their counts.
        self.region.local(torch.uint8, [size])[self._flags_at :].zero_()
        group.barrier()

    @cached_property
    def parts(self) -> list[Tensor]:
        """The memory of each rank, uint8."""
        ranks = range(self._world_size)
        return [self.region.part(rank, torch.uint8, [self._size]) for rank in ranks]

    def signal(self, other: int, flag: int, count: int, launch: Launch) -> None:
        """Raises the count :data:`ARRIVED` or :data:`TAKEN` that another rank waits for."""
        _C.signal_flag(self._address(other, self._rank, flag), _wrapped(count), launch)

    def wait(self, other: int, flag: int, count: int, launch: Launch) -> None:
        """Waits until another rank has raised a count of this one: see :meth:`FlagWaits.wait`."""
        self._waits.wait(self._address(self._rank, other, flag), count, launch)

    def close(self) -> None:
        """Frees the memory."""
        self.__dict__.pop("parts", None)
        self.region.close()

    def _address(self, owner: int, other: int, flag: int) -> int:
        """Returns the address of a count that `other` raises and `owner` waits for."""
        index = other + self._world_size * flag
        return self.region.addresses[owner] + self._flags_at + index * _FLAG_BYTES


def _wrapped(count: int) -> int:
    """Counts wrap around at 2^32."""
    return count & 0xFFFFFFFF
