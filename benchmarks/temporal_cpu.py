"""Temporal samples by two builds of Peergraph on the CPU, or beside samples without times.

    python benchmarks/temporal_cpu.py --before ~/other/plugin --after plugin
    python benchmarks/temporal_cpu.py --windows [--device cuda] --edges 1e8

Each build runs in a process of its own, on one thread. A batch's time is that of the process on the
processor (user and system), which other work on the machine disturbs least. Samples are compared to
the bit; the table shows whether they are the same. Times are random ("random"), or in the order of
the edges ("recorded"), as they are where edges are recorded as they happen, or lists are sorted by
time ("sorted"), as pyg-lib asks for: the graph of `pyg_lib_cpu.py`.

`--windows`: on sorted lists of several lengths, samples without times, up to the time of each seed,
within a window, in a window that begins at a time of each seed, and by reading whole lists take
turns. A GPU's time is that on the clock, with a wait for the device.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from harness.builds import Build, serve

_DEGREE = 25
_SEEDS = 256
_CASES = [
    (time, order, strategy, degree)
    for time, order in (
        ("edges", "random"),
        ("edges", "recorded"),
        ("edges", "sorted"),
        ("nodes", "random"),
        ("nodes", "sorted"),
    )
    for strategy in ("uniform", "last")
    for degree in (_DEGREE, 8 * _DEGREE)
]


def work(num_edges: int) -> None:
    """Answers requests: a case makes a sampler, a number samples a batch."""
    import hashlib
    import time

    import torch
    from pyg_lib_cpu import Graph

    from peergraph.sampling import NeighborSampler
    from peergraph.store import EdgeSource, GraphSource, Store

    torch.set_num_threads(1)
    sampler: Any = None
    seeds = latest = torch.empty(0)

    def answer(request: Any) -> Any:
        nonlocal sampler, seeds, latest
        if isinstance(request, list):
            of, order, strategy, degree = request
            random = torch.Generator().manual_seed(0)
            nodes = num_edges // degree
            count = num_edges if of == "edges" else nodes
            if order == "sorted":
                store = Graph(num_edges, degree, of).store
            else:
                ends = torch.randint(nodes, (2, num_edges), generator=random)
                times = torch.arange(count)
                if order == "random":
                    times = torch.randperm(count, generator=random)
                source = GraphSource.homogeneous(
                    nodes, EdgeSource(coo=ends), **{f"{of[:-1]}_tables": {"t": times}}
                )
                store = Store.build(source)
            name = "edge_time" if of == "edges" else "node_time"
            sampler = NeighborSampler(
                store,
                [10, 5],
                disjoint=True,
                temporal_strategy=strategy,
                **{name: "t"},
            )
            seeds = torch.randint(nodes, (64, 256), generator=random)
            latest = torch.full((256,), count * 3 // 4)
            return None
        start = time.process_time()
        sample = sampler.sample(seeds[request % 64], request, seed_time=latest)
        seconds = time.process_time() - start
        digest = hashlib.sha1()
        for part in (*sample.row.values(), *sample.edge_ids.values()):
            digest.update(part.numpy().tobytes())
        return [seconds, digest.hexdigest()]

    serve(answer)


def compare_windows(num_edges: int, rounds: int, device: str) -> None:
    """Prints a table in Markdown: medians of a batch, each also as a multiple of the first two."""
    import time

    import torch
    from pyg_lib_cpu import Graph

    from peergraph.sampling import NeighborSampler

    on_gpu = device != "cpu"
    clock = time.perf_counter if on_gpu else time.process_time
    torch.set_num_threads(1)
    print("| times of | strategy | degree | without times, ms | to the seed's time | window | "
          "starts | whole lists | window / to the seed | to the seed / without |")  # fmt: skip
    print("| --- | --- " + "| ---: " * 8 + "|")
    for of in ("edges", "nodes"):
        for degree in (_DEGREE, 8 * _DEGREE, 200 * _DEGREE):
            graph = Graph(num_edges, degree, of, device)
            random = torch.Generator().manual_seed(1)
            seeds = torch.randint(graph.num_nodes, (64, _SEEDS), generator=random).to(device)
            latest = torch.full((_SEEDS,), graph.latest, device=device)
            starts = latest // 2
            for strategy in ("uniform", "last"):
                options: dict[str, Any] = {f"{of[:-1]}_time": "t", "temporal_strategy": strategy}

                def sampler(graph: Any = graph, **options: Any) -> NeighborSampler:
                    return NeighborSampler(graph.store, [10, 5], disjoint=True, **options)

                timed = sampler(**options)
                whole = sampler(**options)
                whole._time_order = None
                windowed = sampler(**options, time_window=int(latest[0] - starts[0]))
                times = {"seed_time": latest}
                calls = [
                    (sampler(), {}),
                    (timed, times),
                    (windowed, times),
                    (timed, {**times, "seed_start": starts}),
                    (whole, times),
                ]
                seconds: list[list[float]] = [[] for _ in calls]
                for number in range(rounds + 3):
                    for (one, arguments), laps in zip(calls, seconds, strict=True):
                        begin = clock()
                        one.sample(seeds[number % 64], number, **arguments)
                        if on_gpu:
                            torch.cuda.synchronize()
                        laps.append(clock() - begin)
                ms = [1e3 * statistics.median(laps[3:]) for laps in seconds]
                row = [of, strategy, str(degree), *(f"{value:.3f}" for value in ms)]
                row += [f"{ms[2] / ms[1]:.2f}", f"{ms[1] / ms[0]:.2f}"]
                print(f"| {' | '.join(row)} |", flush=True)
            graph.store.close()


def build_of(plugin: Path, num_edges: int) -> Build:
    """A process on one thread that samples with the package in a folder."""
    command = [sys.executable, __file__, "--work", "--edges", str(num_edges)]
    return Build(command, PYTHONPATH=str(plugin.resolve()), OMP_NUM_THREADS="1")


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="folder of the other build's package")
    parser.add_argument("--after", type=Path, help="folder of this build's package")
    parser.add_argument("--edges", type=float, default=2.5e6, help="of the graph")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--windows", action="store_true", help="samples in windows")
    parser.add_argument("--device", default="cpu", help="of --windows")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        return work(int(args.edges))
    if args.windows:
        return compare_windows(int(args.edges), args.rounds, args.device)
    builds = [build_of(plugin, int(args.edges)) for plugin in (args.before, args.after)]
    print(
        "| times of | order | strategy | degree | before, ms | after, ms | ratio | same samples |"
    )
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | --- |")
    for case in _CASES:
        for build in builds:
            build.ask(case)
        seconds: list[list[float]] = [[], []]
        same = True
        for number in range(args.rounds):
            answers = [build.ask(number) for build in builds]
            same &= answers[0][1] == answers[1][1]
            for laps, answer in zip(seconds, answers, strict=True):
                laps.append(answer[0])
        before, after = (1e3 * statistics.median(laps) for laps in seconds)
        row = [*map(str, case), f"{before:.2f}", f"{after:.2f}", f"{before / after:.2f}"]
        row.append("yes" if same else "no")
        print(f"| {' | '.join(row)} |", flush=True)
    for build in builds:
        build.close()


if __name__ == "__main__":
    main()
