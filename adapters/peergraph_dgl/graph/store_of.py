"""Which DGL graphs are Peergraph's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any
from weakref import WeakKeyDictionary

import torch
from dgl import DGLGraph

from peergraph.store import Store

from ..backend.replacing import Replacements

_ATTRIBUTE = "_peergraph"
_replacements = Replacements()

# Of the graphs that stores were made of, in this process.
_idtypes: WeakKeyDictionary[Store, torch.dtype] = WeakKeyDictionary()


@dataclass(frozen=True)
class Shared:
    """What a shared graph carries, and its copies.

    Where a graph is pickled with its values, this becomes None.
    """

    store: Store

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared:
        return self

    def __reduce__(self) -> Any:
        return type(None), ()

    def reduce_to_process(self) -> Any:
        """What ``__reduce__`` returns, for a process of this machine."""
        return Shared, (self.store,)


ForkingPickler.register(Shared, Shared.reduce_to_process)


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


def remember_idtype(store: Store, idtype: torch.dtype) -> None:
    """Notes the id type of the graph that a store was made of."""
    _idtypes[store] = idtype


def idtype_of(store: Store) -> torch.dtype:
    """The id type of the graph that a store was made of in this process; int64 of other stores."""
    return _idtypes.get(store, torch.int64)


def install() -> None:
    """Has the methods that change a graph's structure in place part it from its store, once."""
    if not _replacements:
        for name in ("add_nodes", "add_edges", "remove_nodes", "remove_edges"):
            _replacements.replace(DGLGraph, name, _change)


def _change(dgls: Callable[..., None], graph: Any, *args: Any, **kwargs: Any) -> None:
    before = graph._graph
    try:
        dgls(graph, *args, **kwargs)
    finally:
        if graph._graph is not before:
            vars(graph).pop(_ATTRIBUTE, None)
