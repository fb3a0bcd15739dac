"""Horizontal bars as SVG, without a plotting library."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

_COLORS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3")
_WIDTH, _LABELS, _VALUES = 900, 330, 70
_BAR, _GAP, _TOP = 14, 10, 58


def draw_bars(path: Path, title: str, groups: Mapping[str, Mapping[str, float | None]]) -> None:
    """Writes a picture: a group of bars for each label, in the colours of a legend.

    Args:
        groups: values by label and by series; None is left out.
    """
    series = list(dict.fromkeys(name for values in groups.values() for name in values))
    colors = {name: _COLORS[i % len(_COLORS)] for i, name in enumerate(series)}
    known = [v for values in groups.values() for v in values.values() if v is not None]
    scale = (_WIDTH - _LABELS - _VALUES) / max(known, default=1.0)
    parts, y = [], _TOP
    for label, values in groups.items():
        shown = [(name, value) for name, value in values.items() if value is not None]
        middle = y + _BAR * len(shown) / 2 + 4
        parts.append(_text(_LABELS - 8, middle, label, "end"))
        for name, value in shown:
            width = max(1.0, value * scale)
            parts.append(
                f'<rect x="{_LABELS}" y="{y}" width="{width:.1f}" height="{_BAR - 2}" '
                f'fill="{colors[name]}"/>'
            )
            parts.append(_text(_LABELS + width + 5, y + 10, f"{value:.3g}"))
            y += _BAR
        y += _GAP
    x = _LABELS
    for name in series:
        parts.append(f'<rect x="{x}" y="32" width="11" height="11" fill="{colors[name]}"/>')
        parts.append(_text(x + 15, 42, name))
        x += 30 + 7 * len(name)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" '
        f'viewBox="0 0 {_WIDTH} {y}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="{_WIDTH}" height="{y}" fill="white"/>\n'
        + _text(_WIDTH / 2, 18, title, "middle", ' font-size="14"')
        + "\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'
