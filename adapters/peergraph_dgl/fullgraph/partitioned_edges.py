"""The edges of one relation, partitioned over the ranks, as DGL's message passing takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate import Csc, Structure
from peergraph.fullgraph import (
    EdgeCall,
    PartitionedStructure,
    PartitionedTensor,
    RowLayout,
    from_local,
    joint_softmax,
    kept_ends,
    select_edge_layout,
)

from .reversed_csc import ReversedCsc

EdgeStructure = PartitionedStructure | ReversedCsc

_WAY_OUT = "do it on the DGLGraph before peergraph_dgl.full_graph()"


class PartitionedEdges:
    """The edges of one relation; each rank holds the in-edges of its destinations.

    Implements :class:`peergraph_dgl.backend.edge_list.Edges`. Features are PartitionedTensors.

    Args:
        structure: the edges.
        idtype: dtype of node ids and degrees: int32 or int64.
    """

    def __init__(self, structure: EdgeStructure, idtype: torch.dtype) -> None:
        self.structure = structure
        self.idtype = idtype
        self._has_zero_in_degrees: bool | None = None

    @property
    def num_src(self) -> int:
        return self.structure.num_sources

    @property
    def num_dst(self) -> int:
        return self.structure.num_destinations

    @property
    def num_edges(self) -> int:
        return self.structure.num_edges

    @property
    def device(self) -> torch.device:
        return self.structure.device

    def csc(self) -> Structure:
        return self.structure  # type: ignore[return-value]

    def in_degrees(self) -> Tensor:
        """[num_dst] number of edges of each destination."""
        return self.structure.in_degrees().to(self.idtype)

    def out_degrees(self) -> Tensor:
        """[num_src] number of edges of each source."""
        return self.structure.out_degrees().to(self.idtype)

    def has_zero_in_degrees(self) -> bool:
        """Whether a destination of any rank has no edges. Collective at the first call."""
        if self._has_zero_in_degrees is None:
            self._has_zero_in_degrees = bool((self.in_degrees() == 0).any())
        return self._has_zero_in_degrees

    def fill_empty_rows(self, values: Tensor, value: float) -> Tensor:
        """Returns `values` with `value` at destinations without edges."""
        empty = self.in_degrees() == 0
        return values.masked_fill(empty.reshape(-1, *[1] * (values.dim() - 1)), value)

    def reverse(self) -> PartitionedEdges:
        """The same edges from destinations to sources; see :class:`ReversedCsc`."""
        structure = self.structure
        back = structure.original if isinstance(structure, ReversedCsc) else ReversedCsc(structure)
        return PartitionedEdges(back, self.idtype)

    def select(self, edge_ids: Tensor) -> PartitionedEdges:
        """Some of the edges, in the order of the ids. Collective."""
        layout = selected_rows("eids", edge_ids, self.structure.edge_layout)
        return self.of_layout(layout)

    def of_layout(self, layout: RowLayout) -> PartitionedEdges:
        """The edges of a selection of the edges' rows, in its order. Collective."""
        structure = self.structure
        if isinstance(structure, ReversedCsc):
            selected: EdgeStructure = ReversedCsc(select_edge_layout(structure.original, layout))
        else:
            selected = select_edge_layout(structure, layout)
        return PartitionedEdges(selected, self.idtype)

    def softmax_with(
        self, others: Sequence[PartitionedEdges], scores: Sequence[Tensor]
    ) -> list[Tensor]:
        """Softmax at each destination over the edges of this relation and `others`."""
        structures = [self.csc(), *(edges.csc() for edges in others)]
        return joint_softmax(structures, scores)

    def ends(self) -> tuple[Tensor, Tensor]:
        """The user's ids of the source and the destination of each edge, [edges] each.

        Collective at the first call.
        """
        return self.structure.cached(("dgl ends",), self._make_ends)

    def _make_ends(self) -> tuple[Tensor, Tensor]:
        structure = self.structure
        nodes = [
            from_local(layout.positions.to(self.idtype), layout)
            for layout in (structure.source_layout, structure.destination_layout)
        ]
        return features_of_ends(structure, nodes[0], "u"), features_of_ends(
            structure, nodes[1], "v"
        )


def selected_rows(name: str, ids: Any, layout: RowLayout) -> RowLayout:
    """Returns the layout of rows that ids name, or a mask selects. Collective.

    Args:
        name: of the argument, for errors.
        ids: a list of ids or a mask of all rows, equal on all ranks; or partitioned: a mask of the
            rows, or ids that were selected from all ids.
        layout: the rows.

    Raises:
        ValueError: ids that differ between ranks. IndexError: an id out of range.
        NotImplementedError: other partitioned ids.
    """
    if not isinstance(ids, PartitionedTensor):
        ids = torch.as_tensor(ids, device=layout.group.device)
        if ids.dtype == torch.bool:
            return layout.select_plain_mask(ids)
        if ids.numel() and int(ids.min()) < 0:
            raise IndexError(f"{name} must be 0 to {layout.size - 1}, got {int(ids.min())}")
        return layout.select_ids(ids.long().reshape(-1))
    if ids.dtype == torch.bool and layout.same_rows(ids.row_layout):
        return layout.select_mask(ids.to_local())
    if ids.row_layout is layout or ids.row_layout.parent is layout:
        rows = ids.row_layout.parent_rows
        positions = layout.positions if rows is None else layout.positions[rows]
        same = torch.equal(ids.to_local().long(), positions)
        if all(layout.group.all_gather(same)):
            return ids.row_layout
    raise NotImplementedError(
        f"{name} of a partitioned graph must be a plain list of ids, a mask, or ids that a mask "
        f"selected from all ids; {_WAY_OUT}"
    )


def features_of_ends(structure: EdgeStructure, x: Tensor, end: str) -> Tensor:
    """Returns the features of each edge's source or destination, [edges, *features].

    Differentiable for floating-point features. Collective for sources.

    Args:
        structure: the edges.
        x: [sources or destinations, *features] of any dtype.
        end: ``u`` for sources or ``v`` for destinations.
    """
    if x.is_floating_point():
        return structure.sddmm("copy", x, None, end)
    if isinstance(structure, ReversedCsc):
        return features_of_ends(structure.original, x, "v" if end == "u" else "u")
    if end == "u":
        return structure.on_edges(EdgeCall(_rows_of_sources, sources={"x": x}, result="edge"))
    return structure.on_edges(EdgeCall(_rows_of_destinations, destinations={"x": x}, result="edge"))


def _rows_of_sources(csc: Csc, x: Tensor) -> Tensor:
    return x[kept_ends(csc)[0]]


def _rows_of_destinations(csc: Csc, x: Tensor) -> Tensor:
    return x[kept_ends(csc)[1]]
