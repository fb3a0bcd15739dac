"""The cost model: bytes of a mini-batch over each link, and the time of a byte on it.

It replaces the ratios that XGNN's users set by hand (4.2, 4.3). The time of reads from the host is
added to that of other links, because threads that wait for the host cannot use them. Work that does
not depend on placement is left out: calls, sorting the ids of host rows, and the sampler's
renumbering.
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
        is_table: whether these are rows of a table, which CPU threads can read for a GPU.
    """

    item: Item
    curve: HitRateCurve
    reads: float
    read_bytes: float
    width: int
    places: int = 1
    is_table: bool = True


def peer_seconds(topology: Topology, partitions: Partitions, width: int) -> float:
    """Returns the seconds per byte of sharded rows from peers, on the slowest GPU.

    It is the larger of the time on the slowest link and the time of all links together.

    Args:
        width: the bytes of a row.
    """
    rates = topology.rates(width)
    share = np.array(partitions.access_counts()) / topology.num_gpus
    np.fill_diagonal(share, 0.0)
    links, ingress = np.array(rates.bandwidth), np.array(rates.ingress)
    slowest = np.max(share / np.where(links > 0, links, np.inf), axis=1)
    together = share.sum(axis=1) / np.where(ingress > 0, ingress, np.inf)
    return float(np.maximum(slowest, together).max())


def host_seconds(topology: Topology, pattern: AccessPattern) -> float:
    """Returns the seconds per byte from host memory on the slowest GPU: by kernels, or for rows of
    a table by the faster way.

    In a large host tier, a GPU can translate a limited number of addresses a second, however few
    bytes it reads at each.
    """
    count = topology.num_gpus
    translation = 1 / np.array(topology.host_reads or [np.inf] * count)
    seconds = 1 / np.array(topology.rates(pattern.width).host)
    seconds = np.maximum(seconds, pattern.places / pattern.read_bytes * translation)
    staged = topology.staged_rates(pattern.width)
    if pattern.is_table and staged is not None:
        seconds = np.minimum(seconds, 1 / np.array(staged))
    return float(seconds.max())


def predict(pattern: AccessPattern, tiers: Tiers, partitions: Partitions) -> Prediction:
    """Counts the reads of an item whose rows are on these tiers."""
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
    count = partitions.num_gpus
    links = np.array(partitions.access_counts()) * (sharded_bytes / count)
    links += np.eye(count) * replicated_bytes
    link_bytes = tuple((*map(float, row), host_bytes) for row in links)
    return Prediction(pattern.item.kind, pattern.item.name, hits, link_bytes)
