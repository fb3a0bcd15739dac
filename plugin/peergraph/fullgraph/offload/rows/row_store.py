"""Rows of a partitioned tensor in the memory of the device or of the host, or in a file."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.fullgraph.layout.content_digest import content_digest
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.rows.staged_rows import read_staged, write_staged
from peergraph.memory.device.launching import launch_on
from peergraph.memory.table.id_list import id_list
from peergraph.memory.table.table_view import dense_view

Tier = Literal["device", "host", "file", "user"]
"""Where rows are: on the rank's device, in memory of the host (pinned for a GPU), in a file without
a name, or where the user's tensor or table has them."""

# Thread blocks of a kernel that reads or writes host memory: enough for the link.
_LINK_BLOCKS = 64
# Bytes of rows that a digest reads at a time.
_DIGEST_BYTES = 64 << 20


class RowStore:
    """This rank's rows of a partitioned tensor, [local rows, *features].

    On a GPU, rows of the tier "host" are in pinned memory and the methods are queued in the current
    stream without waiting; rows of the tier "file" pass through the host, which waits. On CPU ranks
    all tiers are ordinary memory or a mapped file. No method is collective or differentiable. Those
    that write raise RuntimeError where the rows are the user's.

    Made by :class:`RowAllocator`.

    Args:
        layout: the rows of all ranks.
        features: shape of a row.
        dtype: of the rows.
        tier: where the rows are.
        memory: [local rows, *features] contiguous: on the group's device for "device", else on the
            CPU; None for a store that keeps its rows otherwise.
        release: called once, when the store's memory is not needed any more.
        allocator: the :class:`RowAllocator` of the graph's other rows, or None.
        is_users: whether the memory is the user's, who can change it.
    """

    def __init__(
        self,
        layout: RowLayout,
        features: Sequence[int],
        dtype: torch.dtype,
        tier: Tier,
        memory: Tensor | None = None,
        release: Callable[[], None] | None = None,
        allocator: Any = None,
        is_users: bool = False,
    ) -> None:
        self.row_layout = layout
        """The rows of all ranks."""
        self.tier = tier
        """Where the rows are."""
        self.features = tuple(features)
        """Shape of a row."""
        self.dtype = dtype
        """Of the rows that methods take and return."""
        self.device = layout.group.device
        """Of the rows that methods take and return."""
        self.row_bytes = math.prod(self.features) * self.dtype.itemsize
        """Bytes of a row where it is stored."""
        self.allocator = allocator
        """Of the graph's other rows, or None."""
        self.is_users = is_users
        """Whether the memory is the user's, who can change it."""
        self._memory = memory
        self._release = release

    @property
    def num_bytes(self) -> int:
        """Bytes of this rank's rows where they are stored."""
        return self.row_layout.local_count * self.row_bytes

    @property
    def memory(self) -> Tensor:
        """[local rows, *features]; on a GPU, wait for queued work before the CPU reads it.

        Raises:
            RuntimeError: the store was released.
        """
        if self._memory is None:
            raise RuntimeError(f"{self} has no memory: it was released, or keeps rows otherwise")
        return self._memory

    @property
    def in_place(self) -> bool:
        """Whether the rows are in the device's memory, so that :meth:`read` makes no copy."""
        return self.tier == "device"

    @property
    def waits_on_host(self) -> bool:
        """Whether methods wait on the CPU until rows are read or written."""
        return self.tier in ("file", "user") and self.device.type == "cuda"

    def moved_bytes(self, start: int, stop: int) -> int:
        """Returns the bytes that cross the link when local rows start..stop are read or written."""
        return 0 if self.in_place else (stop - start) * self.row_bytes

    def empty(self, rows: int, dtype: torch.dtype | None = None) -> Tensor:
        """Returns memory for `rows` rows on the device; None: of the store's dtype."""
        shape = rows, *self.features
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device)

    def read(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        """Returns local rows start..stop on the device.

        Args:
            start, stop: local rows.
            out: [stop - start, *features] on the device, which takes the rows; None: new memory,
                or of the tier "device" a view of the store, which is not to be changed.
        """
        if out is None:
            if self.in_place:
                return self.memory[start:stop]
            out = self.empty(stop - start)
        self._read(start, out)
        return out

    def _read(self, start: int, out: Tensor) -> None:
        if self.tier == "file" and self.device.type == "cuda":
            read_staged(self.memory, start, out)
        else:
            out.copy_(self.memory[start : start + len(out)], non_blocking=True)

    def write(self, start: int, rows: Tensor) -> None:
        """Overwrites local rows from `start` on with `rows` [count, *features] of the device."""
        self._refuse_users()
        if self.tier == "file" and self.device.type == "cuda":
            write_staged(self.memory, start, rows)
            return
        target = self.memory[start : start + len(rows)]
        # torch copies rows that are not contiguous through a buffer, and the host waits for it.
        target.copy_(rows.contiguous(), non_blocking=True)

    def gather(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Returns the local rows named by `rows`, in this order.

        Args:
            rows: [k] int32 or int64 local rows on the device, in range, which is not checked;
                ascending ones are quickest.
            out: [k, *features] contiguous on the device, which takes the rows; None: new memory.
        """
        if out is None:
            out = self.empty(len(rows))
        if rows.numel() and self.row_bytes:
            self._gather(rows.contiguous(), out)
        return out

    def _gather(self, rows: Tensor, out: Tensor) -> None:
        if self.tier == "file" and self.device.type == "cuda":
            read_staged(self.memory, rows, out)
            return
        view, ids = self._view(), id_list(rows, max_blocks=self._most_blocks())
        _C.gather(view, ids, out, launch_on(self.device))

    def scatter(self, rows: Tensor, values: Tensor) -> None:
        """Overwrites local rows.

        Args:
            rows: [k] int32 or int64 distinct local rows on the device, in range.
            values: [k, *features] on the device.
        """
        self._refuse_users()
        if rows.numel() == 0 or self.row_bytes == 0:
            return
        rows, values = rows.contiguous(), values.contiguous()
        if self.tier == "file" and self.device.type == "cuda":
            write_staged(self.memory, rows, values)
            return
        view, ids = self._view(), id_list(rows, max_blocks=self._most_blocks())
        _C.scatter(view, ids, values, launch_on(self.device))

    def add(self, rows: Tensor, values: Tensor) -> None:
        """Adds to local rows; sums are rounded to the store's dtype.

        Args:
            rows: [k] int32 or int64 distinct local rows on the device, in range.
            values: [k, *features] on the device, of the store's dtype or a wider one.
        """
        if rows.numel():
            self.scatter(rows, (self.gather(rows) + values).to(self.dtype))

    def digest(self) -> bytes:
        """Returns a digest of all rows, which are read once. Synchronises a GPU."""
        step, count = max(1, _DIGEST_BYTES // max(1, self.row_bytes)), self.row_layout.local_count
        parts = (
            content_digest(self.read(start, min(start + step, count)))
            for start in range(0, count, step)
        )
        return hashlib.blake2b(b"".join(parts), digest_size=16).digest()

    def zero_(self) -> None:
        """Overwrites all local rows with zeros."""
        self._refuse_users()
        if self.tier == "device" or self.device.type == "cpu":
            self.memory.zero_()
            return
        count = len(self.memory)
        step = max(1, _ZERO_BYTES // max(1, self.row_bytes))
        zeros = self.empty(min(step, count)).zero_()
        for start in range(0, count, step):
            self.write(start, zeros[: min(step, count - start)])

    def release(self) -> None:
        """Returns the memory to the allocator. A second call does nothing."""
        self._memory = None
        release, self._release = self._release, None
        if release is not None:
            release()

    def _refuse_users(self) -> None:
        if self.is_users:
            raise RuntimeError(f"{self} is the user's: its rows cannot be written")

    def _view(self) -> _C.TableView:
        return dense_view(self.memory, len(self.memory), self.row_bytes)

    def _most_blocks(self) -> int:
        return 0 if self.tier == "device" else _LINK_BLOCKS

    def __del__(self) -> None:
        self.release()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.row_layout.local_count} local rows of "
            f"{list(self.features)} {self.dtype}, {self.tier})"
        )


_ZERO_BYTES = 64 << 20
