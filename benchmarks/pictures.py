"""Draws what end_to_end.py and placement.py recorded.

    python benchmarks/pictures.py RECORDS FOLDER

The breakdown of a step is that of WholeGraph's Figure 9, the GPU's utilisation that of its Figure
12; placements are those of XGNN's Figures 10 and 13.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
from harness.records import Record, read_records

matplotlib.use("Agg")  # there may be no screen
import matplotlib.pyplot as plt
from pictures_placement import draw_placement

_STAGES = {
    "ms_sample": ("sampling", "#4c72b0"),
    "ms_gather": ("gathering features", "#dd8452"),
    "ms_loader": ("waiting for a batch", "#8172b3"),
    "ms_train": ("training", "#55a868"),
}
_COLORS = {"compute": "#55a868", "plain": "#dd8452", "prefetch": "#4c72b0"}


def draw(records: Path, folder: Path) -> list[Path]:
    """Pictures of each case among the records, as SVG files in a folder."""
    everything = read_records(records)
    placed = [r for r in everything if r["bench"] == "placement"]
    return _draw_steps(everything, folder) + draw_placement(placed, folder)


def _draw_steps(records: list[Record], folder: Path) -> list[Path]:
    rows = [r for r in records if r["bench"] == "end_to_end" and "way" in r]
    cases = {}
    for row in rows:
        case = tuple(row[key] for key in ("graph", "plan", "fanout", "batch", "layers"))
        cases.setdefault(case, []).append(row)
    paths = []
    for case, of_case in cases.items():
        of_pyg = case[-1] == "loader"  # PyG's own layers, as ever
        shown = case[:-1] if of_pyg else case
        name = "_".join(str(part) for part in shown).replace("/", "-")
        title = "{}, {}, fanout {}, batch {}".format(*case) + ("" if of_pyg else f", {case[-1]}")
        title += f", {of_case[0]['world']} x {of_case[0]['device']}"
        paths.append(_breakdown(of_case, title, folder / f"breakdown_{name}.svg"))
        if any("utilisation_trace" in row for row in of_case):
            paths.append(_utilisation(of_case, title, folder / f"utilisation_{name}.svg"))
    return paths


def _breakdown(rows: list[Record], title: str, path: Path) -> Path:
    figure, axes = plt.subplots(figsize=(7, 1.6 + 0.3 * len(rows)))
    for i, row in enumerate(rows):
        left = 0.0
        for stage, (_, color) in _STAGES.items():
            axes.barh(i, row.get(stage, 0.0), left=left, color=color)
            left += row.get(stage, 0.0)
        over = f", {row['over_compute']:.2f}x" if "over_compute" in row else ""
        axes.text(left, i, f" {row['wall_ms']:.1f} ms{over}", va="center", fontsize=7)
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max(row["wall_ms"] for row in rows))
    axes.set_xlabel("ms a step")
    axes.set_title(title, fontsize=9)
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for _, color in _STAGES.values()]
    labels = [label for label, _ in _STAGES.values()]
    figure.legend(handles, labels, fontsize=7, ncol=4, loc="lower center")
    return _save(figure, path, bottom=0.3 / figure.get_figheight())


def _utilisation(rows: list[Record], title: str, path: Path) -> Path:
    """Of several runs of a way, the quickest."""
    best: dict[str, Record] = {}
    for row in sorted(rows, key=lambda row: row["wall_ms"]):
        if "utilisation_trace" in row:
            best.setdefault(row["way"], row)
    figure, axes = plt.subplots(figsize=(7, 3))
    for way, row in best.items():
        seconds, percent = zip(*row["utilisation_trace"], strict=True)
        mean = row.get("utilisation")
        label = _label(row) + (f" (mean {mean:.0f} %)" if mean is not None else "")
        axes.plot(seconds, percent, label=label, color=_COLORS[way])
    axes.set_ylim(0, 105)
    axes.set_xlabel("seconds")
    axes.set_ylabel("GPU utilisation, %")
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=7, loc="lower right")
    return _save(figure, path)


def _label(row: Record) -> str:
    """The way of a row, with what was chosen for it."""
    options = [f"{name} {row[name]}" for name in ("depth", "priority", "blocks") if name in row]
    return " ".join([str(row["way"]), *options])


def _save(figure: plt.Figure, path: Path, bottom: float = 0.0) -> Path:
    figure.tight_layout(rect=(0, bottom, 1, 1))
    figure.savefig(path)
    plt.close(figure)
    return path


if __name__ == "__main__":
    for drawn in draw(Path(sys.argv[1]), Path(sys.argv[2])):
        print(drawn)
