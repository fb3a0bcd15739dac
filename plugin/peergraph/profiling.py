"""Ranges of Peergraph's work for torch.profiler, NVTX and :func:`peergraph.monitor`.

One name stands for one kind of work, in samplers, loaders, full graphs and offloaded graphs. A
range costs a few hundred nanoseconds while nothing records it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import wraps
from types import TracebackType
from typing import ParamSpec, Protocol, TypeVar

import torch
from torch.autograd import profiler

__all__ = [
    "ALL_REDUCE",
    "CHUNK",
    "EXCHANGE",
    "GATHER",
    "NAMES",
    "SAMPLE",
    "UPDATE",
    "WAIT_BATCH",
    "Observer",
    "count_bytes",
    "observe",
    "profile_range",
    "profiled",
]

P = ParamSpec("P")
Result = TypeVar("Result")

SAMPLE = "peergraph::sample"
"""Drawing neighbours, walks and negatives."""
GATHER = "peergraph::gather"
"""Reading rows of a table."""
EXCHANGE = "peergraph::exchange"
"""Sending rows or gradients to other ranks, and waiting for theirs."""
ALL_REDUCE = "peergraph::all_reduce"
"""Sums over the ranks of a full graph."""
CHUNK = "peergraph::chunk"
"""The work on one chunk of an offloaded full graph."""
UPDATE = "peergraph::update"
"""A step of an optimizer of trained tables, its exchange included."""
WAIT_BATCH = "peergraph::wait_batch"
"""The training loop waits for a batch that is made ahead."""

NAMES = (SAMPLE, GATHER, EXCHANGE, ALL_REDUCE, CHUNK, UPDATE, WAIT_BATCH)
"""All names of ranges."""


class Observer(Protocol):
    """Adds up ranges and bytes; called from any thread."""

    def add_time(self, name: str, seconds: float) -> None:
        """Adds the host's time in a range, without ranges of the same name within it."""
        ...

    def add_bytes(self, name: str, num_bytes: int) -> None:
        """Adds bytes that the work of a range has moved."""
        ...


def _wants_nvtx() -> bool:
    """Returns whether this process emits NVTX ranges: Nsight's tools set the second variable."""
    chosen = os.environ.get("PEERGRAPH_NVTX")
    if chosen not in (None, "0", "1"):
        raise ValueError(f"PEERGRAPH_NVTX must be 0 or 1, got {chosen!r}")
    return chosen == "1" or (chosen is None and "NVTX_INJECTION64_PATH" in os.environ)


_NOTHING = nullcontext()
_nvtx = _wants_nvtx() and torch.version.cuda is not None
_observer: Observer | None = None
_open_names = threading.local()


def profile_range(name: str) -> AbstractContextManager[object]:
    """Returns a context that records a range if a profile is being recorded; else an empty context.

    Args:
        name: one of :data:`NAMES`.
    """
    return _Range(name) if _is_recorded() else _NOTHING


def profiled(name: str) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Returns a decorator: each call of the decorated function is a range of this name."""

    def decorate(function: Callable[P, Result]) -> Callable[P, Result]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Result:
            if not _is_recorded():
                return function(*args, **kwargs)
            with _Range(name):
                return function(*args, **kwargs)

        return call

    return decorate


def count_bytes(name: str, num_bytes: int) -> None:
    """Adds to the bytes that the work of a range has moved, if they are counted."""
    if _observer is not None:
        _observer.add_bytes(name, num_bytes)


def observe(observer: Observer | None) -> None:
    """Sets the observer that gets the ranges of all threads from now on; None: no observer."""
    global _observer
    _observer = observer


def _is_recorded() -> bool:
    return _observer is not None or _nvtx or profiler._is_profiler_enabled


class _Range:
    """A range that torch's profiler, NVTX or the observer records."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._recorded = ExitStack()
        self._observer = _observer
        self._begin = 0.0

    def __enter__(self) -> None:
        if profiler._is_profiler_enabled:
            self._recorded.enter_context(profiler.record_function(self._name))
        if _nvtx:
            self._recorded.enter_context(torch.cuda.nvtx.range(self._name))
        if self._observer is not None:
            names = _names_of_this_thread()
            if self._name in names:
                self._observer = None
            else:
                names.add(self._name)
                self._begin = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._observer is not None:
            self._observer.add_time(self._name, time.perf_counter() - self._begin)
            _names_of_this_thread().discard(self._name)
        self._recorded.close()


def _names_of_this_thread() -> set[str]:
    """Returns the names of the ranges that are open and counted."""
    names: set[str] | None = getattr(_open_names, "names", None)
    if names is None:
        names = _open_names.names = set()
    return names
