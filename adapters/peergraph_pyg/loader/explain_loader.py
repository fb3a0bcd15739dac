"""`explain` for loaders: who makes their batches, and why."""

from __future__ import annotations

from torch_geometric.loader import LinkLoader, NodeLoader

from peergraph.integration import StatefulLoader, Unsupported, explain, is_split

from ..data.store_of import find_store
from ..prefetching.native_iterator import rows_ahead
from ..prefetching.prefetcher import PrefetchLoader, prefetch
from .patches import prefetches

__all__ = ["explain"]

_BY_LOOP = "batches: the loop makes them as it asks for them"


@explain.register(NodeLoader)
@explain.register(LinkLoader)
def _explain_loader(loader: NodeLoader | LinkLoader) -> str:
    if prefetches(loader):
        return _explain_prefetching(prefetch(loader))
    if loader.num_workers > 0:
        return f"batches: {loader.num_workers} workers of torch make them"
    sampler = getattr(loader, "node_sampler", None) or loader.link_sampler
    store = getattr(sampler, "store", None)
    if find_store(loader.data) is None and store is None:
        return f"{_BY_LOOP}: PyG's own code, the data is not shared"
    if store is None:
        return f"{_BY_LOOP}: a {type(sampler).__name__}"
    return f"{_BY_LOOP}: the store is on the CPU; prefetch(loader) makes them ahead"


@explain.register(PrefetchLoader)
def _explain_prefetching(loader: PrefetchLoader) -> str:
    store = find_store(getattr(loader, "data", None))
    if is_split(store):
        return "batches: a thread of Python samples, and rows of other machines are exchanged"
    if loader.depth == 0:
        return f"{_BY_LOOP}: the depth is 0"
    try:
        rows_ahead(loader.loader, store)
    except Unsupported as reason:
        return _by_python(loader, reason)
    return f"batches: a thread of C++ makes them, {loader.depth} ahead"


@explain.register(StatefulLoader)
def _explain_stateful(loader: StatefulLoader) -> str:
    if not prefetches(loader.loader) or is_split(find_store(loader.loader.data)):
        text: str = explain(loader.loader)
        return text
    return _by_python(prefetch(loader.loader), "each has random numbers of its own")


def _by_python(loader: PrefetchLoader, reason: object) -> str:
    store = find_store(getattr(loader, "data", None))
    tries_both = loader.tries_both and store is not None and store.device.type == "cuda"
    turns = ", or the loop where its steps are shorter then" if tries_both else ""
    return f"batches: a thread of Python makes them, {loader.depth} ahead{turns}: {reason}"
