"""Rows of which the first are on the device and the others on the host: what fits stays."""

from __future__ import annotations

from torch import Tensor

from peergraph.fullgraph.offload.rows.row_store import RowStore


class SplitRows(RowStore):
    """This rank's rows in two stores: the first rows on the device, the others elsewhere.

    For rows that are read and written in order: a chunk copies its rows within the device, across
    the link, or both. Methods that take row numbers synchronise.

    Args:
        first: on the device.
        others: the rows after those of `first`, with the same layout and rows of the same kind.
        first_count: rows of `first`.
    """

    def __init__(self, first: RowStore, others: RowStore, first_count: int) -> None:
        super().__init__(
            first.row_layout, first.features, first.dtype, others.tier, allocator=first.allocator
        )
        self.first_count = first_count
        """Rows on the device."""
        self._first, self._others = first, others

    def moved_bytes(self, start: int, stop: int) -> int:
        """Returns the bytes that cross the link: see :meth:`RowStore.moved_bytes`."""
        return max(0, stop - max(start, self.first_count)) * self.row_bytes

    def read(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        """Returns local rows start..stop on the device: see :meth:`RowStore.read`."""
        cut = self.first_count
        if stop <= cut:
            return self._first.read(start, stop, out)
        if start >= cut:
            return self._others.read(start - cut, stop - cut, out)
        if out is None:
            out = self.empty(stop - start)
        self._first.read(start, cut, out[: cut - start])
        self._others.read(0, stop - cut, out[cut - start :])
        return out

    def write(self, start: int, rows: Tensor) -> None:
        """Overwrites local rows from `start` on: see :meth:`RowStore.write`."""
        count = min(len(rows), max(0, self.first_count - start))
        if count:
            self._first.write(start, rows[:count])
        if count < len(rows):
            self._others.write(start + count - self.first_count, rows[count:])

    def _gather(self, rows: Tensor, out: Tensor) -> None:
        for store, places, local in self._parts(rows):
            out[places] = store.gather(local)

    def scatter(self, rows: Tensor, values: Tensor) -> None:
        """Overwrites local rows: see :meth:`RowStore.scatter`."""
        for store, places, local in self._parts(rows):
            store.scatter(local, values[places])

    def zero_(self) -> None:
        """Overwrites all local rows with zeros."""
        self._first.zero_()
        self._others.zero_()

    def release(self) -> None:
        """Returns the memory to the allocator. A second call does nothing."""
        self._first.release()
        self._others.release()

    def _parts(self, rows: Tensor) -> list[tuple[RowStore, Tensor, Tensor]]:
        """Returns, for each store, positions in `rows`, and the rows of the store that they name.

        Stores of which no row is named are left out.
        """
        is_first = rows < self.first_count
        places = is_first.nonzero().squeeze(1), (~is_first).nonzero().squeeze(1)
        parts = [
            (self._first, places[0], rows[places[0]]),
            (self._others, places[1], rows[places[1]] - self.first_count),
        ]
        return [part for part in parts if len(part[1])]
