"""`PrefetchIterator`: a thread reads an iterator ahead of the loop, or the loop does."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from peergraph.integration import ThreadRng, taking_turns
from peergraph.memory import limit_blocks, on_thread_stream
from peergraph.number_arguments import check_number
from peergraph.profiling import WAIT_BATCH, profile_range
from peergraph.store import Store

from .loop_rng import LoopRng
from .shorter_steps import ShorterSteps
from .thread_state import (
    Modes,
    owners_of_memory,
    return_stream,
    take_stream,
)

# Seconds to wait at the end for the batch that the thread is making.
_JOIN_TIMEOUT = 60.0


@dataclass(frozen=True)
class PrefetchOptions:
    """How much of a GPU the thread takes; the arguments of :func:`prefetch`."""

    priority: int = -1
    max_blocks: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise TypeError(f"priority must be an int, got {self.priority!r}")
        if self.priority not in (-1, 0):
            raise ValueError(f"priority must be -1 or 0, got {self.priority}")
        check_number("max_blocks", self.max_blocks, 0, 2**31 - 1)

    def blocks_on(self, device: torch.device) -> int:
        """Returns the largest number of thread blocks of a gather on this device; 0: no limit.

        The default is one block for each multiprocessor. Training on 2 H200s (papers-sized graph,
        30-30-30 at 1024, sharded) took 117.1 ms a step with batches that were made before, 136.6 ms
        without prefetching, and 121.2 ms with 132 blocks, the number of multiprocessors. Without a
        limit it took 125.1 ms: gathers that wait for another GPU's memory keep the model's kernels
        from the multiprocessors. With 64 blocks it took 126.8 ms and with 32 blocks 131.9 ms: the
        loop waits for gathers that take longer.
        """
        if self.max_blocks is not None:
            return self.max_blocks
        if device.type != "cuda":
            return 0
        return int(torch.cuda.get_device_properties(device).multi_processor_count)


@dataclass
class Result:
    """A batch or an error, which the thread passes to the loop."""

    batch: Any
    error: BaseException | None
    last: bool  # of the iteration
    ready: torch.cuda.Event | None
    random_state: Tensor | None
    memory: list[Any] | None = None
    """The owners of the batch's memory on a GPU, if the thread has looked for them."""


@dataclass
class _Credit:
    """Lets the thread make one more batch."""

    seed: int | None = None  # to reseed the thread's generators with
    used: torch.cuda.Event | None = None  # after the loop's work on the batch that is replaced


class _Channel:
    """Queues between thread and loop. The loop sends a credit for each batch in advance."""

    def __init__(self) -> None:
        self.credits: SimpleQueue[_Credit] = SimpleQueue()
        self.results: SimpleQueue[Result] = SimpleQueue()
        self.stopped = False


class PrefetchIterator:
    """Iterates the batches of another iterator, which a thread reads ahead.

    Args:
        inner: iterator over the batches; only the thread reads it.
        depth: the largest number of batches that are made ahead.
        device: the device of the thread's stream; a CPU has no stream.
        options: the share of a GPU that the thread takes.
        store: the store that the batches are sampled from; once it is closed, ``next`` raises
            RuntimeError.
        finds_memory: whether the thread looks for the memory of a batch, which is to be kept until
            the loop's stream has used it. The loop would wait for that.
        way: decides for each batch whether the thread makes it ahead, or the loop as it asks for
            it, on the same stream; the batches are the same. None: the thread makes all.
    """

    def __init__(
        self,
        inner: Iterator[Any],
        depth: int,
        device: torch.device,
        options: PrefetchOptions | None = None,
        store: Store | None = None,
        *,
        finds_memory: bool = True,
        way: ShorterSteps | None = None,
    ) -> None:
        options = options or PrefetchOptions()
        self._inner = inner
        self._way = way
        self._credit: _Credit | None = None  # for a batch that the loop makes
        if way is not None:
            way.begin_iteration()
        self._store = store
        self._is_over = False
        self._device = device
        self._channel = _Channel()
        self._rng = LoopRng()
        stream = take_stream(device, options.priority) if device.type == "cuda" else None
        self._state = _State(
            stream, ThreadRng(), Modes.current(), options.blocks_on(device), finds_memory
        )
        # The thread holds no reference to this object, whose finalizer ends the thread.
        self._thread = threading.Thread(
            target=_make_batches,
            args=(inner, self._channel, self._state),
            name="peergraph prefetch",
            daemon=True,
        )
        for _ in range(depth):
            self._channel.credits.put(_Credit())
        self._thread.start()
        self._close = weakref.finalize(self, _stop, self._thread, self._channel, stream, options)

    def __iter__(self) -> PrefetchIterator:
        return self

    def __len__(self) -> int:
        """Returns the number of batches of the whole iteration, by the loader's own iterator."""
        return len(self._inner)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        result = self.next_result()
        self.accept(result)
        try:
            return self.batch_of(result)
        finally:
            del result  # otherwise the traceback and the exception keep each other alive

    def next_result(self) -> Result:
        """Waits for the next result; the caller passes it to :meth:`accept` and
        :meth:`batch_of`.
        """
        if self._is_over:
            raise StopIteration
        if self._way is not None:
            self._way.count_step()
        credit, self._credit = self._credit, None
        if credit is None or self._channel.stopped:
            with profile_range(WAIT_BATCH):
                result = self._channel.results.get()
        else:
            with self._state.entered_by_loop():
                _use(credit, self._state)
                result = _make(self._inner, self._state)
        if self._channel.stopped:
            self._is_over = True
            if self._store is not None and self._store.closed:
                raise RuntimeError("this store has been closed: there are no more batches of it")
            raise StopIteration
        return result

    def accept(self, result: Result) -> None:
        """Lets the thread make another batch when the loop takes a result. Results are accepted in
        their order. The loop's random numbers then continue those of the batch.
        """
        seed = self._rng.follow(result.random_state)
        if result.last:
            self._is_over = True
            self.close()
        else:
            credit = _Credit(seed, self._record_event())
            if self._way is None or self._way.by_thread:
                self._channel.credits.put(credit)
            else:
                self._credit = credit

    def batch_of(self, result: Result) -> Any:
        """Returns the batch of a result, or raises its error. The current stream waits for the
        batch, whose memory is kept until that stream has used it.
        """
        memory = result.memory
        try:
            batch = self.ready_batch(result)
        finally:
            del result  # see `__next__`
        if self._device.type == "cuda":
            stream = torch.cuda.current_stream(self._device)
            for owner in owners_of_memory(batch) if memory is None else memory:
                owner.record_stream(stream)
        return batch

    def ready_batch(self, result: Result) -> Any:
        """Does the same as :meth:`batch_of`, but the caller keeps the batch in memory."""
        if result.error is not None:
            try:
                raise result.error
            finally:
                del result
        if result.ready is not None:
            torch.cuda.current_stream(self._device).wait_event(result.ready)
        return result.batch

    def close(self) -> None:
        """Ends the thread after the batch that it is making. Then the iteration is over."""
        self._close()

    def _record_event(self) -> torch.cuda.Event | None:
        """Records an event after all work that the loop has launched on the GPU."""
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


@dataclass(frozen=True)
class _State:
    """What batches are made with, by the thread or by the loop."""

    stream: torch.cuda.Stream | None
    draws: ThreadRng
    modes: Modes
    max_blocks: int
    finds_memory: bool

    @contextmanager
    def entered_by_thread(self) -> Iterator[None]:
        with on_thread_stream(self.stream), taking_turns(), self._entered():
            yield

    @contextmanager
    def entered_by_loop(self) -> Iterator[None]:
        on_stream = nullcontext() if self.stream is None else torch.cuda.stream(self.stream)
        with on_stream, self._entered():
            yield

    @contextmanager
    def _entered(self) -> Iterator[None]:
        with self.draws, self.modes.entered(), limit_blocks(self.max_blocks):
            yield


def _make_batches(inner: Iterator[Any], channel: _Channel, state: _State) -> None:
    try:
        with state.entered_by_thread():
            last = False
            while not last:
                _use(channel.credits.get(), state)
                if channel.stopped:
                    return
                result = _make(inner, state)
                last = result.last
                channel.results.put(result)
                del result  # the loop alone keeps the batch alive
    except BaseException as error:
        channel.results.put(Result(None, error, True, None, None))


def _use(credit: _Credit, state: _State) -> None:
    """Waits until a batch may be made."""
    if credit.used is not None:
        # The GPU may be far behind the loop. Without this wait, batches whose memory is still in
        # use would accumulate.
        credit.used.synchronize()
    if credit.seed is not None:
        state.draws.reseed(credit.seed)


def _make(inner: Iterator[Any], state: _State) -> Result:
    draws, stream = state.draws, state.stream
    try:
        batch = next(inner)
        if stream is None:
            return Result(batch, None, False, None, draws.state)
        memory = owners_of_memory(batch) if state.finds_memory else None
        return Result(batch, None, False, stream.record_event(), draws.state, memory)
    except BaseException as error:
        # The loop may go on with the next batch, as without prefetching.
        return Result(None, error, isinstance(error, StopIteration), None, draws.state)


def _stop(
    thread: threading.Thread,
    channel: _Channel,
    stream: torch.cuda.Stream | None,
    options: PrefetchOptions,
) -> None:
    channel.stopped = True
    channel.credits.put(_Credit())
    # A loop in another thread may wait for a batch.
    channel.results.put(Result(None, None, True, None, None))
    # The garbage collector may run this in the thread itself.
    if thread is not threading.current_thread():
        thread.join(_JOIN_TIMEOUT)
    if stream is not None and not thread.is_alive():
        return_stream(stream, options.priority)
