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

import itertools
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness import markdown
from harness.charts import FLOOR, FRAMEWORK, LIGHT, PEER, PEERGRAPH, Chart, Series
from harness.drawing import draw_all, draw_overview
from harness.records import Record, read_records

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks" / "index.md"
FIGURES = ROOT / "docs" / "figures"
RUNS = {
    "gather": "2026-11-21-h200x4-1246",
    "products": "2026-11-21-h200x4-1246",
    "papers": "2026-11-22-h200x2-0347",
    "training": "2026-11-22-h200x2-0347",
    "training products": "2026-11-21-h200x2-1408",
    "loader": "2026-11-29-h200x2",
    "layers": "2026-11-29-h200x2",
    "fullgraph": "2026-11-29-h200x2",
    "offload": "2026-11-23-h200x2-0312",
}
# The commit of each run, as its README names it.
COMMITS = {
    "2026-11-21-h200x2-1408": "2d39b5f",
    "2026-11-21-h200x4-1246": "e6d4fc6",
    "2026-11-22-h200x2-0347": "7dfa57b",
    "2026-11-23-h200x2-0312": "55ae403",
    "2026-11-29-h200x2": "91381532",
}
_PLUGIN = "plugin/peergraph"
_SAMPLING = ("csrc/sampling", f"{_PLUGIN}/sampling")
_GATHER = ("csrc/memory", f"{_PLUGIN}/memory/table", f"{_PLUGIN}/memory/region")
_LAYERS = ("csrc/aggregate", f"{_PLUGIN}/aggregate", "adapters/peergraph_pyg/nn")
_FULLGRAPH = ("csrc/fullgraph", "csrc/aggregate", f"{_PLUGIN}/aggregate", f"{_PLUGIN}/fullgraph")
# The code that a chart measures, below the repository.
MEASURES = {
    "gather": _GATHER,
    "sampling": (*_SAMPLING, f"{_PLUGIN}/store/csc"),
    "training": (*_SAMPLING, *_GATHER, *_LAYERS),
    "loader": (*_SAMPLING, *_GATHER, *_LAYERS, "adapters/peergraph_pyg"),
    "layers": _LAYERS,
    "fullgraph": _FULLGRAPH,
    "offload": _FULLGRAPH,
}
# The commit up to which somebody has looked at the changes, and a chart's figures still hold.
CHECKED: dict[str, str] = {"fullgraph": "414f4a8b"}  # the same work on the same kernels
# Charts that wait for a new run, as their page says.
OUTDATED = frozenset({"gather", "sampling", "training", "loader", "layers", "offload"})


def _records(run: str, bench: str) -> list[Record]:
    rows = read_records(ROOT / "benchmarks" / "results" / RUNS[run] / "records.jsonl")
    return [r for r in rows if r.get("bench") == bench and isinstance(r.get("ms"), float)]


def _value(rows: list[Record], key: str = "ms", **wanted: object) -> float | None:
    """The value of the only record with these fields."""
    found = {r[key] for r in rows if all(r.get(k) == v for k, v in wanted.items())}
    if len(found) > 1:
        raise ValueError(f"{len(found)} records with {wanted}, expected one")
    return float(found.pop()) if found else None


def gather() -> Chart:
    rows = [r for r in _records("gather", "gather") if r["world"] == 4]
    dims = [16, 64, 128, 256, 1024]

    def line(system: str, plan: str | None, name: str, color: str) -> Series:
        values = [_value(rows, "gbs", system=system, plan=plan, dim=dim) for dim in dims]
        return Series(name, color, values)

    return Chart(
        "Gathering 1 M random rows, spread over 4 H200s",
        "GB/s of each GPU, by floats in a row",
        [str(dim) for dim in dims],
        [
            line("peergraph", "sharded", "Peergraph", PEERGRAPH),
            line("wholegraph chunked", "cuda", "WholeGraph", PEER),
            line("nccl five steps", None, "NCCL all-to-all", FRAMEWORK),
            line("peergraph", "replicated", "Peergraph, replicated", LIGHT),
        ],
        line("copy", None, "a plain copy on one GPU", FLOOR),
        (RUNS["gather"],),
        is_lines=True,
    )


def sampling() -> Chart:
    cases, ours, theirs = [], [], []
    for run, graph, world in (("products", "products", 4), ("papers", "papers", 2)):
        rows = [r for r in _records(run, "sampling") if r["world"] == world]
        for fanout, batch in (("15-10-5", 1024), ("15-10-5", 6000), ("30-30-30", 1024)):
            case = {"graph": graph, "fanout": fanout, "batch": batch, "semantics": "dgl"}
            cases.append(f"{graph}, {world} GPUs, {fanout}, batch {batch}")
            ours.append(_value(rows, system="peergraph", plan="sharded", **case))
            theirs.append(_value(rows, system="wholegraph chunked int64", **case))
    return Chart(
        "Sampling a mini-batch, graph spread over the GPUs",
        "ms",
        cases,
        [Series("Peergraph", PEERGRAPH, ours), Series("WholeGraph", PEER, theirs)],
        runs=(RUNS["products"], RUNS["papers"]),
    )


def training() -> Chart:
    cases, ours, lazy, theirs = [], [], [], []
    for run, graph, fanout, batch in (
        ("training products", "products", "30-30-30", 1024),
        ("training products", "products", "15-10-5", 6000),
        ("training", "papers", "30-30-30", 1024),
    ):
        rows = _records(run, "training")
        case = {"graph": graph, "fanout": fanout, "batch": batch}
        cases.append(f"{graph}, {fanout}, batch {batch}")
        ours.append(_value(rows, system="peergraph", plan="sharded", layers="csr", **case))
        lazy.append(_value(rows, system="peergraph", plan="replicated", layers="blocks", **case))
        theirs.append(_value(rows, system="wholegraph chunked int64", layers="csr", **case))
    return Chart(
        "A training step: sampling, gathering, GraphSAGE; 2 H200s",
        "ms",
        cases,
        [
            Series("Peergraph", PEERGRAPH, ours),
            Series("Peergraph, replicated, layers that read the store", LIGHT, lazy),
            Series("WholeGraph", PEER, theirs),
        ],
        runs=(RUNS["training products"], RUNS["training"]),
    )


def loader() -> Chart:
    cases = []
    columns: dict[str, list[float | None]] = {"plain": [], "prefetch": [], "compute": []}
    for way, label in (
        ("loader", "PyG's layers"),
        ("accelerated", "accelerated"),
        ("lazy", "accelerated, lazy rows"),
    ):
        rows = [r for r in _records("loader", "end_to_end") if r["layers"] == way]
        cases.append(label)
        for column, values in columns.items():
            values.append(min(r["wall_ms"] for r in rows if r["way"] == column))
    return Chart(
        "A step through PyG's NeighborLoader, papers, 30-30-30, batch 1024, one H200",
        "ms",
        cases,
        [
            Series("batches when asked for", LIGHT, columns["plain"]),
            Series("batches made ahead", PEERGRAPH, columns["prefetch"]),
        ],
        Series("training on batches in memory", FLOOR, columns["compute"]),
        (RUNS["loader"],),
    )


def layers() -> Chart:
    rows = [r for r in _records("layers", "layers") if r.get("semantics") == "batch"]
    kinds = ["SAGE", "GCN", "GIN", "GAT", "RGCN"]
    found = {
        system: [_value(rows, system=system, layers=kind, dim=128) for kind in kinds]
        for system in ("peergraph", "csr")
    }
    return Chart(
        "Layers, forward and backward, on a papers mini-batch, 128 floats, one H200",
        "ms",
        kinds,
        [
            Series("Peergraph", PEERGRAPH, found["peergraph"]),
            Series("PyG on CSR", FRAMEWORK, found["csr"]),
        ],
        runs=(RUNS["layers"],),
    )


def fullgraph() -> Chart:
    cases = []
    columns: dict[tuple[str, int], list[float | None]] = {
        ("peergraph", 1): [],
        ("peergraph", 2): [],
        ("broadcast", 1): [],
        ("broadcast", 2): [],
        ("pyg csr", 1): [],
    }
    rows = _records("fullgraph", "fullgraph")
    for graph, model in itertools.product(
        ("products", "reddit"), ("GCN 2 x 512", "GCN 3 x 256", "SAGE 3 x 256")
    ):
        cases.append(f"{graph}, {model}")
        for (system, world), values in columns.items():
            values.append(_value(rows, system=system, world=world, graph=graph, layers=model))
    names = {
        ("peergraph", 1): ("Peergraph, 1 GPU", PEERGRAPH),
        ("peergraph", 2): ("Peergraph, 2 GPUs", LIGHT),
        ("broadcast", 1): ("MG-GCN's broadcasts in torch, 1 GPU", PEER),
        ("broadcast", 2): ("MG-GCN's broadcasts in torch, 2 GPUs", "#f2c79b"),
        ("pyg csr", 1): ("PyG on CSR, 1 GPU", FRAMEWORK),
    }
    return Chart(
        "A full-graph epoch, float32, H200",
        "ms",
        cases,
        [Series(*names[key], values) for key, values in columns.items()],
        runs=(RUNS["fullgraph"],),
    )


def offload() -> Chart:
    rows = [r for r in _records("offload", "offload") if r.get("part") == "epochs"]
    cases, resident, offloaded = [], [], []
    for graph in dict.fromkeys(r["graph"] for r in rows):
        of_graph = [r for r in rows if r["graph"] == graph]
        cases.append(f"{graph}, {of_graph[0]['layers']}")
        resident.append(_value(of_graph, "epoch_s", setting="resident"))
        # The tightest budget.
        others = [r["epoch_s"] for r in of_graph if r["setting"] != "resident"]
        offloaded.append(max(others) if others else None)
    return Chart(
        "An epoch with rows in GPU memory and in host memory, one H200",
        "s",
        cases,
        [Series("resident", LIGHT, resident), Series("offloaded", PEERGRAPH, offloaded)],
        runs=(RUNS["offload"],),
    )


CHARTS: dict[str, Callable[[], Chart]] = {
    "gather": gather,
    "sampling": sampling,
    "training": training,
    "loader": loader,
    "layers": layers,
    "fullgraph": fullgraph,
    "offload": offload,
}


def filled(page: str) -> str:
    """The page with the tables of all charts between their marks."""
    tables = {}
    for name, make in CHARTS.items():
        chart = make()
        tables[name] = replace(chart, note=_note(name, chart)).table()
    return markdown.filled(page, tables)


def _note(name: str, chart: Chart) -> str:
    """The commits of a chart's runs, and whether its figures are of the code as it is now."""
    commits = " and ".join(COMMITS[run] for run in chart.runs)
    if name in OUTDATED:
        return f", at {commits}; the code that it measures has changed since"
    if name in CHECKED:
        return f", at {commits}; checked at {CHECKED[name]}"
    return f", at {commits}"


def changes_since(name: str) -> list[str]:
    """Commits that changed what a chart measures since its runs, or since it was checked.

    Raises:
        subprocess.CalledProcessError: there is no Git, or the history lacks a commit.
    """
    starts = [CHECKED[name]] if name in CHECKED else [COMMITS[r] for r in CHARTS[name]().runs]
    changes: dict[str, None] = {}
    for start in starts:
        command = ["git", "log", "--format=%h %s", f"{start}..HEAD", "--", *MEASURES[name]]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        changes |= dict.fromkeys(done.stdout.splitlines())
    return list(changes)


def overview() -> list[tuple[str, str, str, float]]:
    """Returns the bars of the README's chart: case, peer, colour and speed-up."""
    bars = []
    for chart, case, peer in (
        (gather(), "128", "WholeGraph"),
        (sampling(), "papers, 2 GPUs, 15-10-5, batch 6000", "WholeGraph"),
        (training(), "products, 30-30-30, batch 1024", "WholeGraph"),
        (fullgraph(), "products, GCN 3 x 256", "MG-GCN's broadcasts in torch, 2 GPUs"),
        (fullgraph(), "reddit, GCN 3 x 256", "MG-GCN's broadcasts in torch, 2 GPUs"),
        (layers(), "SAGE", "PyG on CSR"),
        (fullgraph(), "products, GCN 2 x 512", "PyG on CSR, 1 GPU"),
    ):
        i = chart.cases.index(case)
        values = {s.name: s.values[i] for s in chart.series}
        ours = values["Peergraph, 2 GPUs" if peer.endswith("2 GPUs") else chart.series[0].name]
        theirs = values[peer]
        if ours is None or theirs is None:
            raise ValueError(f"{chart.title}: {case} was not measured beside {peer}")
        ratio = ours / theirs if chart.unit.startswith("GB/s") else theirs / ours
        what = _SHORT[chart.title].format(case)
        bars.append((what, peer, PEER if "PyG" not in peer else FRAMEWORK, ratio))
    return bars


_SHORT = {
    "Gathering 1 M random rows, spread over 4 H200s": "gather rows of {} floats, 4 GPUs",
    "Sampling a mini-batch, graph spread over the GPUs": "sample: {}",
    "A training step: sampling, gathering, GraphSAGE; 2 H200s": "train: {}, 2 GPUs",
    "A full-graph epoch, float32, H200": "full-graph epoch: {}",
    "Layers, forward and backward, on a papers mini-batch, 128 floats, one H200": "layer: {}",
}


def draw(folder: Path) -> list[Path]:
    """All figures as SVG files in a folder. Needs matplotlib."""
    charts = {f"bench_{name}": make() for name, make in CHARTS.items()}
    return [*draw_all(charts, folder), draw_overview(overview(), folder / "overview.svg")]


if __name__ == "__main__":
    for path in draw(FIGURES):
        print(path.relative_to(ROOT))
    PAGE.write_text(filled(PAGE.read_text()))
    print(PAGE.relative_to(ROOT))
