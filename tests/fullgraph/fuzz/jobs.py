"""Processes that run a share of the random programs each, and tell how each program ends."""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait

from tests.fullgraph.fuzz.report import Result

TO_CLOSE_S = 15.0


def results(options: argparse.Namespace) -> Iterator[Result | None]:
    """Yields how programs end, as it comes, and None each minute; ends the jobs when closed.

    Raises:
        RuntimeError: a job ended with an error.
    """
    context = multiprocessing.get_context("spawn")
    end = time.monotonic() + options.minutes * 60
    jobs = {}
    for job in range(options.jobs):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_run_job, args=(options, job, sender))
        process.start()
        sender.close()
        jobs[receiver] = process
    running = dict(jobs)
    last = dict.fromkeys(jobs, "none")
    try:
        while running and (left := end - time.monotonic()) > 0:
            ready = wait(list(running), min(60, left))
            if not ready:
                yield None
            for pipe in ready:
                assert isinstance(pipe, Connection)
                try:
                    result = pipe.recv()
                    last[pipe] = str(result.seed)
                    yield result
                except EOFError:
                    process = running.pop(pipe)
                    process.join()
                    if process.exitcode:
                        raise RuntimeError(
                            f"a job ended with {process.exitcode} after program {last[pipe]}"
                        ) from None
    finally:
        for process in jobs.values():
            process.terminate()
        for process in jobs.values():
            process.join(TO_CLOSE_S)
            process.kill()


def _run_job(options: argparse.Namespace, job: int, pipe: Connection) -> None:
    """Runs every `jobs`-th program."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the first process ends this one
    signal.signal(signal.SIGTERM, _exit)
    # The imports load torch, which reads these variables; the first process does not need it.
    os.environ["OMP_NUM_THREADS"] = "1"
    if options.device == "cpu":  # torch.compile asks GPUs, which a forked process cannot do
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    import tests.pyg_without_cuda  # noqa: F401

    # isort: split

    from tests.fullgraph.fuzz.campaign import Campaign

    torch.set_num_threads(1)
    if options.device == "cuda":  # each job begins with another GPU
        count = torch.cuda.device_count()
        gpus = [str((job + i) % count) for i in range(count)]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    campaign = Campaign(
        options.ranks,
        options.chunks,
        options.device,
        options.deadline,
        options.loaders,
        options.graphs,
        options.dtypes,
    )
    seeds = range(options.seed + job, options.seed + options.programs, options.jobs)
    try:
        with suppress(BrokenPipeError):
            campaign.run(seeds, pipe.send)
    finally:
        campaign.close()


def _exit(number: int, frame: object) -> None:
    raise SystemExit(0)
