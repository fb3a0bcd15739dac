"""Rows of Parquet files, and of tables, datasets and streams of Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from peergraph.store.ingest.read.optional import require
from peergraph.store.ingest.read.row_source import Batch, RowSource

_AHEAD = 4  # batches that Arrow's threads decode ahead
_SAMPLE_ROWS = 1 << 10


class ParquetRows(RowSource):
    """Rows of Parquet files, one file after the other. Threads of Arrow decode ahead.

    Args:
        paths: the files; one at least.

    Raises:
        ValueError: a file is no Parquet file, or lacks columns of the first one.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._parquet = require("pyarrow.parquet", "reading Parquet files")
        self._errors = require("pyarrow", "reading Parquet files").ArrowException
        self._paths = [path.absolute() for path in paths]
        self._shown = [str(path) for path in paths]
        self._schemas, self._groups = [], []
        self._rows = self._bytes = 0
        for path, shown in zip(self._paths, self._shown, strict=True):
            with self._open(path, shown) as file:
                self._schemas.append(file.schema_arrow)
                metadata = file.metadata
                groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
            self._groups.append(max(groups, default=0))
            self._rows += sum(groups)
            self._bytes += path.stat().st_size
        super().__init__(self._schemas[0].names, self._shown[0])
        for schema, shown in zip(self._schemas[1:], self._shown[1:], strict=True):
            if len(set(schema.names)) < len(schema.names):
                super().__init__(schema.names, shown)

    @property
    def num_bytes(self) -> int:
        """The bytes of all files."""
        return self._bytes

    @property
    def expected_rows(self) -> int:
        """The number of rows of all files, which the files say."""
        return self._rows

    def types(self, column: str) -> list[Any]:
        """Returns the types of a column in all files."""
        return [schema.field(column).type for schema in self._schemas if column in schema.names]

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns the bytes of a row in memory, by the first rows."""
        for path, shown in zip(self._paths, self._shown, strict=True):
            with self._open(path, shown) as file:
                first = self._guarded(file.iter_batches(_SAMPLE_ROWS, columns=[*columns]), shown, 0)
                for rows in first:
                    if rows.num_rows:
                        return _row_bytes(rows)
        return 0

    def batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[Batch]:
        """Yields all rows, as :class:`RowSource` says."""
        for number, (path, shown) in enumerate(zip(self._paths, self._shown, strict=True)):
            missing = [name for name in columns if name not in self._schemas[number].names]
            if missing:
                raise ValueError(f"{shown} has no column {missing[0]!r}, the first file has")
            self._begin_file(shown)
            done, size = 0, path.stat().st_size
            share = size / max(1, self._rows)
            decoded = self._decoded(path, shown, columns, batch_rows, self._groups[number])
            for rows in _joined(self._guarded(decoded, shown, self.total), batch_rows):
                arrays = dict(zip(rows.schema.names, rows.columns, strict=True))
                read = int(share * rows.num_rows)
                yield Batch(self._next_rows(rows.num_rows), arrays, read)
                done += rows.num_rows

    def _decoded(
        self, path: Path, shown: str, columns: Sequence[str], batch_rows: int, group: int
    ) -> Iterator[Any]:
        if group > _AHEAD * batch_rows:
            # Scans decode whole row groups.
            with self._open(path, shown) as file:
                yield from file.iter_batches(batch_rows, columns=[*columns], use_threads=True)
            return
        dataset = require("pyarrow.dataset", "reading Parquet files")
        files = require("pyarrow.fs", "reading Parquet files").LocalFileSystem()
        options = dataset.ParquetFragmentScanOptions(pre_buffer=False)
        kind = dataset.ParquetFileFormat(default_fragment_scan_options=options)
        yield from kind.make_fragment(str(path), files).to_batches(
            columns=[*columns], batch_size=batch_rows, batch_readahead=_AHEAD
        )

    def _guarded(self, rows: Iterator[Any], shown: str, first: int) -> Iterator[Any]:
        """Yields the rows. Names the file if they cannot be decoded."""
        try:
            yield from rows
        except (OSError, self._errors) as error:
            done = self.total - first
            raise ValueError(f"{shown} cannot be read from row {done} on: {error}") from error

    def _open(self, path: Path, shown: str) -> Any:
        try:
            # Buffers read ahead would hold all of the columns of the file.
            return self._parquet.ParquetFile(path, pre_buffer=False)
        except (OSError, self._errors) as error:
            raise ValueError(f"{shown} is no Parquet file: {error}") from error


class StreamRows(RowSource):
    """Rows of a table, a dataset, a reader or another object of Arrow, which is read once.

    Args:
        name: names it in messages.
        schema: its schema.
        num_rows: the number of rows, if it is known.
        read: called with columns and the number of rows of a batch; returns record batches.
    """

    def __init__(self, name: str, schema: Any, num_rows: int | None, read: Any) -> None:
        super().__init__(schema.names, name)
        self._name, self._schema, self._rows, self._read = name, schema, num_rows, read

    @classmethod
    def of(cls, given: Any) -> StreamRows:
        """Returns the rows of an object that has a scanner, or gives a stream of batches."""
        name = type(given).__name__
        arrow = require("pyarrow", "reading Arrow record batches")
        if hasattr(given, "to_batches") and hasattr(given, "count_rows"):

            def scan(columns: Sequence[str], batch_rows: int) -> Iterator[Any]:
                # Read ahead is for many small files, and takes memory.
                yield from given.to_batches(
                    columns=[*columns], batch_size=batch_rows, batch_readahead=2
                )

            return cls(name, given.schema, int(given.count_rows()), scan)
        stream = given
        if not isinstance(given, arrow.RecordBatchReader):
            stream = arrow.RecordBatchReader.from_stream(given)

        def select(columns: Sequence[str], _: int) -> Iterator[Any]:
            for rows in stream:
                yield rows.select([*columns])

        rows = len(given) if hasattr(given, "__len__") else None
        return cls(name, stream.schema, rows, select)

    @property
    def num_bytes(self) -> int:
        """An estimate: eight bytes per value."""
        return 8 * self.expected_rows * len(self.names)

    @property
    def expected_rows(self) -> int:
        """The number of rows, or a million."""
        return 1 << 20 if self._rows is None else self._rows

    def types(self, column: str) -> list[Any]:
        """Returns the type of a column."""
        return [self._schema.field(column).type]

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns an estimate of the bytes of a row."""
        return sum(_width(self._schema.field(name).type) for name in columns)

    def batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[Batch]:
        """Yields all rows, as :class:`RowSource` says."""
        errors = require("pyarrow", "reading Arrow record batches").ArrowException
        self._begin_file(self._name)
        try:
            for given in self._read(columns, batch_rows):
                for first in range(0, given.num_rows, batch_rows):
                    rows = given.slice(first, batch_rows)
                    arrays = dict(zip(rows.schema.names, rows.columns, strict=True))
                    read = 8 * len(columns) * rows.num_rows
                    yield Batch(self._next_rows(rows.num_rows), arrays, read)
        except errors as error:
            raise ValueError(f"{self._name} cannot be read: {error}") from error


def _joined(batches: Iterator[Any], batch_rows: int) -> Iterator[Any]:
    """Yields record batches, those of small row groups together: each one takes a millisecond."""
    arrow = require("pyarrow", "reading Parquet files")
    small: list[Any] = []
    for rows in batches:
        held = sum(waiting.num_rows for waiting in small)
        if small and held + rows.num_rows > min(batch_rows, _SAMPLE_ROWS):
            yield arrow.concat_batches(small) if len(small) > 1 else small[0]
            small = []
        small.append(rows)
    if small:
        yield arrow.concat_batches(small) if len(small) > 1 else small[0]


def _width(kind: Any) -> int:
    """Returns the bytes of a value, 64 where they differ between values."""
    if hasattr(kind, "list_size"):
        return int(kind.list_size) * _width(kind.value_type)
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return 64


def _row_bytes(rows: Any) -> int:
    # The dictionary of a batch may have all values of a file.
    decoded = [
        column.dictionary_decode() if hasattr(column, "dictionary_decode") else column
        for column in rows.columns
    ]
    return -(-sum(int(column.nbytes) for column in decoded) // int(rows.num_rows))
