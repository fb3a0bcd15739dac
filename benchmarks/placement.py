"""Measures placements of a graph that does not fit.

    python benchmarks/placement.py --world 4 --graph papers --peers wholegraph

Three parts: `budgets`, gathers of real mini-batches' inputs beside WholeGraph where everything fits
each GPU, where a GPU may keep 40 % of it, and where all together keep 25 %; `factors`, XGNN's
Figure 10, one mechanism after the other; `links`, its Figure 13, policies on fully linked GPUs and
on a ring, for which links are masked. `machines` measures nothing: `link_ms` is the time of the
plan's bytes over the nominal links of the machines of that figure.
Placements are chosen by reads that were counted over an epoch and timed on batches of another one.

WholeGraph keeps a table on the GPUs or on the host, not on both: on the GPUs where their budgets
together hold structure and features, from which Peergraph's plan has to be made, too. `host_gib` is
what a gather reads of the host: Peergraph's rows that are on no GPU, or WholeGraph's whole table. A
large host table is read more slowly than a small one, by the same kernel: 50 GB/s out of 16 GiB and
less, 27.5 where rows are scattered over 24 GiB and more. So WholeGraph's is the whole table if the
host has room for it; else it is smaller, ids are taken modulo its rows, and it is at an advantage.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness.common import cases, main, parser, words, words_of
from harness.ranks import Session
from inputs.arrays import check_rows
from inputs.graphs import GraphSpec
from placing.factors import run_factors
from placing.links import run_links, run_machines
from placing.stores import (
    Case,
    Measurements,
    Watch,
    measure_gather,
    measure_store,
    record_batches,
    record_gathers,
)
from placing.workload import Workload, make_workload

from peergraph.memory import measure_topology
from peergraph.memory.region.free_memory import free_host_memory
from peergraph.memory.topology.topology import Topology

SETTINGS = ("fits", "40%", "25%")
"""What a GPU may keep: everything, 40 % of everything, its share of 25 % of everything."""


def budgets(workload: Workload, world: int) -> dict[str, int]:
    """Bytes on each GPU, by setting."""
    need = workload.need
    # The little more is for the alignment of parts.
    amounts = (int(1.01 * need) + (1 << 20), int(0.4 * need), int(0.25 * need) // world)
    return dict(zip(SETTINGS, amounts, strict=True))


def run_budgets(measurements: Measurements, topology: Topology, watch: Watch) -> None:
    """Gathers and mini-batches by the plan `auto`, then WholeGraph's gathers."""
    workload = measurements.workload
    session = workload.session
    settings = budgets(workload, session.world)
    for setting in session.args.settings:
        name = f"budgets: {setting}"
        if not watch.allows(name):
            continue
        with session.section(name, part="budgets", setting=setting):
            case = Case(setting, "auto", settings[setting], topology)
            store = case.build(workload)
            try:
                measured = measure_store(workload, store, case, gathers=True)
            finally:
                store.close()
            fields = {"part": "budgets", "plan": "auto", "setting": setting}
            record_gathers(session, measured, **fields)
            record_batches(session, measured, **fields)
    if session.wholegraph is not None:
        _run_wholegraph(workload, settings)


def _run_wholegraph(workload: Workload, settings: dict[str, int]) -> None:
    """The same gathers from WholeGraph's tables: on the GPUs where their budgets together hold
    everything, else on the host.
    """
    session = workload.session
    places: dict[str, list[str]] = {"cuda": [], "cpu": []}
    for setting in session.args.settings:
        fits = session.world * settings[setting] >= workload.need
        places["cuda" if fits else "cpu"].append(setting)
    for location, of_location in places.items():
        name = f"wholegraph {location}"
        if not of_location:
            continue
        for kind in session.args.wholegraph_kinds:
            with session.section(f"{name} {kind}", part="budgets", system=name):
                _time_wholegraph(workload, kind, location, of_location)


def _time_wholegraph(workload: Workload, kind: str, location: str, settings: list[str]) -> None:
    session, dim = workload.session, workload.dim
    peer = session.wholegraph
    rows = workload.spec.num_nodes if location == "cuda" else _rows_on_host(workload)
    with session.stage(f"WholeGraph's {kind} {location} table of {rows} rows made"):
        table = peer.table(kind, location, rows, dim)
    try:
        inputs = [ids % rows for ids in workload.inputs]
        gather = partial(peer.gather, table)
        session.together(lambda: check_rows("wholegraph", gather(inputs[0]), inputs[0]))
        timing = measure_gather(session, inputs, gather)
    finally:
        peer.drop_table(table)
    count = workload.mean_inputs
    for setting in settings:
        session.recorder.add(
            timing,
            system=f"wholegraph {kind}",
            plan=location,
            against="auto",
            part="budgets",
            setting=setting,
            op="gather",
            graph=workload.spec.name,
            dim=dim,
            fanout="-".join(map(str, workload.fanouts)),
            batch=workload.batch,
            nodes=count,
            bytes=count * workload.row_bytes,
            table_rows=rows,
            host_gib=rows * workload.row_bytes / 2**30 if location == "cpu" else 0.0,
        )


def _rows_on_host(workload: Workload) -> int:
    """Of WholeGraph's table: all, where there is room and nobody asked for fewer. Collective."""
    session = workload.session
    gib = session.args.wholegraph_gib
    rows, row_bytes = workload.spec.num_nodes, workload.row_bytes
    if gib is None:
        room = session.first_does(_host_room)
        if _SPARE * rows * row_bytes <= room:
            return rows
        gib = _SMALL_HOST_GIB
    few = min(rows, int(gib * 2**30) // row_bytes)
    if few < rows:
        session.note(
            f"WholeGraph's host table has {few} of {rows} rows: it lies closer together than "
            "Peergraph's host tier may, and is read faster"
        )
    return few


def _host_room() -> int:
    """Bytes that the host has for memory shared by processes."""
    shared = Path("/dev/shm")
    sizes = [shutil.disk_usage(shared).free] if shared.is_dir() else []
    return min([free_host_memory(), *sizes])


# What must be left of the host's memory, as a factor.
_SPARE = 1.2
# Of a table for which there is no room.
_SMALL_HOST_GIB = 16.0

Part = Callable[[Measurements, Topology, Watch], None]
PARTS: dict[str, Part] = {
    "budgets": run_budgets,
    "factors": run_factors,
    "links": run_links,
    "machines": run_machines,
}
# Parts that build many stores, on a part of the graph.
_SMALL = ("factors", "links", "machines")


def run(session: Session) -> None:
    args = session.args
    with session.stage("links measured"):
        topology = measure_topology(session.group)
    if session.rank == 0:
        print(topology, flush=True)
    small = args.graph.scaled(args.small) if args.small > 1 else args.graph
    _run_on(session, args.graph, [p for p in args.parts if p not in _SMALL], topology)
    _run_on(session, small, [p for p in args.parts if p in _SMALL], topology)


def _run_on(session: Session, spec: GraphSpec, parts: list[str], topology: Topology) -> None:
    """Some parts on one graph; a part that fails does not keep the others from being measured."""
    if not parts:
        return
    with session.section(spec.name, graph=spec.name):
        fanouts, batch = session.args.cases[0]
        workload = make_workload(session, spec, fanouts, batch, session.args.feature_dim)
        measurements = Measurements(workload)
        for part in parts:
            with session.section(part, part=part):
                PARTS[part](measurements, topology, Watch(session, session.args.part_limit))


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "", graph="papers")
    result.add_argument(
        "--parts", type=words_of(PARTS), default=",".join(PARTS), help=f"of {', '.join(PARTS)}"
    )
    result.add_argument(
        "--settings", type=words_of(SETTINGS), default=",".join(SETTINGS), help="of `budgets`"
    )
    result.add_argument("--cases", type=cases, default="15-10-5:1024", help="FANOUTS:BATCH")
    result.add_argument("--feature-dim", type=int, default=128, help="float32 a node")
    result.add_argument("--small", type=float, default=8, help="divides the graph of other parts")
    result.add_argument(
        "--share", type=float, default=0.25, help="of all bytes, a GPU's budget there"
    )
    result.add_argument("--part-limit", type=float, default=120.0, help="seconds for each part")
    result.add_argument(
        "--wholegraph-gib",
        type=float,
        help="of its host table, at most; default: all of it, or 16 where there is no room for it",
    )
    result.add_argument("--wholegraph-kinds", type=words, default="chunked", help="or continuous")
    return result


if __name__ == "__main__":
    sys.exit(main("placement", run, arguments(), peers=("wholegraph",)))
