"""Draws what layers.py recorded: milliseconds of each layer, width and system.

python benchmarks/layer_pictures.py RECORDS FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from harness.records import Record, read_records

_NAMES = {
    "peergraph": "Peergraph",
    "coo": "PyG, COO",
    "csr": "PyG, CSR",
    "cusparse": "cuSPARSE, fastest algorithm",
    "dgl": "DGL",
}
_COLORS = dict(zip(_NAMES, ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3"), strict=True))


def draw_or_say_why(out: str) -> None:
    """Draws beside the records, where matplotlib is there."""
    try:
        paths = draw(Path(out), Path(out).parent)
    except ModuleNotFoundError as error:
        print(f"no pictures: {error}", file=sys.stderr)
        return
    for path in paths:
        print(path)


def draw(records: Path, folder: Path) -> list[Path]:
    """A picture of the whole graph's layers and one of the batch's, as SVG files in a folder."""
    rows = [r for r in read_records(records) if r["bench"] == "layers" and "layers" in r]
    rows = [r for r in rows if "ms" in r]
    wheres = dict.fromkeys(row["semantics"] for row in rows)
    return [_draw([r for r in rows if r["semantics"] == w], w, folder) for w in wheres]


def _draw(rows: list[Record], where: str, folder: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")  # there may be no screen
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    layers = list(dict.fromkeys(row["layers"] for row in rows))
    dims = sorted({row["dim"] for row in rows})
    systems = [name for name in _NAMES if any(row["system"] == name for row in rows)]
    times = {(row["layers"], row["dim"], row["system"]): row["ms"] for row in rows}
    longest = max((ms for ms in times.values() if not isinstance(ms, str)), default=1.0)
    figure, axes = plt.subplots(1, len(dims), figsize=(4.5 * len(dims), 3.4), sharey=True)
    width = 0.8 / len(systems)
    for panel, dim in zip(axes if len(dims) > 1 else [axes], dims, strict=True):
        for s, system in enumerate(systems):
            for i, layer in enumerate(layers):
                ms = times.get((layer, dim, system))
                if ms is None:
                    continue
                at = i + (s - (len(systems) - 1) / 2) * width
                if isinstance(ms, str):
                    panel.text(at, longest, ms, rotation=90, fontsize=6, ha="center", va="top")
                else:
                    panel.bar(at, ms, width, color=_COLORS[system])
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.yaxis.set_minor_locator(NullLocator())
        panel.set_xticks(range(len(layers)), layers, fontsize=7)
        panel.set_title(f"{dim} features", fontsize=9)
    first = axes[0] if len(dims) > 1 else axes
    first.set_ylabel("ms, forward and backward")
    edges = f"{rows[0]['edges'] / 1e6:.3g} M edges"
    figure.suptitle(f"One layer on a {where} of {edges}, {rows[0]['device']}", fontsize=9)
    handles = [plt.Rectangle((0, 0), 1, 1, color=_COLORS[name]) for name in systems]
    figure.legend(
        handles, [_NAMES[n] for n in systems], ncol=len(systems), fontsize=7, loc="lower center"
    )
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    path = folder / f"layers_{where}.svg"
    figure.savefig(path)
    plt.close(figure)
    return path


if __name__ == "__main__":
    for drawn in draw(Path(sys.argv[1]), Path(sys.argv[2])):
        print(drawn)
