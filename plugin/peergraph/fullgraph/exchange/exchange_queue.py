"""Queues of copies and waits that run beside the sums: a stream of a GPU or a thread of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol

import torch

from peergraph.fullgraph.exchange.transport import Wait
from peergraph.memory.device.launching import Launch, launch_on

Work = Callable[[Launch], object]


def make_queue(device: torch.device) -> Queue:
    """Returns a new queue of a device."""
    return StreamQueue(device) if device.type == "cuda" else ThreadQueue(device)


class Queue(Protocol):
    """Runs one work after the other, beside this thread and the current stream."""

    def begin(self) -> None:
        """Lets later work wait for the current stream, and for the one of the call before."""

    def run(self, work: Work) -> None: ...

    def mark(self) -> Wait:
        """Returns a function that waits for the end of what was queued before."""


class StreamQueue:
    """A stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._launch = launch_on(device, self._stream)
        self._before: torch.cuda.Stream | None = None

    def begin(self) -> None:
        current = torch.cuda.current_stream(self._stream.device)
        if self._before is not None and self._before != current:
            self._stream.wait_stream(self._before)
        self._stream.wait_stream(current)
        self._before = current

    def begin_after(self, event: torch.cuda.Event) -> None:
        """Makes later work wait for an event."""
        self._stream.wait_event(event)

    def run(self, work: Work) -> None:
        with torch.cuda.stream(self._stream):
            work(self._launch)

    def mark(self) -> Wait:
        return partial(_wait_for, self._stream.record_event())


class ThreadQueue:
    """A thread of the CPU. After a work that failed it runs no other."""

    def __init__(self, device: torch.device) -> None:
        self._thread = ThreadPoolExecutor(1, "peergraph exchange")
        self._launch = launch_on(device, num_threads=1)
        self._last: Future[None] | None = None

    def begin(self) -> None:
        """Work of this thread has been done."""

    def run(self, work: Work) -> None:
        before = self._last

        def run_after() -> None:
            if before is None or before.exception() is None:
                work(self._launch)
            else:
                before.result()

        self._last = self._thread.submit(run_after)

    def mark(self) -> Wait:
        return (lambda: None) if self._last is None else self._last.result


def _wait_for(event: torch.cuda.Event) -> None:
    """Makes the current stream of the event's device wait for the event."""
    event.wait(torch.cuda.current_stream(event.device))
