"""The rows of a table that each rank scans, where all ranks together scan each row once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from peergraph.memory.table.encoded_rows import EncodedRows
from peergraph.memory.table.narrow_table import NarrowTable
from peergraph.memory.table.partitions import one_partition_per_gpu
from peergraph.memory.table.row_codec import RowCodec
from peergraph.memory.table.rows_with_scales import RowsWithScales
from peergraph.memory.table.table import Table
from peergraph.memory.table.tier_sizes import shard_rows, tier_bytes


@dataclass(frozen=True)
class LocalRows:
    """Rows that are one after the other in memory that this rank reads without the others.

    Args:
        first, step: stored row i is the internal row ``first + i * step`` of the table.
        stored: the rows: of the table's dtype, or encoded, uint8; on the rank's device or the CPU.
        codec: decodes the rows; None: they are not encoded.
        scales: the scales of the rows, float32 ``[rows, groups]``, where they are apart.
    """

    first: int
    step: int
    stored: Tensor
    codec: RowCodec | None = None
    scales: Tensor | None = None

    def __len__(self) -> int:
        return len(self.stored)

    def block(self, begin: int, end: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns the stored rows [begin, end) in a floating dtype: ``[end - begin, columns]``."""
        rows = self.stored[begin:end].to(device)
        if self.codec is None:
            return rows.reshape(end - begin, -1).to(dtype)
        scales = None if self.scales is None else self.scales[begin:end].to(device).contiguous()
        encoded = EncodedRows(self.codec, rows, scales)
        return encoded.select(slice(0, end - begin), dtype).view(end - begin, -1)

    def internal(self, stored: Tensor) -> Tensor:
        """Returns the internal rows of stored rows."""
        return self.first + stored * self.step


def local_rows(table: Table) -> list[LocalRows]:
    """Returns the rows of a table that this rank scans. Not collective.

    Each rank has the sharded rows in its memory, and an equal range of those that all ranks read:
    replicated rows, rows in host memory and rows on disk. Valid until the table is closed.
    """
    if not isinstance(table, NarrowTable):
        return list(_pieces(table))
    stored = table.stored
    if not isinstance(stored, RowsWithScales):
        return [LocalRows(p.first, p.step, p.stored, table.codec) for p in _pieces(stored)]
    scales = stored.scales.as_tensor()
    return [
        LocalRows(p.first, p.step, p.stored, table.codec, scales[p.first :: p.step][: len(p)])
        for p in _pieces(stored.values)
    ]


def _pieces(table: Table) -> Iterator[LocalRows]:
    regions, tiers, rank = table._regions, table.tiers, table.group.rank
    table._opened()
    first = 0
    for name in ("replicated", "sharded", "host", "disk"):
        count = getattr(tiers, name)
        if count and name == "sharded":
            yield from _shards(table, first)
        elif count:
            world = table.group.world_size
            begin, end = (count * r // world for r in (rank, rank + 1))
            shape = (count, *table.shape[1:])
            rows = regions[name].part(rank if name == "replicated" else 0, table.dtype, shape)
            yield LocalRows(first + begin, 1, rows[begin:end])
        first += count


def _shards(table: Table, first: int) -> Iterator[LocalRows]:
    """Yields the shards that this rank scans; of copies of a shard, one rank scans one."""
    rank, world = table.group.rank, table.group.world_size
    placed = table._partitions or one_partition_per_gpu(world)
    sizes = tier_bytes(table.tiers, table.row_bytes, world, table.split)["sharded"]
    for shard, rows in enumerate(shard_rows(table.tiers.sharded, world, table.split)):
        holders = [gpu for gpu, shards in enumerate(placed.stored) if shard in shards]
        if rank != (shard if shard in holders else holders[0]) or not rows:
            continue
        begin = placed.offset(rank, shard, sizes)
        num_bytes = begin + len(rows) * table.row_bytes
        memory = table._regions["sharded"].part(rank, torch.uint8, (num_bytes,))[begin:]
        shape = (len(rows), *table.shape[1:])
        stored = memory.view(table.dtype).view(shape) if math.prod(shape) else memory.view(shape)
        yield LocalRows(first + rows.start, rows.step, stored)
