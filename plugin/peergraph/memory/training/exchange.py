"""Sends gradients to the ranks that own their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peergraph.memory.group.group import Group
from peergraph.memory.region.peer_access import PeerAccess
from peergraph.memory.region.region import SharedRegion
from peergraph.memory.table.packed_rows import packed_offsets
from peergraph.memory.training.coalesce import SparseRows
from peergraph.memory.training.rounds import Rounds
from peergraph.profiling import EXCHANGE, profiled

# Batches differ in size: parts have room for larger batches, so that they rarely grow.
_HEADROOM = 1.25


@dataclass(frozen=True)
class Outgoing:
    """The rows that a rank sends for one table, in order of owner, and their number per owner."""

    rows: SparseRows
    counts: list[int]


class Exchange:
    """Sends rows to their owners through shared memory, in one round of the ranks.

    Each rank writes its rows to its part of a region, and each owner reads its rows from all parts.
    If a part must grow, there is a second round.
    """

    def __init__(self, group: Group, tables: Sequence[tuple[int, torch.dtype]]) -> None:
        """Collective. `tables`: the width and the dtype of each table's values."""
        self._group = group
        self._tables = list(tables)
        # The words: whether the rank has failed; for each table, whether it sends rows, and the
        # number of rows for each rank.
        self._rounds = Rounds(group, 1 + len(self._tables) * (1 + group.world_size))
        self._region: SharedRegion | None = None
        # In host memory if GPUs do not reach each other's.
        self._place = None if PeerAccess.of(group).is_full else "cpu"

    @profiled(EXCHANGE)
    def send(self, outgoing: Sequence[Outgoing | None] | None) -> list[list[SparseRows] | None]:
        """Returns, for each table, every rank's rows that this rank owns, in order of rank; None
        for a table to which no rank sends. Collective; waits for this rank's current stream.

        Args:
            outgoing: the rows for each table, None for a table to which this rank sends no rows.
                None instead of the list if this rank has failed.

        Raises RuntimeError if another rank has failed, PeerLostError if a rank is missing.
        """
        fits = True
        if outgoing is not None:
            fits = self._fits(outgoing)
            if fits:
                self._write(outgoing)
        received = self._rounds.exchange(self._header(outgoing))
        failed = [rank for rank, words in enumerate(received) if words[0]]
        if outgoing is None:
            return []
        if failed:
            raise RuntimeError(f"rank {failed[0]} failed in this step: see its error")
        counts = [self._counts(words) for words in received]
        if self._grow([self._offsets(c)[-1] for c in counts]):
            self._write(outgoing)
            self._rounds.exchange()
        return [self._incoming(t, counts) for t in range(len(self._tables))]

    @profiled(EXCHANGE)
    def wait(self) -> None:
        """Waits for this rank's current stream, then for all ranks. Collective."""
        _synchronize(self._group.device)
        self._rounds.exchange()

    def close(self) -> None:
        """Releases the memory. Collective."""
        if self._region is not None:
            self._region.close()
        self._rounds.close()

    def _header(self, outgoing: Sequence[Outgoing | None] | None) -> list[int]:
        nothing = [0] * (1 + self._group.world_size)
        if outgoing is None:
            return [1, *(nothing * len(self._tables))]
        words = [0]
        for sent in outgoing:
            words += nothing if sent is None else [1, *sent.counts]
        return words

    def _counts(self, words: list[int]) -> list[list[int] | None]:
        """Returns, for each table, the number of rows for each owner; None for a table without rows
        from this rank.
        """
        step = 1 + self._group.world_size
        return [
            words[first + 1 : first + step] if words[first] else None
            for first in range(1, len(words), step)
        ]

    def _offsets(self, counts: Sequence[list[int] | None]) -> list[int]:
        """Returns the offsets of each table's keys and values in a part; the last is the end."""
        sizes = []
        for (width, dtype), count in zip(self._tables, counts, strict=True):
            rows = sum(count or [])
            sizes += [(rows, 8), (rows, width * dtype.itemsize)]
        return packed_offsets(sizes)

    def _fits(self, outgoing: Sequence[Outgoing | None]) -> bool:
        num_bytes = self._offsets([None if s is None else s.counts for s in outgoing])[-1]
        return self._region is not None and num_bytes <= self._region.sizes[self._group.rank]

    def _grow(self, bytes_by_rank: list[int]) -> bool:
        """Allocates a larger region if any rank needs one. Returns whether it did; then all ranks
        must write again. Collective.
        """
        sizes = [0] * len(bytes_by_rank) if self._region is None else self._region.sizes
        if all(n <= s for n, s in zip(bytes_by_rank, sizes, strict=True)):
            return False
        rank = self._group.rank
        num_bytes = max(sizes[rank], int(bytes_by_rank[rank] * _HEADROOM))
        if self._region is not None:
            self._region.close()
        self._region = SharedRegion.create(num_bytes, self._group, self._place)
        return True

    def _part(self, rank: int, counts: Sequence[list[int] | None], table: int) -> SparseRows:
        """Returns views of a table's rows in the part of a rank."""
        offsets = self._offsets(counts)
        width, dtype = self._tables[table]
        rows = sum(counts[table] or [])
        if rows == 0 or self._region is None:
            device = self._group.device
            keys = torch.empty(0, dtype=torch.int64, device=device)
            return SparseRows(keys, torch.empty((0, width), dtype=dtype, device=device))
        part = self._region.part(rank, torch.uint8, (self._region.sizes[rank],))
        keys_begin, values_begin = offsets[2 * table], offsets[2 * table + 1]
        values = part[values_begin : values_begin + rows * width * dtype.itemsize]
        return SparseRows(
            part[keys_begin : keys_begin + 8 * rows].view(torch.int64),
            values.view(dtype).view(rows, width),
        )

    def _write(self, outgoing: Sequence[Outgoing | None]) -> None:
        counts = [None if sent is None else sent.counts for sent in outgoing]
        for table, sent in enumerate(outgoing):
            if sent is not None:
                target = self._part(self._group.rank, counts, table)
                target.keys.copy_(sent.rows.keys)
                target.values.copy_(sent.rows.values)
        _synchronize(self._group.device)

    def _incoming(
        self, table: int, counts: list[list[list[int] | None]]
    ) -> list[SparseRows] | None:
        if all(rank_counts[table] is None for rank_counts in counts):
            return None
        incoming = []
        for rank, rank_counts in enumerate(counts):
            by_owner = rank_counts[table] or [0] * self._group.world_size
            begin = sum(by_owner[: self._group.rank])
            end = begin + by_owner[self._group.rank]
            rows = self._part(rank, rank_counts, table)
            keys, values = rows.keys[begin:end], rows.values[begin:end]
            device = self._group.device
            incoming.append(SparseRows(keys.to(device), values.to(device)))
        return incoming


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def join(rows: Sequence[SparseRows]) -> SparseRows:
    """Concatenates rows in this rank's memory."""
    keys: list[Tensor] = [r.keys for r in rows]
    return SparseRows(torch.cat(keys), torch.cat([r.values for r in rows]))
