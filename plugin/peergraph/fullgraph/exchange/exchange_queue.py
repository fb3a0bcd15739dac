"""Queues of copies and waits that run beside the sums: a stream of a GPU or a thread of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

from peergraph.memory.device.launching import Launch, launch_on
from peergraph.profiling import EXCHANGE, profiled

Work = Callable[[Launch], None]


def make_queue(device: torch.device) -> Queue:
    """Returns a new queue of a device."""
    return StreamQueue(device) if device.type == "cuda" else ThreadQueue(device)


class QueuedExchange:
    """An exchange that has been queued, and the tensors that it uses."""

    def __init__(
        self, marks: list[Mark], check: Callable[[], None], tensors: tuple[Tensor, ...]
    ) -> None:
        self._marks = marks
        self._check = check
        self._tensors = tensors

    @profiled(EXCHANGE)
    def wait(self) -> None:
        """Waits for the exchange; raises PeerLostError where it is known to have been given up."""
        for mark in self._marks:
            mark.wait()
        self._marks, self._tensors = [], ()
        self._check()


class Mark(Protocol):
    """The end of what was queued before."""

    def wait(self) -> object: ...


class Queue(Protocol):
    """Runs one work after the other, beside this thread and the current stream."""

    def begin(self) -> None:
        """Lets later work wait for the current stream, and for the one of the call before."""

    def run(self, work: Work) -> None: ...

    def mark(self) -> Mark: ...


class StreamQueue:
    """A stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._launch = launch_on(device, self._stream)
        self._before: torch.cuda.Stream | None = None

    def begin(self) -> None:
        current = torch.cuda.current_stream(self._stream.device)
        if self._before is not None and self._before != current:
            self._stream.wait_stream(self._before)
        self._stream.wait_stream(current)
        self._before = current

    def run(self, work: Work) -> None:
        with torch.cuda.stream(self._stream):
            work(self._launch)

    def mark(self) -> Mark:
        mark: Mark = self._stream.record_event()
        return mark


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

    def mark(self) -> Mark:
        return _Submitted(self._last)


class _Submitted:
    def __init__(self, last: Future[None] | None) -> None:
        self._last = last

    def wait(self) -> None:
        if self._last is not None:
            self._last.result()
