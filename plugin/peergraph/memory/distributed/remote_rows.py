"""Rows of other machines that were received in a round, and how the gathers of its batches find
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch

from peergraph.memory.distributed.row_set import RowSet


class Location(NamedTuple):
    """The places of the rows of a list of ids. All tensors are on the device of the tables.

    Attributes:
        local: int64 [n], the local row of each id; -1 where another machine has the row, or where
            the id is padding.
        positions: int64 [m], the positions of the ids with rows on other machines, in any order.
        slots: int64 [m], the position of each of these rows in :attr:`RemoteRows.keys`.
    """

    local: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor


class RemoteRows:
    """The distinct rows of one row set that the batches of a round need from other machines.

    Args:
        keys: int64 [n], the keys of the rows, ascending.
        key_of: returns the keys of internal rows (:meth:`Routes.keys`).
        ids: the lists of users' ids that the batches will gather.
        locations: the location of each of these lists.
        memory: the tensors that contain the keys and the locations.
    """

    def __init__(
        self,
        keys: torch.Tensor,
        key_of: Callable[[torch.Tensor], torch.Tensor],
        ids: list[torch.Tensor],
        locations: list[Location],
        memory: list[torch.Tensor],
    ) -> None:
        self.keys = keys
        self.values: dict[str, torch.Tensor] = {}
        """The received rows of each table, by its name: uint8 [n, row bytes]."""
        self._key_of = key_of
        self._memory = memory
        # The lists are kept, so that no other tensor gets their address.
        self._ids = ids
        self._locations = {_key(i): location for i, location in zip(ids, locations, strict=True)}

    def location_of(self, ids: torch.Tensor) -> Location | None:
        """Returns the location of the rows of a list of ids; None if the list was not announced."""
        return self._locations.get(_key(ids))

    def slots_of(self, internal: torch.Tensor) -> torch.Tensor:
        """Returns the position of each internal row in :attr:`keys`; -1 for rows not in it."""
        if self.keys.numel() == 0:
            return torch.full_like(internal, -1)
        keys = self._key_of(internal)
        slots = torch.searchsorted(self.keys, keys).clamp_(max=self.keys.numel() - 1)
        return torch.where(self.keys[slots] == keys, slots, -1)

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yields tensors whose memory contains all that gathers read."""
        yield from self._memory
        yield from self.values.values()


def _key(ids: Any) -> tuple[Any, ...] | None:
    if not isinstance(ids, torch.Tensor):
        return None
    return ids.data_ptr(), ids.shape, ids.stride(), ids.dtype, ids.device


_reading: ContextVar[Mapping[RowSet, RemoteRows] | None] = ContextVar(
    "peergraph_remote_rows", default=None
)


def remote_rows_of(rows: RowSet) -> RemoteRows | None:
    """Returns the rows of other machines that this thread's gathers can read at the moment."""
    reading = _reading.get()
    return None if reading is None else reading.get(rows)


@contextmanager
def reading_rows(rows: Mapping[RowSet, RemoteRows]) -> Iterator[None]:
    """Returns a context in which this thread's gathers can read these rows."""
    token = _reading.set(rows)
    try:
        yield
    finally:
        _reading.reset(token)
