"""How well training hides the exchange of rows between two machines.

    python benchmarks/exchange_overlap.py --out records.jsonl

Two ranks on this machine are two machines with a network of their own (network/two_machines.py:
network namespaces and a token bucket of the kernel; needs util-linux and iproute2). Each iterates
PyG's NeighborLoader on the CPU and trains a GraphSAGE on one thread. In turns are timed:

`step_ms`   a step with ``machines="replicate"``: sampling, gathering and training;
`wire_ms`   the bytes that a batch has on the network, counted by the store, sent both ways at once
            by Gloo and nothing else;
`shard_ms`  a step with ``machines="shard"``.

`ratio` is `shard_ms` over the longer one of the first two. The network's rate is set so that
`wire_ms` is `--wires` times `step_ms`. Where the wire does not limit them, two ranks on two cores
take all the time of the cores for training, and the exchange needs some of it: `cpu_ms` are the
CPU times of both ranks, all threads. With `ddp`, gradients of the model cross the network as well.
Times are medians over the steps of a round, of the slower rank; then medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from harness.common import floats, integers
from harness.records import render
from inputs.graphs import GraphSpec, get_spec, make_csc
from network.two_machines import FIRST, limit_rate, run_on_two_machines, why_not
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE

import peergraph_pyg
from peergraph.memory import Group

_COLUMNS = ["wire", "ddp", "mbit_s", "mb", "step_ms", "wire_ms", "shard_ms", "shard_least"]
_COLUMNS += ["shard_most", "ratio", "ratio_least", "ratio_most", "step_cpu_ms", "shard_cpu_ms"]
_COLUMNS += ["load"]
_WARM_UP = 3


@dataclass
class Epoch:
    """Of one rank: the median step and the CPU time of a step (all threads), in seconds."""

    seconds: float
    cpu_seconds: float


def make_data(spec: GraphSpec) -> Data:
    """A synthetic graph with random features and classes."""
    indptr, indices = make_csc(spec, "cpu")
    count = spec.num_nodes
    destinations = torch.arange(count).repeat_interleave(indptr.long().diff())
    random = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(count, spec.feature_dim, generator=random),
        y=torch.randint(spec.num_classes, (count,), generator=random),
        edge_index=torch.stack([indices.long(), destinations]),
    )


class Training:
    """Trains on one rank, by a store that is whole on each machine or split over them."""

    def __init__(self, args: argparse.Namespace) -> None:
        spec = get_spec(args.graph)
        data = make_data(spec)
        options: dict[str, Any] = {"device": "cpu", "progress": False}
        self.whole = peergraph_pyg.share(data, machines="replicate", **options)
        self.split = peergraph_pyg.share(
            data, machines="shard", hot_ratio=args.hot_ratio, **options
        )
        self.store = peergraph_pyg.store_of(self.split)
        self._args = args
        torch.manual_seed(0)
        self._plain = GraphSAGE(spec.feature_dim, args.hidden, len(args.fanout), spec.num_classes)
        self.parameters = sum(p.numel() for p in self._plain.parameters())
        count = args.batch * (args.steps + _WARM_UP)
        mine = torch.arange(spec.num_nodes)[dist.get_rank() :: dist.get_world_size()]
        self._seeds = mine[torch.randperm(mine.numel())][:count]
        assert self._seeds.numel() == count, f"{args.graph} has too few nodes for so many steps"

    def epoch(self, data: Any, is_ddp: bool) -> Epoch:
        """Trains for an epoch."""
        model: nn.Module = DistributedDataParallel(self._plain) if is_ddp else self._plain
        optimizer = torch.optim.Adam(model.parameters())
        torch.manual_seed(0)
        loader = NeighborLoader(
            data, self._args.fanout, input_nodes=self._seeds, batch_size=self._args.batch
        )
        # Sampled by a thread, as batches of a split store are.
        batches = peergraph_pyg.prefetch(loader, depth=1)
        dist.barrier()
        return timed(batches, lambda batch: train(model, optimizer, batch))

    def wire(self, num_bytes: int) -> Epoch:
        """Sends as many bytes to the other machine as come from there, again and again."""
        outbox = torch.ones(num_bytes, dtype=torch.uint8)
        inbox = torch.empty_like(outbox)
        other = 1 - dist.get_rank()

        def transfer(step: int) -> None:
            works = [dist.isend(outbox, other), dist.irecv(inbox, other)]
            for work in works:
                assert work is not None
                work.wait()

        dist.barrier()
        return timed(iter(range(self._args.steps + _WARM_UP)), transfer)

    def bytes_of_step(self, is_ddp: bool) -> tuple[int, float]:
        """What a rank sends at a step, and the seconds of a step without limits."""
        before = self.store.network_traffic()
        self.epoch(self.split, False)
        dist.barrier()
        traffic = self.store.network_traffic() - before
        gradients = 4 * self.parameters if is_ddp else 0
        step = self.epoch(self.whole, is_ddp)
        size = most(traffic.bytes_sent) // (self._args.steps + _WARM_UP)
        return round(size) + gradients, most(step.seconds)


def timed(steps: Iterator[Any], work: Callable[[Any], None]) -> Epoch:
    """Works on each of the steps; the first ones are not timed."""
    ends, cpu = [], 0.0
    for number, step in enumerate(steps):
        work(step)
        ends.append(time.perf_counter())
        if number == _WARM_UP - 1:
            cpu = time.process_time()
    cpu = time.process_time() - cpu
    seconds = [end - begin for begin, end in pairwise(ends)][_WARM_UP - 1 :]
    return Epoch(statistics.median(seconds), cpu / len(seconds))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    """One step."""
    optimizer.zero_grad()
    out: Tensor = model(batch.x, batch.edge_index)[: batch.batch_size]
    F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
    optimizer.step()


def most(value: float) -> float:
    """The most of both ranks'. Collective."""
    found = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.item()


def total(value: float) -> float:
    """The sum of both ranks'. Collective."""
    found = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(found)
    return found.item()


def measure(training: Training, args: argparse.Namespace, is_ddp: bool) -> Iterator[dict[str, Any]]:
    """A record for each rate of the network."""
    limit_rate(1e10)
    num_bytes, step = training.bytes_of_step(is_ddp)
    for wire in args.wires:
        rate = num_bytes / (wire * step)
        limit_rate(rate)
        rounds = []
        for _ in range(args.rounds):
            epochs = {
                "step": training.epoch(training.whole, is_ddp),
                "wire": training.wire(num_bytes),
                "shard": training.epoch(training.split, is_ddp),
            }
            rounds.append(
                {name: 1e3 * most(e.seconds) for name, e in epochs.items()}
                | {f"{name}_cpu": 1e3 * total(e.cpu_seconds) for name, e in epochs.items()}
            )
        yield record(rounds, args) | {
            "wire": wire, "ddp": is_ddp, "mbit_s": 8e-6 * rate, "mb": num_bytes / 1e6
        }  # fmt: skip


def record(rounds: list[dict[str, float]], args: argparse.Namespace) -> dict[str, Any]:
    """What the rounds have measured."""
    ratios = [r["shard"] / max(r["step"], r["wire"]) for r in rounds]
    found: dict[str, Any] = {
        "bench": "exchange_overlap", "graph": args.graph, "batch": args.batch,
        "fanout": "-".join(map(str, args.fanout)), "hidden": args.hidden,
        "hot_ratio": args.hot_ratio, "steps": args.steps, "rounds": args.rounds,
        "cores": len(os.sched_getaffinity(0)),
    }  # fmt: skip
    for name in ("step", "wire", "shard"):
        times = [r[name] for r in rounds]
        found[f"{name}_ms"] = statistics.median(times)
        found[f"{name}_least"], found[f"{name}_most"] = min(times), max(times)
        found[f"{name}_cpu_ms"] = statistics.median(r[f"{name}_cpu"] for r in rounds)
    found["ratio"] = statistics.median(ratios)
    found["ratio_least"], found["ratio_most"] = min(ratios), max(ratios)
    found["load"] = os.getloadavg()[0]
    return found


def run_rank(args: argparse.Namespace, rank: int) -> None:
    """One machine; the first prints the records."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{FIRST}:29400",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=args.timeout),
    )
    Group.current(device="cpu", timeout=args.timeout)
    training = Training(args)
    for is_ddp in (False, True):
        for found in measure(training, args, is_ddp):
            if rank == 0:
                print(json.dumps(found), flush=True)
    dist.barrier()
    for data in (training.whole, training.split):
        peergraph_pyg.store_of(data).close()
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--graph", default="arxiv/4")
    parser.add_argument("--fanout", type=integers, default="10,5")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--hot-ratio", type=float, default=0.25)
    parser.add_argument("--wires", type=floats, default="0.33,1,3")
    parser.add_argument("--steps", type=int, default=10, help="of each epoch, timed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=1200.0, help="seconds for all of it")
    parser.add_argument("--out", type=Path, help="file that JSON lines are appended to")
    args = parser.parse_args()
    if reason := why_not():
        print(f"exchange_overlap: {reason}", file=sys.stderr)
        return 2
    done = run_on_two_machines(partial(run_rank, args), args.timeout)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        return 1
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    print(render("exchange_overlap", records, _COLUMNS))
    if args.out:
        with args.out.open("a") as file:
            file.writelines(json.dumps(found) + "\n" for found in records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
