"""`stateful`: loaders that go on where they were after a restart."""

from __future__ import annotations

from typing import Any

from peergraph.integration import StatefulLoader


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
    return StatefulLoader(loader, seed)
