"""Attaches stores to DGL graphs, and finds the store of a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any
from weakref import WeakKeyDictionary

import torch
from dgl import DGLGraph

from peergraph.store import Store

from ..compat import new_patches

_ATTRIBUTE = "_peergraph"
_patches = new_patches()

# The id types of the graphs that were shared in this process, by store.
_idtypes: WeakKeyDictionary[Store, torch.dtype] = WeakKeyDictionary()


@dataclass(frozen=True)
class StoreHandle:
    """An attribute of a shared graph and of its copies.

    It pickles as None if a graph is pickled with its values.
    """

    store: Store

    def __deepcopy__(self, memo: dict[int, Any]) -> StoreHandle:
        return self

    def __reduce__(self) -> Any:
        return type(None), ()

    def reduce_to_process(self) -> Any:
        """Returns what ``__reduce__`` returns, for a process of this machine."""
        return StoreHandle, (self.store,)


ForkingPickler.register(StoreHandle, StoreHandle.reduce_to_process)


def attach_store(graph: DGLGraph, store: Store) -> None:
    """Attaches a store to a graph with the same structure."""
    setattr(graph, _ATTRIBUTE, StoreHandle(store))


def store_of(graph: Any) -> Store:
    """Returns the store of a graph.

    Args:
        graph: a ``DGLGraph`` that :func:`share` returned, a copy of it with the same nodes and
            edges (``clone``, ``formats``, ``local_var``), or a result of :func:`from_store`.

    Raises:
        ValueError: the graph has no store, or nodes or edges were added or removed.
    """
    store = find_store(graph)
    if store is None:
        raise ValueError(
            f"expected a graph returned by peergraph_dgl.share() or from_store(), with its nodes "
            f"and edges unchanged; got {type(graph).__name__} without a store"
        )
    return store


def find_store(graph: Any) -> Store | None:
    """Does the same as :func:`store_of`, but returns ``None`` for a graph without a store."""
    shared = getattr(graph, _ATTRIBUTE, None)
    return shared.store if isinstance(shared, StoreHandle) else None


def record_idtype(store: Store, idtype: torch.dtype) -> None:
    """Records the id type of the graph that a store was built from."""
    _idtypes[store] = idtype


def idtype_of(store: Store) -> torch.dtype:
    """Returns the id type of the graph that was shared in this process; int64 for other stores."""
    return _idtypes.get(store, torch.int64)


def install() -> None:
    """Makes methods that change a graph's structure in place detach its store. Idempotent."""
    if not _patches:
        for name in ("add_nodes", "add_edges", "remove_nodes", "remove_edges"):
            _patches.replace(DGLGraph, name, _detach_if_changed)


def _detach_if_changed(
    original: Callable[..., None], graph: Any, *args: Any, **kwargs: Any
) -> None:
    before = graph._graph
    try:
        original(graph, *args, **kwargs)
    finally:
        if graph._graph is not before:
            vars(graph).pop(_ATTRIBUTE, None)
