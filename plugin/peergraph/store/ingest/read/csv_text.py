"""The text of CSV files: what Arrow's reader would accept, and nobody means."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np


class CheckedText(io.RawIOBase):
    """A stream of Arrow. It notes whether it has zero bytes, or
    quotation marks at other places than around values.
    """

    def __init__(self, stream: Any, delimiter: str) -> None:
        self._stream = stream
        self._around = np.frombuffer(f'\r\n"{delimiter}'.encode(), np.uint8)
        self._last, self._is_quoted = b"\n", False
        self.is_doubtful = False
        """Whether :func:`check_text` has something to check in what has been read."""

    def readable(self) -> bool:
        """Returns True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Reads bytes."""
        data: bytes = self._stream.read(size)
        if not data:
            self.is_doubtful |= self._is_quoted
        elif not self.is_doubtful:
            if b'"' in data or self._last == b'"':
                self._check_marks(self._last + data.removeprefix(b"\xef\xbb\xbf"))
            self.is_doubtful |= b"\0" in data
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
        self.is_doubtful |= bool(outside.any())
        self._is_quoted ^= bool(len(new) % 2)


def check_text(name: str, stream: Any, delimiter: str) -> None:
    """Checks the text of a file, a stream of Arrow.

    Raises:
        ValueError: a quotation mark is not closed, or closed within a value; a byte is no UTF-8 or
            is zero. The error names the line, from 1 on.
    """
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
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
