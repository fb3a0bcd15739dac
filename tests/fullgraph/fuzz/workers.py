"""Processes of ranks that run one program after the other, and are started anew after a hang."""

from __future__ import annotations

import os
import secrets
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import torch.distributed as dist

from peergraph.testing import preload, run_ranks
from tests.fullgraph.fuzz.outcomes import Outcome

LOST, DISAGREE = "ranks hang or die", "ranks end differently"
START_S = 180.0


@dataclass(frozen=True)
class Configuration:
    """Where a program runs."""

    ranks: int = 1
    chunks: int = 0
    device: str = "cpu"
    plan: str = ""
    """Of shared data, for programs of loaders; empty for full graphs."""


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

    def run(self, function: Callable[..., Outcome], *arguments: Any) -> Outcome:
        """Runs a function on all ranks, whose outcomes must be the same."""
        deadline_s = self.deadline_s if self.pipes else START_S  # the first one loads kernels
        if not self.pipes:
            self._start()
        task = (function, arguments)
        outcomes: list[Outcome] = []
        try:
            for pipe in self.pipes:
                pipe.send(task)
            for rank, pipe in enumerate(self.pipes):
                if not pipe.poll(deadline_s):
                    self.close()
                    return Outcome(LOST, 0, f"rank {rank} did not end in {deadline_s:g} s")
                outcomes.append(pipe.recv())
        except (EOFError, OSError) as error:
            self.close()
            return Outcome(LOST, 0, f"a rank ended: {type(error).__name__}")
        if any((o.kind, o.line) != (outcomes[0].kind, outcomes[0].line) for o in outcomes):
            self.close()
            texts = [f"rank {i}: {o.kind}, {o.message}" for i, o in enumerate(outcomes)]
            return Outcome(DISAGREE, min(o.line for o in outcomes), " | ".join(texts)[:600])
        if "CUDA error" in outcomes[0].message:
            self.close()
        return outcomes[0]

    def close(self) -> None:
        """Ends the processes."""
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pipe in self.pipes:
            pipe.close()
        if self.thread is not None:
            self.thread.join(START_S)
        self.pipes, self.pids, self.thread = [], [], None

    def _start(self) -> None:
        key = secrets.token_bytes(16)
        preload("torch._dynamo", "torch_geometric", "tests.fullgraph.fuzz.loaders")
        with Listener(authkey=key) as listener:
            self.thread = threading.Thread(
                target=_run_until_killed,
                args=(self.ranks, self.device, listener.address, key),
                daemon=True,
            )
            self.thread.start()
            joined = {}
            for _ in range(self.ranks):
                pipe = listener.accept()
                rank, pid = pipe.recv()
                joined[rank] = pipe, pid
        self.pipes = [joined[rank][0] for rank in range(self.ranks)]
        self.pids = [joined[rank][1] for rank in range(self.ranks)]


def _run_until_killed(ranks: int, device: str, address: Any, key: bytes) -> None:
    with suppress(RuntimeError):
        run_ranks(_serve, ranks, address, key, timeout_s=1e6, device=device)


def _serve(address: Any, key: bytes) -> None:
    """Runs the programs that come, on one rank."""
    with Client(address, authkey=key) as pipe:
        pipe.send((dist.get_rank(), os.getpid()))
        while True:
            function, arguments = pipe.recv()
            pipe.send(function(*arguments))
