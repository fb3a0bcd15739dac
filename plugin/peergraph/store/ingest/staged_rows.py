"""Rows in a temporary file, until all of them are known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from peergraph.file_reads import read_into
from peergraph.store.disk.npy_writer import write_all
from peergraph.store.disk.saved_array import as_bytes

_PIECE_BYTES = 16 << 20


class StagedRows:
    """Rows of one shape in a new file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w+b", buffering=0)
        self._parts: list[tuple[torch.dtype, int]] = []  # dtypes and numbers of rows
        self._row_shape: tuple[int, ...] = ()

    def append(self, rows: Tensor) -> None:
        """Appends rows ``[n, ...]``; the dtype may be another one than that of earlier rows."""
        if len(rows) == 0:
            return
        self._row_shape = tuple(rows.shape[1:])
        write_all(self._file.fileno(), as_bytes(rows.contiguous()).numpy().data)
        dtype, count = self._parts.pop() if self._parts else (rows.dtype, 0)
        if dtype != rows.dtype:
            self._parts.append((dtype, count))
            count = 0
        self._parts.append((rows.dtype, count + len(rows)))

    def pieces(self) -> Iterator[Tensor]:
        """Yields all rows, in the dtypes in which they came."""
        offset = 0
        for dtype, count in self._parts:
            row_bytes = torch.Size(self._row_shape).numel() * dtype.itemsize
            step = max(1, _PIECE_BYTES // max(1, row_bytes))
            for begin in range(0, count, step):
                rows = torch.empty((min(step, count - begin), *self._row_shape), dtype=dtype)
                buffer = as_bytes(rows).numpy().data
                read_into(self._file.fileno(), self._path, offset, buffer)
                offset += len(buffer)
                yield rows

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The dtypes of all rows."""
        return {dtype for dtype, _ in self._parts}

    def mapped(self) -> Tensor:
        """Returns all rows, mapped; there must be some, of one dtype."""
        ((dtype, count),) = self._parts
        values = count * torch.Size(self._row_shape).numel()
        if not values:
            return torch.empty((count, *self._row_shape), dtype=dtype)
        rows = torch.from_file(str(self._path), shared=False, size=values, dtype=dtype)
        return rows.view(count, *self._row_shape)

    def remove(self) -> None:
        """Removes the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)
