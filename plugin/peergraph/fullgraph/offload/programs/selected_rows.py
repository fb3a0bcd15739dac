"""Selected rows of the chunks: passes over them read and compute nothing else."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunks.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.programs.program import Place
from peergraph.fullgraph.offload.programs.record import Record, ResidentOperand
from peergraph.fullgraph.offload.tensor.offloaded_tensor import (
    Content,
    OffloadedTensor,
    make_probe,
    make_shell,
)
from peergraph.fullgraph.offload.tensor.operations import Slot, TorchModes
from peergraph.fullgraph.offload.tensor.row_space import RowSpace
from peergraph.fullgraph.tensor.chunk_rows import ChunkRows
from peergraph.fullgraph.tensor.registry import chunk_rule

# Selections whose lists of rows and edges are kept.
_KEPT = 8


class Selection:
    """The rows that a mask selects, by chunk, and the edges to them.

    Made by :meth:`of`.

    Args:
        space: the rows that are selected from.
        layout: the selection by mask.
    """

    def __init__(self, space: RowSpace, layout: RowLayout) -> None:
        rows = layout.parent_rows
        assert rows is not None
        self.space = space
        self.row_layout = layout
        self.chunks = space.chunks.select(layout)
        """The selected rows of each chunk."""
        self._rows = rows
        self._structures: dict[int, tuple[ChunkedCsc, ChunkedCsc]] = {}
        self._layouts: dict[tuple[int, int], RowLayout] = {}

    @classmethod
    def of(cls, space: RowSpace, layout: RowLayout) -> Selection:
        """Returns the rows of a selection; those of the last selections are kept."""
        selections: OrderedDict[RowLayout, Selection] = space.spaces.selections
        if layout not in selections:
            selections[layout] = cls(space, layout)
            if len(selections) > _KEPT:
                selections.popitem(last=False)
        return selections[layout]

    def structure(self, chunked: ChunkedCsc) -> ChunkedCsc:
        """Returns the edges to selected rows. Collective at the first call."""
        if id(chunked) not in self._structures:
            # The whole structure is kept, too, so that no other gets its id.
            self._structures[id(chunked)] = chunked, chunked.of_destinations(self.row_layout)
        return self._structures[id(chunked)][1]

    def local_rows(self, space: RowSpace, chunk: int) -> Tensor:
        """Returns the local rows of a chunk that are selected: of nodes, or of edges to them."""
        if space is self.space:
            return self._rows[slice(*self.chunks.range(chunk))]
        for _, selected in self._structures.values():
            if selected.edge_layout.parent is space.row_layout:
                rows = selected.edge_layout.parent_rows
                assert rows is not None
                return rows[slice(*selected.edge_chunks.range(chunk))]
        raise NotImplementedError(
            "rows are selected that are computed from rows of other nodes; it is not implemented "
            "for rows that are larger than GPU memory: gather all on the CPU with x.full_tensor()"
        )

    def chunk_layout(self, space: RowSpace, chunk: int) -> RowLayout:
        """Returns the layout in which the virtual rank has the selected rows of a chunk."""
        key = id(space), chunk
        if key not in self._layouts:
            self._layouts[key] = space.rows_layout(self.local_rows(space, chunk))
        return self._layouts[key]


class SelectedPlace(Place):
    """The selected rows of a chunk.

    Args:
        chunk: number of the chunk.
        selection: the rows.
    """

    def __init__(self, chunk: int, selection: Selection) -> None:
        super().__init__(chunk)
        self.selection = selection

    def row_layout(self, space: RowSpace) -> RowLayout:
        """Returns the layout of the virtual rank."""
        return self.selection.chunk_layout(space, self.chunk)

    def resident_part(self, operand: ResidentOperand, local: Tensor) -> Tensor:
        """Returns the place's rows of `local`, a copy."""
        return local.index_select(operand.tensor.partitioned_dim, self._local_rows(operand))

    def add_to_resident(self, operand: ResidentOperand, total: Tensor, part: Tensor) -> None:
        """Adds rows of the place to `total`, which has the local rows of an operand."""
        total.index_add_(operand.tensor.partitioned_dim, self._local_rows(operand), part)

    def _local_rows(self, operand: ResidentOperand) -> Tensor:
        rows = self.selection.local_rows(operand.space, self.chunk)
        layout = operand.tensor.row_layout
        if layout.tiles > 1:
            raise NotImplementedError("selected rows of a tensor with copies of all rows")
        if layout.repeats == 1:
            return rows
        steps = torch.arange(layout.repeats, device=rows.device)
        return (rows.unsqueeze(1) * layout.repeats + steps).flatten()


class SelectedOperand:
    """Rows on the device for selected rows; others are zero.

    Args:
        rows: [selected rows, *features].
        selection: the rows.
    """

    def __init__(self, rows: Tensor, selection: Selection) -> None:
        self.tensor = rows
        self.selection = selection

    def value(self, place: Place) -> ChunkRows:
        """Returns the rows of a place."""
        space = self.selection.space
        layout = place.row_layout(space)
        part = self.tensor[slice(*self.selection.chunks.range(place.chunk))]
        if isinstance(place, SelectedPlace) and place.selection is self.selection:
            return ChunkRows(part, layout)
        start, stop = space.chunks.range(place.chunk)
        rows = self.selection.local_rows(space, place.chunk) - start
        result = part.new_zeros((stop - start, *part.shape[1:])).index_copy_(0, rows, part)
        if isinstance(place, SelectedPlace):
            result = result[place.selection.local_rows(space, place.chunk) - start]
        return ChunkRows(result, layout)


def spread_rows(rows: Tensor, selection: Selection) -> OffloadedTensor:
    """Returns selected rows among zeros, as the gradient of rows of which others were not used.

    Args:
        rows: [selected rows, *features].
        selection: the rows.
    """
    operand: Any = SelectedOperand(rows, selection)
    space = selection.space
    modes = TorchModes.current(space.rank.device)
    operation = space.spaces.operations.share((_same, modes), _same, (Slot(0),), {}, modes)
    record = Record(operation, [operand])
    content = Content(space, make_probe(space, rows.shape[1:], rows.dtype), record=record)
    content.selected = operand
    return make_shell(content)


def _same(rows: Tensor) -> Tensor:
    return rows


chunk_rule(_same)(_same)
