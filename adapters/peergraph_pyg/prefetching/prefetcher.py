"""`prefetch`: a thread makes the next batches while the model trains on the current one."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch

from peergraph.integration import Unsupported, is_split, note_fallback
from peergraph.number_arguments import check_number
from peergraph.store import Store

from ..data.store_of import find_store
from .exchanging import exchange_rows
from .native_iterator import native_iterator
from .prefetch_iterator import PrefetchIterator, PrefetchOptions
from .shorter_steps import ShorterSteps

_VARIABLE = "PEERGRAPH_PREFETCH"
# One batch is made while the loop works on another. A second batch that waits would take memory and
# gained nothing: 121.0 ms a step instead of 121.2, and 136.6 without prefetching (the workload is
# described at PrefetchOptions.blocks_on).
_DEFAULT_DEPTH = 1
MAX_DEPTH = 1024

# What is known of the steps of a loader's loop, for its next epochs.
_ways: weakref.WeakKeyDictionary[Any, ShorterSteps] = weakref.WeakKeyDictionary()

_plainly: ContextVar[bool] = ContextVar("peergraph_pyg_plainly", default=False)


def prefetch(
    loader: Any,
    depth: int | None = None,
    *,
    priority: int = -1,
    max_blocks: int | None = None,
) -> PrefetchLoader:
    """Returns a loader that makes the next batches of ``loader`` while the loop works on the last.

    For each iteration a thread makes the batches, in order, on a separate CUDA stream (WholeGraph
    IV-C6: a GPU stays busy if it need not wait for its data). A thread of C++ samples and gathers,
    and the loop does what needs Python; for a loader with a ``transform`` and others that need
    Python in between, a thread of Python does everything. The training loop gets each batch as soon
    as it is made, and its stream waits for the thread's; the host does not synchronise. The loop's
    ``next`` raises the exceptions of the loader. The thread ends when the loop ends or the store is
    closed.

    Loaders that sample a store on a GPU prefetch by themselves. For these, this function sets
    another depth; the environment variable ``PEERGRAPH_PREFETCH`` sets the depth of all of them
    (0 turns prefetching off). Without either, a loop with a thread of Python tries both ways in its
    first steps, and makes the batches itself, as it asks for them but on the separate stream, if
    its steps are shorter then: Python runs one thread at a time.

    The loader draws the same numbers from torch's CPU generator as without prefetching, and makes
    the same batches, as long as the loop itself draws none from that generator; if it does, the
    batches are still determined by ``torch.manual_seed``. Numbers that a transform draws on a GPU
    are determined by the seed too, but differ from those without prefetching; draws from generators
    of Python and NumPy are interleaved with the loop's. Values that the loop writes to shared
    tensors may come too late for batches that are being made.

    Args:
        loader: any loader of PyG or torch. The process that iterates makes the batches, or the
            loader's own workers.
        depth: number of batches that are being made or are waiting, without the batch that the loop
            works on; each takes memory. 0: each batch is made when the loop asks for it. None:
            ``PEERGRAPH_PREFETCH``, by default 1, or by the loop where that is faster.
        priority: priority of the thread's stream on a GPU. -1: its kernels start before queued
            kernels of the model; 0: they wait for their turn.
        max_blocks: largest number of thread blocks (of 256 threads) of a gather kernel, so that the
            model's kernels find free multiprocessors. 0: no limit. None: the number of
            multiprocessors of the GPU.

    Raises:
        ValueError: `depth` or `max_blocks` is negative, or `priority` is another number.
        TypeError: one of them is not an integer.
    """
    return PrefetchLoader(
        loader,
        default_depth() if depth is None else depth,
        PrefetchOptions(priority, max_blocks),
        tries_both=depth is None and _VARIABLE not in os.environ,
    )


def default_depth() -> int:
    """``PEERGRAPH_PREFETCH``, or 1."""
    text = os.environ.get(_VARIABLE, str(_DEFAULT_DEPTH))
    if not text.isdecimal() or int(text) > MAX_DEPTH:
        raise ValueError(f"{_VARIABLE} must be a number of batches, 0..{MAX_DEPTH}, got {text!r}")
    return int(text)


class PrefetchLoader:
    """The loader that :func:`prefetch` returns; it has all attributes of the loader it reads."""

    def __init__(
        self,
        loader: Any,
        depth: int,
        options: PrefetchOptions | None = None,
        *,
        tries_both: bool = False,
    ) -> None:
        check_number("depth", depth, 0, MAX_DEPTH)
        self.tries_both = tries_both
        self.loader = loader
        self.depth = depth
        self.prefetch_options = options or PrefetchOptions()
        self._last: weakref.ref[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        last = None if self._last is None else self._last()
        if last is not None and getattr(self.loader, "persistent_workers", False):
            # The loader is about to reset the iterator that the last one reads.
            last.close()
        iterator = plain_iterator(self.loader)
        store = find_store(getattr(self.loader, "data", None))
        if is_split(store) and hasattr(self.loader, "filter_fn"):
            exchanged = exchange_rows(
                self.loader, iterator, self.depth, _device_of(store), self.prefetch_options
            )
            self._last = weakref.ref(exchanged)
            return exchanged
        if self.depth == 0:
            return iterator
        device, way = _device_of(store), None
        options = self.prefetch_options
        try:
            return self._read(
                native_iterator(self.loader, iterator, self.depth, options, store), store
            )
        except Unsupported as reason:
            note_fallback(self.loader, f"a thread of Python makes the batches: {reason}")
        if self.tries_both and device.type == "cuda":
            way = _way_of(self.loader)
        ahead = PrefetchIterator(iterator, self.depth, device, options, store, way=way)
        return self._read(ahead, store)

    def _read(self, ahead: Any, store: Store | None) -> Iterator[Any]:
        if store is not None:
            store.register_reader(ahead)
        self._last = weakref.ref(ahead)
        iterator: Iterator[Any] = ahead
        return iterator

    def __len__(self) -> int:
        return len(self.loader)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Makes one batch at once, as ``loader(index)`` does."""
        return self.loader(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not set yet: this object is being unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


def _way_of(loader: Any) -> ShorterSteps:
    """Returns what is known of the steps of a loader's loop; nothing of ranges, lists and the like,
    which Python cannot refer to weakly.
    """
    try:
        return _ways.setdefault(loader, ShorterSteps())
    except TypeError:
        return ShorterSteps()


def plain_iterator(loader: Any) -> Iterator[Any]:
    """Iterates a loader without prefetching, even if it would prefetch by itself. If the store is
    split over machines, PyG's loaders then return samples without features.
    """
    token = _plainly.set(True)
    try:
        return iter(loader)
    finally:
        _plainly.reset(token)


def is_plain() -> bool:
    """Returns whether :func:`plain_iterator` is asking a loader for its iterator."""
    return _plainly.get()


def _device_of(store: Store | None) -> torch.device:
    """Returns the device of a loader's work: the store's, else the current one."""
    if store is not None and store.device.type == "cuda":
        return torch.device(store.device)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
