"""Tables and pictures of recorded epochs, beside HongTu's tables 3 and 5 to 9 and figures 9 to 11.

python benchmarks/offloading/report.py RECORDS FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.records import Record, read_records

from offloading.bars import draw_bars
from offloading.published import DEDUPLICATION, FOUR_GPUS, IN_MEMORY_ONE_GPU, ONE_GPU

_HARDWARE = "four A100-80 over PCIe 4"


def write_report(records: Path, folder: Path) -> list[Path]:
    """Writes `offload.md` and SVG pictures to a folder; returns their paths."""
    rows = [r for r in read_records(records) if r["bench"] == "offload" and "error" not in r]
    folder.mkdir(parents=True, exist_ok=True)
    sections, paths = [], []
    for make in (_duplication, _epochs, _switches, _chunks, _scaling):
        section, pictures = make(rows, folder)
        sections += section
        paths += pictures
    page = folder / "offload.md"
    page.write_text("\n".join(sections) + "\n")
    return [page, *paths]


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> list[str]:
    """A table in Markdown; numbers to the right."""
    cells = [[_text(cell) for cell in line] for line in lines]
    return [
        f"| {' | '.join(head)} |",
        f"| {' | '.join(['---'] + ['---:'] * (len(head) - 1))} |",
        *(f"| {' | '.join(line)} |" for line in cells),
        "",
    ]


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def _base(row: Record) -> str:
    return str(row["graph"]).partition("/")[0]


def _layers(row: Record) -> int:
    return str(row["layers"]).count("-")


def _duplication(rows: list[Record], folder: Path) -> tuple[list[str], list[Path]]:
    rows = [r for r in rows if r.get("part") == "duplication"]
    counted = [r for r in rows if r["kind"] == "parts"]
    saved = [r for r in rows if r["kind"] == "batches"]
    if not counted:
        return [], []
    parts = sorted({r["parts"] for r in counted})
    lines = []
    for graph in dict.fromkeys(r["graph"] for r in counted):
        of_graph = {r["parts"]: r for r in counted if r["graph"] == graph}
        made = next(r for r in rows if r["kind"] == "made" and r["graph"] == graph)
        cells = [x for p in parts for x in (of_graph[p]["alpha"], of_graph[p].get("published"))]
        lines.append([graph, made["edges"], made["seconds"], *cells])
    head = ["graph", "edges", "made in, s"]
    head += [f"{text} {p} parts" for p in parts for text in ("alpha,", "HongTu,")]
    found = ["## Duplication (HongTu, Table 3)", "", *table(head, lines)]
    head = ["graph", "chunks", "rows a node", "HongTu", "saved between GPUs", "HongTu",
            "saved between batches", "HongTu"]  # fmt: skip
    keys = ("graph", "parts", "alpha", "published", "between_ranks", "published_between_ranks",
            "between_batches", "published_between_batches")  # fmt: skip
    lines = [[row.get(key) for key in keys] for row in saved]
    return [*found, "## Rows of chunks (Table 8)", "", *table(head, lines)], []


def _epochs(rows: list[Record], folder: Path) -> tuple[list[str], list[Path]]:
    rows = [r for r in rows if r.get("part") == "epochs" and "ms" in r]
    if not rows:
        return [], []
    lines = []
    for r in rows:
        key = (_base(r), r["kind"], _layers(r))
        of_paper = (FOUR_GPUS if r["world"] > 1 else ONE_GPU).get(key)
        if r["decision"].startswith("resident"):
            of_paper = IN_MEMORY_ONE_GPU.get(key) if r["world"] == 1 else None
        # An epoch of 1/D of a graph is compared with 1/D of the time.
        divisor = float(str(r["graph"]).partition("/")[2] or 1)
        lines.append(
            [r["graph"], r["layers"], r["world"], r["decision"], r.get("num_chunks"),
             r.get("budget_gib"), r["epoch_s"], of_paper and of_paper / divisor,
             (r.get("predicted_ms") or 0.0) / 1e3 or None, r.get("from_host_gb"),
             r.get("to_host_gb"), r.get("to_ranks_gb"), r.get("peak_gib"), r.get("driver_gib"),
             r.get("rows_host_gib"), r["build_s"], r["loss"]]
        )  # fmt: skip
    head = ["graph", "model", "GPUs", "memory", "chunks", "budget, GiB", "epoch, s",
            f"HongTu, {_HARDWARE}, s", "planned, s", "from host, GB", "to host, GB",
            "to GPUs, GB", "allocated, GiB", "driver, GiB", "host rows, GiB", "prepared, s",
            "first loss"]  # fmt: skip
    text = ["## Epochs (Tables 5 to 7)", "", *table(head, lines)]
    bars = {
        f"{line[0]}, {line[1]}, {line[2]} GPU{'s' if line[2] > 1 else ''}, {line[3]}": {
            "Peergraph": line[6],
            f"HongTu, {_HARDWARE}": line[7],
        }
        for line in lines
    }
    path = folder / "offload_epochs.svg"
    draw_bars(path, "Seconds of an epoch", bars)
    return text, [path]


def _switches(rows: list[Record], folder: Path) -> tuple[list[str], list[Path]]:
    rows = [r for r in rows if r.get("part") == "switches" and "ms" in r]
    if not rows:
        return [], []
    bars: dict[str, dict[str, float | None]] = {}
    lines = []
    for r in rows:
        bars.setdefault(f"{r['graph']}, {r['layers']}", {})[r["setting"]] = r["epoch_s"]
        lines.append([r["graph"], r["layers"], r["world"], r["setting"], r["epoch_s"],
                      r.get("from_host_gb"), r.get("to_host_gb"), r.get("to_ranks_gb"),
                      r.get("kept_gb"), r["build_s"]])  # fmt: skip
    head = ["graph", "model", "GPUs", "deduplication", "epoch, s", "from host, GB", "to host, GB",
            "to GPUs, GB", "kept, GB", "prepared, s"]  # fmt: skip
    text = ["## Switches (Table 8, Figure 9)", "", *table(head, lines)]
    gains = []
    for case in dict.fromkeys((r["graph"], r["layers"], r["world"]) for r in rows):
        of_case = {r["setting"]: r for r in rows
                   if (r["graph"], r["layers"], r["world"]) == case}  # fmt: skip
        first, last = (of_case.get(s) for s in ("no deduplication", "between ranks and batches"))
        paper = DEDUPLICATION.get(str(case[0]).partition("/")[0])
        if first and last:
            gains.append([*case, 100 * first["epoch_s"], 100 * last["epoch_s"], last["build_s"],
                          first["epoch_s"] / last["epoch_s"],
                          paper and paper[0] / paper[1], paper and paper[2]])  # fmt: skip
    if gains:
        head = ["graph", "model", "GPUs", "100 epochs without, s", "with, s", "prepared, s",
                "ratio", "HongTu's ratio", "HongTu prepared, s"]  # fmt: skip
        text += ["## Deduplication (Table 9)", "", *table(head, gains)]
    path = folder / "offload_switches.svg"
    draw_bars(path, "Seconds of an epoch, by deduplication", bars)
    return text, [path]


def _chunks(rows: list[Record], folder: Path) -> tuple[list[str], list[Path]]:
    rows = [r for r in rows if r.get("part") == "chunks" and "ms" in r]
    if not rows:
        return [], []
    lines = [[r["graph"], r["layers"], r["world"], r["num_chunks"], r["epoch_s"],
              r.get("peak_gib"), r.get("from_host_gb")] for r in rows]  # fmt: skip
    head = ["graph", "model", "GPUs", "chunks", "epoch, s", "allocated, GiB", "from host, GB"]
    bars: dict[str, dict[str, float | None]] = {}
    for r in rows:
        chunks = f"{r['num_chunks']} chunks"
        bars.setdefault(f"{r['graph']}, {r['layers']}", {})[chunks] = r["epoch_s"]
    path = folder / "offload_chunks.svg"
    draw_bars(path, "Seconds of an epoch, by chunks", bars)
    return ["## Chunks (Figure 10)", "", *table(head, lines)], [path]


def _scaling(rows: list[Record], folder: Path) -> tuple[list[str], list[Path]]:
    """Of the runs that were made on several numbers of GPUs."""
    rows = [r for r in rows if r.get("part") == "epochs" and "ms" in r]
    cases: dict[tuple[str, str, str], dict[int, float]] = {}
    for r in rows:
        case = (r["graph"], r["layers"], r["setting"])
        cases.setdefault(case, {})[r["world"]] = r["epoch_s"]
    several = {case: times for case, times in cases.items() if len(times) > 1 and 1 in times}
    if not several:
        return [], []
    worlds = sorted({world for times in several.values() for world in times})
    lines = [
        [*case, *(times.get(w) and times[1] / times[w] for w in worlds)]
        for case, times in several.items()
    ]
    head = ["graph", "model", "memory", *(f"speed-up on {w}" for w in worlds)]
    bars = {
        ", ".join(case): {f"{w} GPUs": times.get(w) and times[1] / times[w] for w in worlds}
        for case, times in several.items()
    }
    path = folder / "offload_scaling.svg"
    draw_bars(path, "Speed-up over one GPU", bars)
    note = "HongTu on 4 GPUs: 3.3 to 3.7 (GCN), 3.4 to 3.8 (GAT)."
    return ["## GPUs (Figure 11)", "", note, "", *table(head, lines)], [path]


if __name__ == "__main__":
    for written in write_report(Path(sys.argv[1]), Path(sys.argv[2])):
        print(written)
