"""One table: its rows from the columns of batches, and its file."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergraph.memory.table.row_codec import codec_of
from peergraph.memory.table.row_encoder import RowEncoder
from peergraph.store.disk.manifest import DTYPE_NAMES, StorageEntry, TableEntry
from peergraph.store.disk.npy_writer import NpyWriter
from peergraph.store.ingest.graph_files import Columns, Rows
from peergraph.store.ingest.read.arrays import is_array_path
from peergraph.store.ingest.read.open_rows import open_rows
from peergraph.store.ingest.read.optional import arrow
from peergraph.store.ingest.read.row_source import Batch, Problems, RowSource, named_errors
from peergraph.store.ingest.staged_rows import StagedRows
from peergraph.store.ingest.values.arrow_arrays import (
    Integers,
    common_type,
    is_text,
    row_shape,
    value_type,
)
from peergraph.store.ingest.values.numbers import MIXED_TEXT, Numbers, to_dtype, to_numbers
from peergraph.store.ingest.workspace import Workspace
from peergraph.store.input.source import EdgeType, NodeType
from peergraph.store.input.storage import storage_of
from peergraph.store.placement.items import table_name

_PIECE_BYTES = 16 << 20
_PANDAS_INDEX = r"__index_level_\d+__"
"""The columns of a frame's index without names, which is no data."""
_TEXT_DTYPES = {"b": torch.bool, "i": torch.int64, "f": torch.float32}
"""The dtypes of text, by the kinds of its values: later ones hold the values of earlier ones."""
_DTYPES = {
    **{"bool": torch.bool, "int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16},
    **{"int32": torch.int32, "int64": torch.int64},
    **{"uint16": torch.int32, "uint32": torch.int64, "uint64": torch.int64},
    **{"float16": torch.float16, "float32": torch.float32, "float64": torch.float64},
    **{"halffloat": torch.float16, "float": torch.float32, "double": torch.float64},
}
"""The dtypes that hold the values of types of NumPy and Arrow."""


def described(table: Any) -> Columns | Rows:
    """Returns the full form of a table that users describe."""
    if isinstance(table, (Columns, Rows)):
        return table
    if is_array_path(table) or isinstance(table, (PathLike, Tensor, np.ndarray)):
        return Rows(table)
    return Columns(table)


class Table:
    """A table of nodes or edges, which is written row by row as it is read.

    Args:
        kind: the node type or edge type.
        source: the rows of the type's files, if it has any.
        path: the path of its file.
        is_staged: whether rows wait in a temporary file until all are known, because they may be
            put into another order or left out.
        repeat: the number of times that each row is written.
    """

    def __init__(
        self,
        kind: NodeType | EdgeType,
        name: str,
        table: Columns | Rows,
        source: RowSource | None,
        path: Path,
        workspace: Workspace,
        is_staged: bool,
        repeat: int,
    ) -> None:
        self.name, self._full_name = name, table_name(kind, name)
        self._kind, self._nan, self._repeat = kind, table.nan, repeat
        self._path, self._workspace = path, workspace
        self.own = (
            open_rows(table.values, table.csv, (), "table") if isinstance(table, Rows) else None
        )
        """The rows of its own file, if it has one."""
        source = self.own or source
        names = () if source is None else source.names
        self.columns, self._is_matrix = _chosen_columns(table, names)
        assert source is not None
        kinds = {column: source.type(column) for column in self.columns}
        # None until rows are read.
        self._row_shape = None if self._is_matrix else row_shape(kinds[self.columns[0]])
        kinds = {column: value_type(kind) for column, kind in kinds.items()}
        times = {c: kind for c, kind in kinds.items() if arrow.types.is_temporal(kind)}
        # All have one unit.
        time = common_type([*times.values()], "the type of its times") if times else None
        self._times = dict.fromkeys(times, time)
        # None where the values of text decide, when all have been read.
        self._dtype = _dtype_of(source, kinds.values(), table.dtype)
        self._kinds: set[str] = set()  # of the values of text, as NumPy names them
        self._has_nan = False
        self._staged: StagedRows | None = None
        if is_staged or self._dtype is None:
            self._staged = StagedRows(workspace.temporary / f"{path.name}.rows")
        self._writer: NpyWriter | None = None
        self._encoder: RowEncoder | None = None

    def write(self, batch: Batch) -> None:
        """Appends the rows of a batch. Those without a value get a problem."""
        with named_errors(f"table {self.name!r}"):
            rows = self._rows(batch.columns, batch.problems)
        if self._staged is not None:
            self._staged.append(rows)
        elif len(rows):
            self._append(rows)

    def finish(self, order: Integers | None, left_out: Integers) -> TableEntry:
        """Completes the file, and returns its entry of the manifest.

        Args:
            order: the position of the row that becomes each row; None: rows stay in their order.
            left_out: the positions of rows to leave out, ascending.

        """
        if self._dtype is None:
            self._dtype = self._dtype_of_text(()) if self._kinds else torch.float32
        if self._row_shape is None:
            self._row_shape = (len(self.columns),) if self._is_matrix else ()
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
        self._workspace.notes.append(f"table {self._full_name}: {self._description()}")
        return TableEntry(self.name, writer.entry, storage)

    def close(self) -> None:
        """Closes the files after an error."""
        if self._writer is not None:
            self._writer.__exit__(ValueError, None, None)
            self._writer = None
        if self._staged is not None:
            self._staged.remove()

    def _rows(self, columns: Mapping[str, Any], problems: Problems) -> Tensor:
        num_rows, problems = len(problems.bad), problems.of(f"table {self.name!r}: a value")
        width = self._row_shape[0] if self._row_shape and not self._is_matrix else -1
        parts = [
            to_numbers(columns[column], problems, self._times.get(column), width)
            for column in self.columns
        ]
        dtype = self._dtype_of_text(parts)
        values = [to_dtype(part, dtype, self._nan, problems) for part in parts]
        if not self._is_matrix or (len(values) == 1 and values[0].dim() > 1):
            rows = values[0]
        elif any(part.dim() > 1 for part in values):
            raise ValueError("a column of lists makes a table alone")
        else:
            rows = torch.stack(values, dim=1) if values else torch.empty(num_rows, 0)
        shape = tuple(rows.shape[1:])
        if num_rows and self._row_shape is None:
            self._row_shape = shape
        if num_rows and shape != self._row_shape:
            raise ValueError(f"a row has shape {[*shape]}, the first one {self._row_shape}")
        return rows

    def _dtype_of_text(self, parts: Sequence[Numbers]) -> torch.dtype:
        """Returns the table's dtype, or that of the values of text that have been read, with those
        of a batch.
        """
        self._kinds |= {part.text_kind for part in parts} - {""}
        if "b" in self._kinds and len(self._kinds) > 1:
            raise ValueError(MIXED_TEXT)
        if self._nan == "keep" and any(part.missing is not None for part in parts):
            self._has_nan = True
        kinds = self._kinds | ({"f"} if self._has_nan and self._kinds != {"b"} else set())
        dtypes = [dtype for kind, dtype in _TEXT_DTYPES.items() if kind in kinds]
        return self._dtype or (dtypes[-1] if dtypes else torch.int64)

    def _ordered(
        self, staged: StagedRows, order: Integers | None, left_out: Integers
    ) -> Iterator[Tensor]:
        """Yields the staged rows in their final order, see :meth:`finish`."""
        if order is not None and len(order):
            if staged.dtypes != {self._dtype}:
                several, staged = staged, StagedRows(self._workspace.temporary / self._path.name)
                for rows in several.pieces():
                    staged.append(self._in_table_dtype(rows))
            mapped = staged.mapped()
            step = max(1, _PIECE_BYTES // max(1, mapped[0].nbytes))
            for piece in torch.split(torch.from_numpy(order), step):
                yield mapped[piece]
            return
        first = 0
        for rows in staged.pieces():
            begin, end = np.searchsorted(left_out, [first, first + len(rows)])
            keep = torch.ones(len(rows), dtype=torch.bool)
            keep[torch.from_numpy(left_out[begin:end] - first)] = False
            yield self._in_table_dtype(rows[keep])
            first += len(rows)

    def _in_table_dtype(self, rows: Tensor) -> Tensor:
        """Converts staged rows to the dtype of the table, which is known only after all rows."""
        if rows.dtype == self._dtype:
            return rows
        converted = rows.to(self._dtype)
        changed = (converted.to(rows.dtype) != rows) | (converted.double().abs() >= 2.0**63)
        if changed.any():
            raise ValueError(
                f"table {self.name!r}: {rows[changed][0].item()} would be rounded to "
                f"{self._dtype}, which other rows have: declare a dtype (Columns or Rows)"
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
            shape, dtype = self._row_shape, self._dtype
            assert shape is not None
            assert dtype is not None
            storage = storage_of(self._workspace.storage, self._kind, self.name)
            with named_errors(f"table {self.name!r} of {self._kind!r}"):
                codec = codec_of(storage, dtype, shape)
            if codec is not None:
                self._encoder = RowEncoder(codec, self._full_name)
                shape, dtype = (codec.row_bytes,), torch.uint8
            self._writer = NpyWriter(self._path, (None, *shape), dtype)
        return self._writer

    def _description(self) -> str:
        """Returns dtype, shape and columns for the report."""
        names = [repr(name) for name in self.columns if name]
        shown = ", ".join(names[:4]) + (f", ... ({len(names)} columns)" if len(names) > 4 else "")
        text = f"{str(self._dtype).removeprefix('torch.')} {[*(self._row_shape or ())]}"
        text += f" of {shown}" if names else ""
        times = {str(kind) for kind in self._times.values()}
        return text + (f": {', '.join(times)}" if times else "")


def _chosen_columns(table: Columns | Rows, names: Sequence[str]) -> tuple[list[str], bool]:
    """Returns the columns of a table among those of its file, and whether they make a matrix."""
    if isinstance(table, Rows):
        every = [name for name in names if not re.fullmatch(_PANDAS_INDEX, name)]
        return every, every != [""]
    columns, is_one = table.columns, False
    if isinstance(columns, str):
        is_one = columns in names or not any(character in columns for character in "*?[")
        chosen = [columns] if is_one else fnmatch.filter(names, columns)
    elif isinstance(columns, Sequence) and all(isinstance(name, str) for name in columns):
        chosen = [*columns]
    else:
        raise ValueError(f"columns must be names, got {columns!r}")
    missing = [name for name in chosen if name not in names]
    if missing or not chosen:
        what = repr(missing[0]) if missing else f"that matches {columns!r}"
        there = ", ".join(names) if names else "none: there are no files"
        raise ValueError(f"no column {what}; columns: {there}")
    return chosen, not is_one


def _dtype_of(
    source: RowSource, kinds: Collection[Any], declared: torch.dtype | str | None
) -> torch.dtype | None:
    """Returns the dtype that users declare, or the one that holds the values of columns of some
    types; None: they are text, or all missing.
    """
    dtype = DTYPE_NAMES.get(declared, declared) if isinstance(declared, str) else declared
    if dtype is not None and dtype not in list(DTYPE_NAMES.values()):
        names = ", ".join(sorted(DTYPE_NAMES))
        raise ValueError(f"dtype must be one of {names}, or such a torch.dtype, got {declared!r}")
    column_types = [kind for kind in kinds if not arrow.types.is_null(kind)]
    dtypes = [_dtype(kind) for kind in column_types if not is_text(kind)]
    has_text = len(dtypes) < len(column_types)
    if has_text and dtypes and not source.is_text:
        text = "columns are text in one place and numbers in another: convert them to one type"
        raise ValueError(text)
    if isinstance(dtype, torch.dtype):
        return dtype
    if has_text or not dtypes or (source.is_text and len(column_types) < len(kinds)):
        return None
    return source.dtype or reduce(_common, dtypes)


def _dtype(kind: Any) -> torch.dtype:
    """Returns the dtype that holds the values of a type."""
    if arrow.types.is_decimal(kind):
        return torch.float64 if kind.scale > 0 else torch.int64
    if arrow.types.is_temporal(kind):
        return torch.int32 if kind.bit_width == 32 else torch.int64
    dtype = _DTYPES.get(str(kind))
    if dtype is None:
        raise ValueError(f"expected numbers, got {kind}")
    return dtype


def _common(first: torch.dtype, second: torch.dtype) -> torch.dtype:
    both = (torch.empty(0, dtype=dtype, device="cpu").numpy().dtype for dtype in (first, second))
    return _DTYPES[np.result_type(*both).name]
