"""Whether a loop's steps are shorter if a thread makes batches, or if the loop makes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

# A thread makes the first batches, for which kernels are loaded and memory is asked for.
_WARM_UP = 8
# Steps of a trial of either way, of which the first ones are not counted: batches that the other
# way has made ahead.
_TRIAL, _UNCOUNTED = 6, 2
_TRIALS = 4
_STEPS_BETWEEN = 500
# The loop makes batches where that is shorter by more than this share: steps vary.
_LEAST_GAIN = 0.02


class ShorterSteps:
    """Tries both ways in turns, and then takes the one with shorter steps for some hundred steps.

    A thread works while the GPU does and the loop waits for it. But Python runs one thread at a
    time: where the loop has to launch small kernels all the time, each of the thread's calls into
    torch costs the loop more than making the batch.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last: float | None = None
        self._steps = -_WARM_UP
        self._times: dict[bool, list[float]] = {True: [], False: []}
        self.by_thread = True
        """Whether a thread is to make the next batch."""

    def begin_iteration(self) -> None:
        """Says that the time since the last batch was not that of a step."""
        self._last = None

    def count_step(self) -> None:
        """Says that the loop takes a batch; decides who makes the next one."""
        now = self._clock()
        if self._last is None:
            self._last = now
            return
        duration, self._last = now - self._last, now
        trial, step = divmod(self._steps, _TRIAL)
        if 0 <= trial < _TRIALS and step >= _UNCOUNTED:
            self._times[self.by_thread].append(duration)
        self._steps += 1
        trial = self._steps // _TRIAL
        if 0 <= trial < _TRIALS:
            self.by_thread = trial % 2 == 1
        elif trial == _TRIALS and self._steps % _TRIAL == 0:
            loop, thread = median(self._times[False]), median(self._times[True])
            self.by_thread = loop > (1 - _LEAST_GAIN) * thread
            self._times = {True: [], False: []}
        elif self._steps >= _STEPS_BETWEEN:
            self._steps = 0
            self.by_thread = False
