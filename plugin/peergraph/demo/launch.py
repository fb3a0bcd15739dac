"""Starts the demo's ranks, or joins those that torchrun started."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from .inputs import prepare
from .options import DemoOptions, usable_gpus
from .report import summary
from .train import DemoResult, Rank

_STOP_SECONDS = 5
_TIMEOUT = timedelta(minutes=10)


def run_demo(options: DemoOptions) -> DemoResult:
    """Runs the demo and prints what it finds.

    Starts the ranks itself, or is one of them where torchrun's environment variables say so.

    Raises:
        ValueError, FileNotFoundError: for options or data that cannot be, before ranks start.
        torch.multiprocessing.ProcessRaisedException: with the traceback of the rank that failed;
            the others are stopped.
    """
    options.check()
    device, ranks = options.resolve(usable_gpus())
    if "RANK" in os.environ:
        return _joined(options, device)
    prepare(options)
    return _spawned(options, device, ranks)


def _joined(options: DemoOptions, device: str) -> DemoResult:
    rank = int(os.environ["RANK"])
    if rank == 0:
        prepare(options)
    dist.init_process_group(_backend(device), timeout=_TIMEOUT)
    try:
        return _run(options, device, int(os.environ.get("LOCAL_RANK", rank)))
    finally:
        dist.destroy_process_group()


def _spawned(options: DemoOptions, device: str, ranks: int) -> DemoResult:
    # The parent serves the rendezvous: no port to guess, and it outlives every rank.
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    results: Any = mp.get_context("spawn").SimpleQueue()
    context = mp.spawn(
        _child, (options, device, ranks, server.port, results), nprocs=ranks, join=False
    )
    try:
        while not context.join():
            pass
    finally:
        _stop(context.processes)
    if results.empty():
        raise RuntimeError("the ranks ended without a result")
    result: DemoResult = results.get()
    return result


def _child(
    rank: int, options: DemoOptions, device: str, ranks: int, port: int, results: Any
) -> None:
    if device == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    client = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(
        _backend(device), store=client, rank=rank, world_size=ranks, timeout=_TIMEOUT
    )
    result = _run(options, device, rank)
    if rank == 0:
        results.put(result)
    dist.destroy_process_group()


def _run(options: DemoOptions, device: str, local_rank: int) -> DemoResult:
    if device == "cuda":
        torch.cuda.set_device(local_rank)
        chosen = torch.device("cuda", local_rank)
    else:
        chosen = torch.device("cpu")
    rank = Rank(options, chosen)
    result = rank.run()
    rank.say(summary(result))
    if rank.is_first and options.json is not None:
        Path(options.json).write_text(json.dumps(result.to_dict(), indent=2) + "\n")
    return result


def _backend(device: str) -> str:
    return "nccl" if device == "cuda" else "gloo"


def _stop(processes: list[Any]) -> None:
    """Ends what still runs after a failure or Ctrl-C."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join(_STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
