"""Reads rows of Parquet files."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peergraph.store.ingest.read.batch import Batch, Batches, RowRange, RowReader, read_threads
from peergraph.store.ingest.read.optional import require


@dataclass(frozen=True)
class _Part:
    """Row groups of a file that follow each other, and its metadata."""

    path: Path
    metadata: Any
    groups: list[int]
    begin: int  # the first row
    rows: int


class ParquetRows(RowReader):
    """Rows of Parquet files, one file after the other. Several threads decode ahead.

    Args:
        paths: the files; one at least.
        name: names a single file in messages; default its path.

    Raises:
        ValueError: a file is no Parquet file.
    """

    def __init__(self, paths: Sequence[Path], name: str | None = None) -> None:
        self._parquet = require("pyarrow.parquet", "reading Parquet files")
        self._paths = [*paths]
        self._name = name
        self._rows = [self._open(path).metadata.num_rows for path in self._paths]

    @property
    def column_names(self) -> list[str]:
        """The columns of the first file."""
        return list(self._open(self._paths[0]).schema_arrow.names)

    @property
    def num_rows(self) -> int:
        """The number of rows of all files."""
        return sum(self._rows)

    @property
    def num_bytes(self) -> int:
        """The bytes of all files."""
        return sum(path.stat().st_size for path in self._paths)

    def batches(self, columns: Sequence[str], batch_rows: int) -> Batches:
        """Yields all rows, as :class:`RowReader` says."""
        threads = read_threads()
        most_rows = threads * batch_rows
        waiting: deque[tuple[int, Future[list[Batch]]]] = deque()
        with ThreadPoolExecutor(threads, "peergraph_read") as pool:
            try:
                for part in self._parts(columns, batch_rows):
                    while waiting and sum(n for n, _ in waiting) + part.rows > most_rows:
                        yield from waiting.popleft()[1].result()
                    if part.rows > most_rows:
                        yield from self._decode(part, columns, batch_rows, in_threads=True)
                    else:
                        decoded = pool.submit(self._decoded, part, columns, batch_rows)
                        waiting.append((part.rows, decoded))
                while waiting:
                    yield from waiting.popleft()[1].result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _parts(self, columns: Sequence[str], batch_rows: int) -> Iterator[_Part]:
        """Yields the row groups of all files: as many at once as fit into a batch, or one."""
        for path in self._paths:
            with self._open(path) as file:
                metadata, names = file.metadata, file.schema_arrow.names
            check_columns(str(path), names, columns)
            begin = rows = 0
            groups: list[int] = []
            for group in range(metadata.num_row_groups):
                more = metadata.row_group(group).num_rows
                if groups and rows + more > batch_rows:
                    yield _Part(path, metadata, groups, begin, rows)
                    groups, begin, rows = [], begin + rows, 0
                groups.append(group)
                rows += more
            if groups:
                yield _Part(path, metadata, groups, begin, rows)

    def _decoded(self, part: _Part, columns: Sequence[str], batch_rows: int) -> list[Batch]:
        return [*self._decode(part, columns, batch_rows)]

    def _decode(
        self, part: _Part, columns: Sequence[str], batch_rows: int, in_threads: bool = False
    ) -> Iterator[Batch]:
        path, begin = part.path, part.begin
        num_bytes, num_rows = path.stat().st_size, max(1, part.metadata.num_rows)
        errors = require("pyarrow", "reading Parquet files").ArrowInvalid
        try:
            with self._open(path, part.metadata) as file:
                for rows in file.iter_batches(
                    batch_rows, row_groups=part.groups, columns=[*columns], use_threads=in_threads
                ):
                    end = begin + rows.num_rows
                    arrays = dict(zip(rows.schema.names, rows.columns, strict=True))
                    read = num_bytes * rows.num_rows // num_rows
                    yield Batch(self._name or str(path), RowRange(begin, end), arrays, read)
                    begin = end
        except (OSError, errors) as error:
            raise ValueError(f"{path} cannot be read from row {begin} on: {error}") from error

    def largest(self, column: str) -> int | None:
        """Returns the largest value by the files' statistics; None if they have none."""
        found = [-1]
        for path in self._paths:
            metadata = self._open(path).metadata
            names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
            check_columns(str(path), names, [column])
            at = names.index(column)
            for group in range(metadata.num_row_groups):
                statistics = metadata.row_group(group).column(at).statistics
                if statistics is None or not statistics.has_min_max:
                    return None
                if not isinstance(statistics.max, int) or isinstance(statistics.max, bool):
                    return None
                found.append(statistics.max)
        return max(found)

    def _open(self, path: Path, metadata: Any = None) -> Any:
        try:
            # Buffers read ahead would hold all of the columns of the file.
            return self._parquet.ParquetFile(path, metadata=metadata, pre_buffer=False)
        except FileNotFoundError:
            raise
        except Exception as error:  # ArrowInvalid, and OSError for what is damaged
            raise ValueError(f"{path} is no Parquet file: {error}") from error


def check_columns(file: str, names: Sequence[str], wanted: Sequence[str]) -> None:
    """Raises ValueError if a file lacks columns."""
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ValueError(f"{file} has no column {missing[0]!r}, it has {', '.join(names)}")
