"""A separate connection to the store of torch.distributed."""

from __future__ import annotations

from torch.distributed import (  # type: ignore[attr-defined]
    FileStore,
    PrefixStore,
    Store,
    TCPStore,
)


def store_client(store: Store, prefix: str) -> Store:
    """Returns a client of a process group's store, with a separate connection if torch allows it.

    A call of a store blocks calls of other threads over the same connection, and may last for
    minutes.

    Args:
        store: the store of the process group.
        prefix: the prefix of the keys. Prefixes of `store` are dropped, so this prefix must be
            unique: processes that a launcher has restarted use the same store.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, TCPStore):
        store = TCPStore(store.host, store.port, None, False, store.timeout)  # type: ignore[attr-defined]
    elif isinstance(store, FileStore):
        store = FileStore(store.path, -1)  # type: ignore[attr-defined]
    return PrefixStore(prefix, store)
