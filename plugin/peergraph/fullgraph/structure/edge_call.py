"""`EdgeCall`: a function on edges with its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout

RowsOf = Literal["source", "destination", "edge"]
"""Which rows a result has."""
RowType = tuple[Sequence[int], torch.dtype]
"""Shape and dtype of a row."""
Operands = Mapping[str, Tensor | None]
"""Operands of a function on edges, by the names of its arguments."""
NONE: Operands = MappingProxyType({})


class EdgeCall(NamedTuple):
    """A function on the edges of each rank, and what it is called with.

    The function must be the same on all ranks. It computes the rows of a destination, or of the
    edges into it, from these edges alone: it may be called with the edges into some of the
    destinations at a time. The names of all operands are distinct.
    """

    function: Callable[..., Tensor]
    """Called with a :class:`peergraph.aggregate.Csc`, and by name with plain tensors that have the
    rows of its sources, destinations and edges."""
    sources: Operands = NONE
    """Partitioned tensors with the rows of sources in dimension 0; the function gets None where one
    is None."""
    destinations: Operands = NONE
    """The same with the rows of destinations."""
    edges: Operands = NONE
    """The same with the rows of edges."""
    others: Operands = NONE
    """Partitioned tensors with the rows of selected destinations or edges
    (:meth:`RowLayout.select_mask`), or of the edges that these were selected of."""
    parameters: Operands = NONE
    """Plain tensors that are equal on all ranks. Others that the function uses get no gradient."""
    result: RowsOf | RowLayout = "destination"
    """The rows that the function returns, or the layout of a selection of destinations or edges.
    Rows of sources are added up over ranks."""
    row_type: RowType | None = None
    """Shape and dtype of a row of the result. Needed for functions of `others`; others are called
    on a few rows to find it."""


def local_rows(*operands: Operands) -> dict[str, Tensor | None]:
    """Returns this rank's rows of partitioned operands, by name."""
    return {
        name: None if x is None else x.to_local()  # type: ignore[attr-defined]
        for part in operands
        for name, x in part.items()
    }
