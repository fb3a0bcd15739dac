"""Allocates the rows of a graph on a rank, within budgets of the device and of the host."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import Literal

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.host_memory import HostMapping
from peergraph.fullgraph.offload.row_store import RowStore, Tier
from peergraph.fullgraph.offload.transfer_counts import TransferCounts
from peergraph.memory import Group
from peergraph.memory.region.free_memory import free_host_memory
from peergraph.memory.region.parts import HostPart

Role = Literal["source", "sequential"]

# A free block serves a request that leaves at most this share of the block unused.
_MOST_UNUSED = 1 / 16


@dataclass
class TierUse:
    """Bytes of one tier on this rank."""

    budget: int
    """That may be allocated."""
    used: int = 0
    """By rows."""
    kept: int = 0
    """Allocated, and free for the next rows of such a size."""
    peak: int = 0
    """The most that `used` and `kept` were together."""
    free_blocks: dict[int, list[Tensor]] = field(default_factory=dict, repr=False)
    """Blocks that are free, by bytes."""

    @property
    def left(self) -> int:
        """Bytes that can still be allocated, free blocks included."""
        return self.budget - self.used


class RowStores:
    """Allocator of :class:`RowStore` on this rank, which keeps the memory of released stores.

    Training allocates stores of the same sizes at each step, so no memory is allocated or pinned
    after the first steps. Not collective: ranks may place their rows in different tiers.

    Args:
        group: the ranks.
        device_bytes: budget of rows on this rank's device, in bytes.
        host_bytes: budget of rows in host memory, in bytes. None: an equal share of what the host
            has free.
        folder: where files without a name may hold rows for which the host has no room; None: no
            such files.
        file_bytes: budget of these files, in bytes.
        sequential_device_bytes: of the device's budget, what rows of the role "sequential" may
            take; the rest is for rows of sources.
    """

    def __init__(
        self,
        group: Group,
        device_bytes: int,
        host_bytes: int | None = None,
        *,
        folder: str | PathLike[str] | None = None,
        file_bytes: int = 1 << 62,
        sequential_device_bytes: int = 0,
    ) -> None:
        if host_bytes is None:
            host_bytes = free_host_memory() // group.world_size
        self.group = group
        """The ranks."""
        self.folder = folder
        """Where files without a name hold rows, or None."""
        self.sequential_device_bytes = sequential_device_bytes
        """Of the device's budget, what rows of the role "sequential" may take."""
        self._sequential_bytes = 0
        self.moved = TransferCounts()
        """Bytes that passes over chunks have moved between these stores and the device."""
        self.use: dict[Tier, TierUse] = {
            "device": TierUse(device_bytes),
            "host": TierUse(host_bytes),
            "file": TierUse(0 if folder is None else file_bytes),
        }
        """Bytes by tier."""

    @torch.inference_mode(False)
    def allocate(
        self,
        layout: RowLayout,
        features: Sequence[int],
        dtype: torch.dtype,
        role: Role = "sequential",
        *,
        tier: Tier | None = None,
        what: str = "rows",
    ) -> RowStore:
        """Returns a store for this rank's rows of `layout`; its contents are not initialised.

        Args:
            layout: the rows of all ranks.
            features: shape of a row.
            dtype: of the rows.
            role: "source" for rows that are read at random: on the device if there is room, else
                on the host. "sequential" for rows that are read in order: on the device within
                `sequential_device_bytes`, else on the host. Either goes to a file where the host
                has no room.
            tier: the only tier that is tried; None: by role.
            what: what the rows are, for errors.

        Raises:
            MemoryError: no tier has room; says how many bytes are needed, and what each has.
            OSError: the folder's disk is full, or not writable.
        """
        num_bytes = layout.local_count * math.prod(features) * dtype.itemsize
        for chosen in self._tiers(role, num_bytes) if tier is None else [tier]:
            memory = self._take(chosen, num_bytes)
            if memory is not None:
                rows = memory[:num_bytes].view(dtype).view(layout.local_count, *features)
                limited = memory.numel() if chosen == "device" and role == "sequential" else 0
                self._sequential_bytes += limited
                give_back = partial(self._give_back, chosen, memory, limited)
                return RowStore(layout, rows, chosen, give_back, self)
        raise MemoryError(self._explain(layout, features, dtype, num_bytes, what, tier))

    def allocate_copy(self, store: RowStore) -> RowStore | None:
        """Returns a store on the device for the rows of another one; None if there is no room.

        The contents are not initialised.
        """
        if store.num_bytes == 0 or store.num_bytes > self.use["device"].left:
            return None
        try:
            return self.allocate(store.layout, store.features, store.dtype, tier="device")
        except MemoryError:  # Other tensors have taken what the budget promised.
            return None

    def trim(self, tier: Tier | None = None) -> None:
        """Frees the memory of released stores, of one tier or of all."""
        for name, use in self.use.items():
            if tier in (None, name):
                self._free_blocks(name, use.kept)

    def has_device_room(self, num_bytes: int) -> bool:
        """Whether the device has room for `num_bytes` more bytes of rows of role "sequential"."""
        room = self.sequential_device_bytes - self._sequential_bytes
        return num_bytes <= min(room, self.use["device"].left)

    def _tiers(self, role: Role, num_bytes: int) -> list[Tier]:
        if role not in ("source", "sequential"):
            raise ValueError(f"role must be source or sequential, got {role!r}")
        if role == "source" or self.has_device_room(num_bytes):
            return ["device", "host", "file"]
        return ["host", "file"]

    def _take(self, tier: Tier, num_bytes: int) -> Tensor | None:
        """Returns at least `num_bytes` bytes, or None where the tier has no room."""
        use = self.use[tier]
        if num_bytes > use.left or (tier == "file" and self.folder is None):
            return None
        memory = _smallest_block(use, num_bytes)
        if memory is not None:
            use.kept -= memory.numel()
        else:
            self._free_blocks(tier, use.used + use.kept + num_bytes - use.budget)
            if tier == "host":
                self._free_blocks(tier, num_bytes - free_host_memory())
                if num_bytes > free_host_memory():
                    return None
            try:
                with torch.inference_mode(False):  # the memory serves training, too
                    memory = self._make(tier, num_bytes)
            except torch.OutOfMemoryError:
                return None  # Other tensors have taken what the budget promised.
        use.used += memory.numel()
        use.peak = max(use.peak, use.used + use.kept)
        return memory

    def _free_blocks(self, tier: Tier, num_bytes: int) -> None:
        """Frees at least so many bytes of released stores, if there are so many."""
        use = self.use[tier]
        freed = 0
        while freed < min(num_bytes, freed + use.kept):
            sizes = [size for size, blocks in use.free_blocks.items() if blocks]
            # One block that is large enough, as small as possible; else the largest.
            fitting = [size for size in sizes if size >= num_bytes - freed]
            size = min(fitting) if fitting else max(sizes)
            use.free_blocks[size].pop()
            use.kept -= size
            freed += size
        if freed and tier == "device" and self.group.device.type == "cuda":
            # Otherwise torch would cut small tensors from a block as large as a store.
            torch.cuda.empty_cache()

    def _make(self, tier: Tier, num_bytes: int) -> Tensor:
        device = self.group.device
        if num_bytes == 0 or tier == "device":
            where = device if tier == "device" else torch.device("cpu")
            return torch.empty(num_bytes, dtype=torch.uint8, device=where)
        if tier == "host":
            return HostMapping(num_bytes, device).tensor()
        assert self.folder is not None
        part, _, fd = HostPart.create(num_bytes, torch.device("cpu"), self.folder)
        os.close(fd)
        return part.tensor()

    def _give_back(self, tier: Tier, memory: Tensor, limited: int) -> None:
        self._sequential_bytes -= limited
        use, size = self.use[tier], memory.numel()
        use.used -= size
        use.kept += size
        if size:
            use.free_blocks.setdefault(size, []).append(memory)

    def _explain(
        self,
        layout: RowLayout,
        features: Sequence[int],
        dtype: torch.dtype,
        num_bytes: int,
        what: str,
        tier: Tier | None,
    ) -> str:
        left = ", ".join(
            f"{name} {use.left} of {use.budget}"
            for name, use in self.use.items()
            if name != "file" or self.folder is not None
        )
        shape = [layout.local_count, *features]
        where = "" if tier is None else f" in the tier {tier}"
        files = "" if self.folder is not None else "; no folder for files was given"
        return (
            f"{what} {shape} {str(dtype).removeprefix('torch.')} of rank {self.group.rank} need "
            f"{num_bytes} bytes{where}; left by the budgets: {left}{files}; the host has "
            f"{free_host_memory()} bytes free (where memory grows on demand, say how many in "
            "PEERGRAPH_HOST_MEMORY)"
        )

    def __repr__(self) -> str:
        parts = [f"{name} {use.used} of {use.budget} bytes" for name, use in self.use.items()]
        return f"RowStores({', '.join(parts)})"


def _smallest_block(use: TierUse, num_bytes: int) -> Tensor | None:
    """Takes the smallest free block that serves a request, if there is one."""
    fitting = [
        size
        for size, blocks in use.free_blocks.items()
        if blocks and num_bytes <= size and size - num_bytes <= size * _MOST_UNUSED
    ]
    if num_bytes == 0 or not fitting:
        return None
    return use.free_blocks[min(fitting)].pop()
