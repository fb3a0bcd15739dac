"""`Ranks`: what rows over ranks need of the group that holds them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Ranks(Protocol):
    """The ranks that rows are spread over: a :class:`peergraph.memory.Group`, or a chunk's.

    Where the rows of one chunk of an offloaded graph stand for all, its ranks refuse to exchange
    values, which tells that a function needs the rows of others.
    """

    rank: int
    """The number of this one among the ranks."""
    world_size: int
    """The number of ranks."""
    device: torch.device
    """The device on which this rank computes."""
    shared: dict[Any, Any]
    """Objects that are made once for these ranks, by key."""

    def all_gather(self, value: Any) -> list[Any]:
        """Returns every rank's value in order of rank. Collective; any picklable object."""

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """Returns rank `src`'s value on every rank. Collective; any picklable object."""

    def collective(self, name: str) -> AbstractContextManager[None]:
        """Returns a context in which this rank is in a collective of that name, for errors."""
