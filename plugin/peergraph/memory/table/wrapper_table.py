"""Tables whose rows another table stores, not as users see them."""

from __future__ import annotations

from abc import abstractmethod
from typing import NoReturn

import torch

import peergraph._C as _C
from peergraph.memory.group.naming import collective
from peergraph.memory.table.read_counter import ReadCounter
from peergraph.memory.table.rows_with_scales import RowsWithScales
from peergraph.memory.table.table import Table


class WrapperTable(Table):
    """A table over another one, in whose memory kernels cannot read users' rows in place."""

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, inner: Table | RowsWithScales, name: str
    ) -> None:
        """
        Args:
            shape, dtype: those that users see.
            inner: the table that stores the rows.
            name: the name of the table, for errors.
        """
        self.shape = shape
        self.dtype = dtype
        self.tiers = inner.tiers
        self.group = inner.group
        self.row_bytes = inner.row_bytes
        self.split = inner.split
        self.name = name
        self._inner = inner

    @property
    def counter(self) -> ReadCounter | None:
        """Counts gathers after :meth:`count_reads`."""
        return self._inner.counter

    @counter.setter
    def counter(self, counter: ReadCounter | None) -> None:
        self._inner.counter = counter

    @property
    def view(self) -> NoReturn:
        """Raises NotImplementedError: kernels cannot read the rows in place."""
        raise self._not_in_place()

    @property
    def write_views(self) -> NoReturn:
        """Raises NotImplementedError, as :attr:`view`."""
        raise self._not_in_place()

    @property
    def leases(self) -> list[_C.Lease]:
        """The leases of the memory that holds the rows on this machine."""
        return self._inner.leases

    @property
    def allocated(self) -> dict[str, list[int]]:
        """The bytes that each rank of this machine has allocated, by tier, including copies of
        shards.
        """
        return self._inner.allocated

    def count_reads(self) -> ReadCounter:
        """Counts gathers of this machine's rows, until :attr:`counter` is set to None."""
        return self._inner.count_reads()

    @collective("Table.close")
    def close(self) -> None:
        """Releases the memory, as :meth:`Table.close`."""
        self._inner.close()

    @abstractmethod
    def _not_in_place(self) -> NotImplementedError:
        """Returns the error of a kernel that would read or write rows in place."""
