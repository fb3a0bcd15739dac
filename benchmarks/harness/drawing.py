"""Draws charts as SVG files: lines, bars, and the overview of the README."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.charts import Chart

_MOST_TICKS = 12


def pyplot() -> Any:
    """matplotlib's pyplot, without a screen; the same records make the same files."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "peergraph", "font.size": 9, "font.family": "DejaVu Sans"})
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
    return plt


def draw_all(charts: Mapping[str, Chart], folder: Path) -> list[Path]:
    """Draws charts as files NAME.svg, where matplotlib is there; says so where it is not."""
    try:
        return [
            (draw_lines if chart.is_lines else draw_bars)(chart, folder / f"{name}.svg")
            for name, chart in charts.items()
            if chart.has_values
        ]
    except ModuleNotFoundError as error:
        print(f"no pictures: {error}", file=sys.stderr)
        return []


def draw_lines(chart: Chart, path: Path) -> Path:
    """A line for each system, dotted for the floor."""
    figure, axes = pyplot().subplots(figsize=(7, 3.4))
    x = range(len(chart.cases))
    marker = "o" if len(chart.cases) <= _MOST_TICKS else None
    for series in [*chart.series, *([chart.floor] if chart.floor else [])]:
        style = ":" if series is chart.floor else "-"
        values = [float("nan") if v is None else v for v in series.values]
        axes.plot(x, values, style, marker=marker, color=series.color, label=series.name)
    every = -(-len(chart.cases) // _MOST_TICKS)
    axes.set_xticks(list(x)[::every], chart.cases[::every])
    axes.set_xlabel(chart.unit.partition("by ")[2])
    axes.set_ylabel(chart.unit.partition(",")[0])
    if chart.from_zero:
        axes.set_ylim(bottom=0)
    _title(figure, chart.title)
    figure.legend(ncol=3, loc="lower center", frameon=False, fontsize=8)
    return _save(figure, path, bottom=0.14)


def draw_bars(chart: Chart, path: Path) -> Path:
    """Horizontal bars by case, one for each system, with their numbers."""
    plt = pyplot()
    measured = sum(v is not None for s in chart.series for v in s.values)
    figure, axes = plt.subplots(figsize=(7, 1.2 + 0.19 * (measured + len(chart.cases))))
    values = [v for s in chart.series for v in s.values if v is not None]
    y, middles = 0, []
    for i in range(len(chart.cases)):
        first = y
        for series in chart.series:
            if (value := series.values[i]) is not None:
                axes.barh(y, value, 0.9, color=series.color)
                text = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
                axes.annotate(f" {text}", (value, y), va="center", fontsize=7.5)
                y += 1
        if chart.floor and (value := chart.floor.values[i]) is not None:
            axes.vlines(value, first - 0.5, y - 0.5, chart.floor.color, linestyle=":", linewidth=2)
        middles.append((first + y - 1) / 2)
        y += 1
    axes.set_yticks(middles, chart.cases)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    if max(values) > 50 * min(values) > 0:
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 3, 2 * max(values))
    else:
        axes.set_xlim(0, 1.1 * max(values))
    axes.set_xlabel(chart.unit + chart.better)
    _title(figure, chart.title)
    handles = [plt.Rectangle((0, 0), 1, 1, color=series.color) for series in chart.series]
    names = [series.name for series in chart.series]
    if chart.floor:
        handles.append(plt.Line2D([], [], color=chart.floor.color, linestyle=":", linewidth=2))
        names.append(chart.floor.name)
    rows = -(-len(names) // 3)
    figure.legend(handles, names, ncol=3, loc="lower center", frameon=False, fontsize=8)
    return _save(figure, path, bottom=0.22 * rows / figure.get_figheight())


def draw_overview(bars: list[tuple[str, str, str, float]], path: Path) -> Path:
    """Draws the speed-up over each peer."""
    figure, axes = pyplot().subplots(figsize=(8, 0.9 + 0.36 * len(bars)))
    for i, (_, peer, color, ratio) in enumerate(bars):
        axes.barh(i, ratio, 0.7, color=color)
        short = peer.partition(",")[0]
        axes.text(ratio + 0.05, i, f"{ratio:.2f} x {short}", va="center", fontsize=8.5)
    axes.axvline(1, color="#444", linewidth=1, linestyle=":")
    axes.set_yticks(range(len(bars)), [bar[0] for bar in bars])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45 * max(bar[3] for bar in bars))
    axes.set_xlabel("speed-up over the peer, in the same run on NVIDIA H200s (1: equally fast)")
    return _save(figure, path)


def _title(figure: Any, title: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")


def _save(figure: Any, path: Path, bottom: float = 0.0) -> Path:
    return save(figure, path, bottom, facecolor="white")


def save(figure: Any, path: Path, bottom: float = 0.0, **options: Any) -> Path:
    """Writes a file, without a date: the same records make the same file."""
    figure.tight_layout(rect=(0, bottom, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None}, **options)
    pyplot().close(figure)
    return path


def slug(text: object) -> str:
    """A part of a file's name."""
    return "".join(c if c.isalnum() else "-" for c in str(text))


def legend(figure: Any, colors: Mapping[str, str]) -> None:
    """A legend below all panels: labels and their colours."""
    handles = [pyplot().Rectangle((0, 0), 1, 1, color=color) for color in colors.values()]
    figure.legend(handles, list(colors), fontsize=7, ncol=len(colors), loc="lower center")
