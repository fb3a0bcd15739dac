"""How well training hides the exchange of rows between machines.

    python benchmarks/exchange_overlap.py --out records.jsonl
    python benchmarks/exchange_overlap.py --layout 2+2 --device cuda --graph products \\
        --fanout 15,10,5 --batch 1024 --steps 20 --out records.jsonl

Each rank iterates PyG's NeighborLoader and trains a model with Peergraph's layers. In turns are
timed:

`step_ms`      a step with ``machines="replicate"``: sampling, gathering and training;
`wire_ms`      the bytes that a batch has on the network, counted by the store, between the same
               ranks and nothing else;
`exchange_ms`  the exchange of the rows of the same batches: numbers, ids and rows, and what the
               ranks of a machine pass to each other;
`shard_ms`     a step with ``machines="shard"``.

`ratio` is `shard_ms` over the longer one of `step_ms` and `wire_ms`, `over_exchange` that over the
longer one of `step_ms` and `exchange_ms`. With `ddp`, gradients of the model cross the network as
well. `over_cold` is the bytes of all ranks over those of the distinct rows that a machine needs
from others; with `--batches-per-exchange`, for a round of so many batches of each rank.

Without --layout, two CPU ranks with one thread each are two machines with a network of their own
(network/two_machines.py: network namespaces and a token bucket of the kernel; needs util-linux and
iproute2). The network's rate is set so that `wire_ms` is `--wires` times `step_ms`. Where the wire
does not limit them, two ranks on two cores take all the time of the cores for training, and the
exchange needs some of it: `cpu_ms` are the CPU times of all ranks, all threads.

With --layout, ranks of this machine take themselves for ranks of several: "1+3" is a machine with
one rank and one with three (PEERGRAPH_HOSTID, NCCL_HOSTID). Between machines, NCCL sends through
sockets of the loopback interface, as fast as it can. The share of hot rows is chosen so that
`wire_ms` is about `--wires` times `step_ms`: by the first measurements, with --hot-ratio. If even
without hot rows fewer bytes cross the network, `wire_over_step` stays smaller; more --columns make
more bytes.

Times are of the slower rank, by epoch the median step of CPU ranks and the mean step of GPUs; then
medians over the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from harness.common import floats, integers
from harness.records import append_records, read_records, render
from inputs.graphs import get_spec
from network.overlap import Recorded, Training, cold_share, hot_ratio_for, most, total
from network.two_machines import FIRST, limit_rate, run_on_two_machines, why_not
from training import MODELS

from peergraph.memory import DistributedTable, Group
from peergraph.store import Store
from peergraph.testing import run_ranks

_COLUMNS = ["layout", "model", "batches_per_exchange", "wire", "ddp", "mbit_s", "hot_ratio", "mb"]
_COLUMNS += ["over_cold", "step_ms", "wire_ms", "exchange_ms", "shard_ms", "shard_least"]
_COLUMNS += ["shard_most", "wire_over_step", "ratio", "ratio_least", "ratio_most", "over_exchange"]
_COLUMNS += ["step_cpu_ms", "shard_cpu_ms", "load"]
# NCCL_NET keeps plugins for other networks out, which NCCL_IB_DISABLE leaves in.
_LOOPBACK = {
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "=lo",
    "NCCL_NVLS_ENABLE": "0",
}
Record = dict[str, Any]


def by_rate(training: Training, args: argparse.Namespace) -> Iterator[Record]:
    """A record for each rate of the network between two network namespaces."""
    split = training.split(args.hot_ratio)
    recorded = training.record(split)
    for is_ddp in args.ddp:
        limit_rate(1e10)
        num_bytes = recorded.bytes_sent + (4 * training.parameters if is_ddp else 0)
        step = most(training.epoch(training.whole, is_ddp).seconds)
        for wire in args.wires:
            rate = num_bytes / (wire * step)
            limit_rate(rate)
            result = measure(training, split, recorded, args, is_ddp)
            yield result | {
                "wire": wire, "mbit_s": 8e-6 * rate, "hot_ratio": args.hot_ratio,
                "mb": num_bytes / 1e6,
            }  # fmt: skip
    split.close()


def by_hot_ratio(training: Training, args: argparse.Namespace) -> Iterator[Record]:
    """A record for each share of hot rows."""
    split = training.split(args.hot_ratio)
    recorded = training.record(split)
    table = split.node_table("x")
    assert isinstance(table, DistributedTable)
    share, internal = cold_share(table, recorded.ids[:4])
    # The first epoch allocates memory and loads kernels.
    _, step = (most(training.epoch(training.whole, True).seconds) for _ in range(2))
    over_step = most(training.wire(recorded, False).seconds) / step
    split.close()
    # All ranks build with the ratios of the first.
    ratios = [hot_ratio_for(share * wire / over_step, internal, table.rows) for wire in args.wires]
    dist.broadcast_object_list(ratios)
    for wire, hot_ratio in zip(args.wires, ratios, strict=True):
        split = training.split(hot_ratio)
        recorded = training.record(split)
        for is_ddp in args.ddp:
            result = measure(training, split, recorded, args, is_ddp)
            yield result | {"wire": wire, "hot_ratio": hot_ratio, "mb": recorded.bytes_sent / 1e6}
        split.close()


def measure(
    training: Training,
    split: Store,
    recorded: Recorded,
    args: argparse.Namespace,
    is_ddp: bool,
) -> Record:
    """What the rounds measure. Collective."""
    rounds = []
    for _ in range(args.rounds):
        epochs = {
            "step": training.epoch(training.whole, is_ddp),
            "wire": training.wire(recorded, is_ddp),
            "exchange": training.exchange(split, recorded),
            "shard": training.epoch(split, is_ddp),
        }
        rounds.append(
            {name: 1e3 * most(e.seconds) for name, e in epochs.items()}
            | {f"{name}_cpu": 1e3 * total(e.cpu_seconds) for name, e in epochs.items()}
        )
    return record(rounds, args) | {
        "ddp": is_ddp, "cold_rows": recorded.cold_rows, "over_cold": recorded.over_cold
    }  # fmt: skip


def record(rounds: list[dict[str, float]], args: argparse.Namespace) -> Record:
    """The medians and the spread of the rounds."""
    ratios = [r["shard"] / max(r["step"], r["wire"]) for r in rounds]
    name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    result: Record = {
        "bench": "exchange_overlap", "layout": args.layout, "device": name, "graph": args.graph,
        "model": args.model, "batches_per_exchange": args.batches_per_exchange,
        "batch": args.batch, "fanout": "-".join(map(str, args.fanout)), "hidden": args.hidden,
        "columns": args.columns, "depth": args.depth, "steps": args.steps, "rounds": args.rounds,
        "cores": len(os.sched_getaffinity(0)),
    }  # fmt: skip
    for name in ("step", "wire", "exchange", "shard"):
        times = [r[name] for r in rounds]
        result[f"{name}_ms"] = statistics.median(times)
        result[f"{name}_least"], result[f"{name}_most"] = min(times), max(times)
        result[f"{name}_cpu_ms"] = statistics.median(r[f"{name}_cpu"] for r in rounds)
    result["wire_over_step"] = statistics.median(r["wire"] / r["step"] for r in rounds)
    result["ratio"] = statistics.median(ratios)
    result["ratio_least"], result["ratio_most"] = min(ratios), max(ratios)
    result["over_exchange"] = statistics.median(
        r["shard"] / max(r["step"], r["exchange"]) for r in rounds
    )
    result["load"] = os.getloadavg()[0]
    return result


def write_records(args: argparse.Namespace, path: Path, group: Group) -> None:
    """One rank; the first writes the records."""
    training = Training(args, get_spec(args.graph), group)
    for result in (by_hot_ratio if args.layout else by_rate)(training, args):
        if dist.get_rank() == 0:
            append_records(path, [result])
    training.whole.close()


def run_namespace(args: argparse.Namespace, path: Path, rank: int) -> None:
    """One machine of two network namespaces."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{FIRST}:29400",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=args.timeout),
    )
    write_records(args, path, Group.current(device="cpu", timeout=args.timeout))
    dist.destroy_process_group()


def run_host(args: argparse.Namespace, path: Path) -> None:
    """One rank of a machine of the layout."""
    rank = dist.get_rank()
    sizes = enumerate(map(int, args.layout.split("+")))
    host = f"host-{[machine for machine, size in sizes for _ in range(size)][rank]}"
    # Read when the first communicator is made.
    os.environ.update(_LOOPBACK, PEERGRAPH_HOSTID=host, NCCL_HOSTID=host)
    device = torch.device("cpu")
    if args.device == "cuda":
        device = torch.device("cuda", rank)
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // dist.get_world_size()))
    write_records(args, path, Group.current(device=device, timeout=args.timeout))


def run(args: argparse.Namespace, path: Path) -> int:
    """Runs all ranks; 0, 1 (a rank failed) or 2 (this machine cannot run them)."""
    if args.layout:
        ranks = sum(map(int, args.layout.split("+")))
        if args.device == "cuda" and torch.cuda.device_count() < ranks:
            print(f"exchange_overlap: {args.layout} takes {ranks} GPUs", file=sys.stderr)
            return 2
        try:
            run_ranks(run_host, ranks, args, path, device=args.device, timeout_s=args.timeout)
        except (RuntimeError, TimeoutError) as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    if reason := why_not():
        print(f"exchange_overlap: {reason}", file=sys.stderr)
        return 2
    done = run_on_two_machines(partial(run_namespace, args, path), args.timeout)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
    return int(done.returncode != 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--layout", default="", help="ranks by machine, as 2+2 or 1+3")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of a --layout")
    parser.add_argument("--graph", default="arxiv/4")
    parser.add_argument("--columns", type=int, default=128, help="float32 features of a node")
    parser.add_argument("--fanout", type=integers, default="10,5")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--model", choices=list(MODELS), default="sage")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--depth", type=int, default=1, help="batches that a thread makes ahead")
    parser.add_argument("--hot-ratio", type=float, default=0.25)
    parser.add_argument(
        "--batches-per-exchange", type=int, default=1, help="of a store, as Store.build"
    )
    parser.add_argument("--wires", type=floats, default="0.33,1,3")
    parser.add_argument("--ddp", type=integers, default="0,1", help="0: without, 1: with it")
    parser.add_argument("--steps", type=int, default=10, help="of each epoch, timed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=1200.0, help="seconds for all of it")
    parser.add_argument("--out", type=Path, help="file that JSON lines are appended to")
    args = parser.parse_args()
    if args.batches_per_exchange < 1 or args.steps % args.batches_per_exchange:
        parser.error("--steps must be a multiple of --batches-per-exchange, which is at least 1")
    if args.device == "cuda" and not args.layout:
        parser.error("--device cuda takes a --layout")
    with tempfile.TemporaryDirectory() as folder:
        path = (args.out or Path(folder, "records.jsonl")).resolve()
        path.touch()
        begin = path.stat().st_size
        code = run(args, path)
        if records := read_records(path, begin):
            print(render("exchange_overlap", records, _COLUMNS))
    return code


if __name__ == "__main__":
    sys.exit(main())
