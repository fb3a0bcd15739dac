"""Rows of CSV files, plain or compressed. All values are text."""

from __future__ import annotations

import csv as python_csv
import io
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from peergraph.store.ingest.graph_files import CsvFormat
from peergraph.store.ingest.read.arrow_rows import arrow_errors
from peergraph.store.ingest.read.csv_text import CheckedText, check_text
from peergraph.store.ingest.read.optional import arrow, csv
from peergraph.store.ingest.read.row_source import Block, RowFile
from peergraph.store.ingest.values.arrow_arrays import Mask, as_arrow, named_type

_SAMPLE_BYTES = 1 << 20
_BLOCK_BYTES = 16 << 20
_COMPRESSION = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_COMPRESSED = 5
"""The ratio of the sizes of decompressed and compressed files, roughly."""
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*|\s*[+-]?(nan|inf)\s*", re.I)
_ENDS = (
    {"src", "source", "from", "s", "u", "head", "source_id", "src_id", "from_id"},
    {"dst", "dest", "destination", "target", "to", "d", "v", "t", "tail", "dst_id", "target_id"},
)
"""Usual names of the columns of sources and destinations."""
_OTHER_TEXT = {
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"\x1f\x8b": "gzip (its name must end in .gz)",
    b"PK\x03\x04": "a zip archive",
    b"PAR1": "a Parquet file",
}


class CsvRows(RowFile):
    """Rows of a CSV file. Lines with too many or too few values cannot be read; an empty line is a
    row without values.

    Args:
        header: whether the first line is a header; None: that is to be found.
        named: the columns that users name, which tell a header.
    """

    is_text = True

    def __init__(
        self, path: Path, csv: CsvFormat, header: bool | None, named: Collection[str]
    ) -> None:
        self._skip_rows, self._delimiter = csv.skip_rows, csv.delimiter or ","
        suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
        if csv.delimiter is None and ".tsv" in suffixes:
            self._delimiter = "\t"
        self._compression = _COMPRESSION.get(path.suffix.lower())
        state = path.stat()
        if self._compression and not state.st_size:
            raise ValueError(f"{path} is empty: it has no compressed text")
        with self._open(path) as stream:
            sample: bytes = stream.read(_SAMPLE_BYTES)
        lines = _first_lines(str(path), sample, csv.skip_rows, self._delimiter)
        if lines and header is None:
            header = _has_header(str(path), lines, [*named, *csv.types])
        self.has_header = header
        """Whether the first line is a header; None: there is no line."""
        self._is_empty = len(lines) == bool(header)
        types = {name: named_type(text) for name, text in csv.types.items()}
        names = lines[0] if lines else []
        if not header:
            names = [f"f{number}" for number in range(len(names))]
        for name in types if names else ():
            if name not in names:
                raise ValueError(f"{path}: types: no column {name!r}; columns: {', '.join(names)}")
        num_lines = sample.count(b"\n") + 1
        self._line_bytes = max(8, len(sample) // num_lines)
        expected = state.st_size * (_COMPRESSED if self._compression else 1) * num_lines
        columns = [(name, types.get(name)) for name in names]
        super().__init__(str(path), columns, expected // max(1, len(sample)), path, state)

    def row_bytes(self, columns: Sequence[str]) -> int:
        """Returns an estimate, from the first lines: text, and what is made of it."""
        return self._line_bytes + 16 * len(columns)

    def blocks(self, columns: Sequence[str], batch_rows: int) -> Iterator[Block]:
        """Yields all rows, as :class:`RowFile` says."""
        if self._is_empty:
            return
        faults: list[tuple[int, str]] = []  # lines behind those that have been yielded
        none = arrow.record_batch([arrow.nulls(0, arrow.string())] * len(columns), [*columns])
        before, done = self._skip_rows + bool(self.has_header) + 1, 0

        def skip(line: Any) -> str:
            reason = f"{line.actual_columns} values, {line.expected_columns} columns"
            faults.append((line.number - before, reason))
            return "skip"

        with self._open(self._path) as stream:
            checked = CheckedText(stream, self._delimiter)
            try:
                for rows in chain(self._parsed(checked, columns, skip), [none]):
                    rows, masks = _with_faults(rows, faults, done, is_last=rows is none)
                    yield dict(zip(columns, rows.columns, strict=True)), masks
                    done += len(rows)
            except arrow.ArrowInvalid as error:
                self._check()
                raise ValueError(f"{self.name} cannot be read: {error}") from error
        if checked.is_doubtful:
            self._check()

    def _parsed(self, stream: Any, columns: Sequence[str], skip: Any) -> Any:
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
        with self._open(self._path) as stream:
            check_text(self.name, stream, self._delimiter)

    @contextmanager
    def _open(self, path: Any) -> Iterator[Any]:
        """Yields the decompressed content."""
        with arrow.OSFile(str(path.absolute()), "rb") as raw, arrow_errors(str(path)):
            compression = self._compression
            yield arrow.CompressedInputStream(raw, compression) if compression else raw


def _with_faults(
    block: Any, faults: list[tuple[int, str]], done: int, is_last: bool
) -> tuple[Any, dict[str, Mask]]:
    """Returns the rows of a block, with a row of missing values for each faulty line between them,
    and a mask of these rows by reason; takes these lines out of `faults`. `done` is the number of
    lines of all blocks before.
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


def _first_lines(name: str, sample: bytes, skip_rows: int, delimiter: str) -> list[list[str]]:
    """Returns the values of the first two lines of a file, or of fewer, from its first bytes."""
    for magic, kind in _OTHER_TEXT.items():
        if sample.startswith(magic):
            raise ValueError(f"{name} is {kind}, not CSV in UTF-8")
    text = io.StringIO(sample.decode("utf-8-sig", errors="replace"), newline="")
    for _ in range(skip_rows):
        if not text.readline():
            break
    reader = python_csv.reader(text, delimiter=delimiter)
    try:
        lines = [values or [""] for values, _ in zip(reader, range(2), strict=False)]
    except python_csv.Error as error:
        raise ValueError(f"{name}: the first line cannot be read: {error}") from None
    if not lines and skip_rows and sample.strip():
        raise ValueError(f"{name}: no line is behind the first {skip_rows} (skip_rows)")
    if not lines or (lines == [[""]] and not sample.strip()):
        return []
    if any("\n" in value or "\r" in value for value in lines[0]):
        raise ValueError(f"{name}: the first line has a value of several lines")
    return lines


def _has_header(name: str, lines: Sequence[Sequence[str]], named: Collection[str]) -> bool:
    """Returns whether the first one of two lines of a file is a header: whether it has names that
    users give, no number where the second line has one, or usual names of ends. Raises ValueError
    if it may be a row.
    """
    first, *others = ([value.strip() for value in line] for line in lines)
    is_number = [_NUMBER.fullmatch(value) is not None for value in first]
    if not all(is_number) and any(value in first for value in named):
        return True
    numbers_follow = any(_NUMBER.fullmatch(value) for line in others for value in line)
    has_ends = len(first) > 1 and all(v.lower() in e for v, e in zip(first, _ENDS, strict=False))
    if not any(is_number) and (numbers_follow or has_ends):
        return True
    shown = ",".join(first)
    raise ValueError(
        f"{name}: the first line {shown[:80]!r} may be a header or a row: say so by "
        "csv=CsvFormat(header=True) or CsvFormat(header=False), header=yes or header=no on the "
        "command line"
    )
