"""The time of a sum over remote rows, by the way in which the rows are exchanged.

A rank reads one row for each edge, its own rows from its own memory. The modes differ in how it
reads the rows of other ranks:

- ``halo``: distinct rows, packed by their owners, one rank's after the other into two buffers,
  while the edges from the rank before are summed;
- ``blocks``: the same with all rows of each rank, which need no packing (MG-GCN 4.1, 4.3);
- ``in_kernel``: the kernel reads a remote row for each edge, while it sums local edges (MGG 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from peergraph.aggregate.sparse.column_blocks import SLICE_BYTES
from peergraph.fullgraph.layout.volume import Volume
from peergraph.memory import Topology
from peergraph.memory.device.default_machine import WORK, WorkRates

# Bytes that a read of a row takes from memory at least, and bytes that are read for each edge and
# slice of a row besides.
_LEAST_READ, _EDGE_BYTES = 128, 8

MODES = ("halo", "blocks", "in_kernel")
STAGED_MODES = MODES[:2]
"""Modes with buffers, in which one rank's rows after the other are summed."""


@dataclass(frozen=True)
class ModeCost:
    """What one sum costs in one mode.

    Args:
        mode: one of :data:`MODES`.
        seconds: of the exchange and the sum together, on the slowest rank.
        received: bytes that each rank receives.
        buffers: bytes of each rank for rows of other ranks, or for rows that others read.
    """

    mode: str
    seconds: float
    received: tuple[int, ...]
    buffers: tuple[int, ...]


def rows_to_publish(demand: int, rows: int) -> int:
    """Returns how many of a rank's rows are copied to where others read them: few, or all."""
    return demand if demand <= WORK.packed_share * rows else rows


def quickest(seconds: Mapping[str, float], modes: Iterable[str], work: WorkRates) -> str:
    """Returns the quickest of some modes; ``in_kernel`` only where it saves a third."""
    usable = list(modes)
    staged = [mode for mode in usable if mode in STAGED_MODES]
    best = min(staged or usable, key=seconds.__getitem__)
    if "in_kernel" in usable and seconds["in_kernel"] < work.in_kernel_share * seconds[best]:
        return "in_kernel"
    return best


def sum_costs(
    volume: Volume,
    sources: Sequence[int],
    destinations: Sequence[int],
    row_bytes: int,
    topology: Topology,
) -> dict[str, ModeCost]:
    """Predicts a sum of source rows at destinations in every mode that the machine allows.

    The model counts bytes over measured rates. Rows come from the cache as far as all rows of a
    stage fit it, or a source has so many edges that sums run over blocks of columns; else from
    memory. Copies run beside the sums, and take their share of the memory's bandwidth.

    Args:
        volume: of the edges.
        sources, destinations: rows by rank.
        row_bytes: bytes of a row.
        topology: of as many GPUs as there are ranks; ``in_kernel`` needs links between all.

    Raises:
        ValueError: another number of GPUs than of ranks.
    """
    ranks = len(sources)
    if topology.num_gpus != ranks:
        raise ValueError(f"topology must have {ranks} GPUs, as many as ranks, "
                         f"got {topology.num_gpus}")  # fmt: skip
    every = range(ranks)
    remote = volume.remote_edges
    demand = [[0 if p == q else volume.rows[p][q] for q in every] for p in every]
    whole = [[sources[q] if demand[p][q] else 0 for q in every] for p in every]
    model = _Model(volume, sources, destinations, row_bytes, topology)
    costs = [
        ModeCost(
            mode,
            max(model.stages(rank, rows, packed=mode == "halo") for rank in every),
            tuple(sum(row) * row_bytes for row in rows),
            _buffers(rows, row_bytes, packed=mode == "halo"),
        )
        for mode, rows in (("halo", demand), ("blocks", whole))
    ]
    if topology.is_fully_linked:
        costs.append(
            ModeCost(
                "in_kernel",
                max(model.in_kernel(rank, remote[rank]) for rank in every),
                tuple(count * row_bytes for count in remote),
                tuple(model.published(rank) * row_bytes for rank in every),
            )
        )
    return {cost.mode: cost for cost in costs}


def _buffers(rows: Sequence[Sequence[int]], row_bytes: int, *, packed: bool) -> tuple[int, ...]:
    """Bytes of each rank for two stages, and for the rows that it packs for them."""
    row_counts = [min(2, sum(map(bool, row))) * max(row) for row in rows]
    if packed:
        columns = zip(*rows, strict=True)
        row_counts = [a + sum(sorted(c)[-2:]) for a, c in zip(row_counts, columns, strict=True)]
    return tuple(count * row_bytes for count in row_counts)


class _Model:
    """Seconds that a rank takes while all ranks do the same."""

    def __init__(
        self,
        volume: Volume,
        sources: Sequence[int],
        destinations: Sequence[int],
        row_bytes: int,
        topology: Topology,
    ) -> None:
        self.edges = volume.edges
        self.demand = volume.rows
        self.sources = sources
        self.destinations = destinations
        self.row_bytes = row_bytes
        self.topology, self.work = topology, topology.work
        self.rows = topology.rates(row_bytes)
        self.has_row_rates = bool(topology.rows)
        self.bulk = topology.bulk
        self.latency = topology.latency

    def stages(self, rank: int, moved: Sequence[Sequence[int]], *, packed: bool) -> float:
        """Receives and sums the rows of one rank after the other; own rows first.

        Args:
            moved: rows that each rank receives from each rank.
            packed: whether this rank gathers the rows that it sends.
        """
        ranks = len(self.destinations)
        computed = [self.local_sum(rank, self.edges[rank][rank])]
        copied = [0.0]
        for step in range(1, ranks):
            source, reader = (rank + step) % ranks, (rank - step) % ranks
            # The buffer is that of the stage before the last one.
            begin = max(copied[-1], computed[step - 2] if step > 2 else 0.0)
            copied.append(begin + self.copy(rank, source, moved[rank][source]))
            pack = self.pack(rank, moved[reader][rank]) if packed else 0.0
            edges = self.edges[rank][source]
            rows = moved[rank][source]
            # Sums are read and written where there are edges.
            summed = self.rows_with_edges(rank, edges)
            seconds = self.sum(rank, edges, rows) + self.access(rank, 2 * summed)
            seconds = max(seconds, summed * self.work.row_seconds)
            # Copies of this stage are written here and read here.
            seconds += self.access(rank, rows + moved[reader][rank])
            computed.append(max(computed[-1] + pack, copied[-1]) + seconds)
        return computed[-1] + ranks * (self.work.stage_seconds + self.latency[rank][rank])

    def in_kernel(self, rank: int, remote: int) -> float:
        """Copies the rows that others need, then reads local and remote rows.

        Other ranks read from this one's memory meanwhile.
        """
        rows = self.published(rank)
        is_packed = rows < self.sources[rank]
        published = self.pack(rank, rows) if is_packed else self.access(rank, 2 * rows)
        local = self.local_sum(rank, sum(row[rank] for row in self.edges))
        local += self.rows_with_edges(rank, remote) * self.work.row_seconds
        over_links = remote * self.row_bytes / self.links(rank) if remote else 0.0
        over_links += self.access(rank, self.destinations[rank])
        fixed = self.work.stage_seconds + max(self.latency[rank])
        return published + max(local, over_links) + fixed

    def local_sum(self, rank: int, reads: int) -> float:
        """Sums local edges and writes all sums, while so many rows of own memory are read."""
        destinations = self.destinations[rank]
        seconds = self.sum(rank, reads, self.sources[rank]) + self.access(rank, destinations)
        return max(seconds, destinations * self.work.row_seconds)

    def rows_with_edges(self, rank: int, edges: int) -> int:
        """Destinations that so many edges reach, at most."""
        return min(edges, self.destinations[rank])

    def published(self, rank: int) -> int:
        """Rows that a rank copies to where others read them."""
        demand = sum(row[rank] for row in self.demand) - self.demand[rank][rank]
        return rows_to_publish(min(demand, self.sources[rank]), self.sources[rank])

    def links(self, rank: int) -> float:
        """Bytes a second of random rows of all other ranks together."""
        if self.has_row_rates:
            return self.rows.ingress[rank]
        shares = (share for width, share in self.work.narrow_over_links if self.row_bytes <= width)
        return next(shares, 1.0) * self.rows.ingress[rank]

    def sum(self, rank: int, edges: int, rows: int) -> float:
        """Reads a row for each edge, of so many different rows in own memory."""
        per_edge = -(-self.row_bytes // SLICE_BYTES) * _EDGE_BYTES
        rate = self.work.sum_speedup * self.rows.bandwidth[rank][rank]
        from_memory = (max(self.row_bytes, _LEAST_READ) + per_edge) / rate
        from_cache = (self.row_bytes + per_edge) / (rate * self.work.cache_speedup)
        cached = self._cached_share(rank, edges, rows)
        return edges * (cached * from_cache + (1 - cached) * from_memory)

    def _cached_share(self, rank: int, edges: int, rows: int) -> float:
        """The share of a sum's reads that the cache serves."""
        caches = self.topology.caches
        cache = caches[rank] if caches else self.work.cache_bytes
        num_bytes = rows * min(self.row_bytes, SLICE_BYTES)
        if edges >= self.work.block_reads * rows or num_bytes <= cache:
            return 1.0
        return self.work.cache_share * cache / num_bytes

    def access(self, rank: int, rows: int) -> float:
        """Reads or writes rows in order; a copy in bulk does both."""
        return rows * self.row_bytes / (2 * self.bulk.bandwidth[rank][rank])

    def pack(self, rank: int, rows: int) -> float:
        """Reads rows that lie apart and writes them in order."""
        gathered = self.row_bytes / self.rows.bandwidth[rank][rank]
        return rows * max(gathered, 1 / self.work.packed_rows)

    def copy(self, rank: int, source: int, rows: int) -> float:
        """Copies rows in bulk; GPUs without a link copy through the host."""
        if rows == 0:
            return 0.0
        rate = min(self.bulk.bandwidth[rank][source], self.bulk.ingress[rank])
        seconds = rows * self.row_bytes / (rate or self.bulk.host[rank] / 2)
        return seconds + self.latency[rank][source]
