"""`peergraph demo`: its options, and the processes of its ranks."""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from subprocess import CalledProcessError
from tempfile import TemporaryDirectory
from time import time
from typing import Any

from peergraph import num_gpus
from peergraph.cli import integers
from peergraph.control_groups import usable_cpus
from peergraph.number_arguments import check_number

PLANS = ("auto", "replicated", "sharded", "host")
OUT_OF_MEMORY = (
    "peergraph demo: the system kills processes for want of memory: --data products --scale 0.01 "
    "needs less, and so does --ranks 1"
)
_TIMEOUT = timedelta(minutes=30)  # while the first rank makes a large graph


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add = parser.add_argument
    add(
        "--data",
        choices=("code", "products"),
        default="code",
        help="the code of this Python installation (default), or a synthetic graph of the size of "
        "ogbn-products",
    )
    add("--scale", type=float, default=1.0, help="shrinks 'products' (1)")
    add("--device", choices=("cpu", "cuda"), help="default: cuda where there is a GPU")
    add("--ranks", type=int, metavar="N", help="default: all GPUs, or 2 on the CPU")
    add("--plan", choices=PLANS, default="auto", help="where the graph lies (auto)")
    add("--full-graph", action="store_true", help="train on the whole graph in every step")
    add("--epochs", type=int, metavar="N", help="default 3; 100 with --full-graph")
    add("--batch-size", type=int, default=512, metavar="N", help="of a rank (512)")
    add("--fanouts", type=integers, default=(15, 10, 5), metavar="N,N,...")
    add("--hidden", type=int, default=128, metavar="N")
    add("--json", metavar="FILE", help="write the result there, too")


def check_options(args: argparse.Namespace) -> None:
    """Raises ValueError that names the first option that cannot be."""
    most = {"ranks": 1024, "epochs": 10**6, "batch_size": 2**31 - 1, "hidden": 1 << 16}
    for name, limit in most.items():
        check_number(f"--{name.replace('_', '-')}", getattr(args, name), 1, limit)
    if not 0.0001 <= args.scale <= 1:
        raise ValueError(f"--scale must be from 0.0001 to 1, got {args.scale}")
    if any((f < 1 and f != -1) or f >= 2**31 for f in args.fanouts):
        raise ValueError(f"--fanouts must be positive, or -1 for all, got {args.fanouts}")


def device_and_ranks(args: argparse.Namespace, gpus: int) -> tuple[str, int]:
    """Returns the device type and the number of ranks for a machine with so many usable GPUs.

    Under torchrun the ranks are those that it started. Raises ValueError if there are fewer GPUs.
    """
    device = args.device or ("cuda" if gpus else "cpu")
    ranks = args.ranks or (max(gpus, 1) if device == "cuda" else 2)
    ranks = int(os.environ.get("WORLD_SIZE", ranks))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    if device == "cuda" and gpus < here:
        raise ValueError(
            f"--device cuda needs a GPU for each of {here} ranks, this build and machine have "
            f"{gpus}; `peergraph info` says more"
        )
    return device, ranks


def run(args: argparse.Namespace) -> int:
    """Runs the demo; 2 for options that cannot be, 1 if a rank failed, 130 after Ctrl-C."""
    if find_spec("torch_geometric") is None:
        print("peergraph demo needs PyG: pip install 'peergraph[pyg]'", file=sys.stderr)
        return 2
    try:
        return _run(args)
    except KeyboardInterrupt:
        print("peergraph demo: interrupted", file=sys.stderr)
        return 130


def _run(args: argparse.Namespace) -> int:
    try:
        check_options(args)
        device, ranks = device_and_ranks(args, num_gpus())
        # The ranks meet in a file of a private folder: there is no port to guess.
        meeting_place = TemporaryDirectory(prefix="peergraph-demo-")
        _prepare(args.data, device)
    except (ValueError, OSError) as error:
        print(f"peergraph demo: {error}", file=sys.stderr)
        return 2
    except CalledProcessError as error:
        print(f"peergraph demo: a process that reads code ended: {error}", file=sys.stderr)
        return 1
    del args.run
    args.begin = time()
    from torch.multiprocessing.spawn import (
        ProcessException,
        ProcessExitedException,
        start_processes,
    )

    try:
        with meeting_place as folder:
            if "RANK" in os.environ:
                _run_rank(int(os.environ["LOCAL_RANK"]), args, device, ranks, None)
            else:
                shared = (args, device, ranks, f"file://{folder}/ranks")
                # A forked rank imports nothing again, but CUDA does not work in it.
                method = "spawn" if device == "cuda" else "fork"
                start_processes(  # type: ignore[no-untyped-call]
                    _run_rank, shared, nprocs=ranks, start_method=method
                )
    except ProcessException as error:
        print(f"peergraph demo: {error}", file=sys.stderr)
        if isinstance(error, ProcessExitedException) and error.signal_name == "SIGKILL":
            print(OUT_OF_MEMORY, file=sys.stderr)
        return 1
    return 0


def _prepare(data: str, device: str) -> None:
    """Makes the graph of code before there are ranks, and imports what forked ranks need."""
    from peergraph_demo.code_graph import make_code_graph

    begin = time()
    reads_code = data == "code" and int(os.environ.get("LOCAL_RANK", 0)) == 0
    with ThreadPoolExecutor(1) as background:
        graph = background.submit(make_code_graph) if reads_code else None
        if device == "cpu":
            import_module("peergraph_demo.train")
            print(f"PyG imported in {time() - begin:.1f} s", flush=True)
    if graph is not None:
        graph.result()
        print(f"the code of this Python read in {time() - begin:.1f} s", flush=True)


def _run_rank(
    local_rank: int, args: argparse.Namespace, device: str, ranks: int, meeting: str | None
) -> None:
    import torch
    import torch.distributed as dist

    from peergraph_demo.train import train

    place = torch.device(device, local_rank) if device == "cuda" else torch.device("cpu")
    options: dict[str, Any] = {} if meeting is None else {"rank": local_rank, "world_size": ranks}
    if device == "cuda":
        torch.cuda.set_device(place)
    else:
        torch.set_num_threads(max(1, usable_cpus() // ranks))
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=meeting, timeout=_TIMEOUT, **options)
    train(args, place)
    dist.destroy_process_group()
