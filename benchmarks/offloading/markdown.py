"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> list[str]:
    """A table in Markdown; numbers to the right."""
    cells = [[_text(cell) for cell in line] for line in lines]
    return [
        f"| {' | '.join(head)} |",
        f"| {' | '.join(['---'] + ['---:'] * (len(head) - 1))} |",
        *(f"| {' | '.join(line)} |" for line in cells),
        "",
    ]


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
