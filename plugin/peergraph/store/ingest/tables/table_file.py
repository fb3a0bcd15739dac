"""The file of one table, written row by row as it is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from peergraph.memory import RowCodec
from peergraph.memory.table.row_codec import codec_of
from peergraph.memory.table.row_encoder import RowEncoder
from peergraph.store.disk.manifest import StorageEntry, TableEntry
from peergraph.store.disk.npy_writer import NpyWriter, write_all
from peergraph.store.disk.saved_array import as_bytes
from peergraph.store.ingest.tables.table_rows import TableRows
from peergraph.store.ingest.workspace import Workspace
from peergraph.store.input.source import EdgeType, NodeType
from peergraph.store.input.storage import storage_of
from peergraph.store.placement.items import table_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PIECE_BYTES = 16 << 20


class TableFile:
    """The file of a table.

    Args:
        kind: the node type or edge type.
        table: the table.
        path: the path of the file.
        workspace: the workspace.
        is_staged: whether rows wait in a temporary file until all are known, because they may be
            put into another order or left out.
        repeat: the number of times that each row is written.
    """

    def __init__(
        self,
        kind: NodeType | EdgeType,
        table: TableRows,
        path: Path,
        workspace: Workspace,
        is_staged: bool,
        repeat: int = 1,
    ) -> None:
        self.table = table
        self._kind, self._path, self._workspace, self._repeat = kind, path, workspace, repeat
        self._staged = (
            _StagedRows(workspace.temporary / f"{path.name}.rows")
            if (is_staged or table.is_open)
            else None
        )
        self._writer: NpyWriter | None = None
        self._encoder: RowEncoder | None = None

    def write(self, rows: Tensor) -> None:
        """Appends rows."""
        if self._staged is not None:
            self._staged.append(rows)
        elif len(rows):
            self._append(rows)

    def finish(
        self,
        order: NDArray[np.int64] | None = None,
        left_out: NDArray[np.int64] | None = None,
    ) -> TableEntry:
        """Completes the file, and returns its entry of the manifest.

        Args:
            order: the position of the row that becomes each row; None: rows stay in their order.
            left_out: the positions of rows to leave out, ascending.
        """
        table = self.table
        table.finish()
        assert table.dtype is not None
        assert table.row_shape is not None
        if self._staged is not None:
            for rows in self._staged.rows(table.dtype, table.row_shape, order, left_out):
                self._append(rows)
            self._staged.remove()
        writer = self._open()
        writer.__exit__(None, None, None)
        self._writer = None
        storage = None
        if self._encoder is not None:
            storage = StorageEntry.of(self._encoder.codec)
            report = self._encoder.errors.report(self._encoder.name, self._encoder.codec)
            self._workspace.storage_reports[self._encoder.name] = report
        name = table_name(self._kind, table.name)
        self._workspace.notes.append(f"table {name}: {table.describe()}")
        return TableEntry(table.name, writer.entry, storage)

    def close(self) -> None:
        """Closes the file after an error."""
        if self._writer is not None:
            self._writer.__exit__(ValueError, None, None)
            self._writer = None
        if self._staged is not None:
            self._staged.remove()

    def _append(self, rows: Tensor) -> None:
        """Writes rows behind those that have been written, encoded where the table is narrow."""
        if self._repeat > 1:
            rows = rows.repeat_interleave(self._repeat, dim=0)
        writer = self._open()
        if self._encoder is not None:
            rows = self._encoder.encode(rows.contiguous(), self._encoder.errors.rows)
        writer.write(rows)

    def _open(self) -> NpyWriter:
        if self._writer is None:
            table = self.table
            assert table.dtype is not None
            assert table.row_shape is not None
            shape, dtype, codec = table.row_shape, table.dtype, self._codec()
            if codec is not None:
                self._encoder = RowEncoder(codec, table_name(self._kind, table.name))
                shape, dtype = (codec.row_bytes,), torch.uint8
            self._writer = NpyWriter(self._path, (None, *shape), dtype, in_threads=True)
        return self._writer

    def _codec(self) -> RowCodec | None:
        """Returns the encoding of a table whose dtype and shape are known. Raises ValueError."""
        table = self.table
        storage = storage_of(self._workspace.storage, self._kind, table.name)
        assert table.dtype is not None
        assert table.row_shape is not None
        try:
            return codec_of(storage, table.dtype, table.row_shape)
        except ValueError as error:
            raise ValueError(f"table {table.name!r} of {self._kind!r}: {error}") from None


class _StagedRows:
    """Rows in a temporary file. The dtype of text may change from whole numbers to floats once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb", buffering=0)
        self._parts: list[tuple[torch.dtype, int]] = []  # dtypes and numbers of rows
        self._row_values = 1

    def append(self, rows: Tensor) -> None:
        """Appends rows."""
        if len(rows) == 0:
            return
        self._row_values = rows[0].numel()
        write_all(self._file.fileno(), as_bytes(rows.contiguous()).numpy().data)
        if self._parts and self._parts[-1][0] == rows.dtype:
            self._parts[-1] = rows.dtype, self._parts[-1][1] + len(rows)
        else:
            self._parts.append((rows.dtype, len(rows)))

    def rows(
        self,
        dtype: torch.dtype,
        row_shape: tuple[int, ...],
        order: NDArray[np.int64] | None,
        left_out: NDArray[np.int64] | None,
    ) -> Iterator[Tensor]:
        """Yields all rows as a dtype, see :meth:`TableFile.finish`."""
        step = max(1, _PIECE_BYTES // max(1, self._row_values * dtype.itemsize))
        if order is not None:
            whole = self._in_one_dtype(dtype, row_shape, step)
            for begin in range(0, len(order), step):
                yield (
                    torch.from_numpy(whole[order[begin : begin + step]])
                    .view(dtype)
                    .view(-1, *row_shape)
                )
            return
        first = 0
        for rows in self._in_order(dtype, row_shape, step):
            end = first + len(rows)
            if left_out is not None and len(left_out):
                begin_at, end_at = np.searchsorted(left_out, [first, end])
                keep = torch.ones(len(rows), dtype=torch.bool)
                keep[torch.from_numpy(left_out[begin_at:end_at] - first)] = False
                rows = rows[keep]
            yield rows
            first = end

    def remove(self) -> None:
        """Removes the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _in_order(
        self, dtype: torch.dtype, row_shape: tuple[int, ...], step: int
    ) -> Iterator[Tensor]:
        with self._path.open("rb", buffering=0) as file:
            for stored, count in self._parts:
                for begin in range(0, count, step):
                    rows = torch.empty((min(step, count - begin), *row_shape), dtype=stored)
                    buffer = as_bytes(rows).numpy().data
                    while buffer:
                        buffer = buffer[file.readinto(buffer) or 0 :]
                    yield rows.to(dtype)

    def _in_one_dtype(
        self, dtype: torch.dtype, row_shape: tuple[int, ...], step: int
    ) -> NDArray[Any]:
        """Returns the bytes of all rows, mapped."""
        row_bytes = max(1, self._row_values * dtype.itemsize)
        total = sum(count for _, count in self._parts)
        if any(stored != dtype for stored, _ in self._parts):
            path = self._path.with_suffix(".converted")
            with path.open("wb", buffering=0) as file:
                for rows in self._in_order(dtype, row_shape, step):
                    write_all(file.fileno(), as_bytes(rows).numpy().data)
            path.rename(self._path)
        if not total or not self._row_values:
            return np.zeros((total, row_bytes if self._row_values else 0), np.uint8)
        return np.memmap(self._path, np.uint8, "r", shape=(total, row_bytes))
