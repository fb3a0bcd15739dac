"""Where the time of an epoch goes: sampling, gathering, training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from peergraph_pyg import prefetch

if TYPE_CHECKING:
    from torch_geometric.loader import NeighborLoader

PHASES = ("sampling", "gathering", "training")


class PhaseClock:
    """Times the phases of a loop over a PyG loader, without changing the loader's class.

    Gathering is the loader's `filter_fn`, sampling the rest of the wait for a batch, training what
    the loop does until it asks for the next one. With worker processes both happen there, and what
    is seen here is the time that this process waits for them.

    Args:
        loader: the loader whose `filter_fn` is timed from now on.
        device: on CUDA, `synchronise` makes the phases exact, at some cost: no batch is made ahead.
            Without it all of the wait for a batch counts as sampling, since another thread gathers.
    """

    def __init__(self, loader: NeighborLoader, device: torch.device) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.synchronise = False
        self._thread = get_ident()
        self._loader = loader
        self._device = device
        self._filter: Callable[[Any], Any] = loader.filter_fn
        loader.filter_fn = self._timed_filter

    def batches(self) -> Iterator[Any]:
        """Yields the loader's batches of one epoch."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._thread = get_ident()
        batches = iter(prefetch(self._loader, 0) if self.synchronise else self._loader)
        while True:
            start, gathered = self._now(), self.seconds["gathering"]
            try:
                batch = next(batches)
            except StopIteration:
                return
            ready = self._now()
            self.seconds["sampling"] += ready - start - (self.seconds["gathering"] - gathered)
            yield batch
            self.seconds["training"] += self._now() - ready

    def _timed_filter(self, sampled: Any) -> Any:
        if get_ident() != self._thread:
            return self._filter(sampled)
        start = self._now()
        batch = self._filter(sampled)
        self.seconds["gathering"] += self._now() - start
        return batch

    def _now(self) -> float:
        if self.synchronise and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return perf_counter()
