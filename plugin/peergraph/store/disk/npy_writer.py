"""Writes ``.npy`` files: reserves their space, computes checksums, waits for the disk."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.store.disk.manifest import BLOCK_BYTES, ArrayEntry
from peergraph.store.disk.saved_array import as_bytes, numpy_dtype, stored_dtype


class NpyWriter:
    """Creates a file, reserves its space, and writes its rows in order. A context manager: its end
    checks that all rows were written and waits until they are on the disk.

    Args:
        path: must not exist.
        shape, dtype: of all rows.

    Raises:
        OSError: no room, or a write fails; here and from every method.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._path = path
        self._shape, self._dtype = shape, dtype
        self._written = 0
        self._checksums: list[int] = []
        header = _header(shape, dtype)
        self._num_bytes = len(header) + torch.Size(shape).numel() * dtype.itemsize
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            _reserve(self._fd, self._num_bytes)
            self._write(torch.frombuffer(bytearray(header), dtype=torch.uint8))
        except BaseException:
            os.close(self._fd)
            raise

    def write(self, rows: Tensor) -> None:
        """Appends rows from the CPU."""
        values = rows.to(self._dtype).contiguous()
        self._write(as_bytes(values.view(stored_dtype(self._dtype))))

    @property
    def entry(self) -> ArrayEntry:
        """The entry of the manifest; complete after the end."""
        name = str(self._dtype).removeprefix("torch.")
        return ArrayEntry(self._path.name, name, tuple(self._shape), tuple(self._checksums))

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
                if self._written != self._num_bytes:
                    raise RuntimeError(
                        f"{self._path}: {self._written} bytes were written of {self._num_bytes}"
                    )
                os.fsync(self._fd)
        finally:
            os.close(self._fd)

    def _write(self, values: Tensor) -> None:
        """Writes, and updates the checksums of the blocks."""
        done = 0
        while done < values.numel():
            in_block = self._written % BLOCK_BYTES
            piece = values[done : done + BLOCK_BYTES - in_block]
            write_all(self._fd, piece.numpy().data)
            if in_block == 0:
                self._checksums.append(0)
            before = self._checksums[-1]
            self._checksums[-1] = _C.crc32c(piece.data_ptr(), piece.numel(), before)
            self._written += piece.numel()
            done += piece.numel()


def write_all(fd: int, values: memoryview) -> None:
    """Writes all of the bytes."""
    while len(values):
        values = values[os.write(fd, values) :]


def _header(shape: tuple[int, ...], dtype: torch.dtype) -> bytes:
    stream = io.BytesIO()
    described = np.lib.format.dtype_to_descr(numpy_dtype(dtype))
    np.lib.format.write_array_header_1_0(
        stream, {"descr": described, "fortran_order": False, "shape": tuple(shape)}
    )
    return stream.getvalue()


def _reserve(fd: int, num_bytes: int) -> None:
    try:
        os.posix_fallocate(fd, 0, num_bytes)
    except OSError as error:
        # The file system cannot reserve: writes to a full disk will fail instead.
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
