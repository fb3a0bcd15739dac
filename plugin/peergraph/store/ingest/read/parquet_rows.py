"""Reads rows of Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from peergraph.store.ingest.read.batch import Batch, RowRange, RowReader
from peergraph.store.ingest.read.optional import require


class ParquetRows(RowReader):
    """Rows of Parquet files, one file after the other.

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

    def batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[Batch]:
        """Yields all rows, as :class:`RowReader` says."""
        errors = require("pyarrow", "reading Parquet files").ArrowInvalid
        for path, num_rows in zip(self._paths, self._rows, strict=True):
            file = self._open(path)
            check_columns(str(path), file.schema_arrow.names, columns)
            num_bytes, begin = path.stat().st_size, 0
            try:
                for rows in file.iter_batches(batch_rows, columns=[*columns], use_threads=True):
                    end = begin + rows.num_rows
                    read = num_bytes * rows.num_rows // max(1, num_rows)
                    arrays = dict(zip(rows.schema.names, rows.columns, strict=True))
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

    def _open(self, path: Path) -> Any:
        try:
            # Buffers read ahead would hold all of the columns of the file.
            return self._parquet.ParquetFile(path, pre_buffer=False)
        except FileNotFoundError:
            raise
        except Exception as error:  # ArrowInvalid, and OSError for what is damaged
            raise ValueError(f"{path} is no Parquet file: {error}") from error


def check_columns(file: str, names: Sequence[str], wanted: Sequence[str]) -> None:
    """Raises ValueError if a file lacks columns."""
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ValueError(f"{file} has no column {missing[0]!r}, it has {', '.join(names)}")
