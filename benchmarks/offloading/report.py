"""Tables and pictures of recorded epochs, beside HongTu's tables 3 and 5 to 9 and figures 8 to 11.

python benchmarks/offloading/report.py RECORDS FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.charts import Chart
from harness.drawing import draw_all
from harness.markdown import table
from harness.records import Record, read_records
from inputs.local_graphs import get_local_spec

from offloading.paper_tables import Section, accuracy_by_epoch, tables_of_paper
from offloading.published import DEDUPLICATION, FOUR_GPUS, IN_MEMORY_ONE_GPU, ONE_GPU

_HARDWARE = "four A100-80 over PCIe 4"


def write_report(records: Path, folder: Path) -> list[Path]:
    """Writes `offload.md` and SVG pictures to a folder; returns their paths."""
    rows = [r for r in read_records(records) if r["bench"] == "offload" and "error" not in r]
    folder.mkdir(parents=True, exist_ok=True)
    sections, charts = [], {}
    makers = (_duplication, _epochs, tables_of_paper, accuracy_by_epoch, _switches, _parts, _chunks,
              _scaling, _inference)  # fmt: skip
    for make in makers:
        section, more = make(rows)
        sections += section
        charts |= more
    page = folder / "offload.md"
    page.write_text("\n".join(sections) + "\n")
    return [page, *draw_all(charts, folder)]


def _base(row: Record) -> str:
    return str(row["graph"]).partition("/")[0]


def _layers(row: Record) -> int:
    return str(row["layers"]).count("-")


def _case(row: Record) -> str:
    gpus = f"{row['world']} GPU{'s' if row['world'] > 1 else ''}"
    return f"{row['graph']}, {row['layers']}, {gpus}"


def _duplication(rows: list[Record]) -> Section:
    rows = [r for r in rows if r.get("part") == "duplication"]
    counted = [r for r in rows if r["kind"] == "parts"]
    saved = [r for r in rows if r["kind"] == "batches"]
    if not counted:
        return [], {}
    parts = sorted({r["parts"] for r in counted})
    lines = []
    for graph in dict.fromkeys(r["graph"] for r in counted):
        of_graph = {r["parts"]: r for r in counted if r["graph"] == graph}
        graph_record = next(r for r in rows if r["kind"] == "made" and r["graph"] == graph)
        cells = [x for p in parts for x in (of_graph[p]["alpha"], of_graph[p].get("published"))]
        lines.append([graph, graph_record["edges"], graph_record["seconds"], *cells])
    head = ["graph", "edges", "made in, s"]
    head += [f"{text} {p} parts" for p in parts for text in ("alpha,", "HongTu,")]
    first = ["## Duplication (HongTu, Table 3)", "", *table(head, lines)]
    head = ["graph", "chunks", "rows a node", "HongTu", "saved between GPUs", "HongTu",
            "saved between batches", "HongTu"]  # fmt: skip
    keys = ("graph", "parts", "alpha", "published", "between_ranks", "published_between_ranks",
            "between_batches", "published_between_batches")  # fmt: skip
    lines = [[row.get(key) for key in keys] for row in saved]
    return [*first, "## Rows of chunks (Table 8)", "", *table(head, lines)], {}


def _epochs(rows: list[Record]) -> Section:
    rows = [r for r in rows if r.get("part") == "epochs" and "ms" in r]
    if not rows:
        return [], {}
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
             r.get("from_host_gb"),
             r.get("to_host_gb"), r.get("to_ranks_gb"), r.get("peak_gib"), r.get("driver_gib"),
             r.get("rows_host_gib"), r["build_s"] + r.get("rows_s", 0.0), r.get("first_s"),
             r["loss"]]
        )  # fmt: skip
    head = ["graph", "model", "GPUs", "memory", "chunks", "budget, GiB", "epoch, s",
            "HongTu, as many A100-80, s", "from host, GB", "to host, GB",
            "to GPUs, GB", "allocated, GiB", "driver, GiB", "host rows, GiB", "prepared, s",
            "first epoch, s", "first loss"]  # fmt: skip
    text = ["## Epochs (Tables 5 to 7)", "", *table(head, lines)]
    bars = {
        f"{line[0]}, {line[1]}, {line[2]} GPU{'s' if line[2] > 1 else ''}, {line[3]}": {
            "Peergraph": line[6],
            f"HongTu, {_HARDWARE}": line[7],
        }
        for line in lines
    }
    return text, {"offload_epochs": Chart.of_groups("An epoch", "s", bars)}


def _switches(rows: list[Record]) -> Section:
    rows = [r for r in rows if r.get("part") == "switches" and "ms" in r]
    if not rows:
        return [], {}
    bars: dict[str, dict[str, float | None]] = {}
    moved: dict[str, dict[str, float | None]] = {}
    lines = []
    for r in rows:
        nodes = get_local_spec(r["graph"]).num_nodes / r["world"]
        width = 1e9 / (4 * nodes * int(str(r["layers"]).split("-")[1]))
        bars.setdefault(_case(r), {})[r["setting"]] = r["epoch_s"]
        moved.setdefault(f"{_case(r)}, {r['setting']}", {}).update(
            {"from the host": r.get("from_host_gb"), "to the host": r.get("to_host_gb"),
             "to GPUs": r.get("to_ranks_gb"), "stays on the GPU": r.get("kept_gb")}
        )  # fmt: skip
        lines.append([r["graph"], r["layers"], r["world"], r["num_chunks"], r["setting"],
                      r["epoch_s"], r.get("from_host_gb"), width * r["from_host_gb"],
                      r.get("to_host_gb"), r.get("to_ranks_gb"), r.get("kept_gb"),
                      r.get("lists_s")])  # fmt: skip
    head = ["graph", "model", "GPUs", "chunks", "deduplication", "epoch, s", "from host, GB",
            "hidden rows a node", "to host, GB", "to GPUs, GB", "kept, GB",
            "lists, s"]  # fmt: skip
    text = ["## Switches (Table 8, Figure 9)", "", *table(head, lines)]
    gains = []
    for case in dict.fromkeys((r["graph"], r["layers"], r["world"]) for r in rows):
        of_case = {r["setting"]: r for r in rows
                   if (r["graph"], r["layers"], r["world"]) == case}  # fmt: skip
        first, last = (of_case.get(s) for s in ("no deduplication", "and chunks in order"))
        paper = DEDUPLICATION.get(str(case[0]).partition("/")[0])
        if first and last:
            gains.append([*case, 100 * first["epoch_s"], 100 * last["epoch_s"],
                          last.get("lists_s"), first["epoch_s"] / last["epoch_s"],
                          *(paper or (None,) * 3), paper and paper[0] / paper[1]])  # fmt: skip
    if gains:
        head = ["graph", "model", "GPUs", "100 epochs without, s", "with, s", "prepared in, s",
                "ratio", "HongTu without, s", "with, s", "prepared in, s", "ratio"]  # fmt: skip
        text += ["## Deduplication (Table 9)", "", *table(head, gains)]
    return text, {
        "offload_switches": Chart.of_groups("An epoch, by deduplication (Figure 9)", "s", bars),
        "offload_moved": Chart.of_groups(
            "Rows of a GPU in an epoch, by deduplication (Table 8)", "GB", moved, better=""
        ),
    }


def _parts(rows: list[Record]) -> Section:
    rows = [r for r in rows if "busy_ms" in r]
    if not rows:
        return [], {}
    keys = {"copies from the host": "h2d_ms", "copies to the host": "d2h_ms",
            "rows by edges": "rows_ms", "between GPUs": "d2d_ms", "sums over edges": "sums_ms",
            "other computation": "gpu_ms", "busy": "busy_ms"}  # fmt: skip
    lines = [[_case(r), r["setting"], r.get("num_chunks"), r["ms"],
              *(r.get(key) for key in keys.values())] for r in rows]  # fmt: skip
    head = ["graph, model, GPUs", "setting", "chunks", "epoch, ms", *keys]
    bars: dict[str, dict[str, float | None]] = {
        f"{_case(r)}, {r['setting']}"
        + (f", {r['num_chunks']} chunks" if "num_chunks" in r else ""): {
            "epoch": r["ms"],
            **{name: r.get(key) for name, key in keys.items()},
        }
        for r in rows
    }
    chart = Chart.of_groups("Parts of an epoch, which run beside each other (Figure 9)", "ms", bars)
    text = ["## Parts of an epoch, ms (Figure 9)", "", *table(head, lines)]
    return text, {"offload_parts": chart}


def _chunks(rows: list[Record]) -> Section:
    rows = [r for r in rows if r.get("part") == "chunks" and "ms" in r]
    if not rows:
        return [], {}
    first = {_case(r): r for r in reversed(rows)}
    lines = [[r["graph"], r["layers"], r["world"], r["num_chunks"], r["epoch_s"],
              r["epoch_s"] / first[_case(r)]["epoch_s"], r.get("peak_gib"),
              r.get("from_host_gb")] for r in rows]  # fmt: skip
    head = ["graph", "model", "GPUs", "chunks", "epoch, s", "of the first", "allocated, GiB",
            "from host, GB"]  # fmt: skip
    charts = {}
    for name, key, title, unit in (
        ("chunks", "epoch_s", "An epoch, by chunks (Figure 10)", "s"),
        ("chunks_memory", "peak_gib", "Allocated on a GPU, by chunks (Figure 10)", "GiB"),
    ):
        bars: dict[str, dict[str, float | None]] = {}
        for r in rows:
            chunks = f"{r['num_chunks'] // first[_case(r)]['num_chunks']} times as many chunks"
            bars.setdefault(_case(r), {})[chunks] = r.get(key)
        charts[f"offload_{name}"] = Chart.of_groups(title, unit, bars)
    note = "HongTu with 4 times as many chunks: 1.5 to 2.2 times the time, 51 to 65 % less memory."
    return ["## Chunks (Figure 10)", "", note, "", *table(head, lines)], charts


def _inference(rows: list[Record]) -> Section:
    rows = [r for r in rows if r.get("part") == "inference" and "ms" in r]
    if not rows:
        return [], {}
    lines = [[r["graph"], r["layers"], r["world"], r["system"], r.get("num_chunks"),
              r.get("budget_gib"), r["ms"] / 1e3, r.get("classes_s"), r.get("from_host_gb"),
              r.get("peak_gib"), r.get("difference_ppm"), r.get("same_classes")]
             for r in rows]  # fmt: skip
    head = ["graph", "model", "GPUs", "by", "chunks", "budget, GiB", "all rows, s", "classes, s",
            "from host, GB", "allocated, GiB", "largest difference, ppm",
            "equal classes"]  # fmt: skip
    return ["## Inference on all nodes", "", *table(head, lines)], {}


def _scaling(rows: list[Record]) -> Section:
    """Of the runs that were made on several numbers of GPUs."""
    rows = [r for r in rows if r.get("part") == "epochs" and "ms" in r]
    cases: dict[tuple[str, str, str], dict[int, float]] = {}
    for r in rows:
        case = (r["graph"], r["layers"], r["setting"])
        cases.setdefault(case, {})[r["world"]] = r["epoch_s"]
    several = {case: times for case, times in cases.items() if len(times) > 1 and 1 in times}
    if not several:
        return [], {}
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
    title = "Speed-up over one GPU (Figure 11)"
    chart = Chart.of_groups(title, "times", bars, better=", longer is better")
    note = "HongTu on 4 GPUs: 3.3 to 3.7 (GCN), 3.4 to 3.8 (GAT)."
    return ["## GPUs (Figure 11)", "", note, "", *table(head, lines)], {"offload_scaling": chart}


if __name__ == "__main__":
    for written in write_report(Path(sys.argv[1]), Path(sys.argv[2])):
        print(written)
