"""Times of calls on a GPU, by events."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch

_HOLD_CYCLES = 20_000_000


def gpu_ms(
    call: Callable[[], object],
    rounds: int = 8,
    warmup: int = 4,
    calls: int = 1,
    hold: bool = False,
) -> float:
    """Returns the median milliseconds of the GPU for a call.

    Args:
        rounds: timed, each of `calls` calls, after `warmup` others.
        hold: whether the GPU waits until the calls of a round are queued.
    """
    times = []
    for _ in range(warmup + rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if hold:
            torch.cuda._sleep(_HOLD_CYCLES)
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    return median(times[warmup:])
