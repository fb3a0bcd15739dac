"""Draws what placement.py recorded: gathers beside WholeGraph's, XGNN's Figures 10 and 13."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
from harness.records import Record

_SAMPLE, _GATHER, _OTHER = "#4c72b0", "#dd8452", "#8172b3"
_POLICIES = {"clique": "#dd8452", "clique-opt": "#8172b3", "solver": "#4c72b0", "auto": "#55a868"}


def draw_placement(rows: list[Record], folder: Path) -> list[Path]:
    """Pictures of each part, number of ranks and graph among the records, as SVG files."""
    parts: dict[str, Callable[[list[Record], plt.Axes], None]] = {
        "budgets": _budgets,
        "factors": _factors,
        "links": _links,
        "machines": _links,
    }
    pictures: dict[tuple[object, ...], list[Record]] = {}
    for row in rows:
        beside = row.get("op") == "beside"
        if row.get("part") in parts and not beside and ("ms" in row or "link_ms" in row):
            key = tuple(row.get(name) for name in ("part", "world", "graph"))
            pictures.setdefault(key, []).append(row)
    paths = []
    for (part, world, graph), of_picture in pictures.items():
        figure, axes = plt.subplots(figsize=(7, 3.2))
        parts[str(part)](of_picture, axes)
        machine = f"{world} x {of_picture[0]['device']}"
        where = "bytes over the links of XGNN's machines" if part == "machines" else machine
        axes.set_title(f"{graph}, {where}", fontsize=9)
        axes.legend(fontsize=7)
        figure.tight_layout()
        name = f"placement_{part}_{world}_{graph}".replace("/", "-")
        path = folder / f"{name}.svg"
        figure.savefig(path)
        plt.close(figure)
        paths.append(path)
    return paths


def _budgets(rows: list[Record], axes: plt.Axes) -> None:
    """GB/s of gathers, by setting and system."""
    rows = [row for row in rows if row["op"] == "gather"]
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    systems = list(dict.fromkeys(row["system"] for row in rows))
    width = 0.8 / len(systems)
    for i, system in enumerate(systems):
        for row in (row for row in rows if row["system"] == system):
            at = settings.index(row["setting"]) + (i - (len(systems) - 1) / 2) * width
            color = [_SAMPLE, _GATHER, _OTHER][i % 3]
            axes.bar(at, row["gbs"], width, color=color, label=_once(axes, system))
            axes.text(at, row["gbs"], f"{row['gbs']:.0f}", ha="center", va="bottom", fontsize=7)
    axes.set_xticks(range(len(settings)), settings)
    axes.set_yscale("log")
    axes.set_ylabel("GB/s of gathered rows, per GPU")


def _factors(rows: list[Record], axes: plt.Axes) -> None:
    """Sampling and gathering, one mechanism after the other."""
    for i, row in enumerate(rows):
        axes.bar(i, row["ms_sample"], color=_SAMPLE, label=_once(axes, "sampling"))
        axes.bar(
            i,
            row["ms_gather"],
            bottom=row["ms_sample"],
            color=_GATHER,
            label=_once(axes, "gathering features"),
        )
        axes.text(i, row["ms"], f"{row['ms']:.2f}", ha="center", va="bottom", fontsize=7)
    axes.set_xticks(range(len(rows)), [row["setting"] for row in rows], fontsize=7)
    axes.set_ylabel("ms a mini-batch")


def _links(rows: list[Record], axes: plt.Axes) -> None:
    """Gathering, by topology and policy."""
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    policies = [name for name in _POLICIES if any(row["plan"] == name for row in rows)]
    width = 0.8 / len(policies)
    for row in rows:
        i = policies.index(row["plan"])
        at = settings.index(row["setting"]) + (i - (len(policies) - 1) / 2) * width
        shown = row.get("ms_gather", row.get("link_ms"))
        axes.bar(at, shown, width, color=_POLICIES[row["plan"]], label=_once(axes, row["plan"]))
    axes.set_xticks(range(len(settings)), settings)
    axes.set_ylabel("ms to gather a mini-batch")


def _once(axes: plt.Axes, label: str) -> str | None:
    """A label for the legend, where it does not have it yet."""
    return None if label in axes.get_legend_handles_labels()[1] else label
