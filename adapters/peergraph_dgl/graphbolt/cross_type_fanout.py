"""Chooses edges for one fanout across several relations, or by weights, from all in-edges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from peergraph.aggregate import row_of_edges
from peergraph.store import EdgeType, NodeType

from ..graph.choose_edges import first_edges


class InEdges(NamedTuple):
    """Edges of one relation, grouped by destination.

    Args:
        indptr: [destinations + 1] offsets.
        row: [edges] positions of the sources in the sample.
        edge_ids: [edges] the user's edge ids.
    """

    indptr: Tensor
    row: Tensor
    edge_ids: Tensor

    @property
    def destinations(self) -> Tensor:
        """[edges] row of each edge's destination."""
        return row_of_edges(self.indptr, self.row.numel())

    def select(self, positions: Tensor) -> InEdges:
        """Returns the edges at ascending positions."""
        counts = torch.bincount(self.destinations[positions], minlength=self.indptr.numel() - 1)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return InEdges(indptr, self.row[positions], self.edge_ids[positions])


def sample_across_types(
    in_edges: Mapping[EdgeType, InEdges],
    num_sources: Mapping[NodeType, int],
    weights: Mapping[EdgeType, Tensor],
    fanout: int,
    generator: torch.Generator,
    *,
    replace: bool,
    labor: bool,
) -> dict[EdgeType, InEdges]:
    """Draws at most `fanout` edges for each node among its edges of all given relations.

    Args:
        in_edges: all in-edges of the nodes, by relation.
        num_sources: number of source nodes of each type.
        weights: [edges] positive float64 weights by relation; a relation without them has weight 1.
        fanout: edges per node; with `replace`, nodes with an edge get exactly `fanout`.
        generator: a CPU generator; results do not depend on the device of the edges.
        replace: whether to draw with replacement.
        labor: whether to draw one random number for each source node, not for each edge.
    """
    source_offsets = _type_offsets(num_sources)
    target_offsets = _type_offsets({t[2]: e.indptr.numel() - 1 for t, e in in_edges.items()})
    sources = torch.cat([e.row.long() + source_offsets[t[0]] for t, e in in_edges.items()])
    targets = torch.cat([e.destinations + target_offsets[t[2]] for t, e in in_edges.items()])
    weight = torch.cat(
        [weights.get(t, torch.ones_like(e.row, dtype=torch.float64)) for t, e in in_edges.items()]
    )
    if replace:
        chosen = _draw_with_replacement(targets, weight, fanout, generator)
    else:
        # On the CPU, because a GPU's generator and logarithm give other numbers.
        count = sum(num_sources.values()) if labor else targets.numel()
        uniform = torch.rand(count, generator=generator, dtype=torch.float64, device="cpu")
        times = -torch.log1p(-uniform).to(targets.device)
        # The order of exponential times is a draw by weight without replacement.
        order = ((times[sources] if labor else times) / weight).argsort()
        degrees = torch.bincount(targets)
        chosen = first_edges(order, targets, degrees.cumsum(0) - degrees, fanout)
    return _split_by_relation(in_edges, chosen.sort().values)


def _type_offsets(counts: Mapping[NodeType, int]) -> dict[NodeType, int]:
    """Returns the first position of each type among the nodes of all types."""
    offsets, total = {}, 0
    for node_type, count in counts.items():
        offsets[node_type] = total
        total += count
    return offsets


def _draw_with_replacement(
    destinations: Tensor, weight: Tensor, count: int, generator: torch.Generator
) -> Tensor:
    """Draws positions of `count` edges of each destination that has an edge, by weight."""
    order = destinations.argsort(stable=True)
    _, degrees = torch.unique_consecutive(destinations[order], return_counts=True)
    ends = degrees.cumsum(0)
    sums = torch.cat([weight.new_zeros(1), weight[order].cumsum(0)])
    low, high = sums[ends - degrees, None], sums[ends, None]
    shape = (degrees.numel(), count)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
    # `sums` begins with a zero, so the edge is one position before.
    index = torch.searchsorted(sums, low + uniform.to(weight.device) * (high - low)) - 1
    # Rounding must not lead to another destination's edge.
    index = index.clamp(min=(ends - degrees)[:, None], max=(ends - 1)[:, None])
    positions: Tensor = order[index.reshape(-1)]
    return positions


def _split_by_relation(
    in_edges: Mapping[EdgeType, InEdges], chosen: Tensor
) -> dict[EdgeType, InEdges]:
    """Returns the chosen edges by relation; `chosen` are ascending positions among all edges."""
    sizes = torch.tensor([e.row.numel() for e in in_edges.values()], device=chosen.device)
    ends = sizes.cumsum(0)
    cuts = [0, *torch.searchsorted(chosen, ends).tolist()]
    return {
        edge_type: edges.select(chosen[cuts[i] : cuts[i + 1]] - (ends[i] - sizes[i]))
        for i, (edge_type, edges) in enumerate(in_edges.items())
    }
