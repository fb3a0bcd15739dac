"""The memory layout of a relation's CSC: its parts, their arrays, their bytes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from peergraph.memory import Tiers

_ALIGN = 256


@dataclass(frozen=True)
class PartLayout:
    """The offsets of the arrays of a part, which has `rows` destinations and `edges` edges."""

    rows: int
    edges: int
    index_bytes: int

    @property
    def edge_begin_offset(self) -> int:
        """The offset of `edge_begin` in bytes. It is stored after `indptr`."""
        return _aligned(8 * (self.rows + 1))

    @property
    def indices_offset(self) -> int:
        """The offset of `indices` in bytes. They are stored after `edge_begin`."""
        return self.edge_begin_offset + _aligned(8 * self.rows)

    @property
    def num_bytes(self) -> int:
        """The bytes of the part; 0 if it has no rows."""
        # The parts of a rank are contiguous, so the next part must be aligned too.
        return _aligned(self.indices_offset + self.index_bytes * self.edges) if self.rows else 0

    def addresses(self, base: int) -> tuple[int, int, int]:
        """Returns the addresses of indptr, indices and edge_begin; zeros for a base of 0."""
        if not self.rows or not base:
            return 0, 0, 0
        return base, base + self.indices_offset, base + self.edge_begin_offset


def structure_bytes(degrees: Tensor, index_dtype: torch.dtype) -> Tensor:
    """Returns the bytes of the first k destinations of a structure, hottest first, for each k:
    [N + 1].
    """
    each = list_bytes(degrees, index_dtype)
    return torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), each.cumsum(0)])


def list_bytes(degrees: Tensor, index_dtype: torch.dtype) -> Tensor:
    """Returns the bytes of each destination's list, with its bounds and first position: [N]."""
    return degrees * index_dtype.itemsize + 16


def split_by_tier(degrees: Tensor, tiers: Tiers, world_size: int) -> dict[str, list[Tensor]]:
    """Returns, by tier, the degrees of each rank's destinations; for the sharded tier, of each
    shard's.
    """
    hot, shards, host, disk = torch.split(
        degrees, [tiers.replicated, tiers.sharded, tiers.host, tiers.disk]
    )
    return {
        "replicated": [hot] * world_size,
        "sharded": [shards[r::world_size] for r in range(world_size)],
        "host": [host if r == 0 else host[:0] for r in range(world_size)],
        "disk": [disk if r == 0 else disk[:0] for r in range(world_size)],
    }


def part_bytes(
    degrees: Tensor, index_dtype: torch.dtype, tiers: Tiers, world_size: int
) -> dict[str, list[int]]:
    """Returns, by tier, the bytes of a structure on each rank; for the sharded tier, in each shard.

    Args:
        degrees: [destinations] degrees, in the order of the rows.
        index_dtype: the dtype of the sources.
        tiers: the numbers of rows on each tier.
        world_size: the number of ranks.
    """
    width = index_dtype.itemsize
    return {
        tier: [PartLayout(p.numel(), int(p.sum()), width).num_bytes for p in parts]
        for tier, parts in split_by_tier(degrees, tiers, world_size).items()
    }


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGN) * _ALIGN
