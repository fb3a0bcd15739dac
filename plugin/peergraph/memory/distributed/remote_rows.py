"""Rows of other machines that were received for one batch, and where its gathers find them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch

from peergraph.memory.distributed.row_set import RowSet


class Location(NamedTuple):
    """Where the rows of a list of ids are; all on the device of the tables.

    Attributes:
        local: int64 [n], the local row of each id; -1 where another machine has the row, or where
            the id is padding.
        positions: int64, the ids with rows on other machines.
        slots: int64, the position of each of these in :attr:`RemoteRows.internal`.
    """

    local: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor


class RemoteRows:
    """Of one row set: the distinct rows of other machines that a batch needs.

    Args:
        internal: int64 [n] internal rows, ascending.
        ids: the lists of users' ids that the batch will gather.
        locations: of each of these lists.
    """

    def __init__(
        self, internal: torch.Tensor, ids: list[torch.Tensor], locations: list[Location]
    ) -> None:
        self.internal = internal
        self.values: dict[str, torch.Tensor] = {}
        """By name of a table: uint8 [n, row bytes], once they have been received."""
        # The lists are kept, so that no other tensor gets their address.
        self._ids = ids
        self._locations = {_key(i): found for i, found in zip(ids, locations, strict=True)}

    def location_of(self, ids: torch.Tensor) -> Location | None:
        """The location of a list that was announced; None for any other."""
        return self._locations.get(_key(ids))

    def slots_of(self, internal: torch.Tensor) -> torch.Tensor | None:
        """The positions of rows in :attr:`internal`; None where one is missing. Synchronises."""
        if self.internal.numel() == 0:
            return None if internal.numel() else internal
        slots = torch.searchsorted(self.internal, internal)
        slots = slots.clamp(max=self.internal.numel() - 1)
        return slots if bool((self.internal[slots] == internal).all()) else None

    def tensors(self) -> Iterator[torch.Tensor]:
        """Everything that gathers read."""
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
    """The rows of other machines that gathers of this thread may read at the moment."""
    reading = _reading.get()
    return None if reading is None else reading.get(rows)


@contextmanager
def reading_rows(rows: Mapping[RowSet, RemoteRows]) -> Iterator[None]:
    """A context in which gathers of this thread find these rows."""
    token = _reading.set(rows)
    try:
        yield
    finally:
        _reading.reset(token)
