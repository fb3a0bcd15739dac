"""Allocates the rows of a graph on a rank, within budgets of the device and of the host."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import Any, Literal

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.rows.host_memory import HostMapping
from peergraph.fullgraph.offload.rows.narrow_rows import NarrowRows
from peergraph.fullgraph.offload.rows.row_store import RowStore, Tier
from peergraph.fullgraph.offload.rows.split_rows import SplitRows
from peergraph.fullgraph.offload.rows.transfer_counts import TransferCounts
from peergraph.fullgraph.plan.offload_cost import LEAST_PART, SPLIT_RESERVE
from peergraph.memory import Group
from peergraph.memory.region.free_memory import free_host_memory
from peergraph.memory.region.parts import HostPart
from peergraph.memory.table.staged_rows import staging_launch

Role = Literal["source", "sequential", "given"]

# A free block serves a request that leaves at most this share of the block unused.
_MOST_UNUSED = 1 / 16


@dataclass
class TierUse:
    """Bytes of one tier on this rank."""

    budget: int
    """That may be allocated."""
    used: int = 0
    """By rows."""
    spare: int = 0
    """Allocated, and free for the next rows of such a size."""
    peak: int = 0
    """The most that `used` and `spare` were together."""
    free_blocks: dict[int, list[Tensor]] = field(default_factory=dict, repr=False)
    """Blocks that are free, by bytes."""

    @property
    def left(self) -> int:
        """Bytes that can still be allocated, free blocks included."""
        return self.budget - self.used


class RowAllocator:
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
        narrow_dtype: in which rows of wider floats are stored that are allocated with ``narrow``;
            None: in their own.
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
        narrow_dtype: torch.dtype | None = None,
    ) -> None:
        if host_bytes is None:
            host_bytes = free_host_memory() // group.node_group.world_size
        self.group = group
        """The ranks."""
        self.folder = folder
        """Where files without a name hold rows, or None."""
        self.sequential_device_bytes = sequential_device_bytes
        """Of the device's budget, what rows of the role "sequential" may take."""
        self.trace: Any = None
        """What is told of stores, a :class:`PassTrace`; None: nothing."""
        self.narrow_dtype = narrow_dtype
        """In which rows are stored that are allocated with ``narrow``; None: in their own dtype."""
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
        narrow: bool = False,
        what: str = "rows",
    ) -> RowStore:
        """Returns a store for this rank's rows of `layout`; its contents are not initialised.

        Args:
            layout: the rows of all ranks.
            features: shape of a row.
            dtype: of the rows.
            role: "source" for rows that are read at random: on the device if there is room, else
                on the host. "sequential" for rows that are read in order: on the device within
                `sequential_device_bytes`, as many rows as fit, the others on the host. "given" for
                rows to which the plan leaves no memory of the device. All of them go to a file
                where the host has no room.
            tier: the only tier that is tried; None: by role.
            narrow: whether the rows may be stored in :attr:`narrow_dtype`.
            what: what the rows are, for errors.

        Raises:
            MemoryError: no tier has room; says how many bytes are needed, and what each has.
            OSError: the folder's disk is full, or not writable.
        """
        stored = self.narrow_dtype if narrow else None
        if stored is not None and dtype.is_floating_point and stored.itemsize < dtype.itemsize:
            return NarrowRows(self._allocate(layout, features, stored, role, tier, what), dtype)
        store = self._allocate(layout, features, dtype, role, tier, what)
        if self.trace is not None:
            self.trace.add_store(store, role, what)
        return store

    def _allocate(
        self,
        layout: RowLayout,
        features: Sequence[int],
        dtype: torch.dtype,
        role: Role,
        tier: Tier | None,
        what: str,
    ) -> RowStore:
        make = partial(self._make_store, layout, features, dtype, role)
        rows, row_bytes = layout.local_count, math.prod(features) * dtype.itemsize
        tiers = self._tiers(role, rows * row_bytes) if tier is None else [tier]
        first_count = 0
        if tier is None and role == "sequential" and "device" not in tiers:
            first_count = self._rows_that_fit(rows, row_bytes)
        first = make("device", first_count) if first_count else None
        for chosen in tiers:
            store = make(chosen, rows if first is None else rows - first_count)
            if store is not None:
                return store if first is None else SplitRows(first, store, first_count)
        if first is not None:
            first.release()
        raise MemoryError(self._explain(layout, features, dtype, rows * row_bytes, what, tier))

    def _make_store(
        self,
        layout: RowLayout,
        features: Sequence[int],
        dtype: torch.dtype,
        role: Role,
        tier: Tier,
        rows: int,
    ) -> RowStore | None:
        """Returns a store of `rows` rows in a tier, or None where the tier has no room."""
        num_bytes = rows * math.prod(features) * dtype.itemsize
        memory = self._take(tier, num_bytes)
        if memory is None:
            return None
        content = memory[:num_bytes].view(dtype).view(rows, *features)
        limited = memory.numel() if tier == "device" and role == "sequential" else 0
        self._sequential_bytes += limited
        give_back = partial(self._give_back, tier, memory, limited)
        return RowStore(layout, features, dtype, tier, content, give_back, self)

    def _rows_that_fit(self, rows: int, row_bytes: int) -> int:
        """Returns how many rows that are read in order the device has room for; 0 for a few."""
        use = self.use["device"]
        room = min(self.sequential_device_bytes - self._sequential_bytes, use.left)
        count = max(0, room - int(use.budget * SPLIT_RESERVE)) // max(1, row_bytes)
        return count if count >= rows * LEAST_PART > 0 else 0

    def allocate_copy(self, store: RowStore) -> RowStore | None:
        """Returns a store on the device for the rows of another one; None if there is no room.

        The contents are not initialised.
        """
        num_bytes = store.row_layout.local_count * math.prod(store.features) * store.dtype.itemsize
        if num_bytes == 0 or num_bytes > self.use["device"].left:
            return None
        try:
            return self.allocate(
                store.row_layout, store.features, store.dtype, "source", tier="device"
            )
        except MemoryError:  # Other tensors have taken what the budget promised.
            return None

    def has_device_room(self, num_bytes: int) -> bool:
        """Whether the device has room for `num_bytes` more bytes of rows of role "sequential"."""
        room = self.sequential_device_bytes - self._sequential_bytes
        return num_bytes <= min(room, self.use["device"].left)

    def _tiers(self, role: Role, num_bytes: int) -> list[Tier]:
        if role not in ("source", "sequential", "given"):
            raise ValueError(f"role must be source, sequential or given, got {role!r}")
        if role == "source" or (role == "sequential" and self.has_device_room(num_bytes)):
            return ["device", "host", "file"]
        return ["host", "file"]

    def _take(self, tier: Tier, num_bytes: int) -> Tensor | None:
        """Returns at least `num_bytes` bytes, or None where the tier has no room."""
        use = self.use[tier]
        if num_bytes > use.left or (tier == "file" and self.folder is None):
            return None
        memory = _smallest_block(use, num_bytes)
        if memory is not None:
            use.spare -= memory.numel()
        else:
            self._free_blocks(tier, use.used + use.spare + num_bytes - use.budget)
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
        use.peak = max(use.peak, use.used + use.spare)
        return memory

    def _free_blocks(self, tier: Tier, num_bytes: int) -> None:
        """Frees at least `num_bytes` bytes of released stores; all of them if they are fewer."""
        use = self.use[tier]
        freed = 0
        while freed < min(num_bytes, freed + use.spare):
            sizes = [size for size, blocks in use.free_blocks.items() if blocks]
            # One block that is large enough, as small as possible; else the largest.
            fitting = [size for size in sizes if size >= num_bytes - freed]
            size = min(fitting) if fitting else max(sizes)
            use.free_blocks[size].pop()
            use.spare -= size
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
            threads = staging_launch(self.group.node_group.world_size).num_threads
            return HostMapping(num_bytes, device, threads).tensor()
        assert self.folder is not None
        part, _, fd = HostPart.create(num_bytes, torch.device("cpu"), self.folder)
        os.close(fd)
        return part.tensor()

    def _give_back(self, tier: Tier, memory: Tensor, limited: int) -> None:
        self._sequential_bytes -= limited
        use, size = self.use[tier], memory.numel()
        use.used -= size
        use.spare += size
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
        return f"RowAllocator({', '.join(parts)})"


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
