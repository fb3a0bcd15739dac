"""Writes ``.npy`` files: reserves their space, computes checksums, waits for the disk."""

from __future__ import annotations

import errno
import io
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.file_reads import read_into
from peergraph.store.disk.manifest import BLOCK_BYTES, ArrayEntry
from peergraph.store.disk.saved_array import as_bytes, numpy_dtype, stored_dtype

_MOST_THREADS = 4  # write more than disks take


class NpyWriter:
    """Creates a file, reserves its space, and writes its rows in order. It is a context manager:
    its end checks that all rows were written, and waits until they are on the disk.

    Args:
        path: the path of the new file.
        shape: the shape of all rows. If the number of rows is None, no space is reserved, and the
            end writes the number of rows to the header.
        dtype: the dtype of all rows.

    Threads write the rows, whose memory must not change until the end.

    Raises:
        OSError: the disk is full, or a write fails; raised here and by every method.
    """

    def __init__(
        self,
        path: Path,
        shape: tuple[int | None, ...],
        dtype: torch.dtype,
    ) -> None:
        self._path = path
        self._row_shape, self._dtype = tuple(n for n in shape[1:] if n is not None), dtype
        self._known_rows = shape[0]
        self._rows = 0
        self._written = 0
        self._checksums: list[int] = []
        self._block: list[Tensor] = []  # the pieces of the block that is not complete
        self._writing: deque[Future[int]] = deque()
        threads = min(_MOST_THREADS, torch.get_num_threads())
        self._pool = ThreadPoolExecutor(threads, "peergraph_write")
        header = npy_header((self._known_rows or 0, *self._row_shape), dtype)
        self._header_bytes = len(header)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            if self._known_rows is not None:
                reserve(self._fd, self._size(self._known_rows))
            self._write(torch.frombuffer(bytearray(header), dtype=torch.uint8))
        except BaseException:
            os.close(self._fd)
            raise

    def write(self, rows: Tensor) -> None:
        """Appends rows from the CPU."""
        values = rows.to(self._dtype).contiguous()
        self._rows += rows.shape[0]
        self._write(as_bytes(values.view(stored_dtype(self._dtype))))

    @property
    def entry(self) -> ArrayEntry:
        """The entry of the manifest; complete after the end of the context."""
        name = str(self._dtype).removeprefix("torch.")
        rows = self._rows if self._known_rows is None else self._known_rows
        return ArrayEntry(self._path.name, name, (rows, *self._row_shape), tuple(self._checksums))

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._write_block()
                self._wait_until(0)
                if self._known_rows is None:
                    self._write_number_of_rows()
                elif self._written != self._size(self._known_rows):
                    raise RuntimeError(
                        f"{self._path}: {self._written} bytes were written of "
                        f"{self._size(self._known_rows)}"
                    )
                os.fsync(self._fd)
        finally:
            self._pool.shutdown()
            os.close(self._fd)

    def _size(self, rows: int) -> int:
        """Returns the bytes of a file with `rows` rows."""
        return self._header_bytes + torch.Size((rows, *self._row_shape)).numel() * (
            self._dtype.itemsize
        )

    def _write_number_of_rows(self) -> None:
        """Writes the header again, and computes the checksum of the first block again."""
        header = npy_header((self._rows, *self._row_shape), self._dtype)
        if len(header) != self._header_bytes:  # NumPy leaves room for 21 digits
            raise RuntimeError(f"{self._path}: the header cannot take {self._rows} rows")
        if os.pwrite(self._fd, header, 0) != len(header):
            raise OSError(errno.EIO, "the header was not written", str(self._path))
        first = torch.empty(min(self._written, BLOCK_BYTES), dtype=torch.uint8, device="cpu")
        read_into(self._fd, self._path, 0, first.numpy().data)
        self._checksums[0] = _C.crc32c(first)

    def _write(self, values: Tensor) -> None:
        """Writes each block in a thread once it is complete."""
        done = 0
        while done < values.numel():
            in_block = self._written % BLOCK_BYTES
            piece = values[done : done + BLOCK_BYTES - in_block]
            self._block.append(piece)
            self._written += piece.numel()
            done += piece.numel()
            if self._written % BLOCK_BYTES == 0:
                self._write_block()

    def _write_block(self) -> None:
        """Lets a thread write the pieces that wait."""
        if not self._block:
            return
        begin = (self._written - 1) // BLOCK_BYTES * BLOCK_BYTES
        self._wait_until(2 * _MOST_THREADS)
        self._writing.append(self._pool.submit(write_block, self._fd, begin, self._block))
        self._block = []

    def _wait_until(self, left: int) -> None:
        """Waits until at most `left` blocks are being written."""
        while len(self._writing) > left:
            self._checksums.append(self._writing.popleft().result())


def write_block(fd: int, offset: int, pieces: list[Tensor]) -> int:
    """Writes a block, and returns its checksum."""
    checksum, begin = 0, offset
    for piece in pieces:
        checksum = _C.crc32c(piece, checksum)
        values = piece.numpy().data
        while len(values):
            done = os.pwrite(fd, values, offset)
            values, offset = values[done:], offset + done
    # The disk begins now, and not at the end. Pages that are being written stay in the cache.
    os.posix_fadvise(fd, begin, offset - begin, os.POSIX_FADV_DONTNEED)
    return checksum


def write_all(fd: int, values: memoryview) -> None:
    """Writes all bytes of the buffer."""
    while len(values):
        values = values[os.write(fd, values) :]


def npy_header(shape: tuple[int, ...], dtype: torch.dtype) -> bytes:
    """Returns the header of a file of rows."""
    stream = io.BytesIO()
    described = np.lib.format.dtype_to_descr(numpy_dtype(dtype))
    np.lib.format.write_array_header_1_0(
        stream, {"descr": described, "fortran_order": False, "shape": tuple(shape)}
    )
    return stream.getvalue()


def reserve(fd: int, num_bytes: int) -> None:
    """Reserves the space of a file, where the file system can."""
    try:
        os.posix_fallocate(fd, 0, num_bytes)
    except OSError as error:
        # The file system cannot reserve: writes to a full disk will fail instead.
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
