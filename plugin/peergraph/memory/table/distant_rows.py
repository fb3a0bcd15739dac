"""Writes copies of rows on GPUs that a rank's GPU cannot map.

CUDA maps memory of another process for the GPU that it is on, whatever that GPU's links. So a rank
writes a copy out of its GPU's reach by a kernel on the other GPU, which gets the rows over the
host. This takes a CUDA context on that GPU, made at the first write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.launching import launch_on
from peergraph.memory.region.region import SharedRegion
from peergraph.memory.table.id_list import id_list
from peergraph.memory.table.partitions import Partitions
from peergraph.memory.table.table_view import leases_of
from peergraph.memory.table.tier_sizes import Split, rows_per_block, tier_bytes
from peergraph.memory.table.tiers import Tiers


class DistantRows:
    """The copies of a table's rows on a GPU that this rank's GPU does not reach.

    Args:
        owner: the rank of the GPU.
        tiers, row_bytes, partitions, split: of the table.
        regions: the memory of each tier that has rows.
        order: [rows] the internal row of each user id, on this rank's device; None: they are equal.
    """

    def __init__(
        self,
        owner: int,
        tiers: Tiers,
        row_bytes: int,
        regions: Mapping[str, SharedRegion],
        partitions: Partitions,
        split: Split,
        order: Tensor | None,
    ) -> None:
        self._owner = owner
        self.tiers = tiers
        self.order = order
        self._row_bytes = row_bytes
        self._regions = regions
        self._partitions = partitions
        self._split = split

    def scatter(self, rows: Tensor, values: Tensor) -> None:
        """Overwrites those of the rows that have copies here. Returns when they are written.

        Args:
            rows: [n] internal rows, int32 or int64, on the CPU.
            values: [n, *row shape] on the CPU.
        """
        device, view = self._opened
        # An IdList refers to the memory of its tensor, and does not keep it.
        rows, values = rows.to(device), values.to(device)
        _C.scatter(view, id_list(rows), values, launch_on(device))
        wait_for(device)

    def error(self) -> RuntimeError:
        """Returns the error for kernels that would write the copies in place."""
        return self._regions_of_owner()[0].error_of(self._owner)

    def _regions_of_owner(self) -> list[SharedRegion]:
        return [r for r in self._regions.values() if self._owner in r.distant]

    @cached_property
    def _opened(self) -> tuple[torch.device, _C.TableView]:
        tiers, world = self.tiers, self._partitions.num_gpus
        device, bases = open_distant(self._regions, self._owner)
        sizes = tier_bytes(tiers, self._row_bytes, world, self._split)["sharded"]
        view = _C.TableView(
            replicated=tiers.replicated,
            sharded=tiers.sharded,
            rows=tiers.rows,
            row_bytes=self._row_bytes,
            rank=0,
            replicas=[bases.get("replicated", 0)],
            shards=self._partitions.held_addresses(self._owner, bases.get("sharded"), sizes),
            host=0,
            rows_on_disk=tiers.disk,
            block_rows=rows_per_block(tiers.sharded, world, self._split),
            leases=leases_of(self._regions),
        )
        return device, view


def distant_rows(
    tiers: Tiers,
    row_bytes: int,
    regions: Mapping[str, SharedRegion],
    partitions: Partitions,
    split: Split,
    order: Tensor | None,
) -> list[DistantRows]:
    """Returns the copies of a table's rows that this rank's GPU does not reach, by GPU."""
    return [
        DistantRows(owner, tiers, row_bytes, regions, partitions, split, order)
        for owner in distant_ranks(regions)
    ]


def distant_ranks(regions: Mapping[str, SharedRegion]) -> list[int]:
    """Returns the ranks with memory that this rank's GPU does not reach."""
    return sorted({rank for region in regions.values() for rank in region.distant})


def open_distant(
    regions: Mapping[str, SharedRegion], rank: int
) -> tuple[torch.device, dict[str, int]]:
    """Maps the memory of a rank that this rank's GPU does not reach for the GPU that it is on.

    Returns:
        The GPU, and the address of each tier's memory.

    Raises RuntimeError if this process does not see the GPU.
    """
    parts = {
        tier: region.on_own_device(rank)
        for tier, region in regions.items()
        if rank in region.distant
    }
    device = next(device for device, _ in parts.values())
    return device, {tier: address for tier, (_, address) in parts.items()}


def write_distant(distant: Sequence[DistantRows], ids: Tensor, values: Tensor) -> None:
    """Overwrites rows in the copies of a table that this rank's GPU does not reach. Synchronises if
    there are any.

    Args:
        ids: users' ids, any shape, on the rank's device; those out of range write nothing.
        values: [*ids.shape, *row shape] on the rank's device.
    """
    if not distant or not ids.numel():
        return
    if ids.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "a CUDA graph cannot write rows to GPUs that have no peer access: they go over the host"
        )
    ids = ids.flatten()
    values = values.reshape(ids.numel(), -1)
    order = distant[0].order
    in_range = (ids >= 0) & (ids < distant[0].tiers.rows)
    if not bool(in_range.all()):
        ids, values = ids[in_range], values[in_range]
    internal = ids if order is None else order[ids.long()]
    near_rows, near_values = internal.cpu(), values.cpu()
    for copies in distant:
        copies.scatter(near_rows, near_values)


def wait_for(device: torch.device) -> None:
    """Waits until a GPU has done the work of this process's current stream there."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
