"""Counts the rows that are read from each source. The kernels that read rows do not count."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields

import torch
from torch import Tensor

from peergraph.memory.device.capture_mode import is_capturing
from peergraph.memory.device.launching import stream_address
from peergraph.memory.device.stopwatch import Stopwatch
from peergraph.memory.table.partitions import Partitions
from peergraph.memory.table.tier_sizes import Split, rows_per_block
from peergraph.memory.table.tiers import Tiers


class ReadCounter:
    """Counts the rows that one rank reads from each source, and measures the time of its gathers.

    The sources are this rank's memory (replicated rows), each rank (sharded rows, by the rank that
    stores the copy that is read), host memory and the disk. Counting runs on the device in the
    stream of the reads, and does not synchronise. All threads and streams may count.

    Args:
        tiers: rows per tier.
        partitions: from which rank each rank reads each shard.
        rank: the rank that reads.
        device: the device of the ids.
        order: [rows] the internal row of each user id, on the device; None: they are equal.
        split: how the sharded rows are split over the ranks.
    """

    def __init__(
        self,
        tiers: Tiers,
        partitions: Partitions,
        rank: int,
        device: torch.device,
        order: Tensor | None = None,
        split: Split = "round_robin",
    ) -> None:
        self.watch = Stopwatch(device)
        self.calls = 0
        """The number of gathers that were counted."""
        self._order = order
        self._rows = tiers.rows
        self._num_shards = partitions.num_gpus
        self._rows_per_block = rows_per_block(tiers.sharded, self._num_shards, split)
        self._sharded = (tiers.replicated, tiers.replicated + tiers.sharded)
        behind = [getattr(tiers, field.name) for field in fields(tiers)][2:]
        ends = torch.tensor(
            [self._sharded[1], *behind[:-1]], dtype=torch.int64, device="cpu"
        ).cumsum(0)
        self._ends = ends.to(device)
        self._holders = torch.tensor(partitions.source[rank], device=device)
        self._num_sources = 1 + self._num_shards + len(behind)
        self._lock = threading.Lock()
        # One tensor for each thread and stream, so that additions to a tensor run in order.
        self._sums: dict[tuple[int, int], Tensor] = {}

    @contextmanager
    def gather(self, ids: Tensor) -> Iterator[None]:
        """Returns a context for a gather of `ids`. Counts it, unless a CUDA graph captures it."""
        if is_capturing(ids.device):
            yield
            return
        with self.watch.running():
            yield
        self.add(ids)
        with self._lock:
            self.calls += 1

    def add(self, ids: Tensor, units: Tensor | None = None) -> None:
        """Counts reads, except those that a CUDA graph captures.

        Args:
            ids: the ids that are read, any shape, on the device. Ids out of range do not count.
            units: int64, of the same shape: a number for each read, such as its edges. The numbers
                are added up, too.
        """
        if ids.numel() == 0 or self._rows == 0 or is_capturing(ids.device):
            return
        ids = ids.flatten().long()
        valid = (ids >= 0) & (ids < self._rows)
        rows = ids.clamp(0, self._rows - 1)
        if self._order is not None:
            rows = self._order[rows].long()
        source = self._source(rows)
        counts = torch.zeros((2, self._num_sources), dtype=torch.int64, device=ids.device)
        counts[0].index_add_(0, source, valid.long())
        if units is not None:
            counts[1].index_add_(0, source, units.flatten() * valid)
        sums = self._sums_of_this_stream(counts)
        if sums is not counts:
            sums += counts

    def _source(self, rows: Tensor) -> Tensor:
        begin, end = self._sharded
        in_shards = (rows - begin).clamp(0, max(0, end - begin - 1))
        if self._rows_per_block:
            shards = in_shards // self._rows_per_block
        else:
            shards = in_shards % self._num_shards
        behind = torch.bucketize(rows, self._ends, right=True) + self._num_shards
        on_gpus = torch.where(rows < begin, 0, self._holders[shards] + 1)
        return torch.where(rows < end, on_gpus, behind)

    def _sums_of_this_stream(self, first: Tensor) -> Tensor:
        key = (threading.get_ident(), stream_address(first.device))
        with self._lock:
            return self._sums.setdefault(key, first)

    def totals(self) -> tuple[list[int], list[int]]:
        """Returns the reads and the units of each source, in the order of sources in the class.
        Synchronises.
        """
        with self._lock:
            counts = list(self._sums.values())
        if counts and counts[0].device.type == "cuda":
            torch.cuda.synchronize(counts[0].device)
        total = torch.zeros((2, self._num_sources), dtype=torch.int64, device="cpu")
        for sums in counts:
            total += sums.cpu()
        reads, units = total.tolist()
        return reads, units


def counted(counter: ReadCounter | None, ids: Tensor) -> AbstractContextManager[None]:
    """Returns a context for a gather of `ids`, which `counter` counts if there is one.

    Callers pass a table's counter, which another thread may take away, as it was when they asked.
    """
    return nullcontext() if counter is None else counter.gather(ids)
