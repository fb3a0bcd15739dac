"""Starts the ranks of a benchmark, watches them, and gives each what it needs."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from harness.records import Recorder
from peergraph.memory import Group

T = TypeVar("T")


@dataclass
class Session:
    """One rank of a running benchmark."""

    args: argparse.Namespace
    group: Group
    recorder: Recorder
    wholegraph: Any  # a wholegraph.WholeGraph, where asked for and installed, or None
    started: float

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def world(self) -> int:
        return self.group.world_size

    @property
    def device(self) -> torch.device:
        return self.group.device

    def wants(self, peer: str) -> bool:
        return peer in self.args.peers

    def barrier(self) -> None:
        """Waits for the device, then for all ranks."""
        synchronize(self.device)
        self.group.barrier()

    def note(self, *words: object) -> None:
        """Progress, shown by rank 0 with the seconds since the start."""
        if self.rank == 0:
            seconds = time.perf_counter() - self.started
            print(f"[{seconds:6.1f} s]", *words, file=sys.stderr, flush=True)
        self.recorder.beat()

    def together(self, work: Callable[[], T]) -> T:
        """Does some work that may fail; if it fails on one rank, all raise. Collective."""
        result, error = None, None
        try:
            result = work()
        except Exception as caught:
            error = caught
        for rank, text in enumerate(self.group.all_gather(error and repr(error))):
            if text is not None and error is None:
                raise RuntimeError(f"rank {rank}: {text}")
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def first_does(self, work: Callable[[], T]) -> T:
        """Rank 0 does some work that may fail; all get the result, or raise. Collective."""
        mine = self.together(lambda: work() if self.rank == 0 else None)
        return self.group.broadcast(mine)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Reports how long a part of the preparation took, over all ranks."""
        start = time.perf_counter()
        yield
        self.barrier()
        self.note(f"{name}: {time.perf_counter() - start:.2f} s")

    @contextlib.contextmanager
    def section(self, name: str, **key: object) -> Iterator[None]:
        """A part that may fail: the error is shown and recorded, and the benchmark goes on."""
        start = time.perf_counter()
        try:
            yield
        except Exception as error:
            traceback.print_exc(limit=8, file=sys.stderr)
            text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            print(f"ERROR rank {self.rank} in {name}: {text[:300]}", file=sys.stderr, flush=True)
            self.recorder.failure(name, text[:300], **key)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.note(f"{name} took {time.perf_counter() - start:.1f} s")


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _open_session(rank: int, args: argparse.Namespace, beat: str) -> Session:
    started = time.perf_counter()
    device = torch.device("cuda", rank) if args.device == "cuda" else torch.device("cpu")
    wholegraph, missing = None, None
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if "wholegraph" in args.peers:
        from systems import wholegraph as peer

        # It wants to be initialised before the process group, and to communicate after it.
        wholegraph, missing = peer.load(rank, args.world, device)
    # After WholeGraph, whose initialisation leaves one thread.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // args.world))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if wholegraph is not None:
        wholegraph.connect()
    # Ranks end without a word to each other (os._exit): that is no reason to interrupt one.
    group = Group.current(device, watch=False)
    recorder = Recorder(Path(args.out), group, args.bench, beat)
    session = Session(args, group, recorder, wholegraph, started)
    if missing is not None:
        session.note(f"WholeGraph is left out: {missing}")
        recorder.skip("wholegraph", missing)
    session.note("ranks are up")
    return session


def _entry(
    rank: int,
    body: Callable[[Session], None],
    args: argparse.Namespace,
    port: int,
    beat: str,
) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(args.world),
        LOCAL_WORLD_SIZE=str(args.world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    session = _open_session(rank, args, beat)
    body(session)
    session.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    # The results are written; finalisers of the peers' libraries can hang.
    os._exit(0)


def launch(body: Callable[[Session], None], args: argparse.Namespace) -> int:
    """Runs body(session) on args.world ranks; 0, 1 (a rank failed) or 124 (killed as too slow).

    The ranks are ended when they run for more than args.deadline seconds, or when rank 0 reports
    nothing for args.stall seconds.
    """
    descriptor, beat = tempfile.mkstemp(prefix="peergraph_beat_")
    os.close(descriptor)
    start = time.time()
    ranks = mp.spawn(_entry, args=(body, args, _free_port(), beat), nprocs=args.world, join=False)
    try:
        while True:
            try:
                if ranks.join(timeout=1.0):
                    return 0
            except Exception as error:
                print(f"ERROR in a rank: {str(error)[-1500:]}", file=sys.stderr, flush=True)
                return 1
            now = time.time()
            if now - start > args.deadline or now - os.path.getmtime(beat) > args.stall:
                what = "deadline" if now - start > args.deadline else "no progress"
                print(f"ERROR: ranks ended after {now - start:.0f} s ({what})", file=sys.stderr)
                return 124
    finally:
        for process in ranks.processes:
            if process.is_alive():
                process.terminate()
        for process in ranks.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
        os.unlink(beat)
