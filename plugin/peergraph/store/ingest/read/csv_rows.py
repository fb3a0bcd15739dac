"""Rows of CSV files, plain or compressed. All values are text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from peergraph.store.ingest.graph_files import CsvFormat
from peergraph.store.ingest.read.csv_header import SAMPLE_BYTES, first_lines, has_header
from peergraph.store.ingest.read.csv_text import CheckedText, check_text
from peergraph.store.ingest.read.optional import arrow, csv
from peergraph.store.ingest.read.row_source import Batch, RowSource
from peergraph.store.ingest.values.arrow_arrays import named_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK_BYTES = 16 << 20
_COMPRESSION = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_COMPRESSED = 5
"""The ratio of the sizes of decompressed and compressed files, roughly."""


class CsvRows(RowSource):
    """Rows of CSV files, one file after the other. Lines with too many or too few values are
    faults (:attr:`Batch.faults`); an empty line is a row without values.

    Args:
        paths: at least one file. ``.gz``, ``.bz2``, ``.zst`` and ``.lz4`` are decompressed.
        csv: the format of the files.
        named: the columns that users name, which tell a header.

    Raises:
        ValueError: the first line may be a header or a row; a file is no text in UTF-8.
    """

    is_text = True

    def __init__(self, paths: Sequence[Path], csv: CsvFormat, named: Collection[str] = ()) -> None:
        self._format, self._headers = csv, csv.header
        self._types = {name: named_type(text) for name, text in csv.types.items()}
        self._columns: dict[Path, list[str]] = {}
        self._without_rows: set[Path] = set()  # files of a header only
        self._paths = [*paths]
        self._line_bytes, self.expected_rows = 8, 0  # by the first lines of each file
        self.num_bytes = sum(path.stat().st_size for path in paths)
        for path in self._paths:
            self._columns[path] = self._examine(path, [*named, *csv.types])
        names = next((names for names in self._columns.values() if names), [])
        super().__init__(names, str(paths[0]))
        for path, found in self._columns.items():
            if found and sorted(found) != sorted(names):
                raise ValueError(
                    f"{path} has the columns {', '.join(found)}, the first file has "
                    f"{', '.join(names)}"
                )

    def types(self, column: str) -> list[Any]:
        """Returns the declared type of a column, if there is one."""
        return [self._types[column]] if column in self._types else []

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns an estimate, from the first lines: text, and what is made of it."""
        return self._line_bytes + 16 * len(columns)

    def batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[Batch]:
        """Yields all rows, as :class:`RowSource` says."""
        for path in self._paths:
            self._begin_file(str(path))
            if not self._columns[path] or path in self._without_rows:
                continue
            before = self.total
            try:
                for block, read in self._blocks(path, columns, None):
                    yield from self._split(block, {}, read, batch_rows)
            except arrow.ArrowInvalid:
                yield from self._rest_with_faults(path, columns, batch_rows, self.total - before)

    def _rest_with_faults(
        self, path: Path, columns: Sequence[str], batch_rows: int, done: int
    ) -> Iterator[Batch]:
        """Yields the rows of a file behind the first `done` ones, with a row of missing values for
        each faulty line: only a reader of one thread knows the numbers of these lines.
        """
        faults: list[tuple[int, str]] = []
        before = self._format.skip_rows + 1 - (not self._headers)

        def skip(line: Any) -> str:
            reason = f"{line.actual_columns} values, {line.expected_columns} columns"
            faults.append((line.number - 1 - before, reason))
            return "skip"

        good = end = 0
        try:
            for block, read in self._blocks(path, columns, skip):
                numbers = _moved_up(np.arange(good, good + len(block)), faults)
                begin, good, end = end, good + len(block), int(numbers[-1]) + 1
                places = np.full(end - begin, -1)
                places[numbers - begin] = np.arange(len(block))
                rows = block.take(arrow.array(places, mask=places < 0))
                skipped = max(0, done - begin)
                masks = _masks(faults, begin + skipped, end)
                yield from self._split(rows.slice(skipped), masks, read, batch_rows)
        except arrow.ArrowInvalid as error:
            self._check(path)
            raise ValueError(f"{path} cannot be read: {error}") from error
        last = good + len(faults)
        missing = [arrow.nulls(last - end, arrow.string()) for _ in columns]
        rows = arrow.record_batch(missing, [*columns])
        yield from self._split(rows, _masks(faults, end, last), 0, batch_rows)

    def _split(
        self, rows: Any, faults: dict[str, NDArray[np.bool_]], read: int, batch_rows: int
    ) -> Iterator[Batch]:
        """Yields the batches of a block of a file, of which `read` bytes have been read."""
        for begin in range(0, len(rows), batch_rows):
            part = rows.slice(begin, batch_rows)
            masks = {reason: mask[begin : begin + batch_rows] for reason, mask in faults.items()}
            arrays = dict(zip(part.schema.names, part.columns, strict=True))
            share = read * len(part) // len(rows)
            yield Batch(self._next_rows(len(part)), arrays, share, masks)

    def _blocks(self, path: Path, columns: Sequence[str], skip: Any) -> Iterator[tuple[Any, int]]:
        """Yields record batches of text, and the bytes that were read for each."""
        names = self._columns[path]
        with self._open(path) as (raw, stream):
            checked = CheckedText(stream, self._delimiter(path))
            reader = csv.open_csv(
                arrow.PythonFile(checked, mode="r"),
                read_options=csv.ReadOptions(
                    # Only one thread knows the number of a faulty line.
                    use_threads=skip is None,
                    block_size=_BLOCK_BYTES,
                    skip_rows=self._format.skip_rows + bool(self._headers),
                    column_names=names,
                ),
                parse_options=csv.ParseOptions(
                    delimiter=self._delimiter(path),
                    newlines_in_values=True,
                    ignore_empty_lines=False,
                    invalid_row_handler=skip,
                ),
                convert_options=csv.ConvertOptions(
                    column_types=dict.fromkeys(names, arrow.string()),
                    include_columns=[*columns],
                ),
            )
            at = 0
            for block in reader:
                now = raw.tell()
                if block.num_rows:
                    yield block, now - at
                at = now
        if checked.is_doubtful:
            self._check(path)

    def _check(self, path: Path) -> None:
        with self._open(path) as (_, stream):
            check_text(str(path), stream, self._delimiter(path))

    def _delimiter(self, path: Path) -> str:
        if self._format.delimiter is not None:
            return self._format.delimiter
        return "\t" if ".tsv" in [suffix.lower() for suffix in path.suffixes[-2:]] else ","

    @contextmanager
    def _open(self, path: Path) -> Iterator[tuple[Any, Any]]:
        """Yields a file, and its decompressed content. Errors of the content name the file."""
        with arrow.OSFile(str(path.absolute()), "rb") as raw:
            kind = _COMPRESSION.get(path.suffix.lower())
            stream = raw if kind is None else arrow.CompressedInputStream(raw, kind)
            try:
                yield raw, stream
            except OSError as error:  # of decompression
                raise ValueError(f"{path} cannot be read: {error}") from error

    def _examine(self, path: Path, named: Collection[str]) -> list[str]:
        """Returns the columns of a file, none where it has no row and no header; decides whether
        files have a header.
        """
        with self._open(path) as (_, stream):
            sample: bytes = stream.read(SAMPLE_BYTES)
        factor = _COMPRESSED if path.suffix.lower() in _COMPRESSION else 1
        size, lines = path.stat().st_size * factor, sample.count(b"\n") + 1
        self.expected_rows += size * lines // max(1, len(sample))
        self._line_bytes = max(self._line_bytes, len(sample) // lines)
        found = first_lines(str(path), sample, self._format.skip_rows, self._delimiter(path))
        if not found:
            return []
        if self._headers is None:
            self._headers = has_header(str(path), found, named)
        if self._headers and len(found) == 1:
            self._without_rows.add(path)
        return found[0] if self._headers else [f"f{i}" for i in range(len(found[0]))]


def _moved_up(rows: NDArray[np.int64], faults: Sequence[tuple[int, str]]) -> NDArray[np.int64]:
    """Returns the numbers of rows that were counted without the faulty lines before them."""
    before = np.array([row for row, _ in faults], np.int64) - np.arange(len(faults))
    return rows + np.searchsorted(before, rows, side="right")


def _masks(faults: Sequence[tuple[int, str]], begin: int, end: int) -> dict[str, NDArray[np.bool_]]:
    """Returns for each fault a mask of the lines from `begin` to `end` that have it."""
    masks: dict[str, NDArray[np.bool_]] = {}
    for row, reason in faults:
        if begin <= row < end:
            masks.setdefault(reason, np.zeros(end - begin, np.bool_))[row - begin] = True
    return masks
