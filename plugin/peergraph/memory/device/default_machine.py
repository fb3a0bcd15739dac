"""The figures that stand for a machine that was not measured: those of H200s behind a switch.

All rates and times that decide anything are here. A measured :class:`Topology`, which is kept in
one file of the machine, replaces them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from peergraph.json_fields import Fields


@dataclass(frozen=True)
class WorkRates:
    """How fast a machine does what is not a read over one link, and the sizes from which another
    way is quicker.

    Args:
        sum_speedup: a gather of random rows reads and writes them, a sum only reads them: so many
            times as fast as a gather.
        cache_speedup: so many times faster again what lies in the second-level cache.
        cache_bytes: of that cache, where a topology does not say it.
        cache_share: the part of a cache that all rows share which serves a row that is read again.
        packed_rows: rows a second that are packed for another rank, however narrow.
        stage_seconds: launches and waits of a stage of an exchange.
        row_seconds: of a sum for each row with edges at least: a warp waits for memory several
            times.
        narrow_over_links: by row bytes, ascending: share of the rate of wide rows that rows reach
            over links, where a topology has no rates by width.
        in_kernel_share: of the time of the best exchange in stages, at most, for which remote rows
            are read by the kernel that sums: gradients of these rows travel beside no other work.
        files: bytes a second of files, shared by the ranks: one NVMe drive.
        network: bytes a second that each of several machines sends, and receives: 100 Gb/s.
        queue_seconds: in which the host queues the operations of a chunk of offloaded training.
        exchanged_queue_seconds: the same with several ranks.
        chunk_seconds: that a chunk takes at least besides its work.
        duplex: share of the bytes of the direction with less traffic that takes time, where a host
            link moves rows in both: 48 of 55 GB/s each way.
        packing_share: what packing rows costs, as a share of their copies.
        exchange_bytes: an exchange of rows takes as long as copies of so many bytes.
        summed_edges: in-edges of a row, on average, up to which the row is quicker summed again on
            the device than moved to the host and back: about 70 rows of the device's memory are
            read while two cross the link.
        peer_read, host_read: time in which a kernel reads a row of another GPU's memory, or of the
            host's, in rows of its own memory.
        packed_share: share of the rows up to which they are packed for other ranks; a copy of all
            rows in order takes less time than of more.
        block_share: of the cache that rows of a block of columns take, beside edges and sums.
        blocked_share: of the cache that all rows take, from which blocks of columns gain.
        block_reads: edges of a column, on average, from which blocks gain: with fewer, each row is
            read again from memory in few of the blocks.
        block_edges: edges of a row that cost as much as reading and writing its sum for a block.
        weighted_edges: edges of a destination up to which GCN weights edges instead of scaling
            rows. At 128 features, scaling takes 1.5 ns more for each node, forward and backward,
            since rows are read and written again; a weight costs 0.04 ns in each direction, and
            0.03 ns to be made for a structure that serves once.
        mean_edges: the same for gradients of means: 0.4 ns to divide a row, 0.08 ns for a weight.
        mean_columns: of a gradient, from which weights cost less than to divide.
        products, cpu_products: multiplications that take as long as a value that is read or
            written.
        product_margin: products before sums take so many times as many passes over rows as are
            counted.
        grouped_values: of gradients from which edges are grouped, which takes six launches and
            0.1 ns for each edge; atomics write zeros, and read and write the values again.
        few_keys, keys_per_edge: numbers of keys up to which a number for each possible key takes
            less time than a sort.
        transposed_uses: after so many uses a structure of unknown lifetime gets a transpose: a sort
            costs about as much as a few passes over the edges, and a mini-batch's structure is used
            once.
        transposed_values: of messages that cost more to write than a transpose to make.
    """

    sum_speedup: float = 2.35
    cache_speedup: float = 2.0
    cache_bytes: int = 50 << 20
    cache_share: float = 0.5
    packed_rows: float = 1.7e9
    stage_seconds: float = 5e-5
    row_seconds: float = 4.2e-10
    narrow_over_links: tuple[tuple[float, ...], ...] = ((16, 0.3), (32, 0.62), (64, 0.82))
    in_kernel_share: float = 2 / 3
    files: float = 3e9
    network: float = 12.5e9
    queue_seconds: float = 1e-3
    exchanged_queue_seconds: float = 2e-3
    chunk_seconds: float = 1.6e-4
    duplex: float = 0.15
    packing_share: float = 0.17
    exchange_bytes: int = 256 << 10
    summed_edges: int = 64
    peer_read: float = 8.0
    host_read: float = 80.0
    packed_share: float = 0.25
    block_share: float = 0.5
    blocked_share: float = 0.9
    block_reads: int = 128
    block_edges: int = 20
    weighted_edges: int = 8
    mean_edges: int = 4
    mean_columns: int = 32
    products: int = 256
    cpu_products: int = 16
    product_margin: float = 2.0
    grouped_values: int = 1 << 24
    few_keys: int = 1 << 20
    keys_per_edge: int = 64
    transposed_uses: int = 4
    transposed_values: int = 1 << 28

    @classmethod
    def from_fields(cls, values: Fields) -> WorkRates:
        """Reads rates of :func:`dataclasses.asdict`; those that are missing have their default.

        Raises:
            ValueError: other data.
        """
        values.only(*(field.name for field in fields(cls)))
        read = {"int": values.integer, "float": values.number}
        rates: dict[str, Any] = {
            field.name: read.get(str(field.type), values.matrix)(field.name)
            for field in fields(cls)
            if values.has(field.name)
        }
        return cls(**rates)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, tuple) and not 0 < value < math.inf:
                raise ValueError(f"{field.name} must be positive and finite, got {value}")


@dataclass(frozen=True)
class LinkRates:
    """Bytes a second, and bytes of memory, of a machine that was not measured.

    Args:
        own: of a GPU's own memory.
        peers: of each peer's memory, and of all peers' together.
        host: of the machine's memory.
        memory: of each GPU.
        host_memory: of the machine.
    """

    own: float
    peers: float
    host: float
    memory: int
    host_memory: int


GPUS = LinkRates(1900e9, 340e9, 51e9, 140 << 30, 2048 << 30)
CPUS = LinkRates(10e9, 10e9, 10e9, 0, 0)
"""Ranks without a GPU."""

WORK = WorkRates()
"""For choices that are made without a topology."""
