"""The first lines of CSV files: names of columns, or a row."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Sequence

SAMPLE_BYTES = 1 << 20
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


def first_lines(name: str, sample: bytes, skip_rows: int, delimiter: str) -> list[list[str]]:
    """Returns the values of the first two lines of a file, or of fewer, from its first bytes.

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
    """Returns whether the first one of two lines of a file is a header: whether it has names that
    users give, no number where the second line has one, or usual names of ends.

    Raises:
        ValueError: it may be a header or a row.
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
