"""Seconds from data in rank 0's memory, or from a saved store, to the first batch.

    python benchmarks/first_batch.py --world 4 --nodes 20e6 --edges 300e6 --dim 128
    python benchmarks/first_batch.py --world 2 --device cpu --nodes 2e6 --edges 40e6 --dim 128 \\
        --peers pyg,copies --stages share,save,load

Rank 0 has a random PyG graph with skewed destinations. The stages are `share`, the first batch of
`NeighborLoader` after it, `save`, `load` of what was saved, out of the page cache, `full_graph`.
Each is repeated, and rows of the table are medians of the slowest rank; `cpu_s` is the processor
time of all ranks and threads, which other work on the machine disturbs less. The peers: `pyg`, its
own conversion of the same edges in one process (`to_csc`, on the CPU); `copies`, one thread's copy
of the features, and on GPUs the sort of the same edges by one GPU and one pageable copy; with a
stage on disk, the disk's own rates. ``--log`` shows the stages within share as they end.
"""

from __future__ import annotations

import functools
import logging
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from harness.common import main, parser, words_of
from harness.ranks import Session, synchronize
from ingest import disk_rates
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader

import peergraph_pyg
from peergraph.store import Store

_STAGES = ("share", "save", "load", "full_graph")
_PROBE_BYTES = 1 << 30
# Values that one thread draws at a time.
_PIECE = 1 << 22


def make_data(args: Any) -> Data:
    """A random graph; the square of uniform numbers makes destinations with low ids frequent."""
    nodes, edges = int(args.nodes), int(args.edges)
    edge_index = torch.empty(2, edges, dtype=torch.int64)
    x = torch.empty(nodes, args.dim)

    def draw_edges(begin: int) -> None:
        generator = torch.Generator().manual_seed(begin)
        part = edge_index[:, begin : begin + _PIECE]
        part[0] = torch.randint(nodes, (part.shape[1],), generator=generator)
        squares = torch.rand(part.shape[1], generator=generator).square()
        part[1] = (squares * nodes).long().clamp_(max=nodes - 1)

    def draw_rows(begin: int) -> None:
        generator = torch.Generator().manual_seed(edges + begin)
        x[begin : begin + _PIECE // args.dim].normal_(generator=generator)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        list(threads.map(draw_edges, range(0, edges, _PIECE)))
        list(threads.map(draw_rows, range(0, nodes, _PIECE // args.dim)))
    return Data(x=x, edge_index=edge_index, num_nodes=nodes)


class Bench:
    """Measures the stages on one rank."""

    def __init__(self, session: Session) -> None:
        self.session, self.args = session, session.args
        self.seconds: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}
        self.row_bytes = 4 * int(self.args.nodes) * self.args.dim
        self.edge_bytes = 16 * int(self.args.edges)

    def time(self, name: str, work: Callable[[], Any], alone: bool = False) -> Any:
        """Does some work and keeps its time; rank 0 only if `alone`. Collective."""
        session = self.session
        session.barrier()
        start, cpu = time.perf_counter(), _cpu_seconds()
        result = work() if session.rank == 0 or not alone else None
        synchronize(session.device)
        took, used = time.perf_counter() - start, _cpu_seconds() - cpu
        everyone = session.group.all_gather((took, used))
        self.seconds.setdefault(name, []).append(max(seconds for seconds, _ in everyone))
        self.cpu.setdefault(name, []).append(sum(used for _, used in everyone))
        session.note(f"{name}: {self.seconds[name][-1]:.3f} s, {self.cpu[name][-1]:.2f} s of CPUs")
        return result

    def report(self, name: str, system: str, **fields: Any) -> None:
        fields = {"nodes": int(self.args.nodes), "edges": int(self.args.edges), **fields}
        seconds = statistics.median(self.seconds[name])
        if (moved := fields.pop("bytes", None)) is not None:
            fields["gbs"] = moved / seconds / 1e9
        self.session.recorder.note(
            system=system,
            stage=name,
            dim=self.args.dim,
            s=seconds,
            s_best=min(self.seconds[name]),
            cpu_s=statistics.median(self.cpu[name]),
            edges_per_s=int(self.args.edges) / seconds,
            repeats=len(self.seconds[name]),
            peak_gib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            **fields,
        )

    def share(self, data: Data | None, last: bool) -> Any:
        """Shares and makes a batch; returns the shared data if it is the last time."""
        options = {"plan": self.args.plans[0], "device": self.session.device}
        shared = self.time(
            "share", lambda: peergraph_pyg.share(data, progress=self.args.log or None, **options)
        )
        loader = NeighborLoader(shared, [10, 10], batch_size=1024, input_nodes=torch.arange(4096))
        self.time("first batch", lambda: next(iter(loader)).x.sum().item())
        if last:
            return shared
        peergraph_pyg.store_of(shared).close()
        return None


def run(session: Session) -> None:
    args, bench = session.args, Bench(session)
    if args.log and session.rank == 0:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    data = make_data(args) if session.rank == 0 else None
    session.barrier()
    session.note("the graph is there")
    _measure_peers(bench, data)
    stages = args.stages
    shared = None
    if {"share", "save", "load"} & set(stages):
        for number in range(args.repeats):
            shared = bench.share(data, number == args.repeats - 1)
        moved = bench.row_bytes + bench.edge_bytes
        bench.report("share", "peergraph", bytes=moved)
        bench.report("first batch", "peergraph")
    if {"save", "load"} & set(stages):
        folder = Path(session.first_does(lambda: _new_folder(args.folder)))
        try:
            _measure_disk(bench, shared, folder)
        finally:
            session.barrier()
            if session.rank == 0:
                shutil.rmtree(folder)
    if shared is not None:
        peergraph_pyg.store_of(shared).close()
    if "full_graph" in stages:
        full_graph = functools.partial(
            peergraph_pyg.full_graph, device=session.device, order=args.order
        )
        for _ in range(args.repeats):
            bench.time("full_graph", lambda: full_graph(data))
        bench.report("full_graph", "peergraph", bytes=bench.row_bytes + bench.edge_bytes)


def _measure_disk(bench: Bench, shared: Any, folder: Path) -> None:
    args, session = bench.args, bench.session
    store = peergraph_pyg.store_of(shared)
    for number in range(args.repeats):
        path = folder / f"store{number}"
        bench.time("save", lambda path=path: store.save(path))
        if number and session.rank == 0:
            shutil.rmtree(folder / f"store{number - 1}")
        session.barrier()
    size = session.first_does(lambda: sum(f.stat().st_size for f in path.iterdir()))
    bench.report("save", "peergraph", bytes=size)
    if "load" in args.stages:
        for _ in range(args.repeats):
            loaded = bench.time(
                "load", lambda: Store.load(path, group=session.group, plan=args.plans[0])
            )
            loaded.close()
        bench.report("load", "peergraph", bytes=size)
    rates = session.first_does(lambda: disk_rates(folder, min(size, _PROBE_BYTES)))
    for name, rate in zip(("disk read", "disk write"), rates, strict=True):
        session.recorder.note(system="disk", stage=name, gbs=rate / 1e9)


def _measure_peers(bench: Bench, data: Data | None) -> None:
    session, args = bench.session, bench.args
    for _ in range(args.repeats):
        if session.wants("pyg"):
            bench.time("to_csc", lambda: _convert_by_pyg(data), alone=True)
        if session.wants("copies"):
            bench.time("copy of rows", lambda: _copy_rows(data), alone=True)
            if session.device.type == "cuda":
                bench.time("copy to one GPU", lambda: _upload(data, session.device), alone=True)
                bench.time("sort on one GPU", lambda: _sort(data, session.device), alone=True)
    if session.wants("pyg"):
        bench.report("to_csc", "pyg", bytes=bench.edge_bytes)
    if session.wants("copies"):
        bench.report("copy of rows", "torch", bytes=bench.row_bytes)
        if session.device.type == "cuda":
            bench.report("copy to one GPU", "torch", bytes=bench.row_bytes)
            bench.report("sort on one GPU", "torch", bytes=bench.edge_bytes)


def _convert_by_pyg(data: Data | None) -> None:
    from torch_geometric.sampler.utils import to_csc

    to_csc(data, device="cpu")


def _copy_rows(data: Data | None) -> None:
    assert data is not None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    data.x.clone()
    torch.set_num_threads(threads)


def _new_folder(inside: Path | None) -> str:
    if inside is not None:
        inside.mkdir(parents=True, exist_ok=True)
    return tempfile.mkdtemp(dir=inside)


def _upload(data: Data | None, device: torch.device) -> None:
    assert data is not None
    for piece in torch.split(data.x, 1 << 20):
        piece.to(device)


def _sort(data: Data | None, device: torch.device) -> None:
    """Sorts by the destinations in pieces that fit the GPU, with their copies."""
    assert data is not None
    for piece in torch.split(data.edge_index[1], 1 << 28):
        torch.sort(piece.to(device).int(), stable=True)


def _cpu_seconds() -> float:
    return time.process_time()


if __name__ == "__main__":
    plan = "sharded" if torch.cuda.is_available() else "auto"
    arguments = parser(__doc__ or "", ["sharded", "replicated", "host", "auto"], plan)
    arguments.add_argument("--nodes", type=float, default=2e6)
    arguments.add_argument("--edges", type=float, default=40e6)
    arguments.add_argument("--dim", type=int, default=128, help="floats of a node")
    arguments.add_argument("--stages", type=words_of(_STAGES), default="share,save,load")
    arguments.add_argument("--order", default="auto", help="of nodes, of full_graph")
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument(
        "--folder", type=Path, help="on the disk to be measured; default: a temporary one"
    )
    arguments.add_argument("--log", action="store_true", help="show the stages within share")
    sys.exit(main("first_batch", run, arguments, ["pyg", "copies"]))
