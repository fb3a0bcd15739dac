"""Reads rows of CSV files, plain or compressed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from peergraph.store.ingest.read.batch import Batch, Batches, RowReader
from peergraph.store.ingest.read.optional import require
from peergraph.store.ingest.read.parquet_rows import check_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK_BYTES = 16 << 20
_SAMPLE_BYTES = 1 << 16
_COMPRESSION = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_COMPRESSED = 5
"""The ratio of the sizes of decompressed and compressed files, roughly."""


@dataclass(frozen=True)
class CsvFormat:
    """The format of CSV files.

    Args:
        delimiter: the delimiter between values; default: a tab in ``.tsv`` files, else a comma.
        header: whether the first line has the names of the columns. Otherwise they are ``f0``,
            ``f1`` and so on.
        skip_rows: the number of lines before the header or the first row.
        types: Arrow's names of types by column, such as ``{"id": "string"}`` for ids with leading
            zeros; default: types are guessed from the first values.
    """

    delimiter: str | None = None
    header: bool = True
    skip_rows: int = 0
    types: Mapping[str, str] = field(default_factory=dict)


class CsvRows(RowReader):
    """Rows of CSV files, one file after the other. Lines with too many or too few values are
    skipped and reported (:attr:`Batch.skipped`).

    Args:
        paths: at least one file. ``.gz``, ``.bz2``, ``.zst`` and ``.lz4`` are decompressed.
        csv: the format of the files.
    """

    is_text = True

    def __init__(self, paths: Sequence[Path], csv: CsvFormat) -> None:
        self._arrow = require("pyarrow", "reading CSV files")
        self._csv = require("pyarrow.csv", "reading CSV files")
        self._paths = [*paths]
        self._format = csv

    @property
    def column_names(self) -> list[str]:
        """The columns of the first file that is not empty."""
        for path in self._paths:
            names = self._names(path)
            if names:
                return names
        return []

    @property
    def num_rows(self) -> None:
        """None: the number is not known without reading the files."""
        return None

    @property
    def expected_rows(self) -> int:
        """An estimate from the first lines of each file."""
        return sum(map(self._expected, self._paths))

    @property
    def num_bytes(self) -> int:
        """The bytes of all files."""
        return sum(path.stat().st_size for path in self._paths)

    def batches(self, columns: Sequence[str], batch_rows: int) -> Batches:
        """Yields all rows, see :class:`RowReader`. If later values of a file do not have the types
        of the first ones, its columns are strings from there on.
        """
        for path in self._paths:
            names = self._names(path)
            if not names:
                continue
            check_columns(str(path), names, columns)
            done = 0
            try:
                for batch in self._read(path, columns, batch_rows, as_text=False):
                    done += len(batch)
                    yield batch
            except self._arrow.ArrowInvalid:
                yield from self._read_text(path, columns, batch_rows, done)

    def _read_text(
        self, path: Path, columns: Sequence[str], batch_rows: int, done: int
    ) -> Iterator[Batch]:
        """Yields the rows of a file from kept row `done` on, with all columns as strings."""
        try:
            for batch in self._read(path, columns, batch_rows, as_text=True):
                count = len(batch)
                if done < count:
                    arrays = {name: array[done:] for name, array in batch.columns.items()}
                    yield Batch(
                        batch.file, batch.rows[done:], arrays, batch.num_bytes, batch.skipped
                    )
                done = max(0, done - count)
        except self._arrow.ArrowInvalid as error:
            raise ValueError(f"{path} cannot be read: {error}") from error

    def _read(
        self, path: Path, columns: Sequence[str], batch_rows: int, as_text: bool
    ) -> Iterator[Batch]:
        skipped: list[tuple[int, str]] = []
        before = self._format.skip_rows + (1 if self._format.header else 0)

        def skip(row: Any) -> str:
            found = f"{row.actual_columns} values, {row.expected_columns} columns"
            skipped.append((row.number - 1 - before, found))
            return "skip"

        with self._open(path) as (raw, stream):
            reader = self._reader(path, stream, columns, skip if as_text else None)
            begin, at, reported = 0, 0, 0
            for block in reader:
                for first in range(0, block.num_rows, batch_rows):
                    rows = block.slice(first, batch_rows)
                    numbers = _row_numbers(begin, begin + rows.num_rows, [s for s, _ in skipped])
                    arrays = dict(zip(rows.schema.names, rows.columns, strict=True))
                    now, new = raw.tell(), tuple(skipped[reported:])
                    yield Batch(str(path), numbers, arrays, now - at, new)
                    begin, at, reported = begin + rows.num_rows, now, reported + len(new)
            if reported < len(skipped):
                none = np.empty(0, np.int64)
                arrays = {name: self._arrow.array([], "string") for name in columns}
                yield Batch(str(path), none, arrays, 0, tuple(skipped[reported:]))

    def _reader(self, path: Path, stream: Any, columns: Sequence[str], skip: Any) -> Any:
        csv, given = self._csv, self._format
        types = {name: self._arrow.type_for_alias(kind) for name, kind in given.types.items()}
        if skip is not None:
            types = dict.fromkeys(columns, self._arrow.string())
        return csv.open_csv(
            stream,
            read_options=csv.ReadOptions(
                # The handler gets a row's number only without threads.
                use_threads=skip is None,
                block_size=_BLOCK_BYTES,
                skip_rows=given.skip_rows,
                autogenerate_column_names=not given.header,
            ),
            parse_options=csv.ParseOptions(
                delimiter=self._delimiter(path), invalid_row_handler=skip
            ),
            convert_options=csv.ConvertOptions(column_types=types, include_columns=[*columns]),
        )

    def _delimiter(self, path: Path) -> str:
        if self._format.delimiter is not None:
            return self._format.delimiter
        return "\t" if ".tsv" in path.suffixes[-2:] else ","

    def _open(self, path: Path) -> _Opened:
        raw = self._arrow.OSFile(str(path), "rb")
        kind = _COMPRESSION.get(path.suffix)
        return _Opened(raw, raw if kind is None else self._arrow.CompressedInputStream(raw, kind))

    def _names(self, path: Path) -> list[str]:
        """Returns the columns of a file; none where it is empty."""
        try:
            with self._open(path) as (_, stream):
                read = self._csv.ReadOptions(
                    skip_rows=self._format.skip_rows,
                    autogenerate_column_names=not self._format.header,
                )
                # Invalid rows do not matter here.
                parse = self._csv.ParseOptions(
                    delimiter=self._delimiter(path), invalid_row_handler=lambda _: "skip"
                )
                reader = self._csv.open_csv(stream, read_options=read, parse_options=parse)
                return list(reader.schema.names)
        except self._arrow.ArrowInvalid as error:
            if "Empty CSV" in str(error):
                return []
            raise ValueError(f"{path} is no CSV file: {error}") from error
        except OSError as error:  # of decompression
            if isinstance(error, FileNotFoundError):
                raise
            raise ValueError(f"{path} cannot be read: {error}") from error

    def _expected(self, path: Path) -> int:
        with self._open(path) as (_, stream):
            sample: bytes = stream.read(_SAMPLE_BYTES)
        lines = sample.count(b"\n") + 1
        factor = _COMPRESSED if path.suffix in _COMPRESSION else 1
        return path.stat().st_size * factor * lines // max(1, len(sample))


@dataclass(frozen=True)
class _Opened:
    """A file, and its content."""

    raw: Any
    stream: Any

    def __enter__(self) -> tuple[Any, Any]:
        return self.raw, self.stream

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.raw.close()


def _row_numbers(begin: int, end: int, skipped: Sequence[int]) -> NDArray[np.int64]:
    """Returns the numbers in the file of kept rows begin..end; `skipped` has numbers that were not
    kept.
    """
    kept = np.arange(begin, end, dtype=np.int64)
    before = np.sort(np.asarray(skipped, np.int64)) - np.arange(len(skipped))
    return kept + np.searchsorted(before, kept, side="right")
