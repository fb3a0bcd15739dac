"""Starts the demo's ranks, or joins those that torchrun started."""

from __future__ import annotations

import json
import os
import pickle
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessRaisedException, spawn

from peergraph import PeerLostError, num_gpus
from peergraph_demo.inputs import prepare
from peergraph_demo.options import DemoOptions
from peergraph_demo.report import summary
from peergraph_demo.result import DemoResult
from peergraph_demo.train import train

_STOP_SECONDS = 5
# The first rank may have a large graph to generate while the others wait.
_TIMEOUT = timedelta(minutes=30)


def prepare_demo(options: DemoOptions) -> tuple[str, int]:
    """Checks the options and the data; the device type and the number of ranks.

    Raises ValueError, OSError for what cannot be.
    """
    options.check()
    device, ranks = options.resolve(num_gpus())
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        prepare(options)
    return device, ranks


def run_demo(options: DemoOptions, device: str, ranks: int) -> None:
    """Runs the demo, prints what it finds and writes `options.json`.

    Starts the ranks itself, or is one of them where torchrun's environment variables say so.

    Args:
        device, ranks: what `prepare_demo` returned.

    Raises:
        torch.multiprocessing.spawn.ProcessException: with the traceback of the rank that failed;
            the others are stopped.
    """
    if "RANK" not in os.environ:
        _spawn(options, device, ranks)
        return
    local_rank = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
    chosen = _choose_device(device, local_rank)
    dist.init_process_group(_backend(device), timeout=_TIMEOUT)
    _run_rank(options, chosen)


def _spawn(options: DemoOptions, device: str, ranks: int) -> None:
    # The ranks meet in a file of a private folder: there is no port to guess.
    with TemporaryDirectory(prefix="peergraph-demo-") as folder:
        arguments = (options, device, ranks, f"file://{folder}/ranks")
        context = spawn(_child, arguments, nprocs=ranks, join=False)  # type: ignore[no-untyped-call]
        try:
            while not context.join():
                pass
        except ProcessRaisedException as error:
            raise _cause_of(error, context.error_files) from None
        finally:
            _stop(context.processes)


def _cause_of(error: ProcessRaisedException, error_files: list[str]) -> ProcessRaisedException:
    """Returns the error of the rank that failed first, where another only lost that rank.

    A rank that waits for the failed one may end before it, and is then the one that is reported.

    Args:
        error: what was reported.
        error_files: of the ranks, each with its pickled traceback if it failed.
    """
    if PeerLostError.__name__ not in error.msg:
        return error
    for rank, path in enumerate(error_files):
        if os.path.exists(path):
            with open(path, "rb") as file:
                trace = pickle.load(file)
            if PeerLostError.__name__ not in trace:
                text = f"\n\n-- Process {rank} terminated with the following error:\n{trace}"
                return ProcessRaisedException(text, rank, error.error_pid)
    return error


def _child(rank: int, options: DemoOptions, device: str, ranks: int, init_method: str) -> None:
    if device == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    chosen = _choose_device(device, rank)
    dist.init_process_group(
        _backend(device),
        init_method=init_method,
        rank=rank,
        world_size=ranks,
        timeout=_TIMEOUT,
    )
    _run_rank(options, chosen)


def _run_rank(options: DemoOptions, device: torch.device) -> None:
    result = train(options, device)
    if dist.get_rank() == 0:
        _report(options, result)
    dist.destroy_process_group()


def _choose_device(device: str, local_rank: int) -> torch.device:
    if device == "cpu":
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _backend(device: str) -> str:
    return "nccl" if device == "cuda" else "gloo"


def _report(options: DemoOptions, result: DemoResult) -> None:
    print(summary(result), flush=True)
    if options.json is not None:
        Path(options.json).write_text(json.dumps(result.to_dict(), indent=2) + "\n")


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
