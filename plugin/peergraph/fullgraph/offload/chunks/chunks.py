"""How the rows of a rank are cut in chunks (HongTu 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.fullgraph.layout.blocks import cut_blocks
from peergraph.fullgraph.layout.row_layout import RowLayout


class Chunks:
    """Consecutive ranges of this rank's local rows; a chunk may be empty.

    All ranks cut their rows in the same number of chunks, and so are the rows of all node types.
    A chunk of nodes has all in-edges of these nodes, so any aggregation sees every neighbour.

    Args:
        layout: the rows of all ranks.
        offsets: [count + 1] first local row of each chunk, and the number of local rows.

    Raises:
        ValueError: offsets that do not ascend from 0 to the local rows, or no chunk.
    """

    def __init__(self, layout: RowLayout, offsets: Sequence[int]) -> None:
        self.row_layout = layout
        """The rows of all ranks."""
        self.offsets = tuple(map(int, offsets))
        """[count + 1] first local row of each chunk, and the number of local rows."""
        ascends = all(start <= stop for start, stop in pairwise(self.offsets))
        ends = (self.offsets[:1], self.offsets[-1:])
        if len(self.offsets) < 2 or not ascends or ends != ((0,), (layout.local_count,)):
            raise ValueError(
                f"offsets must ascend from 0 to the {layout.local_count} local rows and have an "
                f"item more than there are chunks, got {_shortened(self.offsets)}"
            )

    @classmethod
    def even(cls, layout: RowLayout, count: int) -> Chunks:
        """Returns `count` chunks whose rows differ by at most one. Not collective.

        Raises:
            ValueError: fewer than one chunk.
        """
        _check_count(count)
        rows = layout.local_count
        return cls(layout, [rows * chunk // count for chunk in range(count + 1)])

    @classmethod
    def balanced(cls, layout: RowLayout, count: int, cost: Tensor) -> Chunks:
        """Returns `count` chunks of about equal cost. Not collective; synchronises.

        They are cut as plans count them (:func:`cut_chunks`).

        Args:
            layout: the rows of all ranks.
            count: of chunks, equal on all ranks.
            cost: [local rows] of each row, not negative.

        Raises:
            ValueError: fewer than one chunk, or another shape.
        """
        _check_count(count)
        if tuple(cost.shape) != (layout.local_count,):
            raise ValueError(f"cost must be [{layout.local_count}], got {list(cost.shape)}")
        return cls(layout, [0, *accumulate(cut_blocks(cost, count))])

    @property
    def count(self) -> int:
        """Number of chunks, equal on all ranks."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each chunk of this rank."""
        return tuple(stop - start for start, stop in pairwise(self.offsets))

    @property
    def largest(self) -> int:
        """Rows of this rank's largest chunk."""
        return max(self.sizes)

    def range(self, chunk: int) -> tuple[int, int]:
        """Returns the bounds of a chunk: its local rows are ``start``, ..., ``stop - 1``."""
        if not 0 <= chunk < self.count:
            raise IndexError(f"chunk must be one of 0..{self.count - 1}, got {chunk}")
        return self.offsets[chunk], self.offsets[chunk + 1]

    def edge_chunks(self, csc: Csc, edge_layout: RowLayout) -> Chunks:
        """Returns the chunks of the edges to each chunk's rows. Not collective; synchronises.

        Args:
            csc: the edges of this rank, whose destinations are the local rows.
            edge_layout: the rows of edges; local row p is the edge at position p of `csc`.

        Raises:
            ValueError: `csc` has other destinations.
            NotImplementedError: edge tensors are not sorted by destination.
        """
        if csc.num_destinations != self.row_layout.local_count:
            raise ValueError(
                f"csc must have the {self.row_layout.local_count} local rows as destinations, got "
                f"{csc.num_destinations}"
            )
        if csc.edge_ids is not None:
            raise NotImplementedError(
                "chunks of edges that are not sorted by destination: sort the edges of each rank "
                "by destination first (FullGraph.build does so)"
            )
        offsets = torch.tensor(self.offsets, device=csc.device)
        return Chunks(edge_layout, csc.indptr[offsets].tolist())

    def select(self, layout: RowLayout) -> Chunks:
        """Returns the same chunks with their selected rows only. Not collective; synchronises.

        Args:
            layout: a selection by mask of this layout: `layout.select_mask(...)`.

        Raises:
            ValueError: not such a selection.
        """
        rows = layout.parent_rows
        if layout.parent is not self.row_layout or rows is None or layout.by_ids:
            raise ValueError(
                f"layout must be a selection by mask of {self.row_layout}, got {layout}"
            )
        inner = torch.tensor(self.offsets, device=rows.device)
        return Chunks(layout, torch.searchsorted(rows, inner).tolist())

    def __repr__(self) -> str:
        return f"Chunks({self.count} of {self.row_layout.local_count} local rows)"


def _check_count(count: int) -> None:
    if count < 1:
        raise ValueError(f"count must be at least one chunk, got {count}")


def _shortened(offsets: tuple[int, ...]) -> str:
    if len(offsets) <= 8:
        return str(list(offsets))
    return f"[{', '.join(map(str, offsets[:4]))}, ..., {offsets[-1]}]"
