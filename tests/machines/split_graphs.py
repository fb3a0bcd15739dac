"""A graph that `share` splits over machines."""

from __future__ import annotations

from typing import Any

import peergraph_pyg
from peergraph.memory import Group
from tests.adapters.pyg.graphs import random_data
from tests.machines.hosts import device_of_rank


def split_graph(
    device: str, *, timeout: float = 60, batches_per_exchange: int = 1
) -> tuple[Any, Any]:
    """Returns a graph of 60 nodes in memory, and what `share` makes of it: the graph with rows that
    are split over machines. Collective.

    Args:
        timeout: seconds that ranks wait for each other in the exchange of rows.
    """
    group = Group.current(device=device_of_rank(device), timeout=60)
    data = random_data()
    shared = peergraph_pyg.share(
        data if group.machines.is_first_rank else None,
        device=group.device,
        machines="shard",
        hot_ratio=0.25,
        batches_per_exchange=batches_per_exchange,
    )
    # `share` makes another group for the store, without the timeout of this one.
    store = peergraph_pyg.store_of(shared)
    assert store.group is not None
    store.group.timeout = float(timeout)
    return data, shared
