r"""The loader over a database of typed tables, beside PyTorch Frame's indexing of the same batches.

    python benchmarks/frames.py --world 1 --rows 300000000 --plan sharded --storage float16 \
        --warmup 30 --iterations 200 --budget 3 --deadline 185
    python benchmarks/frames.py --world 2 --device cpu --rows 200000

While the store is built, a row needs 333 bytes of a GPU (with --storage float16): 300 million rows
need 100 GB, and 400 million were 0.2 GB more than an H200 has.

A random database of ten tables, made on the GPUs: numbers, categories, a time, an embedding and
tokens in each row, and keys with a hub here and there. PyG's unmodified NeighborLoader with the
batch, fanouts and times of RelBench's example gives frames of the nodes. Seeds are users, whose
batches are small, and items, of which many have more neighbours than the fanout. Beside it:

- samples without frames, and samples of the core without times, to the time of each seed, and
  within windows of all times and of the last quarter, in turns;
- training with the loader and on batches in memory;
- the memory of a rank that is not the store's: its own on the host, and torch's on the GPU;
- PyTorch Frame on the CPU, whose frames have at most `--peer-rows` rows a table (smaller ones than
  the database's, which favours it): on one thread, of which an eighth is the time of eight workers
  that disturb nobody, and by eight real workers of a DataLoader, whose frames go to the device.
  Both without sampling.

The last table has one line for each table of seeds: what the records above say, as ratios.
"""

from __future__ import annotations

import argparse
import gc
import re
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from database_shape.model import Model
from database_shape.tables import EVENTS, SPAN, database, make_source, plain_frame
from harness.common import Mark, integers, main, measure, parser, words_of
from harness.ranks import Session, synchronize
from harness.records import Timing
from rgat_shape.graph import TypedGraph
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader

from peergraph.sampling import NeighborSampler
from peergraph.store import Store, TableTensor
from peergraph_pyg import EdgeIndexTensor, StoredFrame, accelerate

_SEED_BATCHES = 64
_BATCHES_AHEAD = 2  # of each worker, as DataLoader's default


def anonymous_mib() -> float:
    """Returns the memory of this process that no other one maps, and no file."""
    match = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) / 1024


def data_of(store: Store, graph: TypedGraph, with_frames: bool) -> HeteroData:
    """What peergraph_pyg.share returns, over a store that was made from parts of all ranks."""
    data = HeteroData()
    for table, count in graph.nodes.items():
        data[table].num_nodes = count
        if with_frames:
            data[table].tf = StoredFrame(store, table, "tf")
        if table in EVENTS:
            data[table].time = TableTensor(store, table, "time")
    for edge_type in graph.edge_types:
        data[edge_type].edge_index = EdgeIndexTensor(store, edge_type)
    return data


def draw_seeds(session: Session, count: int) -> tuple[Tensor, Tensor]:
    """Draws the seeds of a rank and their times, of the second half: [batches, seeds]."""
    random = torch.Generator().manual_seed(session.rank)
    shape = _SEED_BATCHES, session.args.batch
    seeds = torch.randint(count, shape, generator=random)
    return seeds, torch.randint(SPAN // 2, SPAN, shape, generator=random)


def batches_of(session: Session, data: HeteroData, target: str) -> Iterator[Any]:
    """Yields batches of this rank's seeds without end."""
    args = session.args
    seeds, times = draw_seeds(session, data[target].num_nodes)
    loader = NeighborLoader(
        data,
        args.fanouts,
        input_nodes=(target, seeds.flatten()),
        input_time=times.flatten(),
        time_attr="time",
        batch_size=args.batch,
        shuffle=True,
    )
    while True:
        yield from loader


def run(session: Session) -> None:
    args = session.args
    graph = database(args.rows)
    before = anonymous_mib()
    with session.stage("rows and edges made"):
        source = make_source(graph, session.rank, session.world, session.device, args.storage)
    with session.stage("store built"):
        store = Store.build(source, group=session.group, progress=False, plan=args.plan)
    del source
    session.note(f"{sum(graph.nodes.values()):,} rows in {len(graph.nodes)} tables")
    if session.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(session.device)
    with store:
        reaches = [_measure(session, store, graph, target, before) for target in args.seeds]
    session.barrier()
    for reach, nodes in reaches:
        _compare(session, nodes, reach)
        session.recorder.note(part="reach", **reach)


def _measure(
    session: Session, store: Store, graph: TypedGraph, target: str, before: float
) -> tuple[dict[str, Any], list[dict[str, Tensor]]]:
    """Measures batches of the seeds of a table.

    Returns the fields of the last table, and the ids of the nodes of some batches.
    """
    args, add = session.args, session.recorder.add
    case: dict[str, Any] = {
        "graph": graph.name,
        "batch": args.batch,
        "fanout": "-".join(map(str, args.fanouts)),
        "kind": target,
    }
    frames = batches_of(session, data_of(store, graph, True), target)
    nodes = [{t: next(frames)[t].n_id.cpu() for t in graph.nodes} for _ in range(4)]
    case["nodes"] = sum(ids.numel() for ids in nodes[0].values())
    loader = measure(session, lambda *_: next(frames))
    reach = {**case, "ms": _slowest(session, loader)}
    gc.collect()
    reach["host_mib"] = max(session.group.all_gather(anonymous_mib() - before))
    if session.device.type == "cuda":
        reach["torch_mib"] = torch.cuda.max_memory_allocated(session.device) / 2**20
    memory = {key: reach[key] for key in ("host_mib", "torch_mib") if key in reach}
    add(loader, system="peergraph", plan=args.plan, op="loader", **memory, **case)
    samples = batches_of(session, data_of(store, graph, False), target)
    alone = measure(session, lambda *_: next(samples))
    add(alone, system="samples alone", against=args.plan, op="loader", **case)
    reach.update(_sample(session, store, graph, case))
    if not args.no_training:
        reach.update(_train(session, graph, frames, case))
    return reach, nodes


def _sample(
    session: Session, store: Store, graph: TypedGraph, case: dict[str, Any]
) -> dict[str, float]:
    """Times samples of the core in turns; returns ratios."""
    args, target, device = session.args, case["kind"], session.device
    seeds, times = (part.to(device) for part in draw_seeds(session, graph.nodes[target]))
    windows = {"to each seed": None, "window of all": SPAN, "window of a quarter": SPAN // 4}
    samplers = {"without times": NeighborSampler(store, args.fanouts, disjoint=True)}
    for name, window in windows.items():
        samplers[name] = NeighborSampler(
            store, args.fanouts, disjoint=True, node_time="time", time_window=window
        )

    def turn(i: int, mark: Mark) -> None:
        at = i % _SEED_BATCHES
        for name, sampler in samplers.items():
            latest = {"seed_time": {target: times[at]}} if sampler.options.timed else {}
            sampler.sample({target: seeds[at]}, i, **latest)
            mark(name)

    timing = measure(session, turn)
    add, plan = session.recorder.add, args.plan
    for name, ms in timing.stages.items():
        shown = Timing(ms, ms, ms, ms, None, timing.iterations)
        is_first = name == "to each seed"
        against = {"plan": plan} if is_first else {"against": plan}
        system = "peergraph" if is_first else name
        add(shown, system=system, op="samples", **against, **case)
    timed = timing.stages["to each seed"]
    return {
        "over_untimed": timed / timing.stages["without times"],
        "window": timing.stages["window of all"] / timed,
        "quarter": timing.stages["window of a quarter"] / timed,
    }


def _train(
    session: Session, graph: TypedGraph, frames: Iterator[Any], case: dict[str, Any]
) -> dict[str, float]:
    """Times steps with the loader and on batches in memory; returns their ratio. Ranks do not
    average gradients.
    """
    args, target = session.args, case["kind"]
    model = accelerate(Model(graph, target, 128, len(args.fanouts)).to(session.device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    def whole(_: int, mark: Mark) -> None:
        batch = next(frames)
        mark("loader")
        step(batch)
        mark("train")

    plan, add = args.plan, session.recorder.add
    with_loader = measure(session, whole)
    add(with_loader, system="peergraph", plan=plan, op="training", **case)
    batches = [next(frames) for _ in range(4)]
    in_memory = measure(session, lambda i, _: step(batches[i % len(batches)]))
    add(in_memory, system="batches in memory", against=plan, op="training", **case)
    step_ms, memory_ms = _slowest(session, with_loader), _slowest(session, in_memory)
    return {"step_ms": step_ms, "memory_ms": memory_ms, "over_memory": step_ms / memory_ms}


def _slowest(session: Session, timing: Timing) -> float:
    """Returns the milliseconds on the clock of an iteration on the slowest rank."""
    return max(session.group.all_gather(timing.wall_ms or timing.ms))


def _compare(session: Session, nodes: list[dict[str, Tensor]], reach: dict[str, Any]) -> None:
    """Times PyTorch Frame for the frames of batches, and adds ratios. Collective."""
    args = session.args
    thread, workers = session.first_does(lambda: _time_peer(session, nodes))
    ours = reach["ms"] / session.world
    reach.update(thread_ms=thread, eighth_ms=thread / args.workers)
    reach["over_eighth"] = thread / args.workers / ours
    if workers is not None:
        reach.update(workers_ms=workers, over_workers=workers / ours)


def _time_peer(session: Session, nodes: list[dict[str, Tensor]]) -> tuple[float, float | None]:
    """Returns the milliseconds of a batch on one thread, and by workers; None if they fail."""
    most = session.args.peer_rows
    tables = list(nodes[0])
    sizes = {t: max(1 + int(ids[t].max()) for ids in nodes if ids[t].numel()) for t in tables
             if any(ids[t].numel() for ids in nodes)}  # fmt: skip
    counts = {t: min(most, size) for t, size in sizes.items()}
    plain = {t: plain_frame(tables.index(t), counts[t], session.device) for t in counts}
    ids = [{t: of_batch[t] % counts[t] for t in counts} for of_batch in nodes]
    session.note("frames of the peer made")
    dataset = _Frames(plain, ids)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times = []
    for number in range(2 + session.args.iterations):
        start = time.perf_counter()
        dataset[number]
        times.append((time.perf_counter() - start) * 1e3)
        session.recorder.beat()
        if sum(times) > 1e3 * session.args.budget and len(times) > 4:
            break
    torch.set_num_threads(threads)
    try:
        return median(times[2:]), _time_workers(session, dataset)
    except (RuntimeError, OSError) as error:  # such as a small /dev/shm
        session.note(f"{session.args.workers} workers could not be timed: {error}")
        return median(times[2:]), None


class _Frames(Dataset[dict[str, Any]]):
    """The frames of batches, again and again.

    Args:
        plain: the frame of each table.
        ids: of the rows of each batch, by table.
    """

    def __init__(self, plain: dict[str, Any], ids: list[dict[str, Tensor]]) -> None:
        self._plain, self._ids = plain, ids

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = self._ids[index % len(self._ids)]
        return {table: frame[ids[table]] for table, frame in self._plain.items()}


def _time_workers(session: Session, dataset: _Frames) -> float:
    """Returns the milliseconds between two batches of real workers, on the device."""
    args = session.args
    # Workers send the memory of each tensor as an open file.
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most_files, 1 << 16), most_files))
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=args.workers,
        prefetch_factor=_BATCHES_AHEAD,
        multiprocessing_context="fork",  # a script's default; ranks were spawned
        timeout=30,
    )
    begin, count = 0.0, 0
    first = args.workers * _BATCHES_AHEAD  # those that were made while the workers started
    for number, batch in enumerate(loader):
        for frame in batch.values():
            frame.to(session.device)
        synchronize(session.device)
        session.recorder.beat()
        if number == first:
            begin = time.perf_counter()
        elif number > first:
            count = number - first
            if count >= args.iterations or time.perf_counter() - begin > args.budget:
                break
    return (time.perf_counter() - begin) * 1e3 / count


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "")
    result.add_argument("--rows", type=int, default=1_000_000, help="of all ten tables")
    result.add_argument(
        "--seeds", type=words_of(database(0).nodes), default="user,item", help="tables of seeds"
    )
    result.add_argument("--batch", type=int, default=512, help="seeds on each rank")
    result.add_argument("--fanouts", type=integers, default="128,64", help="by edge type")
    result.add_argument("--plan", default="auto", help="of the store")
    result.add_argument("--storage", default=None, help="of columns of floating point")
    result.add_argument("--peer-rows", type=int, default=2_000_000, help="of a table, at most")
    result.add_argument("--workers", type=int, default=8, help="of PyTorch Frame")
    result.add_argument("--no-training", action="store_true")
    return result


if __name__ == "__main__":
    sys.exit(main("frames", run, arguments(), peers=()))
