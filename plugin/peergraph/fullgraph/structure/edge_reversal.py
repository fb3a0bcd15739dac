"""A structure's edges in the other direction, partitioned by what were their sources."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.route import Route
from peergraph.fullgraph.exchange.side_by_side import run_alone
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.structure.edge_changes import internal_source_rows
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc
from peergraph.fullgraph.structure.partitioned_structure import PartitionedStructure
from peergraph.fullgraph.tensor.conversions import from_local
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor


class EdgeReversal:
    """The reversed edges of a structure, and the exchange of features of edges with them.

    Edges keep their ids, but lie on the ranks of their sources. Made by :func:`reverse_edges`.

    Args:
        original: the edges.
        structure: the reversed edges.
        route: of rows of edges, to those of the reversed edges.
    """

    def __init__(
        self, original: PartitionedStructure, structure: PartitionedStructure, route: Route
    ) -> None:
        self.original = original
        self.structure = structure
        self._route = route

    def to_reversed(self, e: PartitionedTensor) -> PartitionedTensor:
        """Returns features of edges with the rows of the reversed edges.

        Collective; differentiable.

        Raises:
            ValueError: `e` has other rows.
        """
        return self.structure.move_edge_rows(e, self.original, self._route)

    def from_reversed(self, e: PartitionedTensor) -> PartitionedTensor:
        """Returns features of reversed edges with the rows of the edges; as the other way."""
        return self.original.move_edge_rows(e, self.structure, self._route.reversed())


def reverse_edges(structure: PartitionedStructure) -> EdgeReversal:
    """Returns the structure's edges from destinations to sources.

    Collective at the first call. The reversed edges are kept, and take as much memory as the edges;
    reversed once more they are the edges.
    """

    def make() -> EdgeReversal:
        resident, route = _reverse(structure.resident)
        reversed_structure = structure.like(resident)
        back = EdgeReversal(reversed_structure, structure, route.reversed())
        reversed_structure.cached("reversed edges", lambda: back)
        return EdgeReversal(structure, reversed_structure, route)

    return structure.cached("reversed edges", make)


def with_reversed_edges(
    structure: PartitionedStructure,
) -> tuple[PartitionedStructure, PartitionedTensor]:
    """Returns the edges in their order and then the reversed edges in theirs. Collective.

    Args:
        structure: edges that were selected (:func:`select_edges`), between nodes of one type.

    Returns:
        The structure, and [its edges] int64: the row of each edge before the selection.

    Raises:
        ValueError: sources and destinations are different nodes.
    """
    nodes = structure.destination_layout
    if not structure.source_layout.same_rows(nodes):
        raise ValueError(f"structure must have sources that are the destinations, got {structure}")
    resident, layout = structure.resident, structure.edge_layout
    back, route = _reverse(resident)
    ids = layout.positions
    if layout.parent is not None and layout.parent_rows is not None:
        ids = layout.parent.positions[layout.parent_rows]
    parts = [
        (*_internal_ends(resident), layout.positions, ids),
        (*_internal_ends(back), back.edge_layout.positions + layout.size, route.move(ids)),
    ]
    sources, destinations, positions, ids = (torch.cat(pair) for pair in zip(*parts, strict=True))
    # As chunks of edges need them, and in less memory.
    order = torch.argsort(destinations, stable=True)
    group = layout.group
    joined = RowLayout(group, group.all_gather(len(order)), positions[order])
    both_ways = PartitionedCsc.from_local_edges(
        nodes, nodes, joined, sources[order], destinations[order], mode=resident.mode_choice
    )
    return structure.like(both_ways), from_local(ids[order], joined)


def _internal_ends(structure: PartitionedCsc) -> tuple[Tensor, Tensor]:
    """Returns the internal row of each edge's source and the local row of its destination."""
    extended_rows, destinations = structure.local_ends()
    return internal_source_rows(structure, extended_rows), destinations


def _reverse(structure: PartitionedCsc) -> tuple[PartitionedCsc, Route]:
    """Returns the reversed edges, and the route of their rows."""
    nodes = structure.source_layout
    group = nodes.group
    sources, destinations = _internal_ends(structure)
    owners, local_sources = nodes.owners_of(sources)
    route = run_alone(group, Route.to_ranks(group, owners))
    destinations = structure.destination_layout.offsets[group.rank] + destinations
    ids = structure.edge_layout.positions
    rows = route.exchange(torch.stack([destinations, local_sources, ids], 1))
    # Edges that are sorted by destination take less memory.
    by_destination = torch.argsort(rows[:, 1], stable=True)
    rows = rows[by_destination]
    positions = torch.empty_like(by_destination)
    positions[by_destination] = torch.arange(len(rows), device=rows.device)
    route = route._replace(stored=positions)
    reversed_edges = PartitionedCsc.from_local_edges(
        structure.destination_layout,
        nodes,
        RowLayout(group, group.all_gather(len(rows)), rows[:, 2].contiguous()),
        rows[:, 0],
        rows[:, 1],
        mode=structure.mode_choice,
    )
    return reversed_edges, route
