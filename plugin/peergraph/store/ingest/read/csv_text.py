"""The text of CSV files: headers, and what no reader of CSV should accept."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

SAMPLE_BYTES = 1 << 20
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*|\s*[+-]?(nan|inf)\s*", re.I)
_ENDS = (
    {"src", "source", "from", "s", "u", "head", "source_id", "src_id", "from_id"},
    {"dst", "dest", "destination", "target", "to", "d", "v", "t", "tail", "destination_id"}
    | {"dst_id", "target_id", "to_id"},
)
"""Usual names of the columns of sources and destinations."""
_OTHER_TEXT = {
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"\x1f\x8b": "gzip (its name must end in .gz)",
    b"PK\x03\x04": "a zip archive",
    b"PAR1": "a Parquet file",
}


class WatchedStream:
    """A stream for Arrow, which notes whether it has bytes that are no text, or quotation marks at
    other places than around values.

    Args:
        stream: the stream to read.
        delimiter: the character between values.
    """

    closed = False

    def __init__(self, stream: Any, delimiter: str) -> None:
        self._stream = stream
        self._around = np.frombuffer(f'\r\n"{delimiter}'.encode(), np.uint8)
        self._last, self._is_quoted = b"\n", False
        self.needs_check = False
        """Whether :func:`check_text` has something to check in what has been read."""

    def read(self, size: int = -1) -> bytes:
        """Reads bytes."""
        data: bytes = self._stream.read(size)
        if not data:
            self.needs_check |= self._is_quoted
        elif not self.needs_check:
            if b'"' in data or self._last == b'"':
                self._check_marks(self._last + data.removeprefix(b"\xef\xbb\xbf"))
            self.needs_check |= b"\0" in data
            self._last = data[-1:]
        return data

    def _check_marks(self, data: bytes) -> None:
        """Checks the marks of some bytes but the first, and what is behind a mark that is first."""
        text = np.frombuffer(data, np.uint8)
        marks = np.flatnonzero(text == ord('"'))
        new = marks[marks > 0]
        opens = (np.arange(len(new)) + self._is_quoted) % 2 == 0
        closing = new[~opens]
        if len(new) < len(marks) and not self._is_quoted:
            closing = np.append(closing, 0)
        before = text[new[opens] - 1]
        behind = text[closing[closing < len(text) - 1] + 1]
        outside = ~np.isin(np.concatenate([before, behind]), self._around)
        self.needs_check |= bool(outside.any())
        self._is_quoted ^= bool(len(new) % 2)

    def readable(self) -> bool:
        """True."""
        return True

    def writable(self) -> bool:
        """False."""
        return False

    def seekable(self) -> bool:
        """False."""
        return False

    def close(self) -> None:
        """Leaves the stream open."""

    def flush(self) -> None:
        """Does nothing."""


def check_text(name: str, stream: Any, delimiter: str) -> None:
    """Checks the text of a file.

    Raises:
        ValueError: a quotation mark is not closed, or closed within a value; a byte is no UTF-8 or
            is zero. The error names the line, from 1 on.
    """
    raw = io.BufferedReader(_Raw(stream))
    text = io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="")
    csv.field_size_limit(1 << 40)
    reader, begin = csv.reader(text, delimiter=delimiter, strict=True), 1
    try:
        for values in reader:
            for value in values:
                if "\0" in value:
                    raise ValueError(f"{name}: line {begin} has a zero byte: it is no text")
                if not value.isascii() and any("\udc80" <= c <= "\udcff" for c in value):
                    raise ValueError(f"{name}: line {begin} is not UTF-8: convert the file")
            begin = reader.line_num + 1
    except csv.Error as error:
        reason = "a quotation mark that is not closed" if "end of data" in str(error) else error
        raise ValueError(f"{name}: line {begin} cannot be read: {reason}") from None


def first_lines(name: str, sample: bytes, skip_rows: int, delimiter: str) -> list[list[str]]:
    """Returns the values of the first two lines of a file, or of fewer.

    Args:
        sample: the first bytes of the file.
        skip_rows: the number of lines to skip.

    Raises:
        ValueError: the file is of another kind or in another encoding.
    """
    for magic, kind in _OTHER_TEXT.items():
        if sample.startswith(magic):
            raise ValueError(f"{name} is {kind}, not CSV in UTF-8")
    text = io.StringIO(sample.decode("utf-8-sig", errors="replace"), newline="")
    for _ in range(skip_rows):
        if not text.readline():
            break
    reader = csv.reader(text, delimiter=delimiter)
    try:
        lines = [values or [""] for values, _ in zip(reader, range(2), strict=False)]
    except csv.Error as error:
        raise ValueError(f"{name}: the first line cannot be read: {error}") from None
    if not lines and skip_rows and sample.strip():
        raise ValueError(f"{name}: no line is behind the first {skip_rows} (skip_rows)")
    if not lines or (lines == [[""]] and not sample.strip()):
        return []
    if any("\n" in value or "\r" in value for value in lines[0]):
        raise ValueError(f"{name}: the first line has a value of several lines")
    return lines


def has_header(name: str, lines: Sequence[Sequence[str]], named: Collection[str]) -> bool:
    """Returns whether the first line of a file is a header.

    Args:
        name: the name of the file.
        lines: the values of the first two lines, or of fewer.
        named: the names of columns that users give.

    Raises:
        ValueError: it may be a header or a row.
    """
    first = [value.strip() for value in lines[0]]
    numbers = [_NUMBER.fullmatch(value) is not None for value in first]
    if any(value in first for value in named) and not all(numbers):
        return True
    if not any(numbers) and any(first):
        if len(lines) > 1 and any(
            value and _NUMBER.fullmatch(row) is not None
            for value, row in zip(first, lines[1], strict=False)
        ):
            return True
        ends = [value.lower() for value in first[:2]]
        if len(ends) == 2 and all(map(set.__contains__, _ENDS, ends)):
            return True
    shown = ",".join(first)
    raise ValueError(
        f"{name}: the first line {shown[:80]!r} may be a header or a row: say so by "
        "csv=CsvFormat(header=True) or CsvFormat(header=False), header=yes or header=no on the "
        "command line"
    )


class _Raw(io.RawIOBase):
    """A stream of Arrow for Python's readers."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
