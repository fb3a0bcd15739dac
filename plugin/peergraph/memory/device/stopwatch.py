"""Times the work of a device."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Adds up the time of work on a device: by CUDA events on a GPU, by the clock on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._lock = threading.Lock()
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Returns a context. Adds the time of the work that the current stream gets in it."""
        if self._device.type == "cpu":
            start = time.perf_counter()
            yield
            with self._lock:
                self._seconds += time.perf_counter() - start
            return
        stream = torch.cuda.current_stream(self._device)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        marks[0].record(stream)
        yield
        marks[1].record(stream)
        with self._lock:
            self._pending.append((marks[0], marks[1]))
            # Events are expensive, so events that have passed are released.
            while self._pending and self._pending[0][1].query():  # type: ignore[no-untyped-call]
                self._take()

    def seconds(self) -> float:
        """Returns the total time so far. Synchronises."""
        with self._lock:
            while self._pending:
                self._pending[0][1].synchronize()
                self._take()
            return self._seconds

    def _take(self) -> None:
        begin, end = self._pending.popleft()
        self._seconds += begin.elapsed_time(end) / 1e3
