"""Predicts how training scales over machines, and writes the table and the figure of the docs.

    python benchmarks/machine_scaling.py             # out of the recorded predictions
    python benchmarks/machine_scaling.py --predict   # predicts anew: minutes, 8 GB of memory

Predictions are those of `peergraph plan --machines`: 1, 2, 4 and 8 machines of four H200s each,
with 25 to 400 Gbit/s between them. Graphs are described by their sizes, so that orders of nodes are
random. The time of the model's passes in a mini-batch step is a recorded one. Beside them stands
what has been measured: the recorded run of exchange_overlap.py.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from harness.records import Record, read_records
from site_figures import FLOOR, FRAMEWORK, LIGHT, PEERGRAPH, ROOT, Chart, Series

from peergraph.cli._plan_full_graph import described_facts, ranks_of_machines
from peergraph.cli._plan_graph import described_graph
from peergraph.cli._plan_machines import Network, PlanOfMachines
from peergraph.fullgraph import FullGraphPlan
from peergraph.fullgraph.exchange.mode_cost import MODES, STAGED_MODES
from peergraph.memory import Topology
from peergraph.memory.topology.machines import machine
from peergraph.store.placement.options import DEFAULT_HOT_RATIO
from peergraph.store.placement.plan import Item, Plan
from peergraph.store.placement.policies import plan_on
from peergraph.store.placement.ratios import ShardRatios
from peergraph.store.placement.reads import BatchReads

PAGE = ROOT / "docs" / "machines.md"
FIGURE = ROOT / "docs" / "figures" / "machine_scaling.svg"
RESULTS = ROOT / "benchmarks" / "results"
PREDICTED = RESULTS / "2026-11-23-machine-scaling" / "records.jsonl"
MEASURED = RESULTS / "2026-11-23-cpu-overlap" / "records.jsonl"
MACHINES, GBITS = (1, 2, 4, 8), (25, 50, 100, 400)
GRAPHS: dict[str, dict[str, Any]] = {
    "products": {"nodes": 2_449_029, "edges": 123_718_280, "widths": (100, 256, 256, 47)},
    "papers": {"nodes": 111_059_956, "edges": 3_228_124_712, "widths": (128, 256, 256, 172)},
}
# Seconds of the model's passes on mini-batches of as many nodes: papers, 30-30-30, batch 1024,
# replicated, in results/2026-11-22-h200x2-0347.
COMPUTE = 0.0093
_SKEW, _BUDGET = 0.8, 0.6
_PARAMETERS = 1_000_000
_MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_TRAININGS = {
    ("papers", "replicate"): 'papers, mini-batches, `machines="replicate"`',
    ("papers", "shard"): 'papers, mini-batches, `machines="shard"`',
    ("papers", "full graph"): "papers, full graph",
    ("products", "full graph"): "products, full graph",
}


def predict_batches(name: str, machines: int, gbit: int, plan: str) -> float:
    """Seconds that each machine takes for as many steps as one machine takes in a second."""
    topology = machine("full4")
    items, reads = _described(name)

    def plan_items(some: Any, read: BatchReads) -> Plan:
        budget = int(_BUDGET * min(topology.memory))
        return plan_on(topology, some, read, budget, "auto", ShardRatios(None, None, None))

    network = Network.of(machines, gbit * 10**9 // 8, _PARAMETERS, COMPUTE)
    found = PlanOfMachines.make(
        plan, items, reads, topology, network, DEFAULT_HOT_RATIO, 1, plan_items
    )
    return found.step.seconds / machines


@cache
def _described(name: str) -> tuple[list[Item], BatchReads]:
    graph = GRAPHS[name]
    return described_graph(graph["nodes"], graph["edges"], [4 * graph["widths"][0]], _SKEW)


def full_graph_plan(name: str, machines: int) -> FullGraphPlan:
    """The plan of an epoch over the whole graph."""
    graph, one = GRAPHS[name], machine("full4")
    ranks = machines * one.num_gpus
    topology: Topology = one
    if machines > 1:
        topology = one.on_machines(ranks_of_machines(ranks, machines))
    row_bytes = 4 * graph["widths"][0]
    facts = described_facts(graph["nodes"], graph["edges"], row_bytes, _SKEW, ranks, machines)
    return FullGraphPlan.make(
        facts,
        topology,
        widths=graph["widths"],
        memory_budget=min(topology.memory),
        modes=MODES if machines == 1 else STAGED_MODES,
        host_memory=one.host_memory * machines,
    )


def predict(graphs: tuple[str, ...] = tuple(GRAPHS)) -> Iterator[Record]:
    """A record for each training, number of machines and network."""
    for name, kind in _TRAININGS:
        if name not in graphs:
            continue
        for machines in MACHINES:
            plan = full_graph_plan(name, machines) if kind == "full graph" else None
            for gbit in GBITS:
                if plan is None:
                    # One machine has all rows.
                    asked = kind if machines > 1 else "replicate"
                    seconds, way = predict_batches(name, machines, gbit, asked), kind
                else:
                    way = "resident" if plan.offload is None else "offloaded"
                    known = plan.with_network(gbit * 1e9 / 8) if machines > 1 else plan
                    seconds = known.seconds
                yield {"bench": "machine_scaling", "graph": name, "kind": kind, "way": way,
                       "machines": machines, "gbit": gbit, "seconds": seconds}  # fmt: skip


def speedups(records: list[Record], name: str, kind: str, gbit: int) -> list[float | None]:
    """By number of machines, how many times as fast as one."""
    found = {
        r["machines"]: r
        for r in records
        if (r["graph"], r["kind"], r["gbit"]) == (name, kind, gbit)
    }
    one = found[1]["seconds"]
    return [one / found[m]["seconds"] if m in found else None for m in MACHINES]


def predicted_table(records: list[Record]) -> str:
    """Times as fast as one machine, by training, number of machines and network."""
    lines = ["| predicted | machines | " + " | ".join(f"{gbit} Gbit/s" for gbit in GBITS) + " |",
             "| --- | ---: |" + " ---: |" * len(GBITS)]  # fmt: skip
    for (name, kind), title in _TRAININGS.items():
        by_network = [speedups(records, name, kind, gbit) for gbit in GBITS]
        for i, machines in enumerate(MACHINES):
            if machines > 1:
                cells = (_times(values[i]) for values in by_network)
                lines.append(f"| {title} | {machines} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def measured_table(records: list[Record]) -> str:
    """Steps on two machines beside the longer one of step and wire."""
    lines = ["| measured, two machines | network | step | wire | step with exchange | over the "
             "longer one | least and most of a round |",
             "| --- |" + " ---: |" * 6]  # fmt: skip
    for r in records:
        title = "with DDP's gradients" if r["ddp"] else "rows alone"
        cells = [f"{r['mbit_s']:.1f} Mbit/s"]
        cells += [f"{r[name]:.0f} ms" for name in ("step_ms", "wire_ms", "shard_ms")]
        cells += [f"{r['ratio']:.2f}", f"{r['ratio_least']:.2f} to {r['ratio_most']:.2f}"]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def filled(page: str) -> str:
    """The page with the tables between their marks."""
    tables = {
        "predicted": lambda: predicted_table(read_records(PREDICTED)),
        "measured": lambda: measured_table(read_records(MEASURED)),
    }
    return _MARKED.sub(lambda mark: f"{mark[1]}\n{tables[mark[2]]()}\n{mark[3]}", page)


def chart(records: list[Record]) -> Chart:
    """Eight machines and fewer, by training at 100 Gbit/s."""
    colors = (LIGHT, PEERGRAPH, FRAMEWORK, "#e08a3c")
    series = [
        Series(title.replace("`", ""), color, speedups(records, name, kind, 100))
        for ((name, kind), title), color in zip(_TRAININGS.items(), colors, strict=True)
    ]
    return Chart(
        "Predicted: training on several machines of four H200s, 100 Gbit/s each",
        "times as fast as one machine, by machines",
        [str(count) for count in MACHINES],
        series,
        Series("as many times as machines", FLOOR, [float(count) for count in MACHINES]),
    )


def draw(path: Path) -> Path:
    """The figure as an SVG file. Needs matplotlib."""
    from site_drawing import draw_lines

    return draw_lines(chart(read_records(PREDICTED)), path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--predict", action="store_true", help="predict anew, and record it")
    args = parser.parse_args()
    if args.predict:
        lines = [json.dumps(record) + "\n" for record in predict()]
        PREDICTED.parent.mkdir(exist_ok=True)
        PREDICTED.write_text("".join(lines))
    print(predicted_table(read_records(PREDICTED)))
    print(measured_table(read_records(MEASURED)))
    PAGE.write_text(filled(PAGE.read_text()))
    print(draw(FIGURE).relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
