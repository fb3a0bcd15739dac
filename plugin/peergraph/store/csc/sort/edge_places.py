"""Places edges in the order of their destinations, piece by piece, on any device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from peergraph.store.csc.sort.edge_run import SortedEdges


def take_places(places: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Takes a place for each row, in order.

    Args:
        places: [rows] next place of each row, which advances.
        rows: [edges].

    Returns:
        [edges] positions in `rows`, and [edges] the place of the row at each.
    """
    by_row, order = torch.sort(rows, stable=True)
    numbers = torch.arange(len(rows), device=rows.device)
    is_first = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    torch.ne(by_row[1:], by_row[:-1], out=is_first[1:])
    firsts = is_first.nonzero().squeeze(1)
    counts = torch.diff(firsts, append=firsts.new_full((1,), len(rows)))
    distinct = by_row[firsts]
    start = (places[distinct] - firsts).repeat_interleave(counts, output_size=len(rows))
    places.index_add_(0, distinct, counts)
    return order, start + numbers


class EdgeRange:
    """The edges of a range of destinations on a device, in the order of a CSC.

    Args:
        first: the first destination.
        indptr: [destinations + 1] int64 on the CPU, from 0.
        num_sources, index_dtype: the limit and the dtype of the sources.
        id_dtype: the dtype of the edges' ids; None: no ids.
        device: the device.
        step_edges: the number of edges that are sorted at a time, in about 128 bytes each.
    """

    def __init__(
        self,
        first: int,
        indptr: Tensor,
        num_sources: int,
        index_dtype: torch.dtype,
        id_dtype: torch.dtype | None,
        device: torch.device,
        step_edges: int = 1 << 22,
    ) -> None:
        self._step_edges = step_edges
        self.first, self.indptr = first, indptr
        self._num_sources = num_sources
        count = int(indptr[-1])
        self.indices = torch.empty(count, dtype=index_dtype, device=device)
        self.edge_ids = None
        if id_dtype is not None:
            self.edge_ids = torch.empty(count, dtype=id_dtype, device=device)
        self._places: Tensor | None = None
        self._count = 0  # edges that have come

    def copy(self, source: Tensor, edge_ids: Tensor | None) -> None:
        """Takes the next edges in the order of the CSC. Asynchronous."""
        part = slice(self._count, self._count + source.numel())
        self.indices[part].copy_(source, non_blocking=True)
        if self.edge_ids is not None and edge_ids is not None:
            self.edge_ids[part].copy_(edge_ids, non_blocking=True)
        self._count = part.stop

    def select(self, source: Tensor, destination: Tensor, first_edge: int) -> None:
        """Takes those of the next edges that are into the range; synchronises.

        Args:
            source, destination: the ends of consecutive edges, on any device.
            first_edge: the id of the first of these edges.
        """
        if self._places is None:
            self._places = self.indptr[:-1].to(self.indices.device, copy=True)
        for begin in range(0, source.numel(), self._step_edges):
            end = begin + self._step_edges
            self._place(self._places, source[begin:end], destination[begin:end], first_edge + begin)

    def _place(self, next_places: Tensor, source: Tensor, destination: Tensor, first: int) -> None:
        device, count = self.indices.device, self.indptr.numel() - 1
        rows = destination.to(device, non_blocking=True) - self.first
        near = source.to(device, non_blocking=True)
        chosen = ((rows >= 0) & (rows < count)).nonzero().squeeze(1)
        # Radix sort reads only the bits of the dtype.
        dtype = torch.int32 if count < 1 << 31 else torch.int64
        order, places = take_places(next_places, rows[chosen].to(dtype))
        self._count += order.numel()
        if self._count > self.indices.numel():
            return  # The edges have changed since they were counted.
        places.clamp_(max=max(0, self.indices.numel() - 1))
        chosen = chosen[order]
        self.indices[places] = near[chosen].to(self.indices.dtype)
        if self.edge_ids is not None:
            self.edge_ids[places] = (chosen + first).to(self.edge_ids.dtype)

    def all(self) -> Iterator[SortedEdges]:
        """Yields all edges at once; nothing where they are not those that `indptr` counts, or a
        source is out of range. Synchronises.
        """
        if self._count != self.indices.numel():
            return
        if self._count:
            low, high = torch.stack(torch.aminmax(self.indices)).tolist()
            if low < 0 or high >= self._num_sources:
                return
        degrees = self.indptr.diff()
        if self._places is not None:
            degrees = self._places.cpu() - self.indptr[:-1]
        yield SortedEdges(degrees, self.indices, self.edge_ids)
