"""`stateful`: loaders that a restarted run can resume at the same batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peergraph.integration import StatefulLoader

from ..prefetching.prefetcher import plain_iterator, prefetch
from .patches import prefetches


def stateful(loader: Any, seed: int = 0) -> StatefulLoader:
    """Returns a loader with ``state_dict()``, ``load_state_dict(state)`` and ``set_epoch(epoch,
    start_batch)``, as in torchdata's StatefulDataLoader.

    Every batch depends only on the seed, the epoch, its number and the rank, and not on
    ``torch.manual_seed``. Skipped batches are not sampled, unless workers make them. Loaders that
    prefetch continue to prefetch.

    Args:
        loader: ``NeighborLoader``, ``LinkNeighborLoader``, or any other loader of PyG or torch.
        seed: the seed, the same on all ranks.

    Raises:
        TypeError: `seed` is not an int.
    """

    def iterate(epoch: Any) -> Iterator[Any]:
        return iter(prefetch(epoch)) if prefetches(loader) else plain_iterator(epoch)

    return StatefulLoader(loader, seed, iterate)
