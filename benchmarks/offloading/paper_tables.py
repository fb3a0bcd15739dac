"""HongTu's tables 6 and 7 and its figures 8 and 11, with epochs that were recorded on one GPU."""

from __future__ import annotations

from collections.abc import Sequence

from harness.charts import Chart
from harness.markdown import table
from harness.records import Record

from offloading.published import (
    DISTDGL,
    DISTGNN,
    FOUR_GPUS,
    IN_MEMORY_FOUR_GPUS,
    SANCUS,
    SPEEDUPS,
)

Section = tuple[list[str], dict[str, Chart]]
"""Lines of a page, and charts by name."""
Case = tuple[str, str, int]
"""A graph without its divisor, a kind of model, a number of layers."""

_LARGE = ("it-2004", "papers100m", "friendster")
_OURS, _THEIRS = "Peergraph, one GPU", "HongTu, four A100-80"


def tables_of_paper(rows: Sequence[Record]) -> Section:
    """Tables 6 and 7, and Figure 11, of the runs on one GPU."""
    ours = [r for r in rows if r.get("part") == "epochs" and "ms" in r and r["world"] == 1]
    lines: list[str] = []
    charts: dict[str, Chart] = {}
    for make in (_multi_gpu_systems, _cpu_systems, _one_gpu):
        section, more = make(ours)
        lines += section
        charts |= more
    return lines, charts


def accuracy_by_epoch(rows: Sequence[Record]) -> Section:
    """Makes Figure 8: validation and test accuracy by epoch of offloaded training and of PyG."""
    rows = [r for r in rows if r.get("part") == "accuracy"]
    if not rows:
        return [], {}
    note = (
        "Float32, with the same initial weights on both sides. HongTu compares a GCN with DGL's; "
        "here it is PyG in memory. Between: the largest difference of the losses of an epoch, over "
        "the loss, and of the accuracies of an epoch."
    )
    text = ["## Accuracy (Figure 8)", "", note, ""]
    charts, lines = {}, []
    for graph, layers in dict.fromkeys((r["graph"], r["layers"]) for r in rows):
        both = [r for r in rows if (r["graph"], r["layers"]) == (graph, layers)]
        curves = {
            str(epoch + 1): {
                f"{r['system']}, {what}": 100 * r[what][epoch]
                for r in both
                for what in ("validation", "test")
            }
            for epoch in range(min(len(r["test"]) for r in both))
        }
        charts[f"offload_accuracy_{graph}_{str(layers).split()[0].lower()}"] = Chart.of_groups(
            f"{graph}, {layers}", "accuracy in percent, by epoch", curves,
            is_lines=True, from_zero=False,
        )  # fmt: skip
        losses, accuracies = _between(both)
        lines += [
            [graph, layers, r["system"], len(r["validation"]), 100 * r["validation"][-1],
             100 * r["test"][-1], r["losses"][-1], losses, accuracies]
            for r in both
        ]  # fmt: skip
    head = ["graph", "model", "by", "epochs", "validation, %", "test, %", "last loss",
            "losses between", "accuracies between, %"]  # fmt: skip
    return [*text, *table(head, lines)], charts


def _between(rows: Sequence[Record]) -> tuple[float | None, float | None]:
    """The largest differences between two trainings: of losses, relative, and of accuracies, %."""
    if len(rows) != 2:
        return None, None
    first, second = rows

    def differences(key: str) -> list[float]:
        return [abs(a - b) for a, b in zip(first[key], second[key], strict=True)]

    losses = max(d / a for d, a in zip(differences("losses"), first["losses"], strict=True))
    return losses, 100 * max(differences("validation") + differences("test"))


def _case(row: Record) -> Case:
    graph = str(row["graph"]).partition("/")[0]
    return graph, row["kind"], str(row["layers"]).count("-")


def _is_width_of_paper(row: Record) -> bool:
    """Whether the hidden layers are as wide as HongTu's."""
    widths = [int(word) for word in str(row["layers"]).split()[1].split("-")]
    return set(widths[1:-1]) == {128 if _case(row)[0] in _LARGE else 256}


def _whole(row: Record) -> float:
    """Seconds of an epoch; of 1/D of a graph times D."""
    return float(row["epoch_s"]) * float(str(row["graph"]).partition("/")[2] or 1)


def _tightest(rows: Sequence[Record], decision: str) -> dict[Case, Record]:
    """The run of each case with the smallest budget, resident or offloaded."""
    fastest: dict[Case, Record] = {}
    for row in rows:
        if not row["decision"].startswith(decision) or not _is_width_of_paper(row):
            continue
        best = fastest.setdefault(_case(row), row)
        if (row.get("budget_gib") or 0) < (best.get("budget_gib") or 0):
            fastest[_case(row)] = row
    return fastest


def _multi_gpu_systems(rows: Sequence[Record]) -> Section:
    offloaded, resident = _tightest(rows, "offloaded"), _tightest(rows, "resident")
    cases = [case for case in FOUR_GPUS if case[1] == "GCN" and case in offloaded]
    if not cases:
        return [], {}
    lines, bars = [], {}
    for case in cases:
        graph, _, layers = case
        key, mine = (graph, layers), offloaded[case]
        seconds = {
            "Sancus": SANCUS.get(key),
            "HongTu in memory": IN_MEMORY_FOUR_GPUS.get(key),
            _THEIRS: FOUR_GPUS[case],
            "DistDGL": DISTDGL.get(key),
            "Peergraph in memory, one GPU": _whole(resident[case]) if case in resident else None,
            _OURS: _whole(mine),
        }
        shown = ("-" if value is None else value for value in seconds.values())
        lines.append([f"{mine['graph']}, {layers} layers", mine["budget_gib"], *shown])
        bars[f"{graph}, {layers} layers"] = dict(seconds)
    head = ["graph", "budget, GiB", *seconds]
    note = (
        "Seconds of an epoch of a GCN. Other systems: as HongTu reports them, on four A100-80; - "
        "where they ran out of memory, or nothing is known. Peergraph: one GPU, offloaded with the "
        "budget; NAME/D is 1/D of the graph in 1/D of the budget, and its seconds are times D."
    )
    large = {name: values for name, values in bars.items() if name.split(",")[0] in _LARGE}
    chart = Chart.of_groups("An epoch of a GCN (Table 6)", "s", large)
    charts = {"offload_table6": chart} if large else {}
    return ["## Systems on GPUs (Table 6)", "", note, "", *table(head, lines)], charts


def _cpu_systems(rows: Sequence[Record]) -> Section:
    offloaded = _tightest(rows, "offloaded")
    cases = [case for case in FOUR_GPUS if case[0] in _LARGE and case in offloaded]
    if not cases:
        return [], {}
    lines, bars = [], {}
    for case in cases:
        graph, kind, layers = case
        mine, theirs = offloaded[case], FOUR_GPUS[case]
        seconds = _whole(mine)
        lines.append([f"{mine['graph']}, {layers} layers", kind, DISTGNN.get(case, "-"), theirs,
                      seconds, theirs / seconds, mine.get("peak_gib"), mine.get("planned_gib"),
                      mine.get("host_gib"), mine.get("planned_host_gib")])  # fmt: skip
        bars[f"{graph}, {kind}, {layers} layers"] = {_THEIRS: theirs, _OURS: seconds}
    head = ["graph", "model", "DistGNN, 16 CPU nodes, s", f"{_THEIRS}, s", f"{_OURS}, s",
            "HongTu / Peergraph", "allocated, GiB", "planned, GiB", "host, GiB",
            "planned rows on the host, GiB"]  # fmt: skip
    charts = {"offload_table7": Chart.of_groups("An epoch of GCN and GAT (Table 7)", "s", bars)}
    note = "NAME/D is 1/D of the graph in 1/D of the budget; its seconds are times D, its GiB not."
    return ["## GCN and GAT on large graphs (Table 7)", "", note, "", *table(head, lines)], charts


def _one_gpu(rows: Sequence[Record]) -> Section:
    """Of HongTu on one GPU, speed-ups were published, and seconds on four GPUs."""
    offloaded = _tightest(rows, "offloaded")
    cases = [case for case in FOUR_GPUS if case[0] in _LARGE and case in offloaded]
    if not cases:
        return [], {}
    lines, bars = [], {}
    for case in cases:
        graph, kind, layers = case
        least, greatest = (FOUR_GPUS[case] * ratio for ratio in SPEEDUPS[kind])
        seconds = _whole(offloaded[case])
        lines.append([f"{graph}, {layers} layers", kind, seconds, least, greatest,
                      least / seconds])  # fmt: skip
        bars[f"{graph}, {kind}, {layers} layers"] = {"HongTu, one A100-80": least, _OURS: seconds}
    head = ["graph", "model", f"{_OURS}, s", "HongTu, one A100-80, at least, s", "at most, s",
            "HongTu / Peergraph, at least"]  # fmt: skip
    title = "An epoch on one GPU (Figure 11, first point)"
    note = (
        "Only one GPU was measured: this is the first point of the figure. HongTu's seconds on one "
        "GPU are those on four times the published speed-ups, 3.3 to 3.7 of GCN and 3.4 to 3.8 of "
        "GAT."
    )
    text = ["## One GPU (Figure 11)", "", note, "", *table(head, lines)]
    return text, {"offload_one_gpu": Chart.of_groups(title, "s", bars)}
