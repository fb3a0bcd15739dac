"""Rows that are stored in a narrower type than they are computed in."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.fullgraph.offload.rows.row_store import RowStore

_PIECE_BYTES = 128 << 20  # of narrow rows that are on the device before they are widened


class NarrowRows(RowStore):
    """This rank's rows, rounded when they are written and widened when they are read.

    Half the bytes are stored and cross the link. The rows are never read in place.

    Args:
        stored: the rows in the narrow type.
        dtype: of the rows that methods take and return.
    """

    def __init__(self, stored: RowStore, dtype: torch.dtype) -> None:
        super().__init__(
            stored.row_layout, stored.features, dtype, stored.tier, allocator=stored.allocator
        )
        self.row_bytes = stored.row_bytes
        self._stored = stored

    @property
    def in_place(self) -> bool:
        """False: rows are converted."""
        return False

    def moved_bytes(self, start: int, stop: int) -> int:
        """Returns the bytes that cross the link: see :meth:`RowStore.moved_bytes`."""
        return self._stored.moved_bytes(start, stop)

    def _read(self, start: int, out: Tensor) -> None:
        for part in torch.split(out, self._step()):
            part.copy_(self._stored.read(start, start + len(part)))
            start += len(part)

    def write(self, start: int, rows: Tensor) -> None:
        """Overwrites local rows from `start` on: see :meth:`RowStore.write`."""
        self._stored.write(start, rows.to(self._stored.dtype))

    def _gather(self, rows: Tensor, out: Tensor) -> None:
        parts = torch.split(rows, self._step()), torch.split(out, self._step())
        for local, part in zip(*parts, strict=True):
            part.copy_(self._stored.gather(local))

    def scatter(self, rows: Tensor, values: Tensor) -> None:
        """Overwrites local rows: see :meth:`RowStore.scatter`."""
        self._stored.scatter(rows, values.to(self._stored.dtype))

    def add(self, rows: Tensor, values: Tensor) -> None:
        """Adds to local rows; sums are rounded to the narrow type."""
        self.scatter(rows, self.gather(rows) + values)

    def zero_(self) -> None:
        """Overwrites all local rows with zeros."""
        self._stored.zero_()

    def release(self) -> None:
        """Returns the memory to the allocator. A second call does nothing."""
        self._stored.release()

    def _step(self) -> int:
        """Rows that are converted at once."""
        return max(1, _PIECE_BYTES // max(1, self.row_bytes))
