"""Writes an ``.npy`` file by all ranks: each a range of its blocks, in several threads."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from peergraph.memory import Group
from peergraph.memory.device.launching import threads_of_rank
from peergraph.memory.group.collective_call import collective_call
from peergraph.store.disk.manifest import BLOCK_BYTES, ArrayEntry
from peergraph.store.disk.npy_writer import npy_header, reserve, write_block
from peergraph.store.disk.saved_array import as_bytes, stored_dtype

_CHUNK_BLOCKS = 16  # blocks that are read at once
_BUFFERS = 3
_MOST_THREADS = 8

ReadRows = Callable[[int, int, Tensor], object]
"""``read(begin, end, out)`` writes rows of the file to `out`, on the CPU."""


def write_shared(
    path: Path, shape: tuple[int, ...], dtype: torch.dtype, read: ReadRows, group: Group
) -> ArrayEntry:
    """Creates a file of the rows that `read` returns. Collective; if a rank fails, every rank
    raises its error.

    Args:
        path: the path of the new file.
        shape, dtype: those of all rows, the same on every rank.
        read: each rank reads its share of the rows.

    Raises:
        OSError: the disk is full, or a write fails.
    """
    header = torch.frombuffer(bytearray(npy_header(shape, dtype)), dtype=torch.uint8)
    size = header.numel() + math.prod(shape) * dtype.itemsize

    def create() -> None:
        if group.rank:
            return
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            reserve(fd, size)
        finally:
            os.close(fd)

    collective_call(group, create)
    blocks = -(-size // BLOCK_BYTES)
    begin, end = (blocks * r // group.world_size for r in (group.rank, group.rank + 1))
    part = _Part(path, header, size, shape, dtype, read, threads_of_rank(group.world_size))
    checksums = collective_call(group, lambda: part.write(begin, end))
    everyone = [value for of_rank in group.all_gather(checksums) for value in of_rank]
    return ArrayEntry(path.name, str(dtype).removeprefix("torch."), shape, tuple(everyone))


class _Part:
    """The blocks of a file that one rank writes."""

    def __init__(
        self,
        path: Path,
        header: Tensor,
        size: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        read: ReadRows,
        threads: int,
    ) -> None:
        self._path, self._header, self._size = path, header, size
        self._rows, self._row_shape, self._dtype = shape[0], shape[1:], dtype
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize
        self._read, self._threads = read, max(1, min(threads, _MOST_THREADS))

    def write(self, begin: int, end: int) -> list[int]:
        """Writes blocks begin..end, waits for the disk, and returns their checksums."""
        checksums: list[int] = []
        # The blocks of each chunk whose buffer is in use.
        writing: deque[list[Future[int]]] = deque()
        buffers: list[Tensor] = []
        fd = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with ThreadPoolExecutor(self._threads, "peergraph_write") as pool:
                for number, first in enumerate(range(begin, end, _CHUNK_BLOCKS)):
                    if len(writing) == _BUFFERS:
                        checksums += [block.result() for block in writing.popleft()]
                    last = min(first + _CHUNK_BLOCKS, end)
                    at, values = self._rows_of(first, last, buffers, number % _BUFFERS)
                    writing.append(
                        [
                            pool.submit(write_block, fd, *self._block(block, at, values))
                            for block in range(first, last)
                        ]
                    )
                for blocks in writing:
                    checksums += [block.result() for block in blocks]
            os.fsync(fd)
        finally:
            os.close(fd)
        return checksums

    def _rows_of(
        self, first: int, last: int, buffers: list[Tensor], number: int
    ) -> tuple[int, Tensor]:
        """Reads the rows of some blocks; returns their place in the file, and their bytes."""
        header = self._header.numel()
        if not self._row_bytes or not self._rows:
            return header, torch.empty(0, dtype=torch.uint8, device="cpu")
        start = max(0, first * BLOCK_BYTES - header)
        stop = max(0, min(last * BLOCK_BYTES, self._size) - header)
        begin, end = start // self._row_bytes, -(-stop // self._row_bytes)
        num_bytes = (end - begin) * self._row_bytes
        if number == len(buffers):
            buffers.append(torch.empty(0, dtype=torch.uint8, device="cpu"))
        if buffers[number].numel() < num_bytes:
            buffers[number] = torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
        memory = buffers[number][:num_bytes]
        rows = memory.view(stored_dtype(self._dtype)).view(self._dtype)
        if begin < end:
            self._read(begin, end, rows.view(end - begin, *self._row_shape))
        return header + begin * self._row_bytes, as_bytes(memory)

    def _block(self, block: int, at: int, values: Tensor) -> tuple[int, list[Tensor]]:
        """Returns the offset of a block, and its pieces."""
        start, stop = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, self._size)
        pieces = [self._header[start:stop], values[max(0, start - at) : max(0, stop - at)]]
        return start, [piece for piece in pieces if piece.numel()]
