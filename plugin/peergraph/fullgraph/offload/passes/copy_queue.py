"""Copies beside the work of the current stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Protocol

import torch

Work = Callable[[], object]
_IN_FLIGHT = 2  # copies whose memory is still in use


class Mark(Protocol):
    """The end of work that was started."""

    def wait(self) -> None:
        """Lets later work of the current stream wait for the work's end."""
        ...


class CopyQueue(Protocol):
    """Runs one work after the other, beside the current stream where there is one."""

    def start(self, work: Work) -> Mark:
        """Starts work that may use what the current stream has done by now."""
        ...


def copy_queue(device: torch.device, name: str, *, blocks: bool = False) -> CopyQueue:
    """Returns a queue, always the same for a device and a name.

    Args:
        device: on the CPU work runs at once.
        name: of the queue. Queues with different names run beside each other.
        blocks: whether the work waits on the CPU, as copies of files do: then it runs in a thread
            of its own.
    """
    if device.type == "cpu":
        return _AtOnce()
    return _thread_queue(device, name) if blocks else _stream_queue(device, name)


class InFlight:
    """Copies that have been started, and the memory that they use.

    At most two are under way: the current stream waits for the oldest before a third is added, so
    the memory that copies use stays bounded however far ahead the host runs.
    """

    def __init__(self) -> None:
        self._started: deque[tuple[Mark, object]] = deque()

    def add(self, mark: Mark, memory: object) -> None:
        """Adds a copy; `memory` is kept until the current stream has waited for the copy."""
        self._started.append((mark, memory))
        while len(self._started) > _IN_FLIGHT:
            self._started.popleft()[0].wait()

    def wait(self) -> None:
        """Waits for all copies."""
        while self._started:
            self._started.popleft()[0].wait()


class _AtOnce:
    def start(self, work: Work) -> Mark:
        work()
        return self

    def wait(self) -> None:
        """The work has been done."""


class _StreamQueue:
    """A stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    def start(self, work: Work) -> Mark:
        return self.start_after(torch.cuda.current_stream(self._stream.device).record_event(), work)

    def start_after(self, event: torch.cuda.Event, work: Work) -> Mark:
        """Starts work that may use what was done before an event."""
        self._stream.wait_event(event)
        with torch.cuda.stream(self._stream):
            work()
        return _Event(self._stream.record_event())


class _Event:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.wait(torch.cuda.current_stream(self._event.device))


class _ThreadQueue:
    """A thread that works on a stream of a GPU."""

    def __init__(self, device: torch.device, name: str) -> None:
        self._queue = _StreamQueue(device)
        self._device = device
        self._thread = ThreadPoolExecutor(1, f"peergraph {name}")

    def start(self, work: Work) -> Mark:
        begun = torch.cuda.current_stream(self._device).record_event()

        def run() -> Mark:
            with torch.cuda.device(self._device):
                return self._queue.start_after(begun, work)

        return _Submitted(self._thread.submit(run))


class _Submitted:
    def __init__(self, future: Future[Mark]) -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result().wait()


@cache
def _stream_queue(device: torch.device, name: str) -> CopyQueue:
    return _StreamQueue(device)


@cache
def _thread_queue(device: torch.device, name: str) -> CopyQueue:
    return _ThreadQueue(device, name)
