"""`stateful`: loaders that go on where they were after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peergraph.integration import StatefulLoader, is_split

from ..graph.store_of import find_store
from .exchange import exchange_rows, only_samples


def stateful(loader: Any, seed: int = 0) -> StatefulLoader:
    """A ``DataLoader`` of DGL with ``state_dict()``, ``load_state_dict(state)`` and
    ``set_epoch(epoch, start_batch)``, as torchdata's StatefulDataLoader has them.

    Every batch follows from the seed, the epoch, its number and the rank, not from
    ``torch.manual_seed`` or ``numpy.random.seed``. Batches that are left out are not sampled,
    unless workers or DGL's prefetching thread make them.

    Args:
        loader: a new ``dgl.dataloading.DataLoader``, not yet iterated.
        seed: the same on all ranks.

    Raises:
        TypeError: `seed` is no int.
    """

    def iterate(epoch: Any) -> Iterator[Any]:
        if not is_split(find_store(getattr(loader, "graph", None))):
            return iter(epoch)
        # Rows are exchanged a batch ahead, and samples follow from the numbers of their batches.
        with only_samples():
            samples = iter(epoch)
        return exchange_rows(loader, samples)

    return StatefulLoader(loader, seed, iterate)
