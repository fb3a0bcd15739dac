"""Rows of other machines that were received for one batch, and how its gathers find them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
        positions: int64 [m], the positions of the ids with rows on other machines.
        slots: int64 [m], the position of each of these rows in :attr:`RemoteRows.internal`.
    """

    local: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor


class RemoteRows:
    """The distinct rows of one row set that a batch needs from other machines.

    Args:
        internal: int64 [n], the internal rows, ascending.
        ids: the lists of users' ids that the batch will gather.
        locations: the location of each of these lists.
    """

    def __init__(
        self, internal: torch.Tensor, ids: list[torch.Tensor], locations: list[Location]
    ) -> None:
        self.internal = internal
        self.values: dict[str, torch.Tensor] = {}
        """The received rows of each table, by its name: uint8 [n, row bytes]."""
        # The lists are kept, so that no other tensor gets their address.
        self._ids = ids
        self._locations = {_key(i): location for i, location in zip(ids, locations, strict=True)}

    def location_of(self, ids: torch.Tensor) -> Location | None:
        """Returns the location of the rows of a list of ids; None if the list was not announced."""
        return self._locations.get(_key(ids))

    def slots_of(self, internal: torch.Tensor) -> torch.Tensor | None:
        """Returns the rows' positions in :attr:`internal`, None if one is missing. Synchronises."""
        if self.internal.numel() == 0:
            return None if internal.numel() else internal
        slots = torch.searchsorted(self.internal, internal)
        slots = slots.clamp(max=self.internal.numel() - 1)
        return slots if bool((self.internal[slots] == internal).all()) else None

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yields all tensors that gathers read."""
        yield self.internal
        yield from self.values.values()
        for location in self._locations.values():
            yield from location


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
