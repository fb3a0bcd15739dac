"""Reads the ``.npy`` files of saved stores, compared with the manifest."""

from __future__ import annotations

import io
import math
import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.file_reads import in_threads, read_into
from peergraph.store.disk.checked_file import open_regular
from peergraph.store.disk.manifest import BLOCK_BYTES, DTYPE_NAMES, ArrayEntry

_HEADER_BYTES = 1 << 16  # The length of the longest header of version 1.0.


def stored_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in files: NumPy stores dtypes that it does not know as integers."""
    try:
        torch.empty(0, dtype=dtype, device="cpu").numpy()
        return dtype
    except TypeError:
        return {1: torch.uint8, 2: torch.int16}[dtype.itemsize]


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Returns NumPy's dtype of the elements in a file."""
    return torch.empty(0, dtype=stored_dtype(dtype), device="cpu").numpy().dtype


def as_bytes(values: Tensor) -> Tensor:
    """Returns the elements of a contiguous CPU tensor as uint8, without a copy."""
    return values.reshape(-1).view(torch.uint8)


@dataclass(frozen=True)
class SavedArray:
    """A file whose header and length agree with the manifest.

    Args:
        path: the file.
        entry: the entry of the manifest.
        header_bytes: bytes before the first row.
        num_bytes: size of the file.
        verify: whether to compare checksums when rows are read.
        identity: tells the file from another one that gets its name later.
        threads: the number of threads that read; None: torch's, at most 8.
    """

    path: Path
    entry: ArrayEntry
    header_bytes: int
    num_bytes: int
    verify: bool
    identity: tuple[int, int]
    threads: int | None = None

    @classmethod
    def check(
        cls, folder: Path, entry: ArrayEntry, verify: bool, threads: int | None = None
    ) -> SavedArray:
        """Checks header and length, and the checksum if the file has no rows.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file does not agree with the manifest.
        """
        path = folder / entry.file
        try:
            with open_regular(path) as fd:
                num_bytes = os.fstat(fd).st_size
                header_bytes = _check_header(fd, path, num_bytes, entry)
                identity = _identity(fd)
        except FileNotFoundError:
            raise FileNotFoundError(f"incomplete store: {path} is missing") from None
        array = cls(path, entry, header_bytes, num_bytes, verify, identity, threads)
        expected = header_bytes + array.row_bytes * array.rows
        if num_bytes != expected:
            raise ValueError(f"{path} must have {expected} bytes, has {num_bytes}")
        blocks = -(-num_bytes // BLOCK_BYTES)
        if len(entry.crc32c) != blocks:
            raise ValueError(
                f"{path}: the manifest must have {blocks} checksums, has {len(entry.crc32c)}"
            )
        if num_bytes == header_bytes:
            array.read(0, 0)
        return array

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the rows."""
        return DTYPE_NAMES[self.entry.dtype]

    @property
    def rows(self) -> int:
        """The number of rows of the file."""
        return self.entry.shape[0]

    @property
    def row_bytes(self) -> int:
        """The bytes of a row."""
        return math.prod(self.entry.shape[1:]) * self.dtype.itemsize

    def read(
        self, begin: int, end: int, spill: Path | None = None, *, pinned: bool = False
    ) -> Tensor:
        """Returns a copy of rows begin..end, on the CPU. Compares the checksums of their blocks.

        Args:
            begin, end: the range of rows.
            spill: a folder: the copy is in a file without a name there, mapped, and takes no memory
                that cannot be freed.
            pinned: whether the copy is in pinned memory, from which a GPU copies fast.

        Raises:
            ValueError: a block has changed since it was saved, or the file is too short, or
                another one has its name.
            OSError: the file cannot be read, or the folder has no space.
        """
        out = _new_bytes((end - begin) * self.row_bytes, spill, pinned)
        self._read_blocks(begin, end, out)
        return out.view(self.dtype).view(end - begin, *self.entry.shape[1:])

    def _read_blocks(self, begin: int, end: int, out: Tensor) -> None:
        """Reads the bytes of rows into `out`, and verifies what was read."""
        first, last = (self.header_bytes + row * self.row_bytes for row in (begin, end))
        if begin == end > 0:
            return
        # The header is in the first row's block.
        blocks = range(first // BLOCK_BYTES, -(-last // BLOCK_BYTES))
        with open_regular(self.path) as fd:
            if _identity(fd) != self.identity:
                raise ValueError(f"{self.path} has been replaced since it was checked")

            def read(block: int) -> None:
                self._read_block(fd, block, first, last, out)

            in_threads(read, blocks, self.threads or torch.get_num_threads())

    def _read_block(self, fd: int, block: int, first: int, last: int, out: Tensor) -> None:
        start = block * BLOCK_BYTES
        stop = min(start + BLOCK_BYTES, self.num_bytes)
        begin, end = max(start, first), min(stop, last)
        if not self.verify:
            if begin < end:
                read_into(fd, self.path, begin, _memory(out[begin - first : end - first]))
            return
        within = (begin, end) == (start, stop)
        target = out[start - first : stop - first] if within else _new_bytes(stop - start, None)
        read_into(fd, self.path, start, _memory(target))
        self._compare(block, _C.crc32c(target))
        if not within and begin < end:
            out[begin - first : end - first] = target[begin - start : end - start]

    def _compare(self, block: int, checksum: int) -> None:
        saved = self.entry.crc32c[block]
        if checksum != saved:
            start = block * BLOCK_BYTES
            stop = min(start + BLOCK_BYTES, self.num_bytes)
            raise ValueError(
                f"{self.path} is damaged: bytes {start} to {stop} have checksum {checksum:#010x}, "
                f"they were saved with {saved:#010x}"
            )


def _new_bytes(num_bytes: int, spill: Path | None, pinned: bool = False) -> Tensor:
    """Returns uninitialised uint8 memory, or a mapped file without a name in a folder."""
    if spill is None or not num_bytes:
        return torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=pinned)
    with tempfile.TemporaryFile(dir=spill) as file:
        os.posix_fallocate(file.fileno(), 0, num_bytes)  # a full disk is an error here, not SIGBUS
        return torch.frombuffer(mmap.mmap(file.fileno(), num_bytes), dtype=torch.uint8)


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _memory(values: Tensor) -> memoryview:
    return values.numpy().data


def _check_header(fd: int, path: Path, num_bytes: int, entry: ArrayEntry) -> int:
    """Returns the header's length."""
    start = bytearray(min(num_bytes, _HEADER_BYTES))
    read_into(fd, path, 0, memoryview(start))
    stream = io.BytesIO(start)
    try:
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise ValueError(f"format version {version[0]}.{version[1]}, expected 1.0")
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
    except (
        Exception
    ) as error:  # The errors that NumPy raises for damaged headers are not documented.
        raise ValueError(f"{path} has no valid .npy header: {error}") from error
    expected = (entry.shape, False, numpy_dtype(DTYPE_NAMES[entry.dtype]))
    # The string also contains the byte order.
    if (shape, fortran_order, dtype) != expected or dtype.str != expected[2].str:
        raise ValueError(
            f"{path} must be {_described(*expected)}, as the manifest says, "
            f"is {_described(shape, fortran_order, dtype)}"
        )
    return stream.tell()


def _described(shape: tuple[int, ...], fortran_order: bool, dtype: np.dtype[Any]) -> str:
    order = " in Fortran order" if fortran_order else ""
    return f"{dtype.str!r} of shape {list(shape)}{order}"
