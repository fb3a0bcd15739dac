"""`lazy`: data whose loaders leave features in the store."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch_geometric.data import Data, HeteroData

from peergraph.store import TableTensor

from ..data.feature_store import FeatureStore
from ..data.lazy_features import LazyTable, StoredTable
from ..data.store_of import store_of

Shared = TypeVar("Shared")


def lazy(data: Shared, *names: str, as_stored: bool = False) -> Shared:
    """Shared data whose loaders do not gather the features of a batch (WholeGraph III-C4).

    In batches each of the tensors is a :class:`LazyRows`. Layers of :mod:`peergraph_pyg.nn` that
    reduce neighbors by sum, mean, max or min read its rows from the store, wherever they are, and
    never write the input matrix of a mini-batch. Any other use gathers the rows first. Results are
    the same.

    Args:
        data: returned by :func:`peergraph_pyg.share`, or the pair of
            :func:`peergraph_pyg.stores`. It is not changed.
        names: names of tensors, in all node and edge types that have them; default: ``"x"``.
        as_stored: loaders gather rows of narrow storage, as they are stored; layers decode those
            that they read. For layers that multiply rows first (attention, typed graphs) and for
            rows on other GPUs: a batch made ahead then takes the bytes of the storage, and nothing
            waits for a row in the step. Rows of other storage are not gathered.

    Returns:
        A shallow copy.

    Raises:
        ValueError: `data` is not shared, or none of its types has a shared tensor of that name.
    """
    store = store_of(data)
    names = names or ("x",)
    if not isinstance(data, (Data, HeteroData)):
        pair: Any = (FeatureStore(store, lazy=names, as_stored=as_stored), data[1])  # type: ignore[index]
        result: Shared = pair
        return result
    copied: Any = copy.copy(data)
    kind = StoredTable if as_stored else LazyTable
    for name in names:
        storages = [s for s in copied.stores if isinstance(s.get(name), TableTensor)]
        if not storages:
            raise ValueError(f"no node or edge type has a shared tensor {name!r}")
        for storage in storages:
            storage[name] = kind.of(storage[name])
    shared: Shared = copied
    return shared
