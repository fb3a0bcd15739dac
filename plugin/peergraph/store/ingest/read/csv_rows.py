"""Rows of CSV files, plain or compressed. All values are text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from peergraph.store.ingest.graph_files import CsvFormat
from peergraph.store.ingest.read.arrow_rows import batches_of, named_errors
from peergraph.store.ingest.read.csv_header import SAMPLE_BYTES, first_lines, has_header
from peergraph.store.ingest.read.csv_text import CheckedText, check_text
from peergraph.store.ingest.read.optional import arrow, csv
from peergraph.store.ingest.read.row_source import Batch, RowFile
from peergraph.store.ingest.values.arrow_arrays import Mask, as_arrow, named_type

_BLOCK_BYTES = 16 << 20
_COMPRESSION = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_COMPRESSED = 5
"""The ratio of the sizes of decompressed and compressed files, roughly."""


class CsvRows(RowFile):
    """Rows of a CSV file. Lines with too many or too few values are problems;
    an empty line is a row without values.

    Args:
        path: the file. ``.gz``, ``.bz2``, ``.zst`` and ``.lz4`` are decompressed.
        csv: the format of the file.
        header: whether the first line is a header; None: that is to be found.
        named: the columns that users name, which tell a header.

    Raises:
        ValueError: the first line may be a header or a row; the file is no text in UTF-8.
    """

    is_text = True

    def __init__(
        self, path: Path, csv: CsvFormat, header: bool | None, named: Collection[str]
    ) -> None:
        self._path, self._skip_rows, self._delimiter = path, csv.skip_rows, csv.delimiter or ","
        suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
        if csv.delimiter is None and ".tsv" in suffixes:
            self._delimiter = "\t"
        self._compression = _COMPRESSION.get(path.suffix.lower())
        with self._open() as (_, stream):
            sample: bytes = stream.read(SAMPLE_BYTES)
        lines = first_lines(str(path), sample, csv.skip_rows, self._delimiter)
        if lines and header is None:
            header = has_header(str(path), lines, [*named, *csv.types])
        self.has_header = header
        """Whether the first line is a header; None: there is no line."""
        self._is_empty = len(lines) == bool(header)
        types = {name: named_type(text) for name, text in csv.types.items()}
        names = lines[0] if lines else []
        if not header:
            names = [f"f{number}" for number in range(len(names))]
        size, num_lines = path.stat().st_size, sample.count(b"\n") + 1
        self._line_bytes = max(8, len(sample) // num_lines)
        expected = size * (_COMPRESSED if self._compression else 1) * num_lines
        columns = [(name, types.get(name)) for name in names]
        super().__init__(str(path), columns, expected // max(1, len(sample)), size)

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns an estimate, from the first lines: text, and what is made of it."""
        return self._line_bytes + 16 * len(columns)

    def batches(self, columns: Sequence[str], batch_rows: int, first: int) -> Iterator[Batch]:
        """Yields all rows, as :class:`RowFile` says."""
        if self._is_empty:
            return
        faults: list[tuple[int, str]] = []  # lines behind those that have been yielded
        before = self._skip_rows + bool(self.has_header) + 1

        def skip(line: Any) -> str:
            reason = f"{line.actual_columns} values, {line.expected_columns} columns"
            faults.append((line.number - before, reason))
            return "skip"

        done = at = 0
        with self._open() as (raw, stream):
            checked = CheckedText(stream, self._delimiter)
            try:
                for block in self._blocks(checked, columns, skip):
                    rows, masks = _with_faults(block, faults, done, is_last=False)
                    now = raw.tell()
                    yield from batches_of(rows, batch_rows, first + done, now - at, masks)
                    done, at = done + len(rows), now
            except arrow.ArrowInvalid as error:
                self._check()
                raise ValueError(f"{self.name} cannot be read: {error}") from error
        none = arrow.record_batch([arrow.nulls(0, arrow.string())] * len(columns), [*columns])
        rows, masks = _with_faults(none, faults, done, is_last=True)
        yield from batches_of(rows, batch_rows, first + done, 0, masks)
        if checked.is_doubtful:
            self._check()

    def _blocks(self, stream: Any, columns: Sequence[str], skip: Any) -> Any:
        """Returns a reader of record batches of text."""
        return csv.open_csv(
            arrow.PythonFile(stream, mode="r"),
            read_options=csv.ReadOptions(
                use_threads=False,  # several threads do not know the number of a faulty line
                block_size=_BLOCK_BYTES,
                skip_rows=self._skip_rows + bool(self.has_header),
                column_names=[*self.types],
            ),
            parse_options=csv.ParseOptions(
                delimiter=self._delimiter,
                newlines_in_values=True,
                ignore_empty_lines=False,
                invalid_row_handler=skip,
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(self.types, arrow.string()), include_columns=[*columns]
            ),
        )

    def _check(self) -> None:
        with self._open() as (_, stream):
            check_text(self.name, stream, self._delimiter)

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, Any]]:
        """Yields a file, and its decompressed content."""
        with arrow.OSFile(str(self._path.absolute()), "rb") as raw, named_errors(str(self._path)):
            compression = self._compression
            yield raw, arrow.CompressedInputStream(raw, compression) if compression else raw


def _with_faults(
    block: Any, faults: list[tuple[int, str]], done: int, is_last: bool
) -> tuple[Any, dict[str, Mask]]:
    """Returns the rows of a block with a row of missing values for each faulty line between them,
    and a mask of these rows by reason; takes these lines out of `faults`.

    Args:
        block: a record batch.
        faults: lines and reasons.
        done: the number of lines of all blocks before.
        is_last: whether no other block follows.
    """
    if not faults:
        return block, {}
    lines = np.array([line for line, _ in faults], np.int64) - done
    rows = np.arange(len(block) + len(lines))
    good = np.setdiff1d(rows, lines, assume_unique=True)[: len(block)]
    count = len(rows) if is_last else int(good[-1]) + 1 if len(good) else 0
    places = np.full(count, -1)
    places[good] = np.arange(len(good))
    masks: dict[str, Mask] = {}
    for line, reason in faults[: count - len(good)]:
        masks.setdefault(reason, np.zeros(count, np.bool_))[line - done] = True
    del faults[: count - len(good)]
    return block.take(as_arrow(places, places < 0)), masks
