"""The inputs of a differentiated program, and whether gradients of selected rows suffice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from peergraph.fullgraph.layout.content_digest import PendingDigest
from peergraph.fullgraph.offload.programs.record import (
    EdgesOperand,
    Operand,
    PlainOperand,
    ResidentOperand,
    RowOperand,
    SourceOperand,
)
from peergraph.fullgraph.offload.programs.selected_rows import SelectedOperand, Selection
from peergraph.fullgraph.offload.tensor.offloaded_tensor import Cell, OffloadedTensor
from peergraph.fullgraph.offload.tensor.row_space import RowSpace
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor


class InputKind(NamedTuple):
    """The kind of an input of a differentiated program, without its rows."""

    kind: type[RowOperand | SourceOperand | ResidentOperand]
    space: RowSpace
    structure: Any = None
    digest: PendingDigest | None = None
    """Of a tensor on the device."""
    is_storable: bool = True
    """Whether rows are the first dimension."""

    def operand(self, saved: Tensor) -> Operand:
        """Returns the operand again; `saved` is the input of the node."""
        if isinstance(saved, OffloadedTensor):
            rows = RowOperand(Cell(saved._content, False), saved)
            return rows if self.kind is RowOperand else SourceOperand(rows, self.structure)
        assert isinstance(saved, PartitionedTensor)
        return ResidentOperand(saved, self.space, self.digest)


Input = InputKind | EdgesOperand | PlainOperand | SelectedOperand
"""Operands that have no rows with a history are what they are."""


def input_of(operand: Operand | SelectedOperand) -> Input:
    """Returns what an operand is; of a plain tensor without its history."""
    if isinstance(operand, PlainOperand):
        return operand._replace(tensor=operand.memory)
    if isinstance(operand, ResidentOperand):
        return InputKind(ResidentOperand, operand.space, digest=operand.digest)
    if isinstance(operand, RowOperand):
        content = operand.content
        return InputKind(RowOperand, content.space, is_storable=content.is_storable)
    if isinstance(operand, SourceOperand):
        return InputKind(SourceOperand, operand.rows.content.space, operand.structure)
    return operand


def serves(selection: Selection, inputs: Sequence[Input]) -> bool:
    """Returns whether all rows that are read belong to selected nodes, or to edges to them.

    Edges that a layer changes, by self loops for example, are made of rows of other edges, of which
    a selection of the changed ones knows nothing.

    Args:
        selection: the nodes.
        inputs: what is read.
    """
    structures = [
        part.structure
        for part in inputs
        if isinstance(part, EdgesOperand | InputKind) and part.structure is not None
    ]
    nodes = selection.space.row_layout
    if any(structure.chunks.row_layout is not nodes for structure in structures):
        return False  # Rows of edges are selected, which are made of rows of nodes.
    edges = [structure.edge_layout for structure in structures]
    spaces = [part.selection.space for part in inputs if isinstance(part, SelectedOperand)]
    spaces += [
        part.space
        for part in inputs
        if isinstance(part, InputKind) and part.kind is not SourceOperand
    ]
    return all(
        space is selection.space or any(space.row_layout is layout for layout in edges)
        for space in spaces
    )


def has_selected_gradients(
    selection: Selection, inputs: Sequence[Input], needs: Sequence[bool]
) -> bool:
    """Returns whether the gradients of rows have a row for each selected one, and no other.

    Those of rows of edges, and of views of which they are no rows, do not.

    Args:
        selection: the rows whose gradients are computed.
        inputs, needs: what is read, and which of it needs a gradient.
    """
    return all(
        part.is_storable and part.space is selection.space
        for part, need in zip(inputs, needs, strict=True)
        if need and isinstance(part, InputKind) and part.kind is RowOperand
    )
