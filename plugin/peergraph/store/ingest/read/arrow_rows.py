"""Rows of Parquet files, and of tables, datasets and streams of Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from peergraph.store.ingest.read.optional import arrow, dataset, filesystems, parquet
from peergraph.store.ingest.read.row_source import Batch, RowSource, check_names

_AHEAD = 4  # batches that Arrow's threads decode ahead
_SAMPLE_ROWS = 1 << 10


class ArrowRows(RowSource):
    """Rows of record batches of Arrow: of one object or file after the other."""

    def __init__(self, names: Sequence[str], shown: str) -> None:
        super().__init__(names, shown)
        self._errors: Any = arrow.ArrowException

    def _batches_of(self, shown: str, batches: Iterator[Any], row_bytes: float) -> Iterator[Batch]:
        """Yields the rows of a file or object.

        Args:
            shown: names it in messages.
            batches: its record batches.
            row_bytes: the bytes that are read for a row.
        """
        self._begin_file(shown)
        begin = self.total
        try:
            for rows in batches:
                # Few functions of Arrow take views.
                arrays = {
                    name: column.cast(arrow.string()) if column.type == "string_view" else column
                    for name, column in zip(rows.schema.names, rows.columns, strict=True)
                }
                num_bytes = int(row_bytes * rows.num_rows)
                yield Batch(self._next_rows(rows.num_rows), arrays, num_bytes)
        except self._errors as error:
            done = self.total - begin
            raise ValueError(f"{shown} cannot be read from row {done} on: {error}") from error


class ParquetRows(ArrowRows):
    """Rows of Parquet files, one file after the other. Threads of Arrow decode ahead.

    Args:
        paths: the files; one at least.

    Raises:
        ValueError: a file is no Parquet file, or lacks columns of the first one.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = [*paths]
        self._schemas, self._groups = [], []  # of each file; the rows of its largest row group
        self.expected_rows = 0
        self.num_bytes = sum(path.stat().st_size for path in paths)
        for path in paths:
            with self._open(path) as file:
                self._schemas.append(file.schema_arrow)
                groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            self._groups.append(max(groups, default=0))
            self.expected_rows += sum(groups)
        super().__init__(self._schemas[0].names, str(paths[0]))
        self._errors = OSError, self._errors
        for path, schema in zip(paths, self._schemas, strict=True):
            check_names(schema.names, str(path))

    def types(self, column: str) -> list[Any]:
        """Returns the types of a column in all files."""
        return [schema.field(column).type for schema in self._schemas if column in schema.names]

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns the bytes of a row in memory, by the first rows."""
        for path in self._paths:
            with self._open(path) as file:
                try:
                    rows = next(file.iter_batches(_SAMPLE_ROWS, columns=[*columns]), None)
                except self._errors as error:
                    raise ValueError(f"{path} cannot be read: {error}") from error
            if rows is not None and rows.num_rows:
                # The dictionary of a batch may have all values of a file.
                decoded = [
                    column.dictionary_decode() if hasattr(column, "dictionary_decode") else column
                    for column in rows.columns
                ]
                return -(-sum(int(column.nbytes) for column in decoded) // int(rows.num_rows))
        return 0

    def batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[Batch]:
        """Yields all rows, as :class:`RowSource` says."""
        row_bytes = self.num_bytes / max(1, self.expected_rows)
        for path, schema, group in zip(self._paths, self._schemas, self._groups, strict=True):
            missing = [name for name in columns if name not in schema.names]
            if missing:
                raise ValueError(f"{path} has no column {missing[0]!r}, the first file has")
            decoded = self._decoded(path, columns, batch_rows, group)
            yield from self._batches_of(str(path), _joined(decoded, batch_rows), row_bytes)

    def _decoded(
        self, path: Path, columns: Sequence[str], batch_rows: int, group: int
    ) -> Iterator[Any]:
        if group > _AHEAD * batch_rows:
            # Scans decode whole row groups.
            with self._open(path) as file:
                yield from file.iter_batches(batch_rows, columns=[*columns], use_threads=True)
            return
        files = filesystems.LocalFileSystem()
        options = dataset.ParquetFragmentScanOptions(pre_buffer=False)
        kind = dataset.ParquetFileFormat(default_fragment_scan_options=options)
        yield from kind.make_fragment(str(path.absolute()), files).to_batches(
            columns=[*columns], batch_size=batch_rows, batch_readahead=_AHEAD
        )

    def _open(self, path: Path) -> Any:
        try:
            # Buffers read ahead would hold all of the columns of the file.
            return parquet.ParquetFile(path.absolute(), pre_buffer=False)
        except (OSError, arrow.ArrowException) as error:
            raise ValueError(f"{path} is no Parquet file: {error}") from error


class StreamRows(ArrowRows):
    """Rows of a table, a dataset, a reader or another object of Arrow, which is read once.

    Args:
        name: names it in messages.
        schema: its schema.
        num_rows: the number of rows, if it is known.
        read: called with columns and the number of rows of a batch; returns record batches.
    """

    def __init__(
        self,
        name: str,
        schema: Any,
        num_rows: int | None,
        read: Callable[[Sequence[str], int], Iterator[Any]],
    ) -> None:
        super().__init__(schema.names, name)
        self._name, self._schema, self._read = name, schema, read
        self.expected_rows = 1 << 20 if num_rows is None else num_rows
        self.num_bytes = 8 * self.expected_rows * len(self.names)  # roughly

    @classmethod
    def of(cls, table: Any) -> StreamRows:
        """Returns the rows of an object that has a scanner, or gives a stream of batches."""
        name = type(table).__name__
        if hasattr(table, "to_batches") and hasattr(table, "count_rows"):

            def scan(columns: Sequence[str], batch_rows: int) -> Iterator[Any]:
                # Read ahead is for many small files, and takes memory.
                yield from table.to_batches(
                    columns=[*columns], batch_size=batch_rows, batch_readahead=2
                )

            return cls(name, table.schema, int(table.count_rows()), scan)
        stream = table
        if not isinstance(table, arrow.RecordBatchReader):
            stream = arrow.RecordBatchReader.from_stream(table)
        count = len(table) if hasattr(table, "__len__") else None
        return cls(name, stream.schema, count, lambda columns, _: stream)

    def types(self, column: str) -> list[Any]:
        """Returns the type of a column."""
        return [self._schema.field(column).type]

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns an estimate of the bytes of a row."""
        return sum(_width(self._schema.field(name).type) for name in columns)

    def batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[Batch]:
        """Yields all rows, as :class:`RowSource` says."""

        def pieces() -> Iterator[Any]:
            for rows in self._read(columns, batch_rows):
                for first in range(0, rows.num_rows, batch_rows):
                    yield rows.select([*columns]).slice(first, batch_rows)

        yield from self._batches_of(self._name, pieces(), 8 * len(columns))


def _joined(batches: Iterator[Any], batch_rows: int) -> Iterator[Any]:
    """Yields record batches, those of small row groups together: each one takes a millisecond."""
    small: list[Any] = []
    held = 0
    for rows in batches:
        if small and held + rows.num_rows > min(batch_rows, _SAMPLE_ROWS):
            yield arrow.concat_batches(small) if len(small) > 1 else small[0]
            small, held = [], 0
        small.append(rows)
        held += rows.num_rows
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
