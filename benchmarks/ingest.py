"""Ingest of random edges from files, beside the rate of the disk that they lie on.

    python benchmarks/ingest.py --nodes 20e6 --edges 200e6 --formats parquet,npy,csv --memory 2G

With ``--features N``, nodes have N floats in an ``.npy`` file. Files are made first, by all cores,
and dropped from the page cache. `moved_gb` are the bytes that the process reads and writes, buckets
included; `at_disk_rate` is the time in which the disk alone would move them over the time it took,
with rates that are measured in the same folder just before; `cpu_s` is the time of all threads,
which other work on the machine disturbs less. `peak_gib` is the most memory that the process held.
Each case's record is written to ``--out`` as the case ends.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.records import append_records, render
from inputs.edge_files import forget, write_edges, write_features

from peergraph.cli import byte_count

_FEATURES = "features.npy"
_COLUMNS = ["format", "nodes", "edges", "features", "memory_gib", "input_gb", "s", "cpu_s", "cores"]
_COLUMNS += ["cpu_ns_per_edge", "million_edges_per_s", "input_mbs", "moved_gb", "disk_read_mbs"]
_COLUMNS += ["disk_write_mbs", "at_disk_rate", "peak_gib", "load"]


def disk_rates(folder: Path, num_bytes: int) -> tuple[float, float]:
    """Bytes a second of reading and of writing a file from front to back."""
    path, block = folder / "probe", os.urandom(min(num_bytes, 1 << 24))
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(-(-num_bytes // len(block))):
            file.write(block)
        os.fsync(file.fileno())
    write = num_bytes / (time.perf_counter() - start)
    forget(path)
    start = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass
    read = num_bytes / (time.perf_counter() - start)
    path.unlink()
    return read, write


def ingest_and_report(edges: Path, store: str, num_nodes: int, memory: int) -> None:
    """Ingests in this process, and prints the time, memory and bytes that it took as JSON."""
    from peergraph.store import EdgeFiles, NodeFiles, Store

    def moved() -> dict[str, int]:
        lines = Path("/proc/self/io").read_text().splitlines()
        return {name: int(value) for name, value in (line.split(": ") for line in lines)}

    before, cpu = moved(), time.process_time()
    files = EdgeFiles([str(path) for path in sorted(edges.iterdir())])
    features = edges.with_name(_FEATURES)
    tables = {"x": str(features)} if features.exists() else {}
    nodes = NodeFiles(num_nodes=num_nodes, tables=tables)
    report = Store.ingest(store, nodes=nodes, edges=files, memory=memory, progress=False)
    after = moved()
    facts = {
        "s": report.seconds,
        "cpu_s": time.process_time() - cpu,
        "read": after["rchar"] - before["rchar"],
        "written": after["wchar"] - before["wchar"],
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "edges": sum(report.num_edges.values()),
    }
    print(json.dumps(facts))


def measure(edges: Path, num_nodes: int, num_edges: int, memory: int, probe: int) -> dict[str, Any]:
    """One record of the edges in a folder."""
    store = edges.with_name("store")
    inputs = [*edges.iterdir(), *edges.parent.glob(_FEATURES)]
    for source in inputs:
        forget(source)
    read_rate, write_rate = disk_rates(edges.parent, probe)
    rates = f"{read_rate / 1e6:.0f} and {write_rate / 1e6:.0f} MB/s"
    print(f"the disk reads and writes {rates}; ingest begins", flush=True)
    command = [sys.executable, __file__, "--child", str(edges), str(store)]
    command += ["--nodes", str(num_nodes), "--memory", str(memory)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["edges"] == num_edges
    shutil.rmtree(store)
    size = sum(source.stat().st_size for source in inputs)
    disk_seconds = facts["read"] / read_rate + facts["written"] / write_rate
    return {
        "bench": "ingest",
        "format": edges.name,
        "nodes": num_nodes,
        "edges": num_edges,
        "memory_gib": memory / 2**30,
        "input_gb": size / 1e9,
        "s": facts["s"],
        "cpu_s": facts["cpu_s"],
        "cpu_ns_per_edge": facts["cpu_s"] / num_edges * 1e9,
        "million_edges_per_s": num_edges / facts["s"] / 1e6,
        "input_mbs": size / facts["s"] / 1e6,
        "moved_gb": (facts["read"] + facts["written"]) / 1e9,
        "disk_read_mbs": read_rate / 1e6,
        "disk_write_mbs": write_rate / 1e6,
        "at_disk_rate": disk_seconds / facts["s"],
        "peak_gib": facts["peak"] / 2**30,
        "cores": len(os.sched_getaffinity(0)),
    }


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = arguments.add_argument
    add("--nodes", type=float, default=1e5, help="number of nodes (1e5)")
    add("--edges", type=float, default=1e6, help="number of edges (1e6)")
    add("--features", type=int, default=0, help="floats of each node (0)")
    add("--formats", default="npy", help="one or more of npy, parquet, csv (npy)")
    add("--memory", default="1G", help="of ingest; one or more, such as 512M,8G (1G)")
    add("--probe", type=byte_count, default=1 << 30, help="bytes to measure the disk with (1G)")
    add("--writers", type=int, help="threads that make the files; default: one for each core")
    add("--folder", help="on the disk to be measured; default: a temporary one")
    add("--out", help="file that records are appended to")
    add("--child", nargs=2, help=argparse.SUPPRESS)
    args = arguments.parse_args()
    num_nodes, num_edges = int(args.nodes), int(args.edges)
    if args.child:
        ingest_and_report(Path(args.child[0]), args.child[1], num_nodes, int(args.memory))
        return 0
    threads = args.writers or len(os.sched_getaffinity(0))
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        if args.features:
            write_features(folder / _FEATURES, num_nodes, args.features, threads)
        for ending in args.formats.split(","):
            edges = folder / ending
            edges.mkdir()
            write_edges(edges, ending, num_nodes, num_edges, threads)
            for memory in map(byte_count, args.memory.split(",")):
                record = measure(edges, num_nodes, num_edges, memory, args.probe)
                rows.append({**record, "features": args.features, "load": os.getloadavg()[0]})
                print(f"{ending}: {record['s']:.1f} s, {record['cpu_s']:.1f} s of all threads")
                append_records(args.out, rows[-1:])
            shutil.rmtree(edges)
    print(render("ingest", rows, _COLUMNS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
