"""Processor time of a training step on tiny batches, by part, of two builds that take turns.

    python benchmarks/host_time.py --before ~/other/.venv/bin/python --after .venv/bin/python

Batches of a few seeds with fanouts 2-2-2 and features of 8 columns: kernels take almost nothing,
so that the times are those of Python, torch's dispatcher and autograd, which limit small batches
on a GPU. The parts: `forward` (with the loss), `backward` (with `forward`), `step` (with Adam) on
batches in memory, with PyG's layers and accelerated ones; `batches` makes batches and trains on
none, `typed batches` those of a graph with four node types and seven edge types; `loader` makes
them and trains. Each interpreter runs in a process on one thread, and both
measure a round in turns. Times are user and system time of the process, in microseconds a step:
the median of all rounds, and the least. On the CPU, builds must give the same losses, to the bit.
With a GPU, the store and the models are on it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from harness.builds import Build, serve
from harness.markdown import table

_NODES, _DEGREE = 20_000, 8
_FEATURES, _HIDDEN, _CLASSES = 8, 16, 4
_FANOUTS = [2, 2, 2]
_RELATIONS = [
    ("paper", "cites", "paper"),
    ("author", "writes", "paper"),
    ("paper", "written_by", "author"),
    ("author", "works_at", "institute"),
    ("institute", "employs", "author"),
    ("paper", "is_about", "topic"),
    ("topic", "has", "paper"),
]
_RESIDENT = 64


def parts(batch: int) -> dict[str, Callable[[], Any]]:
    """Returns a step of each part by name."""
    # The parent process needs neither.
    import torch
    import torch.nn.functional as F
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.nn import GraphSAGE

    import peergraph_pyg

    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Data(
        x=torch.randn(_NODES, _FEATURES),
        y=torch.randint(_CLASSES, (_NODES,)),
        edge_index=torch.randint(_NODES, (2, _NODES * _DEGREE)),
    )
    shared = peergraph_pyg.share(data)
    device = peergraph_pyg.store_of(shared).device
    loader = NeighborLoader(shared, _FANOUTS, batch_size=batch, input_nodes=torch.arange(4096))

    def endless(depth: int) -> Iterator[Any]:
        while True:
            yield from peergraph_pyg.prefetch(loader, depth)

    def resident() -> Iterator[Any]:
        stream = endless(0)
        batches = [next(stream) for _ in range(_RESIDENT)]
        while True:
            yield from batches

    steps: dict[str, Callable[[], Any]] = {}
    for layers in ("PyG", "accelerated"):
        model = GraphSAGE(_FEATURES, _HIDDEN, 3, out_channels=_CLASSES, dropout=0.5)
        model = model.to(device)
        if layers == "accelerated":
            model = peergraph_pyg.accelerate(model)
        optimizer = torch.optim.Adam(model.parameters())

        def forward(batches: Iterator[Any], model: Any = model) -> Any:
            batch = next(batches)
            sampled = {
                "num_sampled_nodes_per_hop": batch.num_sampled_nodes,
                "num_sampled_edges_per_hop": batch.num_sampled_edges,
            }
            out = model(batch.x, batch.edge_index, **sampled)[: batch.batch_size]
            return F.cross_entropy(out, batch.y[: batch.batch_size])

        def backward(
            batches: Iterator[Any], forward: Any = forward, optimizer: Any = optimizer
        ) -> Any:
            loss = forward(batches)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            return loss

        def step(
            batches: Iterator[Any], backward: Any = backward, optimizer: Any = optimizer
        ) -> Any:
            loss = backward(batches)
            optimizer.step()
            return loss

        for function in (forward, backward, step):
            batches = resident()
            steps[f"{layers} {function.__name__}"] = lambda f=function, b=batches: f(b)
        ahead = endless(1)
        steps[f"{layers} loader"] = lambda f=step, b=ahead: f(b)
    plain, typed = endless(0), _typed_batches(batch)
    steps["batches"] = lambda: next(plain)
    steps["typed batches"] = lambda: next(typed)
    return steps


def _typed_batches(batch: int) -> Iterator[Any]:
    """Makes batches of papers, without end."""
    # The parent process needs neither.
    import torch
    from torch_geometric.data import HeteroData
    from torch_geometric.loader import NeighborLoader

    import peergraph_pyg

    data = HeteroData()
    for node_type in ("paper", "author", "institute", "topic"):
        data[node_type].x = torch.randn(_NODES, _FEATURES)
    data["paper"].y = torch.randint(_CLASSES, (_NODES,))
    for source, name, destination in _RELATIONS:
        edge_index = torch.randint(_NODES, (2, _NODES * _DEGREE))
        data[source, name, destination].edge_index = edge_index
    seeds = "paper", torch.arange(4096)
    loader = NeighborLoader(
        peergraph_pyg.share(data), _FANOUTS, batch_size=batch, input_nodes=seeds
    )
    while True:
        yield from peergraph_pyg.prefetch(loader, 0)


def work(batch: int, count: int) -> None:
    """Measures a round of `count` steps for each request."""
    # The parent process does not need it.
    import torch

    steps = parts(batch)
    for step in steps.values():
        for _ in range(count):
            step()

    def measure(_: object) -> dict[str, Any]:
        times, losses = {}, {}
        for name, step in steps.items():
            start = time.process_time()
            for _ in range(count):
                result = step()
            times[name] = (time.process_time() - start) / count * 1e6
            if not name.endswith("batches"):
                losses[name] = float(result.detach()).hex()
        return {"times": times, "losses": losses, "is_exact": not torch.cuda.is_available()}

    serve(measure)


def compare(before: str, after: str, rounds: int, *options: str) -> None:
    """Prints a table in Markdown; raises AssertionError if losses differ."""
    builds = [Build([python, __file__, "--work", *options]) for python in (before, after)]
    measured: list[list[dict[str, float]]] = [[], []]
    try:
        for _ in range(rounds):
            both = [build.ask(None) for build in builds]
            if both[0]["is_exact"] and both[0]["losses"] != both[1]["losses"]:
                raise AssertionError(f"losses differ: {both[0]['losses']}, {both[1]['losses']}")
            for times, one in zip(measured, both, strict=True):
                times.append(one["times"])
    finally:
        for build in builds:
            build.close()
    lines = []
    for name in measured[0][0]:
        columns = []
        for summary in (statistics.median, min):
            old, new = (summary(times[name] for times in each) for each in measured)
            columns += [f"{old:.0f}", f"{new:.0f}", f"{new / old:.2f}"]
        lines.append([name, *columns])
    head = ["part", "before", "after", "ratio", "least before", "least after", "ratio"]
    print("\n".join(table(head, lines)))


def main() -> None:
    """Runs the benchmark, or one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", default=sys.executable, help="interpreter of the older build")
    parser.add_argument("--after", default=sys.executable, help="interpreter of the newer build")
    parser.add_argument("--batch", type=int, default=8, help="seeds of a batch")
    parser.add_argument("--steps", type=int, default=40, help="of a part in a round")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.batch, args.steps)
    else:
        options = "--batch", str(args.batch), "--steps", str(args.steps)
        compare(args.before, args.after, args.rounds, *options)


if __name__ == "__main__":
    main()
