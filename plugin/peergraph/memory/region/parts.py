"""One rank's part of a region: allocated here, or mapped from the process that allocated it.

A part stays mapped while a region or a tensor refers to it; reference counting releases it. In a
forked child of the process that mapped it nothing is released.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from os import PathLike
from typing import Any, Protocol

import torch
import torch.utils.dlpack

import peergraph._C as _C
from peergraph.memory.group.process import keep_gpu_objects_from_forked_children
from peergraph.memory.region.free_memory import free_host_memory
from peergraph.memory.region.numa import place_pages

# Linux numbers of fcntl's sealing commands, which Python 3.10 does not name everywhere.
_F_ADD_SEALS = 1033
_SEAL_SIZE = 0x1 | 0x2 | 0x4  # no further seals, no shrinking, no growing


class Part(Protocol):
    """Memory mapped in this process."""

    address: int
    num_bytes: int

    def tensor(self) -> torch.Tensor:
        """Returns the bytes as a uint8 tensor that keeps the part mapped."""


class Handle(Protocol):
    """Identifies a part for the other processes of the machine; small, and safe to pickle."""

    @property
    def num_bytes(self) -> int:
        """The size of the part."""

    def open(self, device: torch.device) -> Part:
        """Maps the part in this process, for use from `device`."""


@dataclass(frozen=True)
class HostHandle:
    """The handle of a file without a name, which a living process keeps open.

    The inode (`identity`) distinguishes it from a later file with the same descriptor number.
    """

    pid: int
    fd: int
    num_bytes: int
    identity: tuple[int, int]
    on_disk: bool = False

    def open(self, device: torch.device) -> HostPart:
        """Maps the memory. Raises RuntimeError if the process that allocated it has ended or cannot
        be accessed.
        """
        part = _open_parts.get((self, device))
        if isinstance(part, HostPart):
            return part
        path = f"/proc/{self.pid}/fd/{self.fd}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise RuntimeError(
                f"process {self.pid}, which made this shared memory, is gone (or lives in another "
                "PID namespace: ranks of one host must share theirs)"
            ) from error
        except PermissionError as error:
            raise RuntimeError(
                f"{path} may not be opened: the processes that share memory must belong to one "
                "user, and the system must let them see each other's /proc entries"
            ) from error
        try:
            if _identity(fd) != self.identity:
                raise RuntimeError(
                    f"process {self.pid}, which made this shared memory, has released it or is gone"
                )
            return HostPart(fd, self, device)
        finally:
            os.close(fd)


class HostPart:
    """Shared memory of the host, pinned if `device` is a GPU, or a file on disk."""

    def __init__(
        self,
        fd: int,
        handle: HostHandle,
        device: torch.device,
        nodes: Collection[int] = (),
        num_threads: int = 0,
    ) -> None:
        self.num_bytes = handle.num_bytes
        self.address = _C.map_shared(fd, handle.num_bytes, handle.on_disk)
        self._release = _finalize(self, _C.unmap_shared, self.address, self.num_bytes)
        if nodes and not handle.on_disk:
            place_pages(self.address, self.num_bytes, nodes)
        if device.type == "cuda" and not handle.on_disk:
            keep_gpu_objects_from_forked_children()
            if num_threads:  # the driver would make one page after the other
                _C.populate_pages(self.address, self.num_bytes, num_threads)
            _C.register_host(device.index, self.address, self.num_bytes)
            self._release.detach()
            self._release = _finalize(
                self, _unpin_and_unmap, device.index, self.address, self.num_bytes
            )
        _open_parts[handle, device] = self

    @classmethod
    def create(
        cls,
        num_bytes: int,
        device: torch.device,
        folder: str | PathLike[str] | None,
        nodes: Collection[int] = (),
        num_threads: int = 0,
    ) -> tuple[HostPart, HostHandle, int]:
        """Allocates a part. Returns it, its handle, and the descriptor by which others open it.

        Args:
            num_bytes: the size of the part.
            device: the device that uses the part.
            folder: the folder for the file; None: the part is in memory.
            nodes: the NUMA nodes for the memory; none: where the processes run.
            num_threads: that make the pages of pinned memory; 0: the driver makes them.
        """
        fd = _memory_file(num_bytes) if folder is None else _disk_file(num_bytes, folder)
        try:
            handle = HostHandle(os.getpid(), fd, num_bytes, _identity(fd), folder is not None)
            return cls(fd, handle, device, nodes, num_threads), handle, fd
        except BaseException:
            os.close(fd)
            raise

    def tensor(self) -> torch.Tensor:
        """Returns the bytes as a uint8 tensor that keeps the part mapped."""
        return _bytes(self, -1)


def _memory_file(num_bytes: int) -> int:
    available = free_host_memory()
    if num_bytes > available:
        raise MemoryError(
            f"{num_bytes} bytes of host memory were asked for, {available} are available "
            "(where memory grows on demand, say how many in PEERGRAPH_HOST_MEMORY)"
        )
    fd = os.memfd_create("peergraph", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, num_bytes)
        fcntl.fcntl(fd, _F_ADD_SEALS, _SEAL_SIZE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _disk_file(num_bytes: int, folder: str | PathLike[str]) -> int:
    available = shutil.disk_usage(folder).free
    if num_bytes > available:
        raise OSError(
            errno.ENOSPC,
            f"{num_bytes} bytes on disk were asked for, {available} are available in",
            str(folder),
        )
    with tempfile.TemporaryFile(dir=folder) as file:
        # Allocates the blocks now: if a write found the disk full, the system would kill the
        # writer.
        try:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        except OSError as error:
            what = f"{num_bytes} bytes on disk cannot be had: {error.strerror}"
            raise OSError(error.errno, what, str(folder)) from error
        return os.dup(file.fileno())


@dataclass(frozen=True)
class CudaHandle:
    """A CUDA IPC handle, with the process and the GPU that it comes from."""

    pid: int
    device: int
    num_bytes: int
    ipc: bytes | None

    def open(self, device: torch.device) -> CudaPart:
        """Maps the memory. Raises RuntimeError if `device` cannot access the memory of the GPU:
        :class:`PeerAccess` knows that before.
        """
        cuda_part = _open_parts.get((self, device))
        if isinstance(cuda_part, CudaPart):
            return cuda_part
        if self.ipc is None:
            raise RuntimeError("this system cannot share GPU memory between processes")
        if device.type != "cuda":
            raise RuntimeError(f"memory of cuda:{self.device} cannot be used from {device}")
        if self.pid == os.getpid():
            return self._open_own(device)
        try:
            address = _C.open_ipc(device.index, self.ipc)
        except RuntimeError as error:
            raise RuntimeError(
                f"memory of cuda:{self.device} that process {self.pid} shares cannot be mapped on "
                f"{device}: is that process alive, and have both GPUs peer access (see peergraph "
                f"info)? {error}"
            ) from error
        part = CudaPart(device.index, address, self)
        part.release_with(_C.close_ipc)
        return part

    def _open_own(self, device: torch.device) -> CudaPart:
        """Opens this process's memory for another of its GPUs: IPC works between processes only."""
        part = _open_parts.get((self, torch.device("cuda", self.device)))
        if not isinstance(part, CudaPart):
            raise RuntimeError(f"this memory of cuda:{self.device} has been freed")
        _C.enable_peer_access(device.index, self.device)
        return part


class CudaPart:
    """GPU memory, allocated here or mapped through CUDA IPC."""

    def __init__(self, device: int, address: int, handle: CudaHandle) -> None:
        self.num_bytes = handle.num_bytes
        self.address = address
        self._device = device
        keep_gpu_objects_from_forked_children()
        # torch may not have used the GPU in this process yet.
        torch.cuda.init()  # type: ignore[no-untyped-call]
        _open_parts[handle, torch.device("cuda", device)] = self

    @classmethod
    def create(
        cls, num_bytes: int, device: torch.device, shared: bool
    ) -> tuple[CudaPart, CudaHandle]:
        """Allocates a part. Returns it and its handle.

        The part is never freed unless `release_with` is called.
        """
        address = _C.cuda_malloc(device.index, num_bytes)
        if address == 0:
            torch.cuda.empty_cache()
            address = _C.cuda_malloc(device.index, num_bytes)
        if address == 0:
            free, total = torch.cuda.mem_get_info(device)
            raise MemoryError(
                f"{num_bytes} bytes on {device} were asked for, {free} of {total} are free"
            )
        try:
            ipc = _C.ipc_handle(device.index, address)
        except RuntimeError:
            if shared:
                raise
            ipc = None  # a single rank needs the handle for its child processes only
        handle = CudaHandle(os.getpid(), device.index, num_bytes, ipc)
        return cls(device.index, address, handle), handle

    def release_with(self, function: Callable[[int, int], None]) -> None:
        """Sets the function that frees the part: ``function(device, address)`` is called when
        nothing refers to the part.
        """
        _finalize(self, function, self._device, self.address)

    def tensor(self) -> torch.Tensor:
        """Returns the bytes as a uint8 tensor that keeps the part mapped."""
        return _bytes(self, self._device)


def _bytes(part: Part, device: int) -> torch.Tensor:
    # DLPack names the device. With other ways torch guesses the device, and copies if it guesses
    # wrong.
    capsule = _C.bytes_as_dlpack(part.address, part.num_bytes, device, part)
    return torch.utils.dlpack.from_dlpack(capsule)


def close_later(owner: object, fd: int) -> weakref.finalize[..., Any]:
    """Closes the descriptor when the owner is freed; returns a function that closes it at once."""
    return _finalize(owner, os.close, fd)


# A process maps a part once for each device, however many handles of it are unpickled.
_open_parts: weakref.WeakValueDictionary[tuple[Handle, torch.device], Part] = (
    weakref.WeakValueDictionary()
)


def _finalize(
    part: object, function: Callable[..., None], *args: int
) -> weakref.finalize[..., Any]:
    finalizer = weakref.finalize(part, _release, os.getpid(), function, *args)
    # At exit the system releases the memory; other threads may still use tensors.
    finalizer.atexit = False
    return finalizer


def _release(pid: int, function: Callable[..., None], *args: int) -> None:
    if os.getpid() == pid:
        function(*args)


def _unpin_and_unmap(device: int, address: int, num_bytes: int) -> None:
    try:
        _C.unregister_host(device, address)
    finally:
        _C.unmap_shared(address, num_bytes)


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
