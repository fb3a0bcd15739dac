"""Copies beside the work of the current stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Protocol

import torch

from peergraph.fullgraph.exchange.exchange_queue import StreamQueue
from peergraph.fullgraph.exchange.transport import Wait

Work = Callable[[], object]
_IN_FLIGHT = 2  # copies whose memory is still in use


class CopyQueue(Protocol):
    """Runs one work after the other, beside the current stream where there is one."""

    def start(self, work: Work) -> Wait:
        """Starts work that may use what the current stream has done by now.

        Returns a function that lets later work of the current stream wait for the work's end.
        """
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
        self._started: deque[tuple[Wait, object]] = deque()

    def add(self, wait: Wait, memory: object) -> None:
        """Adds a copy; `memory` is kept until the current stream has waited for the copy."""
        self._started.append((wait, memory))
        while len(self._started) > _IN_FLIGHT:
            self._started.popleft()[0]()

    def wait(self) -> None:
        """Waits for all copies."""
        while self._started:
            self._started.popleft()[0]()


class _AtOnce:
    def start(self, work: Work) -> Wait:
        work()
        return lambda: None


class _StreamQueue(StreamQueue):
    """A stream of a GPU."""

    def start(self, work: Work) -> Wait:
        return self.start_after(torch.cuda.current_stream(self.device).record_event(), work)

    def start_after(self, event: torch.cuda.Event, work: Work) -> Wait:
        """Starts work that may use what was done before an event."""
        self.begin_after(event)
        self.run(lambda _: work())
        return self.mark()


class _ThreadQueue:
    """A thread that works on a stream of a GPU."""

    def __init__(self, device: torch.device, name: str) -> None:
        self._queue = _StreamQueue(device)
        self._device = device
        self._thread = ThreadPoolExecutor(1, f"peergraph {name}")

    def start(self, work: Work) -> Wait:
        begun = torch.cuda.current_stream(self._device).record_event()

        def run() -> Wait:
            with torch.cuda.device(self._device):
                return self._queue.start_after(begun, work)

        future = self._thread.submit(run)
        return lambda: future.result()()


@cache
def _stream_queue(device: torch.device, name: str) -> CopyQueue:
    return _StreamQueue(device)


@cache
def _thread_queue(device: torch.device, name: str) -> CopyQueue:
    return _ThreadQueue(device, name)
