"""What benchmarks write: one JSON object a line for each measurement, and tables made of them."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from peergraph.memory import Group

Record = dict[str, Any]

# Cases: what two rows must have in common to be compared.
CASE_KEYS = (
    *("bench", "graph", "world", "dim", "fanout", "batch", "semantics", "layers"),
    *("part", "setting", "op", "kind"),
)


@dataclass
class Timing:
    """Milliseconds on one rank: quantiles over the iterations, by stage too."""

    ms: float
    p10: float
    p90: float
    host_ms: float
    wall_ms: float | None
    iterations: int
    stages: dict[str, float] = field(default_factory=dict)


class Recorder:
    """Gathers the ranks' timings; rank 0 appends them to the file. Methods are collective."""

    def __init__(self, path: Path, group: Group, bench: str, beat: str) -> None:
        self._path = path
        self._group = group
        self._beat = beat
        self._base: Record = {"bench": bench, "world": group.world_size, **_machine(group.device)}
        self._references: dict[tuple[Any, ...], float] = {}

    def add(
        self,
        timing: Timing,
        *,
        system: str,
        plan: str | None = None,
        against: str | None = None,
        **fields: Any,
    ) -> Record:
        """Records a measurement: the mean over ranks of their medians, and the slowest rank's.

        Peergraph's own rows (`system` "peergraph") are the reference of their `plan`; a row with
        `against` gets `ratio`, its time over that of Peergraph with that plan in the same case.
        """
        ranks: list[Timing] = self._group.all_gather(timing)
        record = {**self._base, "system": system, "plan": plan, **fields}
        record["ms"] = _mean(rank.ms for rank in ranks)
        record["ms_p10"] = _mean(rank.p10 for rank in ranks)
        record["ms_p90"] = _mean(rank.p90 for rank in ranks)
        record["ms_slowest"] = max(rank.ms for rank in ranks)
        record["ms_host"] = _mean(rank.host_ms for rank in ranks)
        walls = [rank.wall_ms for rank in ranks if rank.wall_ms is not None]
        if walls:
            record["wall_ms"] = max(walls)
        record["iterations"] = timing.iterations
        for stage in timing.stages:
            record[f"ms_{stage}"] = _mean(rank.stages[stage] for rank in ranks)
        if "bytes" in record:
            record["gbs"] = record["bytes"] / record["ms"] / 1e6
        if "edges" in record:
            record["edges_per_s"] = record["edges"] / record["ms"] * 1e3
        if "steps_per_epoch" in record:
            record["epoch_s"] = record["steps_per_epoch"] * record["wall_ms"] / 1e3
        case = tuple(record.get(key) for key in CASE_KEYS)
        if system == "peergraph":
            self._references[(*case, plan)] = record["ms"]
        elif (*case, against) in self._references:
            record["against"] = against
            record["ratio"] = record["ms"] / self._references[(*case, against)]
        self._write(record)
        return record

    def note(self, **fields: Any) -> None:
        """Records what was not measured, but worked out."""
        self._write({**self._base, **fields})

    def failure(self, what: str, error: str, **fields: Any) -> None:
        self._write({**self._base, "what": what, "error": error, **fields})

    def skip(self, system: str, reason: str) -> None:
        self._write({**self._base, "system": system, "skipped": reason})

    def beat(self) -> None:
        """Tells the parent process that this rank still gets on."""
        if self._group.rank == 0:
            os.utime(self._beat)

    def _write(self, record: Record) -> None:
        if self._group.rank != 0:
            return
        rounded = {k: round(v, 6) if isinstance(v, float) else v for k, v in record.items()}
        with self._path.open("a") as file:
            file.write(json.dumps({k: v for k, v in rounded.items() if v is not None}) + "\n")
        self.beat()


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


def _machine(device: torch.device) -> Record:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": name, "torch": torch.__version__}


# --- tables

# Columns by benchmark; a column that no row has is left out.
_CASE = ["graph", "dim", "fanout", "batch", "semantics", "layers"]
_TIMES = ["ms", "ms_p10", "ms_p90", "ms_slowest"]
# Of a benchmark that is there no more.
_OTHER = ["system", "plan", *_TIMES, "ratio"]
_HITS = ["hit_replicated", "hit_sharded", "hit_host"]
_LINKS = ["slowest_link_mb", "host_mb"]
_OFFLOAD = ["setting", "decision", "num_chunks", "budget_gib", *_TIMES, "first_s",
            "build_s", "rows_s", "lists_s", "from_host_gb", "to_host_gb", "to_ranks_gb", "kept_gb",
            "peak_gib", "driver_gib", "rows_device_gib", "rows_host_gib", "rows_file_gib", "h2d_ms",
            "d2h_ms", "rows_ms", "d2d_ms", "sums_ms", "gpu_ms", "busy_ms", "loss",
            "last_loss"]  # fmt: skip
_COLUMNS = {
    "aggregate": ["system", *_TIMES, "gbs", "peak_gib", "ratio"],
    "first_batch": ["nodes", "edges", "dim", "system", "stage", "s", "s_best", "cpu_s", "gbs",
                    "edges_per_s", "peak_gib", "repeats"],
    "spmm": ["system", *_TIMES, "gbs", "floor_ms", "edge_floor_ms", "ratio"],
    "fullgraph": ["system", "setting", "order", "mode", *_TIMES, "ms_spmm", "ms_exchange",
                  "ms_gemm", "ms_rest", "ms_sums", "remote_rows", "peak_gib",
                  "build_peak_gib", "edge_floor_ms", "loss", "last_loss", "ratio"],
    "fullgraph_stages": ["setting", "way", *_TIMES, "hidden", "edge_imbalance", "predicted_ms"],
    "fullgraph_memory buffers": ["system", "buffers", "most_allowed", "resident_gib", "peak_gib",
                                 "reserved_gib", "build_bytes"],
    "fullgraph_memory layers": ["system", "hidden", "dropout", "cap_gib", "layers_fit",
                                "ran"],
    "fullgraph_small ops": ["op", "us", "us_torch", "us_more"],
    "fullgraph_small epochs": ["system", *_TIMES, "ms_host", "peak_gib", "loss", "last_loss",
                               "ratio"],
    "offload_transfers": ["system", *_TIMES, "gbs_in", "gbs_out", "gb_to_ranks", "gb_kept"],
    "offload duplication": ["kind", "edges", "parts", "alpha", "published", "between_ranks",
                            "published_between_ranks", "between_batches",
                            "published_between_batches", "seconds", "peak_gib"],
    "fullgraph_mgg sums": ["system", *_TIMES, "predicted_ms", "published_ms", "setting", "probes"],
    "fullgraph_mgg models": ["system", *_TIMES, "published_ms"],
    "fullgraph_mgg steps": ["system", *_TIMES],
    "fullgraph_mgg grid": ["setting", *_TIMES, "probes", "best_setting", "best_ms", "over_best"],
    "offload epochs": _OFFLOAD,
    "offload switches": _OFFLOAD,
    "offload chunks": _OFFLOAD,
    "offload inference": ["system", "decision", "num_chunks", "budget_gib", "ms", "classes_s",
                          "from_host_gb", "to_host_gb", "to_ranks_gb", "peak_gib", "rows_host_gib",
                          "difference_ppm", "same_classes"],
    "layers": ["system", "matmul", *_TIMES, "peak_gib", "against", "ratio"],
    "dgl_layers": ["kind", "threads", "system", *_TIMES, "against", "ratio"],
    "frames": ["kind", "op", "system", "plan", *_TIMES, "wall_ms", "ms_loader", "nodes",
               "host_mib", "torch_mib", "ratio"],
    "frames reach": ["kind", "nodes", "ms", "thread_ms", "eighth_ms", "over_eighth", "workers_ms",
                     "over_workers", "step_ms", "memory_ms", "over_memory", "over_untimed",
                     "window", "quarter", "host_mib", "torch_mib"],
    "gather": ["system", "plan", *_TIMES, "floor_ms", "ms_host", "gbs", "against", "ratio"],
    "embedding": ["op", "system", "plan", *_TIMES, "ms_lookup", "ms_backward", "ms_step",
                  "against", "ratio"],
    "sampling": ["system", "plan", *_TIMES, "edges", "nodes", "edges_per_s", "against", "ratio"],
    "kinds": ["kind", "system", "plan", *_TIMES, "floor_ms", "against", "ratio"],
    "ppr": ["setting", "system", "plan", *_TIMES, "ms_host", "against", "ratio"],
    "top_k": ["setting", "table_rows", "system", "plan", *_TIMES, "floor_ms", "against", "ratio"],
    "minibatch": ["system", "plan", *_TIMES, "ms_sample", "ms_gather", "ms_sum", "nodes",
                  "row_bytes", "row_ratio", "stored_gbs", "against", "ratio"],
    "end_to_end": ["plan", "way", "depth", "priority", "blocks", *_TIMES, "wall_ms", "ms_sample",
                   "ms_gather", "ms_loader", "ms_train", "epoch_s", "over_compute", "utilisation"],
    "small_batches": ["system", "plan", "way", "wall_ms", "ms_host", "kernels_ms", "over_kernels",
                      "own_kernels_ms", "busy_ms", "peak_gib", "epoch_s", "loss"],
    "small_batches turns": ["system", "plan", "way", *_TIMES, "over_memory", "by_thread", "loss"],
    "training": ["setting", "system", "plan", *_TIMES, "wall_ms", "ms_sample", "ms_gather",
                 "ms_forward", "ms_backward", "ms_optimizer", "epoch_s", "loss", "against",
                 "ratio"],
    "rgat": ["kind", "way", "op", "plan", *_TIMES, "wall_ms", "ms_loader", "ms_train",
             "seeds_per_s", "peak_gib", "reserved_gib", "nodes", "edges"],
    "epoch": ["system", "plan", "world", "device", *_TIMES, "wall_ms", "ms_sample", "ms_gather",
              "ms_train", "edges", "steps_per_epoch", "epoch_s", "over_plain"],
    "placement budgets": ["setting", "op", "system", "plan", *_TIMES, "ms_sample", "ms_gather",
                          "gbs", "missing_gbs", "host_gib", *_HITS, "against",
                          "ratio"],
    "placement factors": ["setting", "sampler", "op", *_TIMES, "ms_sample", "ms_gather", *_HITS,
                          *_LINKS],
    "placement links": ["setting", "plan", *_TIMES, "ms_sample", "ms_gather", *_HITS, *_LINKS],
    "placement machines": ["setting", "plan", "link_ms", *_LINKS],
}  # fmt: skip


def read_records(path: Path, offset: int = 0) -> list[Record]:
    """The records of a file, from a byte offset on; lines cut off by a kill are left out."""
    records = []
    with path.open() as file:
        file.seek(offset)
        for line in file:
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return records


def append_records(path: str | Path | None, records: Iterable[Record]) -> None:
    """Adds a line to a file for each record, where there is a file."""
    if path is not None:
        with Path(path).open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)


def _format(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float) or (isinstance(value, int) and abs(value) >= 10**6):
        size = abs(value)
        if size >= 10**6:
            return f"{value:.3g}"
        return f"{value:.0f}" if size >= 1000 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"
    return str(value)


def render(title: str, rows: list[Record], columns: list[str]) -> str:
    """A table with aligned columns."""
    columns = [column for column in columns if any(column in row for row in rows)]
    cells = [columns, *([_format(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
    return "\n".join([f"== {title}", *(line.rstrip() for line in lines)])


def _kind(record: Record) -> tuple[str, int, str]:
    """What has a table of its own."""
    names = [record["bench"], record.get("part")]
    if record["bench"] == "epoch":  # It compares numbers of ranks and devices.
        return "epoch", 0, ""
    return " ".join(filter(None, names)), record["world"], record["device"]


def tables(records: list[Record]) -> str:
    """All tables of some records: one for each benchmark and number of ranks, then what failed."""
    texts = []
    shown = [r for r in records if {"ms", "link_ms", "alpha", "stage"} & r.keys()]
    for kind in dict.fromkeys(map(_kind, shown)):
        rows = [r for r in shown if _kind(r) == kind]
        bench, world, device = kind
        title = f"{bench}, {world} x {device} (ratio: time over Peergraph's)" if world else bench
        texts.append(render(title, rows, [*_CASE, *_COLUMNS.get(bench, _OTHER)]))
    failed = [r for r in records if "error" in r]
    if failed:
        texts.append(render("failed", failed, ["bench", "world", "what", "error"]))
    skipped = [r for r in records if "skipped" in r]
    if skipped:
        texts.append(render("skipped", skipped, ["bench", "world", "system", "skipped"]))
    return "\n\n".join(texts)


def main(paths: list[str]) -> None:
    """Prints the tables of some files of JSON lines."""
    print(tables([record for path in paths for record in read_records(Path(path))]))


if __name__ == "__main__":
    main(sys.argv[1:])
