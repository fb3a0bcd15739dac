"""Rows of Parquet files, and of tables, datasets and streams of Arrow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peergraph.store.ingest.read.optional import arrow, dataset, filesystems, parquet
from peergraph.store.ingest.read.row_source import Block, RowFile
from peergraph.store.ingest.values.arrow_arrays import plain

_AHEAD = 4  # batches that Arrow's threads decode ahead
_SAMPLE_ROWS = 1 << 10
# Buffers read ahead would hold all columns of a file. Checksums are compared where there are some.
_OPTIONS: dict[str, Any] = {"pre_buffer": False, "page_checksum_verification": True}


class ArrowRows(RowFile):
    """Rows of a table, a dataset, a reader or another object of Arrow.

    Args:
        columns: name and type of each column.
        num_rows: the number of rows; None: it is not known.
        read: called with columns and the number of rows of a batch; returns record batches, or
            arrays by name.
    """

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[str, Any]],
        num_rows: int | None,
        read: Callable[[Sequence[str], int], Iterable[Any]],
        path: Path | None = None,
        state: os.stat_result | None = None,
    ) -> None:
        self._read = read
        super().__init__(name, columns, 1 << 20 if num_rows is None else num_rows, path, state)

    @classmethod
    def of(cls, table: Any) -> ArrowRows:
        """Returns the rows of an object that has a scanner, or gives a stream of batches."""
        name = type(table).__name__
        if hasattr(table, "to_batches") and hasattr(table, "count_rows"):
            # Read ahead is for many small files, and takes memory.
            return cls(
                name,
                columns_of(table.schema),
                int(table.count_rows()),
                lambda columns, batch_rows: table.to_batches(
                    columns=[*columns], batch_size=batch_rows, batch_readahead=2
                ),
            )
        if hasattr(table, "to_arrow_reader") or hasattr(table, "fetch_arrow_reader"):
            # A relation of DuckDB: its connection has one open result at a time, and its length is
            # the result of another query.
            schema = arrow_reader(table.limit(0)).read_all().schema
            return cls(
                name,
                columns_of(schema),
                None,
                lambda _, batch_rows: arrow_reader(table, batch_rows),
            )
        stream = table
        if not isinstance(table, arrow.RecordBatchReader):
            stream = arrow.RecordBatchReader.from_stream(table)
        count = len(table) if hasattr(table, "__len__") else None
        return cls(name, columns_of(stream.schema), count, lambda columns, _: stream)

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns an estimate of the bytes of a row."""
        return sum(_width(self.types[name]) for name in columns)

    def blocks(self, columns: Sequence[str], batch_rows: int) -> Iterator[Block]:
        """Yields all rows, as :class:`RowFile` says."""
        with arrow_errors(self.name):
            for rows in self._read(columns, batch_rows):
                yield {name: plain(rows[name]) for name in columns}, {}


class ParquetRows(ArrowRows):
    """Rows of a Parquet file. Threads of Arrow decode ahead."""

    def __init__(self, path: Path) -> None:
        self._file, state = path.absolute(), path.stat()
        with arrow_errors(str(path)), self._open() as file:
            groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            columns = columns_of(file.schema_arrow)
        self._largest_group = max(groups, default=0)
        super().__init__(str(path), columns, sum(groups), self._decoded, path, state)

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns the bytes of a row in memory, by the first rows."""
        with arrow_errors(self.name), self._open() as file:
            rows = next(file.iter_batches(_SAMPLE_ROWS, columns=[*columns]), None)
        if rows is None or not rows.num_rows:
            return 0
        # The dictionary of a batch may have all values of a file.
        return -(-sum(int(plain(column).nbytes) for column in rows.columns) // int(rows.num_rows))

    def _decoded(self, columns: Sequence[str], batch_rows: int) -> Iterator[Any]:
        if not batch_rows // _AHEAD < self._largest_group <= _AHEAD * batch_rows:
            # Scans decode whole row groups, each by itself.
            with self._open() as file:
                yield from file.iter_batches(batch_rows, columns=[*columns], use_threads=True)
            return
        options = dataset.ParquetFragmentScanOptions(**_OPTIONS)
        kind = dataset.ParquetFileFormat(default_fragment_scan_options=options)
        fragment = kind.make_fragment(str(self._file), filesystems.LocalFileSystem())
        yield from fragment.to_batches(
            columns=[*columns], batch_size=batch_rows, batch_readahead=_AHEAD
        )

    def _open(self) -> Any:
        return parquet.ParquetFile(self._file, **_OPTIONS)


def arrow_reader(relation: Any, batch_rows: int = 1 << 16) -> Any:
    """Returns a reader of the record batches of a relation of DuckDB."""
    # Versions before 1.5 have the other name.
    read = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
    return read(batch_rows)


def columns_of(schema: Any) -> list[tuple[str, Any]]:
    """Returns name and type of each column of a schema."""
    return [(column.name, column.type) for column in schema]


@contextmanager
def arrow_errors(name: str) -> Iterator[None]:
    """Returns a context in which errors of Arrow become ValueErrors that name what is read."""
    try:
        yield
    except (arrow.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:  # of the disk, or of another library
            raise
        raise ValueError(f"{name} cannot be read: {error}") from error


def _width(kind: Any) -> int:
    """Returns the bytes of a value, 64 where they differ between values."""
    if hasattr(kind, "list_size"):
        return int(kind.list_size) * _width(kind.value_type)
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return 64
