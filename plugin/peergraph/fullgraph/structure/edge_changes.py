"""Structures with fewer edges or with self loops, made of a structure without a new input."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.structure.edge_call import EdgeCall
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc
from peergraph.fullgraph.structure.partitioned_structure import PartitionedStructure, kept_ends
from peergraph.fullgraph.tensor.conversions import from_local
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor

# Selections whose structures are kept with the structure that they were made of, such as the
# relations of a layer that masks edges at every call.
_KEPT_SELECTIONS = 32


def self_loop_mask(structure: PartitionedStructure) -> PartitionedTensor:
    """Returns [edges] bool: whether the edge is a self loop, one tensor at every call.

    Collective at the first call.

    Raises:
        ValueError: sources and destinations are different nodes.
    """

    resident = structure.resident
    mask: PartitionedTensor = resident.cached("self loop mask", lambda: _self_loop_mask(resident))
    return mask


def select_edges(
    structure: PartitionedStructure, mask: PartitionedTensor, *, keep: bool = True
) -> PartitionedStructure:
    """Returns the structure of the edges that a mask selects, in their order. Collective.

    A mask that selects all gives the same structure.

    Args:
        structure: the edges.
        mask: [edges] bool, partitioned as the edges.
        keep: keep the structures of the last selections for masks that come again; not for random
            ones.

    Raises:
        ValueError: the mask has other rows.
    """
    if not structure.edge_layout.same_rows(mask.row_layout):
        raise ValueError(f"mask must have the rows of the edges, {structure.edge_layout}, got "
                         f"{mask.row_layout}")  # fmt: skip
    layout = structure.edge_layout.select_mask(mask.to_local())
    if layout.size == structure.num_edges:
        return structure
    if not keep:
        return structure.like(_select_edges(structure.resident, layout))
    selections: OrderedDict[RowLayout, PartitionedStructure]
    selections = structure.cached("selections", OrderedDict)
    if layout not in selections:
        selections[layout] = structure.like(_select_edges(structure.resident, layout))
        if len(selections) > _KEPT_SELECTIONS:
            selections.popitem(last=False)
    return selections[layout]


def select_edge_layout(structure: PartitionedStructure, layout: RowLayout) -> PartitionedStructure:
    """Returns the structure of the edges of a selection, in its order. Collective.

    Args:
        structure: the edges.
        layout: rows that were selected from those of the edges.

    Raises:
        ValueError: the selection is one of other rows.
        NotImplementedError: edges in chunks, in another order than theirs.
    """
    if layout is structure.edge_layout:
        return structure
    rows = layout.parent_rows
    if rows is None or layout.parent is not structure.edge_layout:
        raise ValueError(f"layout must be a selection of the edges, {structure.edge_layout}, got "
                         f"{layout}")  # fmt: skip
    if structure.resident is not structure:
        in_order = bool((rows[1:] > rows[:-1]).all())
        if not all(layout.group.all_gather(in_order)):
            raise NotImplementedError(
                "edges by a list of ids, of a graph whose rows are in host memory: select them by "
                "a mask, which keeps their order"
            )
    return structure.like(_select_edges(structure.resident, layout))


def select_edge_rows(edges: PartitionedTensor, selected: PartitionedStructure) -> PartitionedTensor:
    """Returns the rows of the edges of `selected`. Differentiable; not collective.

    Args:
        edges: rows of the edges of the structure that :func:`select_edges` was called with.
        selected: what it returned.
    """
    rows = selected.edge_layout.parent_rows
    if selected.edge_layout is edges.row_layout or rows is None:
        return edges
    if selected.resident is selected:
        return from_local(edges.to_local().index_select(0, rows), selected.edge_layout)

    def make_mask() -> PartitionedTensor:
        mask = torch.zeros(edges.row_layout.local_count, dtype=torch.bool, device=selected.device)
        mask[rows] = True
        return from_local(mask, edges.row_layout)

    mask = selected.cached("mask of edges", make_mask)
    return selected.on_edges(
        EdgeCall(
            lambda csc, edges, mask: edges[mask],
            others={"edges": edges, "mask": mask},
            result="edge",
            row_type=(edges.shape[1:], edges.dtype),
        )
    )


def without_self_loops(structure: PartitionedStructure) -> PartitionedStructure:
    """Returns the structure without self loops; the same one if it has none. Collective."""
    return structure.cached(
        "without self loops",
        lambda: select_edges(structure, ~self_loop_mask(structure)),  # type: ignore[arg-type]
    )


class LoopStructure(NamedTuple):
    """A structure with further self loops."""

    structure: PartitionedStructure
    """The edges and the loops. Edges keep their ids; the loops follow in the order of nodes."""
    loop_rows: Tensor
    """[loops of this rank] int64: the local row of the destination of each loop."""
    is_loop: PartitionedTensor | None
    """[edges] bool, where edges are sorted by destination (their order, then the loop). Without it,
    rows of all edges are followed by those of the loops."""

    def append(self, edges: PartitionedTensor, loops: PartitionedTensor) -> PartitionedTensor:
        """Returns rows for the edges of the structure. Differentiable; not collective.

        Args:
            edges: rows of the edges without the loops.
            loops: [destinations, *features]: a row for the loop of each; the rows of destinations
                without a loop are left out.
        """
        if self.is_loop is None:
            rows = torch.cat([edges.to_local(), loops.to_local().index_select(0, self.loop_rows)])
            return from_local(rows, self.structure.edge_layout)
        return self.structure.on_edges(
            EdgeCall(
                _insert_loops,
                destinations={"loops": loops},
                edges={"is_loop": self.is_loop},
                others={"edges": edges},
                result="edge",
                row_type=(edges.shape[1:], edges.dtype),
            )
        )


def _insert_loops(csc: Csc, loops: Tensor, is_loop: Tensor, edges: Tensor) -> Tensor:
    rows = loops.index_select(0, kept_ends(csc)[1])
    return rows.index_copy(0, (~is_loop).nonzero().squeeze(1), edges)


def with_self_loops(structure: PartitionedStructure, count: int) -> LoopStructure:
    """Returns the structure with further edges: node i to node i, for i below `count`.

    Loops that the structure has stay. Collective at the first call for a count.

    Args:
        structure: the edges.
        count: at most the sources and the destinations.

    Raises:
        ValueError: there are fewer nodes.
    """
    most = min(structure.num_sources, structure.num_destinations)
    if not 0 <= count <= most:
        raise ValueError(f"count must be 0 to {most} nodes, got {count}")
    return structure.cached(("with self loops", count), lambda: _with_self_loops(structure, count))


def _self_loop_mask(structure: PartitionedCsc) -> PartitionedTensor:
    sources, destinations = structure.local_ends()
    ids = structure.plan.gather(structure.source_layout.positions)
    same = ids[sources] == structure.destination_layout.positions[destinations]
    return from_local(same, structure.edge_layout)


def _select_edges(structure: PartitionedCsc, layout: RowLayout) -> PartitionedCsc:
    rows = layout.parent_rows
    assert rows is not None
    sources, destinations = structure.local_ends()
    return PartitionedCsc.from_local_edges(
        structure.source_layout,
        structure.destination_layout,
        layout,
        internal_source_rows(structure, sources[rows]),
        destinations[rows],
        mode=structure.mode_choice,
    )


def _with_self_loops(structure: PartitionedStructure, count: int) -> LoopStructure:
    resident = structure.resident
    edges, destinations = resident.edge_layout, resident.destination_layout
    ids = destinations.positions
    rows = (ids < count).nonzero().squeeze(1)
    loop_ids = ids[rows]
    loop_counts = edges.group.all_gather(len(rows))
    loop_sources = resident.source_layout.internal_rows[loop_ids.cpu()].to(ids.device)
    sources, edge_destinations = resident.local_ends()
    all_sources = torch.cat([internal_source_rows(resident, sources), loop_sources])
    all_destinations = torch.cat([edge_destinations, rows])
    order = is_loop = None
    if resident is not structure:
        # Chunks need edges that are sorted by destination.
        all_destinations, order = torch.sort(all_destinations, stable=True)
        all_sources = all_sources[order]

    def positions() -> Tensor:
        ids = torch.cat([edges.positions, edges.size + loop_ids])
        return ids if order is None else ids[order]

    layout = RowLayout(
        edges.group,
        [old + new for old, new in zip(edges.counts, loop_counts, strict=True)],
        positions,
    )
    with_loops = PartitionedCsc.from_local_edges(
        resident.source_layout,
        destinations,
        layout,
        all_sources,
        all_destinations,
        mode=resident.mode_choice,
    )
    if order is not None:
        is_loop = from_local(order >= edges.local_count, layout)
    return LoopStructure(structure.like(with_loops), rows, is_loop)


def internal_source_rows(structure: PartitionedCsc, extended_rows: Tensor) -> Tensor:
    """Returns the internal row numbers of extended rows of sources."""
    layout, plan = structure.source_layout, structure.plan
    first = layout.offsets[layout.group.rank]
    own = torch.arange(first, first + layout.local_count, device=structure.device)
    return torch.cat([own, plan.halo_rows])[extended_rows]
