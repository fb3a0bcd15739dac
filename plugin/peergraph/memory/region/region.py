"""Regions: one allocation for each rank, mapped by all ranks (WholeGraph III-B)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Literal

import torch

import peergraph._C as _C
from peergraph.errors import PeerLostError
from peergraph.memory.device.launching import threads_of_rank
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.group.group import Group
from peergraph.memory.group.naming import collective
from peergraph.memory.region.closing import is_used, wait_until_unused
from peergraph.memory.region.parts import CudaPart, Handle, HostPart, Part, close_later
from peergraph.memory.region.peer_access import PeerAccess

HUGE_PAGE = 2 << 20  # bytes


class SharedRegion:
    """Memory of every rank of a group, mapped in all ranks: the paper's pointer table.

    On CUDA it is device memory shared by CUDA IPC; otherwise it is anonymous shared memory of the
    host, pinned if the group computes on GPUs. :meth:`create` allocates a region, :meth:`close`
    frees it. If a region is dropped without :meth:`close`, the other ranks' parts are unmapped, and
    this rank's GPU memory stays allocated until the process ends, since others may still read it.

    A region pickles as a handle, which maps the parts in any process of this machine while the
    ranks live (DataLoader workers, `mp.spawn` children). Such a copy closes without a collective.
    """

    group: Group
    device: torch.device
    sizes: list[int]
    """The size of each rank's part in bytes."""

    def __init__(
        self,
        group: Group,
        device: torch.device,
        handles: Sequence[Handle | None],
        access: PeerAccess | None = None,
    ) -> None:
        """Maps the parts. Use :meth:`create` to allocate a region.

        Args:
            access: the parts that are mapped; None: all of them.
        """
        self.group = group
        self.device = device
        self.sizes = [0 if handle is None else handle.num_bytes for handle in handles]
        self._handles = list(handles)
        self._parts: list[Part | None] = [
            handle.open(group.device)
            if handle is not None and (access is None or access.reaches(rank))
            else None
            for rank, handle in enumerate(handles)
        ]
        self._access = access
        # Parts that this rank does not reach, mapped for the GPUs that they are on.
        self._distant: dict[int, Part] = {}
        self.lease = _C.Lease()
        """Every operation that uses the memory holds this lease; views of the memory carry it."""
        self._pid = os.getpid()
        # None in copies; only the region that `create` returned closes collectively.
        self._allocation: _Allocation | None = None

    @classmethod
    @collective("SharedRegion.create")
    def create(
        cls,
        num_bytes: int,
        group: Group,
        device: str | torch.device | None = None,
        folder: str | PathLike[str] | None = None,
        *,
        huge_pages: bool = True,
        mapped: Literal["all", "reached"] = "all",
    ) -> SharedRegion:
        """Allocates `num_bytes` bytes on this rank and maps all ranks' parts. Collective.

        Args:
            num_bytes: size of this rank's part; ranks may differ, and 0 is allowed.
            group: the ranks.
            device: "cpu" for host memory, which every rank maps; None: memory of the rank's GPU, or
                without GPUs of the rank.
            folder: with "cpu": the folder for a file without a name that holds the bytes, which
                then need not fit into memory; GPUs do not read them.
            huge_pages: whether ranks without GPUs make huge pages of host memory, which takes time,
                for random reads.
            mapped: "all", or "reached": only the parts of ranks that this rank's GPU reaches
                (:class:`PeerAccess`).

        Host memory and files start as zeros; GPU memory is not initialised. If a rank fails, every
        rank raises its error.

        Raises:
            ValueError: a size is negative, or the device is another one.
            MemoryError: there is not enough memory.
            OSError: there is not enough space on disk.
            RuntimeError: parts cannot be mapped; on all ranks, if all are to be mapped and a pair
                of ranks does not reach each other.
            PeerLostError: a rank is missing.
        """
        if group.node_group is not group:
            raise ValueError("group has ranks of several machines, which share no memory: pass its "
                             "node_group")  # fmt: skip
        target = _check_device(device, group)
        group.agree(device=target.type, folder=folder is not None)
        is_host = device is not None and torch.device(device).type == "cpu"
        asked = PeerAccess.of(group)
        access = None if is_host else asked
        if access is not None and mapped == "all" and not access.is_full:
            raise access.error(min(access.refused))
        allocation = _Allocation()
        try:
            collective_call(
                group, lambda: allocation.allocate(num_bytes, group, target, folder, asked.nodes)
            )
            handles = group.all_gather(allocation.handle)
            region = collective_call(group, lambda: cls(group, target, handles, access))
        except Exception:
            allocation.release(group)
            raise
        region._allocation = allocation
        if huge_pages and folder is None and group.device.type == "cpu":
            region._make_huge_pages()
        if group.world_size == 1:
            allocation.free_when_unused()
        return region

    def _make_huge_pages(self) -> None:
        """Makes huge pages of this rank's share of every part."""
        rank, world = self.group.rank, self.group.world_size
        for part in self._parts:
            if part is not None:
                pages = part.num_bytes // HUGE_PAGE
                begin, end = (pages * r // world * HUGE_PAGE for r in (rank, rank + 1))
                _C.make_huge_pages(part.address + begin, end - begin, threads_of_rank(world))

    @property
    def addresses(self) -> list[int]:
        """The address of each rank's part in this process; 0 for an empty part.

        Raises RuntimeError if a part is out of this rank's reach.
        """
        return [self._address(rank) for rank in range(len(self.sizes))]

    @property
    def reached(self) -> list[int | None]:
        """As :attr:`addresses`; None for a part that is out of this rank's reach."""
        access = self._access
        return [
            self._address(rank) if access is None or access.reaches(rank) else None
            for rank in range(len(self.sizes))
        ]

    @property
    def distant(self) -> list[int]:
        """The ranks with memory that is out of this rank's reach."""
        return [] if self._access is None else [r for r in self._access.distant if self.sizes[r]]

    def error_of(self, rank: int) -> RuntimeError:
        """Returns the error for memory of a rank that is out of reach."""
        assert self._access is not None
        return self._access.error((self.group.rank, rank))

    def _address(self, rank: int) -> int:
        part = self._part(rank)
        return 0 if part is None else part.address

    def _part(self, rank: int) -> Part | None:
        """Returns a part; None if it is empty. Raises RuntimeError if it is out of reach."""
        parts = self._parts  # another thread may close this region, which takes them away
        self.lease.check()
        if self._access is not None:
            self._access.check(rank)
        return parts[rank]

    def on_own_device(self, rank: int) -> tuple[torch.device, int]:
        """Maps a part that is out of this rank's reach for the GPU that it is on, on which this
        process then writes it. Not collective.

        Returns:
            The GPU, and the address of the part there; 0 for an empty part.

        Raises:
            RuntimeError: this process does not see the GPU.
        """
        self.lease.check()
        assert self._access is not None
        device, handle = self._access.devices[rank], self._handles[rank]
        if device is None:
            raise RuntimeError(
                f"rank {self.group.rank} does not see the GPU of rank {rank}, whose memory it can "
                "write only there: they have no peer access. Let all ranks see all GPUs "
                "(CUDA_VISIBLE_DEVICES)"
            )
        if handle is None:
            return device, 0
        if rank not in self._distant:
            self._distant[rank] = handle.open(device)
        return device, self._distant[rank].address

    def local(self, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """Returns the beginning of this rank's part as a tensor, without a copy. Not collective.

        Raises ValueError if the part is too small.
        """
        return self.part(self.group.rank, dtype, shape)

    def part(self, rank: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """Returns the beginning of a rank's part as a tensor, without a copy. Not collective.

        The tensor keeps the part mapped; after :meth:`close` its contents are undefined.

        Raises ValueError if there is no such rank, or if its part is too small, and RuntimeError if
        the part is out of this rank's reach.
        """
        if not 0 <= rank < len(self.sizes):
            raise ValueError(f"rank must be one of 0..{len(self.sizes) - 1}, got {rank}")
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes > self.sizes[rank]:
            raise ValueError(
                f"shape {tuple(shape)} of {dtype} takes {num_bytes} bytes, and the part of rank "
                f"{rank} has {self.sizes[rank]}"
            )
        part = self._part(rank)
        if part is None or num_bytes == 0:
            return torch.empty(tuple(shape), dtype=dtype, device=self.device)
        return part.tensor()[:num_bytes].view(dtype).view(tuple(shape))

    def close(self, why: str = "this shared memory has been closed") -> None:
        """Unmaps the other ranks' parts, waits for all ranks, and frees this rank's part.
        Collective.

        First waits for operations of other threads of this process that use the memory, at most
        half of the group's timeout, and for the GPU. Operations that begin later raise
        RuntimeError. A second call does nothing. An unpickled copy, or a copy in a forked process,
        closes without the other ranks.

        Args:
            why: the text of the error that later operations raise.

        Raises:
            PeerLostError: a rank is missing; memory that no other rank can be using is released.
            RuntimeError: on some rank an operation on the memory does not end, or such an operation
                has called this (by way of the garbage collector). All ranks raise it, and the
                memory stays allocated until they end.
        """
        if not self.lease.close(why):
            return
        allocation, self._allocation = self._allocation, None
        parts, self._parts = [*self._parts, *self._distant.values()], []
        self._distant = {}
        try:
            if allocation is None or os.getpid() != self._pid:
                self._wait_until_unused()
                return
            # No rank may unmap or free memory that another rank's kernels still use.
            collective_call(self.group, self._wait_until_unused)
        except PeerLostError:
            if allocation is None or is_used(self.lease):
                _never_released.append((parts, allocation))
                raise
        except BaseException:
            _never_released.append((parts, allocation))
            raise
        parts.clear()
        allocation.release(self.group)

    def _wait_until_unused(self) -> None:
        """Waits for the operations of this process that use the memory."""
        wait_until_unused(self.lease, self.group.timeout / 2)
        self.group.synchronize()

    def __reduce__(self) -> tuple[Any, ...]:
        self.lease.check()
        return (SharedRegion, (self.group, self.device, self._handles, self._access))


# Memory that unfinished operations may still use.
_never_released: list[object] = []


class _Allocation:
    """This rank's part, from its allocation to its release."""

    def __init__(self) -> None:
        self.part: Part | None = None
        self.handle: Handle | None = None
        self._close_fd: Callable[[], object] = lambda: None

    def allocate(
        self,
        num_bytes: int,
        group: Group,
        device: torch.device,
        folder: str | PathLike[str] | None,
        nodes: frozenset[int],
    ) -> None:
        if num_bytes < 0:
            raise ValueError(f"num_bytes must not be negative, got {num_bytes}")
        if num_bytes > 0 and device.type == "cuda":
            self.part, self.handle = CudaPart.create(num_bytes, device, group.world_size > 1)
        elif num_bytes > 0:
            threads = threads_of_rank(group.world_size)
            self.part, self.handle, fd = HostPart.create(
                num_bytes, group.device, folder, nodes, threads
            )
            self._close_fd = close_later(self, fd)

    def free_when_unused(self) -> None:
        """Frees the part as soon as no tensor refers to it."""
        if isinstance(self.part, CudaPart):
            self.part.release_with(_C.cuda_free)
        self.part = None

    def release(self, group: Group) -> None:
        """Frees the part once no rank has it mapped. If a rank is lost, it keeps GPU memory."""
        self._close_fd()
        group.barrier()
        self.free_when_unused()


def _check_device(device: str | torch.device | None, group: Group) -> torch.device:
    if device is None or torch.device(device) == group.device:
        return group.device
    if torch.device(device).type == "cpu":
        return torch.device("cpu")
    raise ValueError(f"device must be cpu or the group's own, {group.device}, got {device}")
