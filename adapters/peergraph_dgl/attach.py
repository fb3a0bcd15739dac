"""Which DGL graphs are Peergraph's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dgl import DGLGraph

from peergraph.store import Store

_ATTRIBUTE = "_peergraph"


@dataclass(frozen=True)
class Shared:
    """What a shared graph carries, and its copies."""

    store: Store


def attach(graph: DGLGraph, store: Store) -> None:
    """Marks a graph whose structure is that of the store."""
    setattr(graph, _ATTRIBUTE, Shared(store))


def store_of(graph: Any) -> Store:
    """The store behind ``graph``.

    Args:
        graph: a ``DGLGraph`` that :func:`share` returned, a copy of it with the same nodes and
            edges (``clone``, ``formats``, ``local_var``), or what :func:`from_store` returned.

    Raises:
        ValueError: if there is none, or nodes or edges were added or removed.
    """
    store = find_store(graph)
    if store is None:
        raise ValueError(
            f"expected a graph returned by peergraph_dgl.share() or from_store(), with its nodes "
            f"and edges unchanged; got {type(graph).__name__} without a store"
        )
    return store


def find_store(graph: Any) -> Store | None:
    """Like :func:`store_of`, ``None`` where there is no store."""
    shared = getattr(graph, _ATTRIBUTE, None)
    return shared.store if isinstance(shared, Shared) else None


def install() -> None:
    """Has the methods that change a graph's structure in place part it from its store, once."""
    for name in ("add_nodes", "add_edges", "remove_nodes", "remove_edges"):
        method = getattr(DGLGraph, name)
        if not hasattr(method, "__wrapped__"):
            setattr(DGLGraph, name, _detaching(method))


def _detaching(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def changed(self: Any, *args: Any, **kwargs: Any) -> None:
        before = self._graph
        try:
            original(self, *args, **kwargs)
        finally:
            if self._graph is not before:
                vars(self).pop(_ATTRIBUTE, None)

    return changed
