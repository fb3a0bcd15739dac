"""The cost model: bytes of a mini-batch over each link, and their time by the measured links.

It replaces the ratios that XGNN's users set by hand (4.2, 4.3). A gather reads local memory and all
peers at the same time, so its time is that of the slowest of them. The time of reads from the host
is added, because threads that wait for the host cannot use other links. Work that does not depend
on placement is left out: calls, sorting the ids of host rows, and the sampler's renumbering.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergraph.memory import Tiers
from peergraph.memory.table.partitions import Partitions
from peergraph.memory.topology.topology import Topology
from peergraph.store.placement.plan import Item
from peergraph.store.placement.prediction import Prediction

Array = np.ndarray[Any, Any]

_POINTS = 256
# The GPU reads memory by 32 bytes.
SECTOR = 32


@dataclass(frozen=True)
class HitRateCurve:
    """The share of all reads that the first k rows of an item get, as a function of k.

    Args:
        rows: points k, ascending, from 0 to the number of rows.
        share: the share at each point, from 0 to 1. Rows between two points are read equally often.
    """

    rows: Array
    share: Array

    @classmethod
    def of(cls, hotness: Tensor) -> HitRateCurve:
        """Makes the curve from ``[rows]``, the number of reads of each row. Synchronises."""
        count = hotness.numel()
        if count == 0:
            return cls(np.zeros(1, np.int64), np.zeros(1))
        even = np.linspace(0, count, _POINTS + 1)
        dense_at_first = np.geomspace(1, count, _POINTS)
        rows = np.unique(np.concatenate([even, dense_at_first]).astype(np.int64))
        at = torch.from_numpy(rows[1:] - 1).to(hotness.device)
        sums = hotness.cumsum(0, dtype=torch.float64)[at].cpu().numpy()
        if sums[-1] == 0:
            return cls(rows, rows / count)
        share = np.concatenate([[0.0], sums / sums[-1]])
        return cls(rows, share)

    @classmethod
    def uniform(cls, count: int) -> HitRateCurve:
        """Returns the curve of `count` rows that are read equally often."""
        rows = np.unique(np.linspace(0, count, _POINTS + 1).astype(np.int64))
        return cls(rows, rows / max(1, count))

    def hit_rate(self, count: int) -> float:
        """Returns the share of the reads that the first `count` rows get."""
        return float(np.interp(count, self.rows, self.share))


@dataclass(frozen=True)
class AccessPattern:
    """How mini-batches read an item.

    Args:
        item: the item that is read.
        curve: the distribution of the reads over the rows.
        reads: the number of rows that a mini-batch reads.
        read_bytes: the bytes of each read.
        width: the contiguous bytes of a read, which determine the bandwidth of links.
        places: the number of separate addresses that each read accesses.
        sorted: whether host memory is read in ascending order of address.
    """

    item: Item
    curve: HitRateCurve
    reads: float
    read_bytes: float
    width: int
    places: int = 1
    sorted: bool = True


@dataclass(frozen=True)
class LinkCosts:
    """The time of reading rows of one width. Each array has one value for each GPU.

    Args:
        local: seconds per byte from the GPU's own memory.
        peers: seconds per byte of sharded rows from peers. It is the larger of the time on the
            slowest link and the time of all links together.
        local_share: the share of the sharded rows that the GPU stores itself.
        host: seconds per byte from host memory, by kernels.
        translation: seconds per address translation of host memory.
        staged: seconds per byte from host memory, by CPU threads; infinite if they do not read.
    """

    local: Array
    peers: Array
    local_share: Array
    host: Array
    translation: Array
    staged: Array

    @classmethod
    def of(cls, topology: Topology, partitions: Partitions, width: int) -> LinkCosts:
        """Returns the costs for rows of `width` bytes that are sharded by `partitions`."""
        rates = topology.rates(width)
        count = topology.num_gpus
        share = np.array(partitions.access_counts()) / count
        local_share = share.diagonal().copy()
        np.fill_diagonal(share, 0.0)
        links = np.array(rates.bandwidth)
        slowest = np.max(share / np.where(links > 0, links, np.inf), axis=1)
        ingress = np.array(rates.ingress)
        together = share.sum(axis=1) / np.where(ingress > 0, ingress, np.inf)
        return cls(
            1 / links.diagonal(),
            np.maximum(slowest, together),
            local_share,
            1 / np.array(rates.host),
            1 / np.array(topology.host_reads or [np.inf] * count),
            1 / np.array(topology.staged_rates(width) or [1e-30] * count),
        )

    def host_seconds(self, pattern: AccessPattern) -> Array:
        """Returns seconds per byte from host memory if every read needs address translations."""
        return self._host(1.0, pattern.places / pattern.read_bytes, pattern.sorted)

    def seconds(
        self, replicated: float, sharded: float, host: float, places: float, rows: bool
    ) -> float:
        """Returns the seconds on the slowest GPU.

        Args:
            replicated, sharded, host: the bytes that are read from each tier.
            places: the number of address translations of host memory.
            rows: whether these are rows of a table, which CPU threads can read for a GPU.
        """
        local = (replicated + sharded * self.local_share) * self.local
        on_gpus = np.maximum(local, sharded * self.peers)
        return float(np.max(on_gpus + self._host(host, places, rows)))

    def _host(self, host: float, places: float, rows: bool) -> Array:
        """Returns the seconds of reads from the host: by kernels, or for rows by the faster way."""
        by_kernel = np.maximum(host * self.host, places * self.translation)
        return np.minimum(by_kernel, host * self.staged) if rows else by_kernel


def predict(
    pattern: AccessPattern, tiers: Tiers, topology: Topology, partitions: Partitions
) -> Prediction:
    """Predicts the cost of reading an item whose rows are on these tiers."""
    replicated = pattern.curve.hit_rate(tiers.replicated)
    on_gpus = pattern.curve.hit_rate(tiers.replicated + tiers.sharded)
    # Sums of shares have rounding errors; a tier without rows must get 0.
    hits = (
        replicated,
        on_gpus - replicated if tiers.sharded else 0.0,
        1.0 - on_gpus if tiers.host else 0.0,
    )
    replicated_bytes, sharded_bytes, host_bytes = (
        share * pattern.reads * pattern.read_bytes for share in hits
    )
    first = tiers.replicated + tiers.sharded
    places = _translations(pattern, first, topology) if hits[2] else 0.0
    costs = LinkCosts.of(topology, partitions, pattern.width)
    seconds = costs.seconds(replicated_bytes, sharded_bytes, host_bytes, places, pattern.sorted)
    count = topology.num_gpus
    links = np.array(partitions.access_counts()) * (sharded_bytes / count)
    links += np.eye(count) * replicated_bytes
    link_bytes = tuple((*map(float, row), host_bytes) for row in links)
    return Prediction(pattern.item.kind, pattern.item.name, hits, seconds, link_bytes)


def _translations(pattern: AccessPattern, first: int, topology: Topology) -> float:
    """Returns the address translations of a mini-batch if the host has the rows from `first` on."""
    if not pattern.sorted:
        return pattern.places * pattern.reads * (1.0 - pattern.curve.hit_rate(first))
    ends = np.concatenate([[first], pattern.curve.rows[pattern.curve.rows > first]])
    reads = pattern.reads * np.diff(np.interp(ends, pattern.curve.rows, pattern.curve.share))
    blocks = np.diff([pattern.item.bytes_of(int(end)) for end in ends])
    blocks = blocks / topology.work.translated_bytes
    # The expected number of blocks that random reads access.
    return float(np.sum(blocks * -np.expm1(-reads / np.maximum(blocks, 1e-9))))
