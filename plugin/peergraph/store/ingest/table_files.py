"""The files of tables, written row by row as they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from peergraph.memory import RowCodec
from peergraph.memory.table.row_codec import codec_of
from peergraph.memory.table.row_encoder import RowEncoder
from peergraph.store.disk.manifest import StorageEntry, TableEntry
from peergraph.store.disk.npy_writer import NpyWriter
from peergraph.store.disk.saved_array import as_bytes
from peergraph.store.ingest.read.batch import Batch, RowIndices
from peergraph.store.ingest.values.numbers import Mask, Problems
from peergraph.store.ingest.values.table_rows import TableRows
from peergraph.store.ingest.workspace import Workspace
from peergraph.store.input.source import EdgeType, NodeType
from peergraph.store.input.storage import storage_of
from peergraph.store.placement.items import table_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PIECE_BYTES = 64 << 20


class TableFiles:
    """The tables of one node or edge type. A context manager; its end completes the files.

    Args:
        kind: the node type or edge type.
        given: the tables by name, as users describe them.
        column_names: the columns of the type's files.
        is_text: whether the values come from text, see :attr:`RowReader.is_text`.
        workspace: the workspace; the files are written to its folder.
        stem: the stem of the file names: ``<stem>.table0.npy`` and so on.
        repeat: the number of times that each row is written.
        order: ``[rows]`` the new position of each row; None: rows stay in their order.
    """

    def __init__(
        self,
        kind: NodeType | EdgeType,
        given: Mapping[str, Any],
        column_names: Sequence[str],
        is_text: bool,
        workspace: Workspace,
        stem: str,
        repeat: int = 1,
        order: NDArray[np.int64] | None = None,
    ) -> None:
        memory = workspace.memory // 2 // max(1, len(given))  # other rows are read at a time
        self._tables = [TableRows(n, t, column_names, memory, is_text) for n, t in given.items()]
        self._kind, self._workspace = kind, workspace
        folder = workspace.folder
        self._paths = [folder / f"{stem}.table{i}.npy" for i in range(len(self._tables))]
        self._repeat, self._order = repeat, order
        self._writers: list[NpyWriter | None] = [None] * len(self._tables)
        self._encoders: list[RowEncoder | None] = [None] * len(self._tables)
        self._unordered: list[NDArray[np.uint8] | None] = [None] * len(self._tables)
        self._open = ExitStack()

    @property
    def columns(self) -> list[str]:
        """Columns that a batch must have."""
        names = [name for table in self._tables for name in table.columns]
        return list(dict.fromkeys(names))

    @property
    def can_have_problems(self) -> bool:
        """Whether there are tables."""
        return bool(self._tables)

    def check_rows(self, num_rows: int, what: str) -> None:
        """Raises ValueError if a table with a separate file has another number of rows."""
        for table in self._tables:
            if table.array is None:
                continue
            found = table.array.num_rows if table.array.count is None else table.array.count()
            if found != num_rows:
                raise ValueError(
                    f"table {table.name!r} of {what} has {found} rows, there are {num_rows}"
                )

    def check_filter(self, where: str | None, what: str) -> None:
        """Raises NotImplementedError if a filter of rows meets a table with its own file."""
        if where is not None and self.has_arrays:
            raise NotImplementedError(
                f"{what}: where goes without tables that have a file of their own: write the rows "
                "that are left into a file"
            )

    @property
    def has_arrays(self) -> bool:
        """Whether a table has a separate file."""
        return any(table.array is not None for table in self._tables)

    @property
    def array_rows(self) -> int | None:
        """The number of rows of a table with a separate file; None if it is not known, or if there
        is no such table.
        """
        arrays = [table.array for table in self._tables if table.array is not None]
        return next((array.num_rows for array in arrays if array.num_rows >= 0), None)

    @property
    def array_bytes(self) -> int:
        """The bytes of all tables with separate files."""
        arrays = [table.array for table in self._tables if table.array is not None]
        return sum(max(0, array.num_rows) * array.row_bytes for array in arrays)

    @property
    def array_row_bytes(self) -> int:
        """The bytes of a row of all tables with separate files, in memory."""
        return sum(table.array_row_bytes for table in self._tables)

    def read(self, batch: Batch, rows: RowIndices, problems: Problems) -> list[Tensor]:
        """Returns the rows of all tables that belong to a batch.

        Args:
            batch: the batch.
            rows: the numbers of the batch's rows over all files.
            problems: gets the rows without a value.
        """
        return [table.read(batch, rows, problems) for table in self._tables]

    def write(self, rows: Sequence[Tensor], numbers: RowIndices, keep: Mask | None) -> None:
        """Appends the rows of a batch.

        Args:
            rows: the rows of each table.
            numbers: the numbers of the rows over all files.
            keep: a mask of the rows to write; None: all rows.
        """
        for i, values in enumerate(rows):
            kept = values if keep is None else values[torch.from_numpy(keep)]
            if self._repeat > 1:
                kept = kept.repeat_interleave(self._repeat, dim=0)
            if self._order is None:
                self._append(i, kept)
            else:
                places = numbers if keep is None else numbers[keep]
                self._put(i, kept, self._order[np.asarray(places)])

    def entries(self) -> tuple[TableEntry, ...]:
        """Returns the entries of the manifest, after the end."""
        found = []
        for table, writer, encoder in zip(self._tables, self._writers, self._encoders, strict=True):
            assert writer is not None
            storage = None
            if encoder is not None:
                storage = StorageEntry.of(encoder.codec)
                report = encoder.errors.report(encoder.name, encoder.codec)
                self._workspace.storage_reports[encoder.name] = report
            found.append(TableEntry(table.name, writer.entry, storage))
        return tuple(found)

    def __enter__(self) -> TableFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        with self._open:
            for table in self._tables:
                table.close()
            if kind is None:
                for i in range(len(self._tables)):
                    self._write_ordered(i)
                    self._writer(i)
            else:
                self._open.__exit__(kind, *rest)

    def _writer(self, i: int) -> NpyWriter:
        writer = self._writers[i]
        if writer is None:
            table = self._tables[i]
            if table.dtype is None or table.row_shape is None:
                table.finish_without_rows()
            assert table.dtype is not None
            assert table.row_shape is not None
            shape, dtype, codec = table.row_shape, table.dtype, self._codec(table)
            if codec is not None:
                self._encoders[i] = RowEncoder(codec, table_name(self._kind, table.name))
                shape, dtype = (codec.row_bytes,), torch.uint8
            writer = NpyWriter(self._paths[i], (None, *shape), dtype, in_threads=True)
            self._writers[i] = self._open.enter_context(writer)
        return writer

    def _codec(self, table: TableRows) -> RowCodec | None:
        """Returns the encoding of a table whose dtype and shape are known. Raises ValueError."""
        storage = storage_of(self._workspace.storage, self._kind, table.name)
        assert table.dtype is not None
        assert table.row_shape is not None
        try:
            return codec_of(storage, table.dtype, table.row_shape)
        except ValueError as error:
            raise ValueError(f"table {table.name!r} of {self._kind!r}: {error}") from None

    def _append(self, i: int, rows: Tensor) -> None:
        """Writes rows behind those that have been written, encoded where the table is narrow."""
        writer, encoder = self._writer(i), self._encoders[i]
        if encoder is not None:
            dtype = self._tables[i].dtype
            rows = encoder.encode(rows.to(dtype).contiguous(), encoder.errors.rows)
        writer.write(rows)

    def _put(self, i: int, rows: Tensor, places: NDArray[np.int64]) -> None:
        """Writes rows to their places in a mapped file."""
        values = as_bytes(rows).numpy().reshape(len(rows), -1)
        file = self._unordered[i]
        if file is None:
            assert self._order is not None
            shape = (len(self._order), max(1, values.shape[1]))
            path = self._workspace.temporary / f"{self._paths[i].name}.unordered"
            file = self._unordered[i] = np.memmap(path, np.uint8, "w+", shape=shape)
        file[places, : values.shape[1]] = values

    def _write_ordered(self, i: int) -> None:
        file, table = self._unordered[i], self._tables[i]
        if file is None:
            return
        assert table.dtype is not None
        assert table.row_shape is not None
        step = max(1, _PIECE_BYTES // file.shape[1])
        for begin in range(0, len(file), step):
            piece = torch.from_numpy(np.array(file[begin : begin + step]))
            rows = piece.view(table.dtype).view(len(piece), *table.row_shape)
            self._append(i, rows)
