"""Ingest of random edges from files, beside the rate of the disk that they lie on.

    python benchmarks/ingest.py --nodes 20e6 --edges 200e6 --formats parquet,npy,csv --memory 2G

With ``--features N``, nodes have N floats in an ``.npy`` file. Files are made first, and dropped
from the page cache. `moved_gb` are the bytes that the process reads and writes, buckets included;
`at_disk_rate` is the time in which the disk alone would move them over the time it took, with rates
that are measured in the same folder; `cpu_s` is the time of all threads, which other work on the
machine disturbs less. `peak_gib` is the most memory that the process held.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness.records import render

from peergraph.cli import byte_count

_CHUNK = 1 << 22
_FEATURES = "features.npy"
_COLUMNS = ["format", "nodes", "edges", "features", "memory_gib", "input_gb", "s", "cpu_s", "cores"]
_COLUMNS += ["million_edges_per_s", "input_mbs", "moved_gb", "disk_read_mbs", "disk_write_mbs"]
_COLUMNS += ["at_disk_rate", "peak_gib", "load"]


def chunks(num_nodes: int, num_edges: int) -> Iterator[np.ndarray]:
    """Pieces ``[2, n]`` of random edges, a fifth of them into a hundredth of the nodes."""
    random = np.random.default_rng(0)
    for begin in range(0, num_edges, _CHUNK):
        count = min(_CHUNK, num_edges - begin)
        edges = random.integers(num_nodes, size=(2, count))
        hubs = slice(0, count // 5)
        edges[1, hubs] %= max(1, num_nodes // 100)
        edges[1] = random.permutation(edges[1])
        yield edges


def make(path: Path, num_nodes: int, num_edges: int) -> None:
    """Writes the edges; the format is the name's ending."""
    if path.suffix == ".npy":
        out = np.lib.format.open_memmap(path, "w+", np.int64, (2, num_edges))
        begin = 0
        for edges in chunks(num_nodes, num_edges):
            out[:, begin : begin + edges.shape[1]] = edges
            begin += edges.shape[1]
        out.flush()
        return
    import pyarrow

    schema = pyarrow.schema([("source", pyarrow.int64()), ("destination", pyarrow.int64())])
    if path.suffix == ".parquet":
        from pyarrow.parquet import ParquetWriter as Writer
    else:
        from pyarrow.csv import CSVWriter as Writer
    with Writer(path, schema) as writer:
        for edges in chunks(num_nodes, num_edges):
            writer.write_table(pyarrow.table([*edges], schema=schema))


def make_features(path: Path, num_nodes: int, columns: int) -> None:
    """Writes random floats, ``[nodes, columns]``."""
    out = np.lib.format.open_memmap(path, "w+", np.float32, (num_nodes, columns))
    random = np.random.default_rng(1)
    step = max(1, _CHUNK // columns)
    for begin in range(0, num_nodes, step):
        out[begin : begin + step] = random.random(out[begin : begin + step].shape, np.float32)
    out.flush()


def forget(path: Path) -> None:
    """Drops a file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_rates(folder: Path, num_bytes: int) -> tuple[float, float]:
    """Bytes a second of reading and of writing a file from front to back."""
    path, block = folder / "probe", os.urandom(min(num_bytes, 1 << 24))
    begin = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(-(-num_bytes // len(block))):
            file.write(block)
        os.fsync(file.fileno())
    write = num_bytes / (time.perf_counter() - begin)
    forget(path)
    begin = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass
    read = num_bytes / (time.perf_counter() - begin)
    path.unlink()
    return read, write


def ingest_and_report(edges: str, store: str, num_nodes: int, memory: int) -> None:
    """Ingests in this process, and prints the time, memory and bytes that it took as JSON."""
    from peergraph.store import EdgeFiles, NodeFiles, Store

    def moved() -> dict[str, int]:
        lines = Path("/proc/self/io").read_text().splitlines()
        return {name: int(value) for name, value in (line.split(": ") for line in lines)}

    before, cpu = moved(), time.process_time()
    files = EdgeFiles(edges)
    features = Path(edges).with_name(_FEATURES)
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


def measure(
    path: Path, folder: Path, num_nodes: int, num_edges: int, memory: int, probe: int
) -> dict[str, Any]:
    """One record."""
    store = folder / "store"
    inputs = [found for found in (path, path.with_name(_FEATURES)) if found.exists()]
    for given in inputs:
        forget(given)
    read_rate, write_rate = disk_rates(folder, probe)
    command = [sys.executable, __file__, "--child", str(path), str(store)]
    command += ["--nodes", str(num_nodes), "--memory", str(memory)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["edges"] == num_edges
    shutil.rmtree(store)
    size = sum(given.stat().st_size for given in inputs)
    disk_seconds = facts["read"] / read_rate + facts["written"] / write_rate
    return {
        "bench": "ingest",
        "format": path.suffix[1:],
        "nodes": num_nodes,
        "edges": num_edges,
        "memory_gib": memory / 2**30,
        "input_gb": size / 1e9,
        "s": facts["s"],
        "cpu_s": facts["cpu_s"],
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
    arguments = argparse.ArgumentParser(description=__doc__)
    add = arguments.add_argument
    add("--nodes", type=float, default=1e5)
    add("--edges", type=float, default=1e6)
    add("--features", type=int, default=0, help="floats of each node (0)")
    add("--formats", default="npy", help="npy, parquet, csv")
    add("--memory", default="1G", help="one or more, such as 512M,8G")
    add("--probe", type=byte_count, default=1 << 30, help="bytes to measure the disk with (1G)")
    add("--folder", help="on the disk to be measured; default: a temporary one")
    add("--out", help="file that records are appended to")
    add("--child", nargs=2, help=argparse.SUPPRESS)
    args = arguments.parse_args()
    num_nodes, num_edges = int(args.nodes), int(args.edges)
    if args.child:
        ingest_and_report(*args.child, num_nodes, int(args.memory))
        return 0
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        if args.features:
            make_features(folder / _FEATURES, num_nodes, args.features)
        for ending in args.formats.split(","):
            path = folder / f"edges.{ending}"
            make(path, num_nodes, num_edges)
            for memory in map(byte_count, args.memory.split(",")):
                found = measure(path, folder, num_nodes, num_edges, memory, args.probe)
                rows.append({**found, "features": args.features, "load": os.getloadavg()[0]})
                if args.out:
                    with open(args.out, "a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
            path.unlink()
    print(render("ingest", rows, _COLUMNS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
