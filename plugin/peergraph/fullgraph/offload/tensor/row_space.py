"""The rows of layouts as chunks, each with the layout of a virtual rank."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
from peergraph.fullgraph.offload.tensor.operations import Operations
from peergraph.fullgraph.offload.tensor.virtual_rank import VirtualRank, refuse_other_rows
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor

_PROBE_ROWS = 2


class RowSpace:
    """The rows of a layout as chunks, each with the layout of a virtual rank.

    Made by :meth:`RowSpaces.add`.
    """

    def __init__(self, spaces: RowSpaces, layout: RowLayout, chunks: Chunks) -> None:
        rank = spaces.rank
        self.spaces = spaces
        """All spaces of the graph."""
        self.row_layout = layout
        """The rows of all ranks."""
        self.chunks = chunks
        """How this rank's rows are cut."""
        self.allocator = spaces.allocator
        """Where rows are stored."""
        self.rank = rank
        """The virtual rank of all spaces."""
        rows = min(_PROBE_ROWS, layout.size)
        self.probe = self._virtual(rows, lambda: torch.arange(rows, device=rank.device))
        """A layout with few rows, for dry runs."""
        self._by_chunk: list[RowLayout | None] = [None] * chunks.count

    def chunk_layout(self, chunk: int) -> RowLayout:
        """Returns the layout in which the virtual rank has the rows of a chunk."""
        layout = self._by_chunk[chunk]
        if layout is None:
            start, stop = self.chunks.range(chunk)
            layout = self._virtual(stop - start, lambda: self.row_layout.positions[start:stop])
            self._by_chunk[chunk] = layout
        return layout

    def rows_layout(self, local_rows: Tensor) -> RowLayout:
        """Returns the layout in which the virtual rank has some of the local rows."""
        return self._virtual(len(local_rows), lambda: self.row_layout.positions[local_rows])

    def real_layout(self, virtual: RowLayout) -> RowLayout:
        """Returns the layout of all ranks of a result whose layout is `virtual`.

        Raises:
            NeedsOtherRowsError: rows were selected or concatenated.
        """
        if virtual.base is not self.probe:
            refuse_other_rows()
        return virtual.rebased(self.row_layout)

    def _virtual(self, count: int, positions: Callable[[], Tensor]) -> RowLayout:
        counts = [count, self.row_layout.size - count]
        return RowLayout(self.rank, counts, positions)


class RowSpaces:
    """The row spaces of a graph on this rank, by layout.

    Args:
        allocator: where rows are stored.
    """

    def __init__(self, allocator: RowAllocator) -> None:
        self.allocator = allocator
        self.rank = VirtualRank(allocator.group)
        # The graph, tensors and recorders keep spaces; layouts of selections come and go.
        self._by_layout: MutableMapping[RowLayout, RowSpace] = WeakValueDictionary()
        self.selections: OrderedDict[RowLayout, Any] = OrderedDict()
        """The last selections of rows, which go with the graph."""
        self.operations = Operations()
        """Operations that were recorded."""
        self.dry_runs: dict[Hashable, Any] = {}
        """What functions have made of few rows, by all that it depends on."""
        self.checks: list[Any] = []
        """Checks for which the next pass waits at its end."""

    def add(self, layout: RowLayout, chunks: Chunks) -> RowSpace:
        """Returns the space of a layout, which lives as long as the caller keeps it."""
        space = self._by_layout.get(layout)
        if space is None:
            space = RowSpace(self, layout, chunks)
            self._by_layout[layout] = space
        return space

    def find(self, layout: RowLayout) -> RowSpace | None:
        """Returns the space of a layout, or None where its rows are not cut in chunks."""
        return self._by_layout.get(layout)


Undo = Callable[[Tensor], Tensor]
_Rows = TypeVar("_Rows", bound=PartitionedTensor)


def rows_first(x: _Rows, base: RowLayout) -> tuple[_Rows, Undo]:
    """Returns a view of which the first dimension has the rows of `base`, and nothing else.

    Args:
        x: partitioned by rows of `base`, or by such rows repeated or copied (RowLayout.repeat,
            RowLayout.tile).
        base: the rows.

    Returns:
        The view, and the function that makes the tensor of the view, also of a plain one.
    """
    dim, layout, steps = x.partitioned_dim, x.row_layout, list[Undo]()
    view: Tensor = x
    if dim:
        view = view.movedim(dim, 0)
        steps.append(lambda rows: rows.movedim(0, dim))
    while layout is not base:
        assert layout.parent is not None
        if layout.repeats > 1:
            view = view.reshape(layout.parent.size, layout.repeats, *view.shape[1:])
            steps.append(lambda rows: rows.flatten(0, 1))
        else:
            view = view.reshape(layout.tiles, layout.parent.size, *view.shape[1:]).movedim(1, 0)
            steps.append(lambda rows: rows.movedim(0, 1).flatten(0, 1))
        layout = layout.parent

    def undo(rows: Tensor) -> Tensor:
        for step in reversed(steps):
            rows = step(rows)
        return rows

    return view, undo  # type: ignore[return-value]
