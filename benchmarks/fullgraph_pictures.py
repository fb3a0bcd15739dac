"""Draws what fullgraph.py, fullgraph_stages.py and fullgraph_curves.py recorded.

    python benchmarks/fullgraph_pictures.py FOLDER RECORDS...

Timelines are MG-GCN's Figures 6 and 8, orders and overlap its Figure 7, denser graphs its Figure 9,
and epochs beside peers its Figure 11. Each picture is drawn where there are records for it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from harness.drawing import legend, pyplot, save, slug
from harness.records import Record, read_records

plt = pyplot()
plt.rcParams["svg.fonttype"] = "none"  # text stays text
_SUM, _COPY = "#4c72b0", "#dd8452"
_SYSTEMS = {
    "peergraph": ("Peergraph", "#4c72b0"),
    "broadcast": ("plain torch, broadcasts under sums", "#dd8452"),
    "pyg csr": ("PyG, one GPU", "#55a868"),
}
_SETTINGS = {
    "original, no overlap": ("order of the graph, no overlap", "#8172b3"),
    "random, no overlap": ("random order, no overlap", "#dd8452"),
    "": ("random order, overlap", "#4c72b0"),
}


def draw(records: list[Record], folder: Path) -> list[Path]:
    """Pictures as SVG files in a folder."""
    timed = [r for r in records if "ms" in r]
    epochs = [r for r in timed if r["bench"] == "fullgraph"]
    stages = [r for r in timed if r["bench"] == "fullgraph_stages" and "timeline" in r]
    drawn = [
        *_timelines(stages, folder),
        _orders([r for r in epochs if ":sorted" in r["graph"]], folder),
        _denser([r for r in epochs if "*" in r["graph"]], folder),
        _widths([r for r in epochs if r["layers"].startswith("GCN 2 x ")], folder),
        _peers([r for r in epochs if ":" not in r["graph"] and "*" not in r["graph"]], folder),
        _curves([r for r in records if "losses" in r], folder),
    ]
    return [path for path in drawn if path is not None]


def _timelines(rows: list[Record], folder: Path) -> list[Path]:
    cases: dict[tuple[object, ...], list[Record]] = {}
    for row in rows:
        cases.setdefault((row["graph"], row["dim"], row["world"]), []).append(row)
    paths = []
    for (graph, dim, world), of_case in cases.items():
        shown = [r for r in of_case if r["way"] in ("no overlap", "overlap")]
        height = 0.5 + 0.32 * len(shown) * world
        figure, axes = plt.subplots(len(shown), 1, sharex=True, figsize=(7, height + 0.8))
        for panel, row in zip(axes, shown, strict=True):
            _timeline(row, panel)
        axes[-1].set_xlabel("ms")
        figure.suptitle(
            f"One sum of {dim} columns, {graph}, {_machine(rows[0], world)}", fontsize=9
        )
        legend(figure, {"sums of a stage": _SUM, "copies of a stage": _COPY})
        paths.append(save(figure, folder / f"stages_{slug(graph)}_{dim}_{world}.svg", bottom=0.06))
    return paths


def _timeline(row: Record, axes: Any) -> None:
    labels = []
    for rank, spans in enumerate(row["timeline"]):
        for what, stage, begin, end in spans:
            line = 2 * rank + (what == "copy")
            axes.barh(line, end - begin, left=begin, color=_COPY if what == "copy" else _SUM)
            axes.text((begin + end) / 2, line, str(stage), ha="center", va="center", fontsize=6)
        labels += [f"GPU {rank}", ""]
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.invert_yaxis()
    order = "random order" if row["setting"] == "random" else f"{row['setting']} order"
    axes.set_title(f"{order}, {row['way']}: {row['ms_slowest']:.2f} ms", fontsize=8)


def _orders(rows: list[Record], folder: Path) -> Path | None:
    """The speed-up over the graph's own order without overlap."""
    times = {(r["graph"], r["layers"], r["world"], r.get("setting", "")): r["ms"] for r in rows
             if r["system"] == "peergraph"}  # fmt: skip
    cases = [case[:3] for case in times if case[3] == "original, no overlap"]
    if not cases:
        return None
    figure, axes = plt.subplots(figsize=(7, 3))
    for s, (setting, (label, color)) in enumerate(_SETTINGS.items()):
        for i, case in enumerate(cases):
            ratio = times[(*case, "original, no overlap")] / times[(*case, setting)]
            axes.bar(i + 0.26 * (s - 1), ratio, 0.25, color=color, label=None if i else label)
            axes.text(
                i + 0.26 * (s - 1), ratio, f"{ratio:.2f}", ha="center", va="bottom", fontsize=7
            )
    names = [f"{graph}\n{layers}, {world} GPUs" for graph, layers, world in cases]
    axes.set_xticks(range(len(cases)), names, fontsize=7)
    axes.set_ylabel("speed-up of an epoch")
    axes.set_ylim(top=1.25 * axes.get_ylim()[1])
    axes.legend(fontsize=7, loc="upper center", ncol=3)
    axes.set_title(f"Order and overlap, {rows[0]['device']}", fontsize=9)
    return save(figure, folder / "orders.svg")


def _denser(rows: list[Record], folder: Path) -> Path | None:
    """Speed-up over one GPU by the factor of the edges."""
    times = {(float(r["graph"].partition("*")[2]), r["world"]): r["ms"] for r in rows
             if r["system"] == "peergraph" and "setting" not in r}  # fmt: skip
    factors = sorted({factor for factor, _ in times})
    worlds = sorted({world for _, world in times} - {1})
    if not factors or not worlds:
        return None
    figure, axes = plt.subplots(figsize=(5, 3))
    for world in worlds:
        ratios = [times[factor, 1] / times[factor, world] for factor in factors]
        (line,) = axes.plot(factors, ratios, marker="o", label=f"{world} GPUs")
        axes.axhline(world, color=line.get_color(), linestyle=":", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(factors, [f"{factor:g}x" for factor in factors])
    axes.set_xlabel("edges")
    axes.set_ylabel("speed-up over one GPU")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
    axes.set_title(f"{rows[0]['layers']}, arxiv's nodes, {rows[0]['device']}", fontsize=9)
    return save(figure, folder / "denser.svg")


def _widths(rows: list[Record], folder: Path) -> Path | None:
    """Epochs by hidden width, for each number of GPUs, and PyG's on one."""
    lines: dict[tuple[str, int], dict[int, float]] = {}
    for row in rows:
        if row["graph"] == "products" and "setting" not in row:
            width = int(row["layers"].rpartition(" ")[2])
            lines.setdefault((row["system"], row["world"]), {})[width] = row["ms"]
    lines = {key: by_width for key, by_width in lines.items() if len(by_width) > 2}
    if not lines:
        return None
    figure, axes = plt.subplots(figsize=(5, 3.2))
    for (system, world), by_width in lines.items():
        label, color = _SYSTEMS[system]
        style = "-" if world == 1 else "--"
        gpus = "" if system == "pyg csr" else f", {world} GPU{'s' * (world > 1)}"
        widths = sorted(by_width)
        axes.plot(widths, [by_width[w] for w in widths], style, marker="o", color=color,
                  label=label + gpus)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.set_xlabel("columns of the hidden layer")
    axes.set_ylabel("ms an epoch")
    axes.legend(fontsize=7)
    axes.set_title(f"GCN of two layers, products, {rows[0]['device']}", fontsize=9)
    return save(figure, folder / "widths.svg")


def _peers(rows: list[Record], folder: Path) -> Path | None:
    """Epochs of each model over PyG's on one GPU."""
    rows = [r for r in rows if "setting" not in r]
    pyg = {(r["graph"], r["layers"]): r["ms"] for r in rows if r["system"] == "pyg csr"}
    cases = [case for case in pyg if case[1] in ("GCN 2 x 512", "GCN 3 x 256", "SAGE 3 x 256")]
    ours = {(r["system"], r["world"]) for r in rows} - {("pyg csr", 1)}
    if not cases or not ours:
        return None
    figure, axes = plt.subplots(figsize=(7, 3.2))
    bars = sorted(ours, key=lambda bar: (list(_SYSTEMS).index(bar[0]), bar[1]))
    step = 0.8 / len(bars)
    for b, (system, world) in enumerate(bars):
        _, color = _SYSTEMS[system]
        for i, case in enumerate(cases):
            ms = next((r["ms"] for r in rows if (r["system"], r["world"]) == (system, world)
                       and (r["graph"], r["layers"]) == case), None)  # fmt: skip
            if ms is None:
                continue
            at, ratio = i + (b - (len(bars) - 1) / 2) * step, pyg[case] / ms
            axes.bar(at, ratio, 0.95 * step, color=color, alpha=0.6 if world == 1 else 1.0)
            axes.text(at, ratio, f"{world}\n{ratio:.1f}", ha="center", va="bottom", fontsize=6)
    axes.set_xticks(
        range(len(cases)), [f"{graph}\n{layers}" for graph, layers in cases], fontsize=7
    )
    axes.set_ylabel("speed-up over PyG on one GPU")
    axes.margins(y=0.15)
    axes.set_title(f"Epochs by number of GPUs (above each bar), {rows[0]['device']}", fontsize=9)
    legend(figure, {label: color for name, (label, color) in _SYSTEMS.items()
                     if any(system == name for system, _ in bars)})  # fmt: skip
    return save(figure, folder / "speedup.svg", bottom=0.06)


def _curves(rows: list[Record], folder: Path) -> Path | None:
    """Losses by epoch on most ranks, and plain training's; without dropout, in float64."""
    shown = [r for r in rows if r["dtype"] == "float64" and r["dropout"] == 0]
    shown = [r for r in shown if not r["graph"].startswith("made")] or shown
    panels = list(dict.fromkeys((r["framework"], r["model"], r["graph"]) for r in shown))
    if not panels:
        return None
    columns = 4
    lines = -(-len(panels) // columns)
    figure, grid = plt.subplots(lines, columns, figsize=(9, 0.5 + 1.9 * lines), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        of_panel = [r for r in shown if (r["framework"], r["model"], r["graph"]) == panel]
        for row in of_panel:
            if row["system"] == "plain":
                axes.plot(row["losses"], color="#cccccc", linewidth=4)
        ours = [r for r in of_panel if r["system"] == "peergraph"]
        for row, style in zip(ours, ("-", "--", "-.", ":"), strict=False):
            axes.plot(row["losses"], style, linewidth=1, label=f"{row['world']}")
        axes.set_title("{}: {}, {}".format(*panel), fontsize=7)
        axes.tick_params(labelsize=6)
        axes.legend(fontsize=5, title="ranks", title_fontsize=5)
    where = "CPU ranks" if rows[0]["device"] == "x86_64" else str(rows[0]["device"])
    figure.suptitle(f"Loss by epoch; grey: plain PyG or DGL in one process; {where}", fontsize=9)
    return save(figure, folder / "curves.svg")


def _machine(row: Record, world: object) -> str:
    return f"{world} x {row['device']}"


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    records = [record for path in arguments[1:] for record in read_records(Path(path))]
    for drawn in draw(records, Path(arguments[0])):
        print(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
