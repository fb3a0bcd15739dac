"""Draws the figures of docs/benchmarks/index.md and writes their tables, out of recorded runs.

    python benchmarks/site_figures.py

Every number comes from a file of benchmarks/results that is named here. A later run of the same
benchmark takes the place of an earlier one by its name in `RUNS`, with its commit in `COMMITS`.

A chart is old if code that it measures (`MEASURES`) has changed since its runs. Then
`tests/test_site.py` fails, until there is a new run, or somebody has looked at the changes and
lists in `CHECKED` the commit at which the figures still hold, or the chart is in `OUTDATED`, and
its page says so.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

from harness import markdown
from harness.charts import FRAMEWORK, PEER, Chart
from harness.drawing import draw_all, draw_overview
from page.charts import CHARTS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks" / "index.md"
FIGURES = ROOT / "docs" / "figures"
_RUN = "2026-11-30-h200x1-page"
RUNS = dict.fromkeys(CHARTS, _RUN) | {"fullgraph": "2026-11-29-h200x2"}
# The commit of each run, as its README names it.
COMMITS = {_RUN: "238e4c8d", "2026-11-29-h200x2": "91381532"}
_PLUGIN = "plugin/peergraph"
_SAMPLING = ("csrc/sampling", f"{_PLUGIN}/sampling")
_GATHER = ("csrc/memory", f"{_PLUGIN}/memory/table", f"{_PLUGIN}/memory/region")
_LAYERS = ("csrc/aggregate", f"{_PLUGIN}/aggregate", "adapters/peergraph_pyg/nn")
_LOADER = (*_SAMPLING, *_GATHER, *_LAYERS, "adapters/peergraph_pyg")
_FULLGRAPH = ("csrc/fullgraph", "csrc/aggregate", f"{_PLUGIN}/aggregate", f"{_PLUGIN}/fullgraph")
# The code that a chart measures, below the repository.
MEASURES = {
    "gather": _GATHER,
    "narrow": _GATHER,
    "sampling": (*_SAMPLING, f"{_PLUGIN}/store/csc"),
    "minibatch": (*_SAMPLING, *_GATHER),
    "training": (*_SAMPLING, *_GATHER, *_LAYERS),
    "loader": _LOADER,
    "captured": _LOADER,
    "layers": _LAYERS,
    "typed": _LOADER,
    "fullgraph": _FULLGRAPH,
    "dropout": _FULLGRAPH,
    "offload": _FULLGRAPH,
}
# Charts that wait for a new run, as their page says.
OUTDATED: frozenset[str] = frozenset()
# The commit up to which somebody has looked at the changes, and a chart's figures still hold. Since
# their runs, gathers and typed samples take fewer launches, and typed layers fewer operations:
# charts show them as they were.
CHECKED = dict.fromkeys(CHARTS.keys() - OUTDATED, "75892672")


def chart_of(name: str) -> Chart:
    """A chart, with its run and the commit of its figures."""
    run = RUNS[name]
    chart = CHARTS[name](run)
    return replace(chart, runs=(run,), note=f", at {COMMITS[run]}{_age(name)}{chart.note}")


def filled(page: str) -> str:
    """The page with the tables of all charts between their marks."""
    return markdown.filled(page, {name: chart_of(name).table() for name in CHARTS})


def _age(name: str) -> str:
    """Whether a chart's figures are of the code as it is now."""
    if name in OUTDATED:
        return ", but the code that it measures has changed since"
    return f", checked at {CHECKED[name]}" if name in CHECKED else ""


def changes_since(name: str) -> list[str]:
    """Commits that changed what a chart measures since its runs, or since it was checked.

    Raises:
        subprocess.CalledProcessError: there is no Git, or the history lacks a commit.
    """
    start = CHECKED.get(name, COMMITS[RUNS[name]])
    command = ["git", "log", "--format=%h %s", f"{start}..HEAD", "--", *MEASURES[name]]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def overview() -> list[tuple[str, str, str, float]]:
    """Returns the bars of the README's chart: case, peer, colour and speed-up."""
    bars = []
    charts = {name: CHARTS[name](run) for name, run in RUNS.items()}
    for name, text, case, peer in _OVERVIEW:
        chart = charts[name]
        i = chart.cases.index(case)
        values = {s.name: s.values[i] for s in chart.series}
        ours = values["Peergraph, 2 GPUs" if peer.endswith("2 GPUs") else chart.series[0].name]
        theirs = values[peer]
        if ours is None or theirs is None:
            raise ValueError(f"{chart.title}: {case} was not measured beside {peer}")
        bars.append((text, peer, FRAMEWORK if "PyG" in peer else PEER, theirs / ours))
    return bars


_BROADCASTS = "MG-GCN's broadcasts in torch, 2 GPUs"
# Chart, text, case and peer.
_OVERVIEW = (
    ("sampling", "sample: papers, batch 6000", "papers, 15-10-5, batch 6000", "WholeGraph"),
    ("training", "train: products, 30-30-30", "products, 30-30-30, batch 1024", "WholeGraph"),
    ("fullgraph", "full graph: products, GCN 3 x 256", "products, GCN 3 x 256", _BROADCASTS),
    ("fullgraph", "full graph: reddit, GCN 3 x 256", "reddit, GCN 3 x 256", _BROADCASTS),
    ("layers", "layer: SAGE", "SAGE", "PyG on CSR"),
    ("typed", "train: R-GAT", "R-GAT", "PyG's layers, batches in memory"),
    ("typed", "train: R-GCN", "R-GCN", "PyG's layers, batches in memory"),
    (
        "fullgraph",
        "full graph: products, GCN 2 x 512",
        "products, GCN 2 x 512",
        "PyG on CSR, 1 GPU",
    ),
)


def draw(folder: Path) -> list[Path]:
    """All figures as SVG files in a folder. Needs matplotlib."""
    charts = {f"bench_{name}": CHARTS[name](run) for name, run in RUNS.items()}
    return [*draw_all(charts, folder), draw_overview(overview(), folder / "overview.svg")]


if __name__ == "__main__":
    for path in draw(FIGURES):
        print(path.relative_to(ROOT))
    PAGE.write_text(filled(PAGE.read_text()))
    print(PAGE.relative_to(ROOT))
