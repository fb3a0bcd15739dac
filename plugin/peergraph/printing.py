"""Numbers and tables as text."""

from __future__ import annotations

from collections.abc import Sequence


def format_bytes(count: int) -> str:
    """Formats a number of bytes, as in ``1.5 GiB``."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def format_share(share: float) -> str:
    """Formats a share as in ``12.3 %``; 0 as ``-``."""
    return f"{100 * share:.1f} %" if share else "-"


def format_seconds(seconds: float) -> str:
    """Formats a time as in ``1.234 ms``; below 0.1 ms, in microseconds."""
    return f"{1e3 * seconds:.3f} ms" if seconds >= 1e-4 else f"{1e6 * seconds:.1f} us"


def table_lines(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Returns lines of text with aligned columns; the first `left` columns are left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [text.ljust(w) for text, w in zip(row[:left], widths, strict=False)]
        cells += [t.rjust(w) for t, w in zip(row[left:], widths[left:], strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines
