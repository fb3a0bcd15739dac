"""Small exchanges between the ranks of a host at every training step, through shared memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import peergraph._C as _C
from peergraph.memory.group.group import Group
from peergraph.memory.region.region import SharedRegion

_WORD_BYTES = 8


class Rounds:
    """All-gathers a few integers in microseconds; :meth:`Group.all_gather` takes milliseconds.

    It is also a barrier of the ranks' host threads; it does not wait for GPUs.

    Each rank has a counter of its rounds and two rows of words, which it uses alternately: no rank
    starts round n + 2 before all ranks have read round n.
    """

    def __init__(self, group: Group, words: int) -> None:
        """Collective. `words`: the largest number of integers that a rank sends in a round."""
        self._group = group
        self._words = words
        self._round = 0
        num_bytes = (1 + 2 * words) * _WORD_BYTES
        self._region = SharedRegion.create(num_bytes, group, "cpu")
        shape = (1 + 2 * words,)
        self._parts = [
            self._region.part(r, torch.int64, shape).numpy() for r in range(group.world_size)
        ]

    def exchange(self, values: Sequence[int] = ()) -> list[list[int]]:
        """Returns every rank's values, in order of rank. Collective.

        Raises PeerLostError if a rank is missing.
        """
        rank = self._group.rank
        addresses = self._region.addresses
        first = 1 + self._round % 2 * self._words
        self._round += 1
        self._parts[rank][first : first + len(values)] = values
        lease = self._region.lease
        _C.post_round(addresses[rank], self._round, lease)
        self._group.await_ranks(lambda s: _C.await_round(addresses, self._round, s, lease))
        return [part[first : first + len(values)].tolist() for part in self._parts]

    def close(self) -> None:
        """Releases the memory. Collective."""
        self._parts.clear()
        self._region.close()
