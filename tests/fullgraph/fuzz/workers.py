"""Processes of ranks that run one program after the other, and are started anew after a hang."""

from __future__ import annotations

import faulthandler
import os
import secrets
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import torch.distributed as dist

from peergraph.testing import preload, run_ranks
from tests.fullgraph.fuzz.report import DISAGREE, LOST, Outcome

START_S = 180.0
STACKS_S, END_S = 0.5, 10.0
"""What ranks take to print their stacks, and :func:`run_ranks` to say how a rank ended."""
PRINTED = 6000
# What ranks are forked with, in this order. torch_geometric alone would initialise CUDA.
PRELOADED = ("torch._dynamo", "tests.pyg_without_cuda", "tests.fullgraph.fuzz.outcomes")

Task = tuple[Callable[..., Outcome], tuple[Any, ...]]


class Workers:
    """The ranks of one number of ranks.

    Args:
        ranks: their number.
        device: "cpu" or "cuda".
        deadline_s: of a program.
    """

    def __init__(self, ranks: int, device: str = "cpu", deadline_s: float = 60) -> None:
        self.ranks, self.device, self.deadline_s = ranks, device, deadline_s
        self.pipes: list[Connection] = []
        self.pids: list[int] = []
        self.thread: threading.Thread | None = None
        self.end = ""
        self.stderr = tempfile.TemporaryDirectory(prefix="peergraph-fuzz-")
        self.sent: deque[Task] = deque()
        self.received: deque[Outcome] = deque()
        self.is_warm = False

    def send(self, tasks: list[Task]) -> None:
        """Gives all ranks functions to call in turn."""
        self.sent.extend(tasks)
        if self.pipes and tasks:
            self._send(tasks)

    def receive(self) -> Outcome:
        """The outcome of the next function, which must be the same on all ranks."""
        return self.received.popleft() if self.received else self._receive()

    def run(self, function: Callable[..., Outcome], *arguments: Any) -> Outcome:
        """Calls one function, after those that were sent."""
        self.send([(function, arguments)])
        while self.sent:
            self.received.append(self._receive())
        return self.received.pop()

    def close(self) -> None:
        """Terminates the worker processes."""
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pipe in self.pipes:
            pipe.close()
        if self.thread is not None:
            self.thread.join(START_S)
        self.pipes, self.pids, self.thread = [], [], None

    def _receive(self) -> Outcome:
        if not self.pipes:
            self._start()
            self._send(list(self.sent))
        # The first program loads kernels.
        deadline_s = self.deadline_s if self.is_warm else START_S
        self.sent.popleft()
        outcomes: list[Outcome] = []
        try:
            for rank, pipe in enumerate(self.pipes):
                if not pipe.poll(deadline_s):
                    return self._lost(f"rank {rank} did not end in {deadline_s:g} s")
                outcomes.append(pipe.recv())
        except (EOFError, OSError):
            assert self.thread is not None
            self.thread.join(END_S)
            if self.end:  # all ranks have ended, and their numbers may be others' now
                self.pids = []
            return self._lost(self.end or "a rank closed its pipe and did not end")
        self.is_warm = True
        if any((o.kind, o.line) != (outcomes[0].kind, outcomes[0].line) for o in outcomes):
            self.close()
            texts = [f"rank {i}: {o.kind}, {o.message}" for i, o in enumerate(outcomes)]
            return Outcome(DISAGREE, min(o.line for o in outcomes), " | ".join(texts)[:600])
        if "CUDA error" in outcomes[0].message:
            self.close()
        return outcomes[0]

    def _lost(self, message: str) -> Outcome:
        """Ends the ranks. Returns the outcome, with what they have printed."""
        for pid in self.pids:  # their stacks
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(STACKS_S)
        self.close()
        for rank in range(self.ranks):
            text = _stderr(self.stderr.name, rank).read_text(errors="replace").strip()
            message += f"\nrank {rank} printed:\n{text[:PRINTED]}" if text else ""
        return Outcome(LOST, 0, message)

    def _send(self, tasks: list[Task]) -> None:
        with suppress(OSError):  # of a rank that has ended: receiving says so
            for pipe in self.pipes:
                pipe.send(tasks)

    def _start(self) -> None:
        """Starts the ranks. Raises RuntimeError if they do not start."""
        key = secrets.token_bytes(16)
        preload(*PRELOADED)
        self.is_warm = False
        with Listener(authkey=key) as listener:
            self.thread = threading.Thread(
                target=self._run_until_killed,
                args=(listener.address, key),
                daemon=True,
            )
            self.thread.start()
            joined = {}
            for _ in range(self.ranks):
                pipe = listener.accept()
                rank, pid = pipe.recv()
                if rank is None:
                    raise RuntimeError(f"the ranks did not start: {pid}")
                joined[rank] = pipe, pid
        self.pipes = [joined[rank][0] for rank in range(self.ranks)]
        self.pids = [joined[rank][1] for rank in range(self.ranks)]

    def _run_until_killed(self, address: Any, key: bytes) -> None:
        self.end = ""
        try:
            run_ranks(
                _serve,
                self.ranks,
                address,
                key,
                self.stderr.name,
                timeout_s=1e6,
                device=self.device,
            )
        except RuntimeError as error:
            self.end = str(error)
            # Whoever waits for the ranks reads it; later, nobody does.
            with suppress(OSError), Client(address, authkey=key) as pipe:
                pipe.send((None, self.end))


def _serve(address: Any, key: bytes, folder: str) -> None:
    """Calls the functions that come, on one rank; what one prints is in a file of its folder."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal
    with _stderr(folder, dist.get_rank()).open("ab") as file:
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    with suppress(EOFError), Client(address, authkey=key) as pipe:
        pipe.send((dist.get_rank(), os.getpid()))
        while True:
            for function, arguments in pipe.recv():
                os.ftruncate(2, 0)
                pipe.send(function(*arguments))


def _stderr(folder: str, rank: int) -> Path:
    """The file that a rank's standard error is written to."""
    return Path(folder, f"rank_{rank}")
