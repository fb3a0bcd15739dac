"""The file that a tensor's memory is a mapping of, so that other processes read it themselves."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from peergraph.file_reads import in_threads, read_into

_PIECE_BYTES = 4 << 20


@dataclass(frozen=True)
class MappedFile:
    """The bytes of a file that a tensor is made of.

    Args:
        path: the file.
        identity: tells it from another file of that name.
        offset: the first byte.
        num_bytes: the number of bytes.
    """

    path: Path
    identity: tuple[int, int]
    offset: int
    num_bytes: int

    @classmethod
    def of(cls, tensor: Tensor) -> MappedFile | None:
        """Finds the file that a contiguous tensor on the CPU is mapped from, as ``np.memmap`` and
        ``torch.load(mmap=True)`` do; None if there is none, or if pages of a private mapping have
        been written, so that the memory differs from the file.
        """
        if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.nbytes == 0:
            return None
        begin = tensor.data_ptr()
        mapping = _mapping_at(begin, begin + tensor.nbytes)
        if mapping is None:
            return None
        path, first, offset, identity = mapping
        mapped = cls(Path(path), identity, offset + begin - first, tensor.nbytes)
        return mapped if mapped.is_there() else None

    def is_there(self) -> bool:
        """Returns whether this process sees the file and may read it."""
        try:
            with self._open() as fd:
                return fd is not None
        except OSError:
            return False

    def read(self, begin: int, end: int, threads: int, *, pinned: bool = False) -> Tensor:
        """Returns a copy of some of the bytes, uint8 on the CPU.

        Args:
            begin, end: the range within these bytes.
            threads: the number of threads that read.
            pinned: whether the copy is in pinned memory.

        Raises:
            ValueError: the file is shorter now, or another one has its name.
            OSError: the file cannot be read.
        """
        out = torch.empty(end - begin, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        memory = out.numpy().data
        with self._open() as fd:
            if fd is None:
                raise ValueError(f"{self.path} has been replaced or cut since it was mapped")

            def read(piece: int) -> None:
                part = slice(piece * _PIECE_BYTES, (piece + 1) * _PIECE_BYTES)
                read_into(fd, self.path, self.offset + begin + part.start, memory[part])

            in_threads(read, range(-(-(end - begin) // _PIECE_BYTES)), threads)
        return out

    def _open(self) -> _OpenFile:
        return _OpenFile(self)


class _OpenFile:
    """Within the context, the file's descriptor; None if it is another file, or too short."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self._fd = -1

    def __enter__(self) -> int | None:
        self._fd = os.open(self._file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(self._fd)
        same = (status.st_dev, status.st_ino) == self._file.identity
        is_long = status.st_size >= self._file.offset + self._file.num_bytes
        return self._fd if same and is_long and stat.S_ISREG(status.st_mode) else None

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _mapping_at(begin: int, end: int) -> tuple[str, int, int, tuple[int, int]] | None:
    """Returns path, first address, offset in the file and identity of the file of the mapping that
    contains a range of addresses; None without such a file.
    """
    for line in _lines("/proc/self/maps"):
        addresses, access, offset, device, inode, *path = line.split(maxsplit=5)
        first, last = (int(address, 16) for address in addresses.split("-"))
        if not first <= begin < last:
            continue
        if end > last or inode == "0" or not path or not path[0].startswith("/"):
            return None
        if access.endswith("p") and not _is_unchanged(addresses):
            return None
        major, minor = (int(number, 16) for number in device.split(":"))
        identity = os.makedev(major, minor), int(inode)
        return path[0].rstrip("\n"), first, int(offset, 16), identity
    return None


def _is_unchanged(addresses: str) -> bool:
    """Returns whether a private mapping has no pages of its own."""
    lines = iter(_lines("/proc/self/smaps"))
    for line in lines:
        if line.startswith(addresses + " "):
            break
    own = {"Anonymous:": -1, "Swap:": -1}
    for line in lines:
        name, *rest = line.split()
        if "-" in name:  # the next mapping
            break
        if name in own:
            own[name] = int(rest[0])
    return own == {"Anonymous:": 0, "Swap:": 0}


def _lines(path: str) -> Iterator[str]:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        yield from file
