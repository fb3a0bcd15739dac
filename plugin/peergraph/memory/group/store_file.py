"""A store for torch.distributed that no other user and no other machine can reach.

torch's TCPStore listens on every address of the machine and authenticates nobody.
"""

from __future__ import annotations

import os

from torch.distributed import FileStore, Store  # type: ignore[attr-defined]


class StoreFile:
    """A file without a name that contains a store, for processes of this host and user.

    It exists while the process that created it keeps it open, whichever rank dies.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("peergraph-store", os.MFD_CLOEXEC)
        os.fchmod(self._fd, 0o600)
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """Closes the file in this process. Processes that have opened the store keep it."""
        os.close(self._fd)


def open_store(path: str, world_size: int) -> Store:
    """Opens the store in the file of a :class:`StoreFile` for `world_size` ranks."""
    return FileStore(path, world_size)
