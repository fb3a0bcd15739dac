"""Lines over epochs as SVG, without a plotting library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

_COLORS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3")
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _RIGHT = 720, 420, 50, 60, 40, 20
_TICKS = 5


def draw_curves(path: Path, title: str, curves: Mapping[str, Sequence[float]]) -> None:
    """Writes a picture of values by epoch; every second line is dashed.

    Args:
        path: of the SVG file.
        title: above the picture.
        curves: values of epochs 1, 2, ..., by name.
    """
    values = [value for curve in curves.values() for value in curve]
    least, most = min(values, default=0.0), max(values, default=1.0)
    span = (most - least) or 1.0
    epochs = max(map(len, curves.values()), default=1)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x_of(epoch: int) -> float:
        return _LEFT + width * epoch / max(1, epochs - 1)

    def y_of(value: float) -> float:
        return _TOP + height * (most - value) / span

    parts = [_text(_WIDTH / 2, 18, title, "middle", 14)]
    for tick in range(_TICKS + 1):
        value = least + span * tick / _TICKS
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y_of(value):.1f}" '
            f'y2="{y_of(value):.1f}" stroke="#ddd"/>'
        )
        parts.append(_text(_LEFT - 6, y_of(value) + 4, f"{value:.3g}", "end"))
        epoch = round((epochs - 1) * tick / _TICKS)
        parts.append(_text(x_of(epoch), _HEIGHT - _BOTTOM + 16, str(epoch + 1), "middle"))
    x = _LEFT
    for number, (name, curve) in enumerate(curves.items()):
        color = _COLORS[number % len(_COLORS)]
        dashes = ' stroke-dasharray="5 4"' if number % 2 else ""
        points = " ".join(f"{x_of(i):.1f},{y_of(v):.1f}" for i, v in enumerate(curve))
        line = f'fill="none" stroke="{color}" stroke-width="1.6"{dashes}'
        parts.append(f'<polyline points="{points}" {line}/>')
        parts.append(f'<polyline points="{x},38 {x + 20},38" {line}/>')
        parts.append(_text(x + 25, 42, name))
        x += 45 + 6 * len(name)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif">\n'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 11) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(text)}</text>"
    )
