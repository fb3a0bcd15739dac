"""A connection of its own to the store of torch.distributed."""

from __future__ import annotations

from torch.distributed import (  # type: ignore[attr-defined]
    FileStore,
    PrefixStore,
    Store,
    TCPStore,
)


def store_client(store: Store, prefix: str) -> Store:
    """A store behind that of a process group, over a connection of its own where torch has one.

    A call of a store blocks calls of other threads over the same connection, and may last for
    minutes.

    Args:
        prefix: of the keys. Prefixes of `store` are dropped, so this one must be unique: processes
            that a launcher has restarted use the same store.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, TCPStore):
        store = TCPStore(store.host, store.port, None, False, store.timeout)  # type: ignore[attr-defined]
    elif isinstance(store, FileStore):
        store = FileStore(store.path, -1)  # type: ignore[attr-defined]
    return PrefixStore(prefix, store)
