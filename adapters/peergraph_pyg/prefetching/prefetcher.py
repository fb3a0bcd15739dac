"""Batches that are made ahead: a thread prepares the next ones while the model trains."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from peergraph.memory import limit_blocks
from peergraph.sampling import next_seed
from peergraph.store import Store

from ..data.store_of import find_store
from .gpu_share import Share
from .modes import Modes
from .stream import give_back, take_stream, use_on, working_on
from .thread_rng import OwnDraws

_VARIABLE = "PEERGRAPH_PREFETCH"
# One batch is made while the loop works on another. A second one waiting takes its memory and
# gained nothing: 121.0 ms a step instead of 121.2, of 136.6 without prefetching (Share.blocks_on
# says of what).
_DEFAULT_DEPTH = 1
# Seconds to wait for a batch that nobody wants any more.
_PATIENCE = 60.0

_plainly: ContextVar[bool] = ContextVar("peergraph_pyg_plainly", default=False)


def prefetch(
    loader: Any,
    depth: int | None = None,
    *,
    priority: int | None = None,
    max_blocks: int | None = None,
) -> Prefetched:
    """A loader that makes the next batches of ``loader`` while the last one is worked on.

    For each iteration a thread makes the batches, in order, on a CUDA stream of its own: sampling,
    gathering, and whatever the loader does besides, ``transform`` included (WholeGraph IV-C6: what
    keeps the GPU busy is that it need not wait for its data). The training loop gets each batch
    when it is made, ordered behind its stream; it does not synchronise. An exception of the loader
    is raised by the loop's ``next``. Leaving the loop ends the thread, as does closing the store.

    Loaders that sample a store on a GPU do this by themselves; for these, this function sets
    another depth, and the environment variable ``PEERGRAPH_PREFETCH`` that of all of them (0: not).

    torch's CPU random numbers are those that the loader would have drawn without prefetching, and
    so are the batches, as long as the loop itself draws none from the CPU's default generator; if
    it does, the batches are still determined by ``torch.manual_seed``. What a transform draws on a
    GPU is determined by it as well, but other than without prefetching; what it draws from
    generators of Python and NumPy is interleaved with what the loop draws. Values written to shared
    tensors in the loop may come too late for the batches in the making.

    Args:
        loader: any loader of PyG or torch; batches are made in the process that iterates, or by
            the workers of the loader, as it would do itself.
        depth: batches in the making or waiting, beside the one that the loop works on, each with
            its memory. 0: none, each is made when it is asked for. None: ``PEERGRAPH_PREFETCH``, by
            default 1.
        priority: of the side stream on a GPU: -1, its kernels go before those of the model (which
            come in long queues), or 0, they take what the model leaves. None:
            ``PEERGRAPH_PREFETCH_PRIORITY``, by default -1.
        max_blocks: of the kernels that gather, at most so many blocks of 256 threads; the other
            places on the GPU are the model's. 0: no limit. None: ``PEERGRAPH_PREFETCH_BLOCKS``, by
            default as many as the GPU has multiprocessors.

    Raises:
        ValueError: a negative depth or `max_blocks`, another priority.
        TypeError: one of them is no integer.
    """
    return Prefetched(
        loader,
        default_depth() if depth is None else depth,
        Share.chosen(priority, max_blocks),
    )


def default_depth() -> int:
    """``PEERGRAPH_PREFETCH``, or 1."""
    text = os.environ.get(_VARIABLE, str(_DEFAULT_DEPTH))
    if not text.isdecimal():
        raise ValueError(f"{_VARIABLE} must be a number of batches, 0 or more, got {text!r}")
    return int(text)


class Prefetched:
    """What :func:`prefetch` returns; other attributes are those of the loader."""

    def __init__(self, loader: Any, depth: int, share: Share | None = None) -> None:
        if isinstance(depth, bool) or not isinstance(depth, int):
            raise TypeError(f"depth must be an int, got {depth!r}")
        if depth < 0:
            raise ValueError(f"depth must be 0 or more, got {depth}")
        self.loader = loader
        self.depth = depth
        self.share = share or Share()
        self._last: weakref.ref[AheadIterator] | None = None

    def __iter__(self) -> Iterator[Any]:
        last = None if self._last is None else self._last()
        if last is not None and getattr(self.loader, "persistent_workers", False):
            # The loader is about to reset the very iterator that this one reads.
            last.close()
        iterator = plain_iterator(self.loader)
        if self.depth == 0:
            return iterator
        store = find_store(getattr(self.loader, "data", None))
        ahead = AheadIterator(iterator, self.depth, _device_of(store), self.share, store)
        if store is not None:
            store.register_reader(ahead)
        self._last = weakref.ref(ahead)
        return ahead

    def __len__(self) -> int:
        return len(self.loader)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One batch, made now: as ``loader(index)``."""
        return self.loader(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not there yet: this object is being unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


def plain_iterator(loader: Any) -> Iterator[Any]:
    """Iterates a loader without prefetching, even if it would by itself."""
    token = _plainly.set(True)
    try:
        return iter(loader)
    finally:
        _plainly.reset(token)


def is_plain() -> bool:
    """Whether :func:`plain_iterator` is asking a loader for its iterator."""
    return _plainly.get()


def _device_of(store: Store | None) -> torch.device:
    """Where a loader works: the store's device, else the current one."""
    if store is not None and store.device.type == "cuda":
        return torch.device(store.device)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@dataclass
class _Made:
    """What the thread hands over."""

    batch: Any
    error: BaseException | None
    last: bool  # nothing comes after it
    ready: torch.cuda.Event | None
    random_state: Tensor | None


@dataclass
class _Ticket:
    """Allows the thread to make one more batch."""

    seed: int | None = None  # the random numbers start anew
    used: torch.cuda.Event | None = None  # the batch that this one may take the place of


class _Channel:
    """Between thread and loop. The loop allows each batch by a ticket, in advance."""

    def __init__(self) -> None:
        self.tickets: SimpleQueue[_Ticket] = SimpleQueue()
        self.results: SimpleQueue[_Made] = SimpleQueue()
        self.stopped = False


class AheadIterator:
    """The batches of an iterator, in order, made ahead by a thread.

    Args:
        inner: gives the batches; read by the thread only.
        depth: at most as many are made ahead.
        device: of the thread's stream; no stream if it is a CPU.
        share: what the thread takes of the GPU.
        store: that the batches are of; when it is closed, asking for another one is an error.
    """

    def __init__(
        self,
        inner: Iterator[Any],
        depth: int,
        device: torch.device,
        share: Share | None = None,
        store: Store | None = None,
    ) -> None:
        share = share or Share()
        self._inner = inner
        self._store = store
        self._is_over = False
        self._device = device
        self._channel = _Channel()
        self._random_state: Tensor | None = torch.get_rng_state()
        stream = take_stream(device, share.priority) if device.type == "cuda" else None
        around = OwnDraws(), Modes.current(), share.blocks_on(device)
        # Without a reference to this object: its end is the thread's end.
        self._thread = threading.Thread(
            target=_make_batches,
            args=(inner, self._channel, stream, *around),
            name="peergraph-prefetch",
            daemon=True,
        )
        for _ in range(depth):
            self._channel.tickets.put(_Ticket())
        self._thread.start()
        self._close = weakref.finalize(self, _stop, self._thread, self._channel, stream, share)

    def __iter__(self) -> AheadIterator:
        return self

    def __len__(self) -> int:
        """Batches of the whole iteration, as the loader's own iterator counts them."""
        return len(self._inner)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        made = self._channel.results.get()
        if self._channel.stopped:
            self._is_over = True
            if self._store is not None and self._store.closed:
                raise RuntimeError("this store has been closed: there are no more batches of it")
            raise StopIteration
        seed = self._follow(made.random_state)
        if made.last:
            self._is_over = True
            self.close()
        else:
            self._channel.tickets.put(_Ticket(seed, self._all_so_far()))
        if made.error is not None:
            try:
                raise made.error
            finally:
                del made  # or the traceback and the exception would hold each other
        if made.ready is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(made.ready)
            use_on(stream, made.batch)
        return made.batch

    def close(self) -> None:
        """Ends the thread, after the batch that it is at; there are no more batches then."""
        self._close()

    def _all_so_far(self) -> torch.cuda.Event | None:
        """When what the loop has given to the GPU is done."""
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _follow(self, state: Tensor | None) -> int | None:
        """Brings torch's CPU generator to where it were if the batch had been made in the loop.

        If the loop draws from it too, it keeps it for itself from there on, and what is returned
        is a seed for the batches.
        """
        if self._random_state is None or state is None:
            return None
        if torch.equal(torch.get_rng_state(), self._random_state):
            if not torch.equal(state, self._random_state):
                torch.set_rng_state(state)
                self._random_state = state
            return None
        self._random_state = None
        return next_seed()


def _make_batches(
    inner: Iterator[Any],
    channel: _Channel,
    stream: torch.cuda.Stream | None,
    draws: OwnDraws,
    modes: Modes,
    max_blocks: int,
) -> None:
    try:
        with ExitStack() as stack:
            if stream is not None:
                stack.enter_context(working_on(stream))
            stack.enter_context(draws)
            modes.enter(stack)
            stack.enter_context(limit_blocks(max_blocks))
            last = False
            while not last:
                ticket = channel.tickets.get()
                if ticket.used is not None:
                    # The loop's work may be far behind the loop: without this wait, batches whose
                    # memory is still in use would add up.
                    ticket.used.synchronize()
                if channel.stopped:
                    return
                if ticket.seed is not None:
                    draws.reseed(ticket.seed)
                made = _make(inner, stream, draws)
                last = made.last
                channel.results.put(made)
                del made  # the loop alone decides how long a batch lives
    except BaseException as error:
        channel.results.put(_Made(None, error, True, None, None))


def _make(inner: Iterator[Any], stream: torch.cuda.Stream | None, draws: OwnDraws) -> _Made:
    try:
        batch = next(inner)
        ready = None if stream is None else stream.record_event()
        return _Made(batch, None, False, ready, draws.state)
    except BaseException as error:
        # As ever, the loop may go on with the next batch.
        return _Made(None, error, isinstance(error, StopIteration), None, draws.state)


def _stop(
    thread: threading.Thread, channel: _Channel, stream: torch.cuda.Stream | None, share: Share
) -> None:
    channel.stopped = True
    channel.tickets.put(_Ticket())
    # A loop in another thread may be waiting for a batch.
    channel.results.put(_Made(None, None, True, None, None))
    # Garbage may be collected by the thread itself.
    if thread is not threading.current_thread():
        thread.join(_PATIENCE)
    if stream is not None and not thread.is_alive():
        give_back(stream, share.priority)
