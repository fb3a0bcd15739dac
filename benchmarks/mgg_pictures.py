"""Draws what fullgraph_mgg.py recorded.

    python benchmarks/mgg_pictures.py FOLDER RECORDS...

Models by the way of remote rows are MGG's Figure 8 and Table 4, its steps Figure 9, and the
settings of its parameters Figure 10.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.drawing import legend, pyplot, save
from harness.records import Record, read_records
from matplotlib.ticker import AutoLocator, LogLocator, NullLocator, StrMethodFormatter

plt = pyplot()
plt.rcParams["svg.fonttype"] = "none"  # text stays text
_WAYS = {
    "blocks": ("whole blocks, staged", "#4c72b0"),
    "halo": ("distinct rows, staged", "#55a868"),
    "in_kernel": ("a row for each edge, in the kernel (MGG)", "#dd8452"),
}
_STEPS = {
    "without neighbour partitioning": ("without neighbour partitioning", "#8172b3"),
    "without interleaving": ("without interleaving", "#dd8452"),
    "both": ("with both", "#4c72b0"),
}


def draw(records: list[Record], folder: Path) -> list[Path]:
    """Pictures as SVG files in a folder, of what there are records for."""
    rows = [r for r in records if r["bench"] == "fullgraph_mgg" and "ms" in r]
    paths = []
    for world in sorted({row["world"] for row in rows}):
        parts: dict[str, list[Record]] = {}
        for row in rows:
            if row["world"] == world:
                parts.setdefault(row["part"], []).append(row)
        if "models" in parts:
            paths.append(_models(parts["models"], folder / f"mgg_models_{world}.svg"))
        if "sums" in parts:
            paths.append(_sums(parts["sums"], folder / f"mgg_sums_{world}.svg"))
        if "steps" in parts:
            paths.append(_steps(parts["steps"], folder / f"mgg_steps_{world}.svg"))
        for row in parts.get("grid", []):
            name = f"mgg_grid_{row['graph']}_{row['dim']}_{world}.svg"
            paths.append(_grid(row, folder / _slug(name)))
    return paths


def _models(rows: list[Record], path: Path) -> Path:
    models = list(dict.fromkeys(row["layers"] for row in rows))
    figure, axes = plt.subplots(1, len(models), figsize=(3.6 * len(models), 3.4), squeeze=False)
    for panel, model in zip(axes[0], models, strict=True):
        shown = [row for row in rows if row["layers"] == model]
        _bars(panel, shown, _WAYS)
        _published(panel, shown)
        panel.set_title(model, fontsize=9)
    axes[0][0].set_ylabel("ms, forward")
    title = f"MGG's models, {_machine(rows[0])}; lines: MGG on eight A100s"
    return _save(figure, title, _WAYS, path)


def _sums(rows: list[Record], path: Path) -> Path:
    dims = sorted({row["dim"] for row in rows})
    figure, axes = plt.subplots(1, len(dims), figsize=(4.2 * len(dims), 3.4), squeeze=False)
    for panel, dim in zip(axes[0], dims, strict=True):
        shown = [row for row in rows if row["dim"] == dim]
        _bars(panel, shown, _WAYS)
        _published(panel, shown)
        panel.set_title(f"{dim} columns", fontsize=9)
    axes[0][0].set_ylabel("ms, one sum over neighbours")
    title = f"Aggregation, {_machine(rows[0])}; lines: MGG's best on four H200s"
    return _save(figure, title, _WAYS, path)


def _steps(rows: list[Record], path: Path) -> Path:
    figure, axes = plt.subplots(figsize=(5.5, 3.2))
    _bars(axes, rows, _STEPS)
    axes.set_yscale("linear")
    axes.yaxis.set_major_locator(AutoLocator())
    axes.set_ylabel("ms, one sum over neighbours")
    title = f"{rows[0]['dim']} columns, two warps a block, {_machine(rows[0])}"
    return _save(figure, title, _STEPS, path)


def _grid(row: Record, path: Path) -> Path:
    """Times by partition and distance, and by warps and distance, at what was tuned otherwise."""
    times = {tuple(setting): ms for *setting, ms in row["times"] if setting[1] > 0}
    tuned = tuple(row["tuned"])
    at = tuned if tuned in times else min(times, key=times.__getitem__)
    partitions, distances, warps = (sorted(set(values)) for values in zip(*times, strict=True))
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.4))
    left = [[times[p, d, at[2]] for d in distances] for p in partitions]
    right = [[times[at[0], d, w] for d in distances] for w in warps]
    low, high = min(times.values()), max(map(max, [*left, *right]))
    for panel, shown, values, name, mark in (
        (axes[0], left, partitions, "partition (ps)", at[0]),
        (axes[1], right, warps, "warps a block (wpb)", at[2]),
    ):
        panel.imshow(shown, vmin=low, vmax=high, cmap="viridis_r", origin="lower", aspect="auto")
        for i, line in enumerate(shown):
            for j, ms in enumerate(line):
                panel.text(j, i, f"{ms:.3g}", ha="center", va="center", fontsize=7, color="white")
        panel.plot(distances.index(at[1]), values.index(mark), "r*", markersize=16, alpha=0.6)
        panel.set_xticks(range(len(distances)), map(str, distances))
        panel.set_yticks(range(len(values)), map(str, values))
        panel.set_xlabel("distance (dist)")
        panel.set_ylabel(name)
    probes = (
        f"{row['probes']} of {len(row['times'])} settings were tried" if "probes" in row else ""
    )
    chosen = f"chosen: {row['setting']}, {row['ms']:.3g} ms, the best {row['best_ms']:.3g}"
    title = f"{row['graph']}, {row['dim']} columns, {_machine(row)}: ms; {probes}\n{chosen}"
    return _save(figure, title, {}, path)


def _bars(panel: Any, rows: Sequence[Record], kinds: dict[str, tuple[str, str]]) -> None:
    graphs = list(dict.fromkeys(row["graph"] for row in rows))
    width = 0.8 / len(kinds)
    for row in rows:
        if row["system"] not in kinds:
            continue
        place = list(kinds).index(row["system"]) - (len(kinds) - 1) / 2
        at = graphs.index(row["graph"]) + place * width
        panel.bar(at, row["ms"], width, color=kinds[row["system"]][1])
        panel.text(at, row["ms"], f"{row['ms']:.3g}", ha="center", va="bottom", fontsize=5)
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.set_xticks(range(len(graphs)), [g.replace(":", "\n") for g in graphs], fontsize=6)


def _published(panel: Any, rows: Sequence[Record]) -> None:
    graphs = list(dict.fromkeys(row["graph"] for row in rows))
    published = {row["graph"]: row["published_ms"] for row in rows if "published_ms" in row}
    for graph, ms in published.items():
        at = graphs.index(graph)
        panel.hlines(ms, at - 0.45, at + 0.45, color="black", linewidth=1.2)


def _machine(row: Record) -> str:
    return f"{row['world']} x {row['device']}"


def _slug(text: str) -> str:
    return text.replace("/", "-").replace(":", "-").replace("*", "x")


def _save(figure: Any, title: str, kinds: dict[str, tuple[str, str]], path: Path) -> Path:
    figure.suptitle(title, fontsize=8)
    if kinds:
        legend(figure, dict(kinds.values()))
    return save(figure, path, bottom=0.07 if kinds else 0)


if __name__ == "__main__":
    everything = [record for name in sys.argv[2:] for record in read_records(Path(name))]
    for drawn in draw(everything, Path(sys.argv[1])):
        print(drawn)
