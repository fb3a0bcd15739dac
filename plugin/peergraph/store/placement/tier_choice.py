"""Chooses which rows to replicate, to shard and to leave in host memory, for the shortest time.

Moving a row to faster memory saves time and costs memory. The moves of all items are made in
descending order of the time saved per byte, until the budget is used up. This greedy choice is
optimal, because the times of rows add up. Hot rows come first, so each tier is a range of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from peergraph.memory import Tiers
from peergraph.memory.table.partitions import Partitions
from peergraph.memory.topology.topology import Topology
from peergraph.store.placement.cost_model import AccessPattern, host_seconds, peer_seconds
from peergraph.store.placement.plan import Item, largest


def choose_tiers(
    patterns: Sequence[AccessPattern],
    topology: Topology,
    partitions: Partitions,
    budget: int,
    *,
    replicate: bool = True,
) -> list[Tiers]:
    """Chooses the tiers of each item within `budget` bytes on every GPU.

    Args:
        partitions: the sharded rows that each GPU stores. If every GPU stores all of them, they
            count as replicated.
        replicate: whether hot rows may be replicated although they could be sharded; otherwise the
            placement is XGNN's.
    """
    chosen = [_Chosen(pattern.item, partitions) for pattern in patterns]
    moves = [
        move
        for index, pattern in enumerate(patterns)
        for move in _moves(index, pattern, topology, partitions, replicate)
    ]
    left = budget
    for move in sorted(moves, key=lambda m: -m.worth):
        left -= chosen[move.index].apply(move, left)
    return [item.tiers() for item in chosen]


def tiers_of_ratio(item: Item, ratio: float, partitions: Partitions) -> Tiers:
    """Shards this share of an item's bytes and leaves the rest in host memory (XGNN's API).

    Raises:
        ValueError: the ratio is not in 0..1.
    """
    if not 0 <= ratio <= 1:
        raise ValueError(f"a ratio must be in 0..1, got {ratio}")
    on_gpus = largest(item.rows, lambda k: item.bytes_of(k) <= ratio * item.num_bytes)
    if partitions.stored_share == 1:
        return Tiers(replicated=on_gpus, host=item.rows - on_gpus)
    return Tiers(sharded=on_gpus, host=item.rows - on_gpus)


def bytes_on_gpu(item: Item, tiers: Tiers, partitions: Partitions) -> int:
    """Returns the bytes that an item takes on the fullest GPU."""
    replicated = item.bytes_of(tiers.replicated)
    sharded = item.bytes_of(tiers.replicated + tiers.sharded) - replicated
    return replicated + -(-sharded * partitions.copies // partitions.num_gpus)


@dataclass(frozen=True)
class _Move:
    """A move of the rows before `end` to the shards, or to every GPU."""

    worth: float  # seconds saved per byte of memory
    index: int
    end: int
    replicates: bool


def _moves(
    index: int, pattern: AccessPattern, topology: Topology, partitions: Partitions, replicate: bool
) -> Iterator[_Move]:
    host = host_seconds(topology, pattern)
    peers = peer_seconds(topology, partitions, pattern.width)
    share = partitions.stored_share
    to_shard, to_all = (host - peers) / share, 0.0
    if share < 1:
        to_all = peers / (1 - share)
    shards = share < 1 and (not replicate or 0 < to_all <= to_shard)
    for end, density in _densities(pattern):
        if shards:
            yield _Move(to_shard * density, index, end, False)
            if replicate:
                yield _Move(to_all * density, index, end, True)
        else:
            yield _Move(host * density, index, end, True)


def _densities(pattern: AccessPattern) -> list[tuple[int, float]]:
    """Returns ranges of rows: the end of each range, and its bytes read per byte stored.

    This ratio descends from range to range: rows with a higher ratio than earlier rows are put into
    the same range as these.
    """
    item, curve = pattern.item, pattern.curve
    stored = [item.bytes_of(int(k)) for k in curve.rows]
    moved = curve.share * pattern.reads * pattern.read_bytes
    corners = [0]
    for k in range(1, len(stored)):
        while len(corners) > 1 and _slope(stored, moved, corners[-2], corners[-1]) < _slope(
            stored, moved, corners[-1], k
        ):
            corners.pop()
        corners.append(k)
    return [(int(curve.rows[b]), _slope(stored, moved, a, b)) for a, b in pairwise(corners)]


def _slope(stored: Sequence[int], moved: np.ndarray[Any, Any], a: int, b: int) -> float:
    return float(moved[b] - moved[a]) / max(1, stored[b] - stored[a])


class _Chosen:
    """The tiers of one item, after the moves so far."""

    def __init__(self, item: Item, partitions: Partitions) -> None:
        self.item = item
        self.partitions = partitions
        self.replicated = 0
        self.on_gpus = 0

    def tiers(self) -> Tiers:
        return Tiers(self.replicated, self.on_gpus - self.replicated, self.item.rows - self.on_gpus)

    def apply(self, move: _Move, left: int) -> int:
        """Makes a move, or as much of it as `left` bytes allow. Returns the bytes that it took."""
        now = bytes_on_gpu(self.item, self.tiers(), self.partitions)
        begin = self.replicated if move.replicates else self.on_gpus
        if move.end <= begin:
            return 0

        def fits(count: int) -> bool:
            return self._bytes(begin + count, move.replicates) - now <= left

        count = move.end - begin
        if not fits(count):
            count = largest(count, fits)
        added = self._bytes(begin + count, move.replicates) - now
        if move.replicates:
            self.replicated = begin + count
        self.on_gpus = max(self.on_gpus, begin + count)
        return added

    def _bytes(self, end: int, replicates: bool) -> int:
        """Returns the bytes on each GPU after the rows before `end` have moved."""
        replicated = end if replicates else self.replicated
        on_gpus = max(self.on_gpus, end)
        tiers = Tiers(replicated, on_gpus - replicated, self.item.rows - on_gpus)
        return bytes_on_gpu(self.item, tiers, self.partitions)
