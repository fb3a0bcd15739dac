"""`stateful`: loaders that a restarted run can resume at the same batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peergraph.integration import StatefulLoader, is_split

from ..graph.store_of import find_store
from .exchange import exchange_rows, only_samples


def stateful(loader: Any, seed: int = 0) -> StatefulLoader:
    """Returns a ``DataLoader`` with ``state_dict()``, ``load_state_dict(state)`` and
    ``set_epoch(epoch, start_batch)``, as in torchdata's StatefulDataLoader.

    Every batch depends only on the seed, the epoch, its number and the rank, and not on
    ``torch.manual_seed`` or ``numpy.random.seed``. Skipped batches are not sampled, unless workers
    or DGL's prefetching thread make them.

    Args:
        loader: a new ``dgl.dataloading.DataLoader``, not yet iterated.
        seed: the seed, the same on all ranks.

    Raises:
        TypeError: `seed` is not an int.
    """

    def iterate(epoch: Any) -> Iterator[Any]:
        if not is_split(find_store(getattr(loader, "graph", None))):
            return iter(epoch)
        # Samples are made ahead of the loop. Each depends only on the number of its batch.
        with only_samples():
            samples = iter(epoch)
        return exchange_rows(loader, samples)

    return StatefulLoader(loader, seed, iterate)
