"""The file of one table, written row by row as it is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from peergraph.memory.table.row_codec import codec_of
from peergraph.memory.table.row_encoder import RowEncoder
from peergraph.store.disk.manifest import StorageEntry, TableEntry
from peergraph.store.disk.npy_writer import NpyWriter
from peergraph.store.ingest.staged_rows import StagedRows
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
        self._staged: StagedRows | None = None
        if is_staged or table.dtype is None:
            self._staged = StagedRows(workspace.temporary / f"{path.name}.rows")
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

        Raises:
            ValueError: no dtype holds all values of text.
        """
        table = self.table
        table.finish()
        if self._staged is not None:
            for rows in self._ordered(self._staged, order, left_out):
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
        """Closes the files after an error."""
        if self._writer is not None:
            self._writer.__exit__(ValueError, None, None)
            self._writer = None
        if self._staged is not None:
            self._staged.remove()

    def _ordered(
        self,
        staged: StagedRows,
        order: NDArray[np.int64] | None,
        left_out: NDArray[np.int64] | None,
    ) -> Iterator[Tensor]:
        """Yields the rows that waited, see :meth:`finish`."""
        if order is not None and len(order):
            if staged.dtypes != {self.table.dtype}:
                several, staged = staged, StagedRows(self._workspace.temporary / self._path.name)
                for rows in several.pieces():
                    staged.append(self._converted(rows))
            mapped = staged.mapped()
            step = max(1, _PIECE_BYTES // max(1, mapped[0].nbytes))
            for piece in torch.split(torch.from_numpy(order), step):
                yield mapped[piece]
            return
        first = 0
        for rows in staged.pieces():
            end = first + len(rows)
            keep = torch.ones(len(rows), dtype=torch.bool)
            if left_out is not None and len(left_out):
                begin_at, end_at = np.searchsorted(left_out, [first, end])
                keep[torch.from_numpy(left_out[begin_at:end_at] - first)] = False
            yield self._converted(rows[keep])
            first = end

    def _converted(self, rows: Tensor) -> Tensor:
        """Returns rows that waited in the dtype of the table, which was found after them."""
        dtype = self.table.dtype
        if rows.dtype == dtype:
            return rows
        converted = rows.to(dtype)
        changed = (converted.to(rows.dtype) != rows) | (converted.abs() >= 2.0**63)
        if changed.any():
            raise ValueError(
                f"table {self.table.name!r}: {int(rows[changed][0])} would be rounded to {dtype}, "
                "which rows with decimals have: declare a dtype (Columns or Rows)"
            )
        return converted

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
            shape, dtype = self.table.row_shape, self.table.dtype
            assert shape is not None
            assert dtype is not None
            storage = storage_of(self._workspace.storage, self._kind, self.table.name)
            try:
                codec = codec_of(storage, dtype, shape)
            except ValueError as error:
                raise ValueError(f"table {self.table.name!r} of {self._kind!r}: {error}") from None
            if codec is not None:
                self._encoder = RowEncoder(codec, table_name(self._kind, self.table.name))
                shape, dtype = (codec.row_bytes,), torch.uint8
            self._writer = NpyWriter(self._path, (None, *shape), dtype, in_threads=True)
        return self._writer
