"""`share_graph`: a framework's graph of one rank becomes a graph of all ranks, over one store."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

from typing_extensions import Unpack

from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.group.group import Group
from peergraph.store.input.source import GraphSource
from peergraph.store.placement.options import PlacementOptions, complete_options
from peergraph.store.store import Store

Outline = TypeVar("Outline")
Graph = TypeVar("Graph")


def share_graph(
    split: Callable[[], tuple[Outline, GraphSource]],
    join: Callable[[Outline, Store], Graph],
    *,
    device: Any = None,
    timeout: float | None = None,
    progress: bool | None = None,
    **options: Unpack[PlacementOptions],
) -> Graph:
    """Builds a store of rank 0's graph and gives each rank its graph over it. Collective.

    Args:
        split: called on rank 0 only; gives an outline of the graph, which is pickled and sent to
            all ranks, and what the store is filled with.
        join: called on every rank with its copy of the outline and the store.
        device: as ``peergraph.memory.Group.current`` takes it.
        timeout: seconds to wait for the other ranks.
        progress: whether long loads show bars; default: where stderr is a terminal.
        options: see :class:`peergraph.store.PlacementOptions`.

    Returns:
        What `join` returned.

    Raises:
        TypeError: an unknown keyword.
        Exception: whatever `split` raises on rank 0 is raised on all ranks, as are errors of
            pickling the outline and of building the store.
    """
    complete = complete_options(options)
    group = Group.current(device=device, timeout=timeout)

    def describe() -> tuple[bytes | None, GraphSource | None]:
        if group.rank != 0:
            return None, None
        outline, source = split()
        return pickle.dumps(outline), source

    with group.collective("share"):
        message, source = collective_call(group, describe)
        message = group.broadcast(message)
        store = Store.build(source, group=group, progress=progress, **complete)
        return join(pickle.loads(message), store)
