"""A mark on data that came from :func:`share`, which copies of it and what transforms make keep."""

from __future__ import annotations

from multiprocessing.context import get_spawning_popen
from typing import Any

from torch_geometric.data import Data, HeteroData

from peergraph.store import Store

from ..compat import graph_storage

_KEY = "_peergraph"


class _Keeper:
    """Holds the store of data without a shared tensor, which nothing else would hold.

    It takes the store along to a child process that is being started. In a file, where a store has
    no meaning, it becomes a plain mark.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is None:
            return bool, (True,)
        return _Keeper, (self.store,)


def mark(data: Data | HeteroData, store: Store, *, keep: bool) -> None:
    """Marks data that :func:`share` returns.

    Args:
        data: the data.
        store: its store.
        keep: whether the mark holds the store, as no tensor of the data does.
    """
    setattr(_storage(data), _KEY, _Keeper(store) if keep else True)


def is_marked(data: Data | HeteroData) -> bool:
    """Whether the data came from :func:`share`, or was made of such data."""
    return _KEY in _storage(data).__dict__


def kept_store(data: Data | HeteroData) -> Store | None:
    """The store that the mark holds, if it does."""
    keeper = _storage(data).__dict__.get(_KEY)
    return keeper.store if isinstance(keeper, _Keeper) else None


def _storage(data: Data | HeteroData) -> Any:
    return graph_storage(data)
