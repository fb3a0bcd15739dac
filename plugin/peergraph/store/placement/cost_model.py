"""What a placement costs: bytes per link and time of a mini-batch, predicted from measured links.

The cost of XGNN's tiers (4.2, 4.3) as a model instead of ratios set by hand. A gather reads own
memory and all peers at once, so that the slowest of them counts; what it reads from the host
comes on top, for the reads in flight that wait for it are lost to the others. To that comes what
placement does not change: calls, the sort that host rows are read by, the sampler's renumbering.
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
# From here on ids of tables with host rows are sorted: calls that this takes beside the gather, and
# bytes of own memory that move for each id, a radix sort's passes above all.
_LEAST_SORTED, _SORT_CALLS, _SORT_BYTES = 4096, 4, 150
# Of the host's memory, read by rising address: what one translation of an address serves.
_TRANSLATED = 1 << 16
# Of the sampler, for each hop: kernels and waits, in calls. For each edge: bytes that it writes and
# reads again in order, and sectors of the renumbering that it finds and writes at random.
_HOP_CALLS, _EDGE_BYTES, _EDGE_SECTORS = 2.5, 30, 3


@dataclass(frozen=True)
class Curve:
    """The share of all reads that goes to the first rows of an item.

    Args:
        rows: rising, from 0 to the number of rows.
        share: of the reads, from 0 to 1; between the points the rows are read alike.
    """

    rows: Array
    share: Array

    @classmethod
    def of(cls, hotness: Tensor) -> Curve:
        """From how often each row is read, ``[rows]`` in the order of the rows; synchronises."""
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
    def uniform(cls, count: int) -> Curve:
        """All of `count` rows are read alike."""
        rows = np.unique(np.linspace(0, count, _POINTS + 1).astype(np.int64))
        return cls(rows, rows / max(1, count))

    def upto(self, count: int) -> float:
        """The share of the first `count` rows."""
        return float(np.interp(count, self.rows, self.share))


@dataclass(frozen=True)
class Work:
    """What a sampler does beside reading lists, all of it in own memory.

    Args:
        hops: of a mini-batch.
        edges: that are renumbered.
        index_bytes: of the map from nodes to their numbers in a sample.
    """

    hops: int
    edges: float
    index_bytes: int

    def seconds(self, topology: Topology) -> float:
        """Of the slowest GPU."""
        own = 1 / np.array(topology.rates(SECTOR).bandwidth).diagonal()
        cached = np.array(topology.caches or 0) / max(1, self.index_bytes)
        sectors = _EDGE_SECTORS * SECTOR * np.maximum(0.0, 1.0 - cached)
        calls = self.hops * _HOP_CALLS * np.diagonal(topology.latency)
        return float(np.max(self.edges * (_EDGE_BYTES + sectors) * own + calls))


@dataclass(frozen=True)
class Load:
    """How mini-batches read an item.

    Args:
        item: what is read.
        curve: which of its rows.
        reads: rows per mini-batch.
        read_bytes: that each of them moves.
        width: bytes that lie together, by which links are rated.
        places: where each read goes.
        sorted: whether the host is read by rising address.
        work: beside the reads.
    """

    item: Item
    curve: Curve
    reads: float
    read_bytes: float
    width: int
    places: int = 1
    sorted: bool = True
    work: Work | None = None


@dataclass(frozen=True)
class LinkCosts:
    """Seconds per byte by GPU, for rows of one width.

    Args:
        own: of its own memory.
        peers: of sharded rows, that part which comes from peers: the slowest link and what all
            links carry together.
        own_share: of sharded rows, the share that lies at home.
        host: of rows on the host.
        place: seconds for each place in the host's memory, whose address has to be translated.
        staged: of rows on the host that CPU threads bring; infinite where they do not.
    """

    own: Array
    peers: Array
    own_share: Array
    host: Array
    place: Array
    staged: Array

    @classmethod
    def of(cls, topology: Topology, partitions: Partitions, width: int) -> LinkCosts:
        """For rows of `width` bytes, sharded as `partitions` says."""
        rates = topology.rates(width)
        count = topology.num_gpus
        share = np.array(partitions.access_counts()) / count
        own_share = share.diagonal().copy()
        np.fill_diagonal(share, 0.0)
        links = np.array(rates.bandwidth)
        slowest = np.max(share / np.where(links > 0, links, np.inf), axis=1)
        ingress = np.array(rates.ingress)
        together = share.sum(axis=1) / np.where(ingress > 0, ingress, np.inf)
        return cls(
            1 / links.diagonal(),
            np.maximum(slowest, together),
            own_share,
            1 / np.array(rates.host),
            1 / np.array(topology.host_reads or [np.inf] * count),
            1 / np.array(topology.staged_rates(width) or [1e-30] * count),
        )

    def far(self, load: Load) -> Array:
        """Seconds per byte from the host where no two reads share a translation."""
        return self._far(1.0, load.places / load.read_bytes, load.sorted)

    def seconds(
        self, replicated: float, sharded: float, host: float, places: float, rows: bool
    ) -> float:
        """Of the slowest GPU, for so many bytes of each tier and places of the host.

        Args:
            rows: whether they are a table's, which CPU threads can bring.
        """
        own = (replicated + sharded * self.own_share) * self.own
        near = np.maximum(own, sharded * self.peers)
        return float(np.max(near + self._far(host, places, rows)))

    def _far(self, host: float, places: float, rows: bool) -> Array:
        """By kernels; of rows, by CPU threads where that is faster."""
        by_kernel = np.maximum(host * self.host, places * self.place)
        return np.minimum(by_kernel, host * self.staged) if rows else by_kernel


def predict(load: Load, tiers: Tiers, topology: Topology, partitions: Partitions) -> Prediction:
    """The cost of one item with its rows on these tiers."""
    near = load.curve.upto(tiers.replicated)
    on_gpus = load.curve.upto(tiers.replicated + tiers.sharded)
    # Sums of shares end near 1; a tier without rows gets nothing.
    hits = (
        near,
        on_gpus - near if tiers.sharded else 0.0,
        1.0 - on_gpus if tiers.host else 0.0,
    )
    near_bytes, dealt, far = (share * load.reads * load.read_bytes for share in hits)
    places = _places(load, tiers.replicated + tiers.sharded) if hits[2] else 0.0
    costs = LinkCosts.of(topology, partitions, load.width)
    seconds = costs.seconds(near_bytes, dealt, far, places, load.sorted)
    seconds += _beside(load, hits, topology)
    count = topology.num_gpus
    links = np.array(partitions.access_counts()) * (dealt / count)
    links += np.eye(count) * near_bytes
    link_bytes = tuple((*map(float, row), far) for row in links)
    return Prediction(load.item.kind, load.item.name, hits, seconds, link_bytes)


def _places(load: Load, first: int) -> float:
    """Translations of the host's memory, which holds the rows from `first` on, for a mini-batch."""
    if not load.sorted:
        return load.places * load.reads * (1.0 - load.curve.upto(first))
    ends = np.concatenate([[first], load.curve.rows[load.curve.rows > first]])
    reads = load.reads * np.diff(np.interp(ends, load.curve.rows, load.curve.share))
    blocks = np.diff([load.item.bytes_of(int(end)) for end in ends]) / _TRANSLATED
    # So many blocks are met by reads that are strewn over them.
    return float(np.sum(blocks * -np.expm1(-reads / np.maximum(blocks, 1e-9))))


def _beside(load: Load, hits: tuple[float, float, float], topology: Topology) -> float:
    """Seconds of calls, of sorting ids, of a sampler's own work."""
    latency = float(max(topology.host_latency if hits[2] else np.diagonal(topology.latency)))
    if hits[1]:
        latency = max(latency, *(value for row in topology.latency for value in row))
    seconds = latency
    if hits[2] and load.sorted and load.reads >= _LEAST_SORTED:
        own = 1 / np.array(topology.bulk.bandwidth).diagonal()
        sorting = load.reads * _SORT_BYTES * own + _SORT_CALLS * np.diagonal(topology.latency)
        seconds += float(np.max(sorting))
    return seconds + (load.work.seconds(topology) if load.work else 0.0)
