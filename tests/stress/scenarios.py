"""What goes wrong in a stress run: which rank, when, and how."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass

STAGES = ("join", "build", "gather", "sample", "train", "save", "close")
# The rank is gone, in these ways.
ENDS = ("kill", "terminate", "interrupt", "raise", "exit")
# How long a group waits for a rank that is there but does nothing.
PATIENCE_S = 8.0
_LONG_S = 60.0
_PAUSE_S = 0.5
_SIGNALS = {
    "kill": signal.SIGKILL,
    "terminate": signal.SIGTERM,
    "interrupt": signal.SIGINT,
    "freeze": signal.SIGSTOP,
    "pause": signal.SIGSTOP,
}


@dataclass(frozen=True)
class Scenario:
    """One thing that goes wrong.

    Attributes:
        kind: one of :data:`ENDS`; "freeze": stopped for good; "pause": stopped for a moment;
            "disagree": calls another collective than the others; "full disk": files have a limit.
        stage: one of :data:`STAGES`; for "disagree" which collectives meet, see :mod:`.work`.
        victim: the rank.
        world_size: ranks.
        device: "cpu" or "cuda".
        delay: seconds from the begin of the stage.
    """

    kind: str
    stage: str
    victim: int
    world_size: int
    device: str = "cpu"
    delay: float = 0.0

    def __str__(self) -> str:
        when = f" + {self.delay * 1000:.0f} ms" if self.delay else ""
        return f"{self.kind}, {self.stage}{when}, rank {self.victim}"

    @property
    def patience(self) -> float:
        """Seconds that collectives wait."""
        return PATIENCE_S if self.kind == "freeze" else _LONG_S

    def strike(self) -> None:
        """Has it happen to this rank, now or in a moment."""
        if self.kind in ENDS:
            # What it prints as it ends is no news.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        if self.kind == "raise":
            raise ValueError("the stress run's error")
        if self.kind == "exit":
            sys.exit(3)
        if self.kind == "pause":
            wake_later(os.getpid())
        if self.delay:
            timer = threading.Timer(self.delay, os.kill, (os.getpid(), _SIGNALS[self.kind]))
            timer.daemon = True
            timer.start()
        else:
            os.kill(os.getpid(), _SIGNALS[self.kind])

    def outlast(self) -> None:
        """Waits for what :meth:`strike` has begun."""
        if self.kind in ENDS:
            time.sleep(_LONG_S)


def wake_later(pid: int) -> None:
    """Continues a stopped process in a moment, from another one."""
    if os.fork() == 0:
        time.sleep(_PAUSE_S)
        os.kill(pid, signal.SIGCONT)
        os._exit(0)


def scenarios(seed: int, worlds: list[int], device: str) -> list[Scenario]:
    """All of them in some order, with victims and delays by the seed; kills in every stage and of
    every number of ranks.
    """
    rng = random.Random(seed)
    names = []
    for world in worlds:
        names += [_scenario(rng, "kill", stage, world, device) for stage in STAGES]
    for kind in ENDS[1:]:
        names += [_scenario(rng, kind, stage, worlds[0], device) for stage in rng.sample(STAGES, 3)]
    for kind in ("freeze", "pause"):
        names += [
            _scenario(rng, kind, stage, worlds[-1], device)
            for stage in rng.sample(["build", "gather", "sample", "close"], 3)
        ]
    for what in ("collectives", "sources", "plans"):
        names.append(_scenario(rng, "disagree", what, worlds[-1], device))
    names.append(_scenario(rng, "full disk", "save", worlds[0], device))
    names.append(_scenario(rng, "full disk", "build", worlds[0], device))
    rng.shuffle(names)
    return names


def _scenario(rng: random.Random, kind: str, stage: str, world: int, device: str) -> Scenario:
    delay = 0.0
    # Not "freeze": the others may be in a collective of torch by then, which has its own timeout.
    if kind in ("kill", "terminate", "interrupt"):
        delay = rng.choice([0.0, 0.001, 0.01])
    return Scenario(kind, stage, rng.randrange(world), world, device, delay)
