"""`stateful`: loaders that go on where they were after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peergraph.integration import StatefulLoader

from ..prefetching.prefetcher import plain_iterator, prefetch
from .patches import prefetches


def stateful(loader: Any, seed: int = 0) -> StatefulLoader:
    """A loader of PyG with ``state_dict()``, ``load_state_dict(state)`` and ``set_epoch(epoch,
    start_batch)``, as torchdata's StatefulDataLoader has them.

    Every batch follows from the seed, the epoch, its number and the rank, not from
    ``torch.manual_seed``. Batches that are left out are not sampled, unless workers make them.
    Loaders that prefetch do so still.

    Args:
        loader: ``NeighborLoader``, ``LinkNeighborLoader``, or any other loader of PyG or torch.
        seed: the same on all ranks.

    Raises:
        TypeError: `seed` is no int.
    """

    def iterate(epoch: Any) -> Iterator[Any]:
        return iter(prefetch(epoch)) if prefetches(loader) else plain_iterator(epoch)

    return StatefulLoader(loader, seed, iterate)
