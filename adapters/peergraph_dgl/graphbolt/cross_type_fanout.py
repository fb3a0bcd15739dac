"""Choosing among whole lists of neighbours: of one relation, or of several together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from peergraph.aggregate import row_of_edges
from peergraph.store import EdgeType, NodeType

from ..graph.choosing import first_of_each


class Lists(NamedTuple):
    """Edges of one relation by destination: rows of sources in the sample, and edge ids."""

    indptr: Tensor
    row: Tensor
    edge_ids: Tensor

    @property
    def owners(self) -> Tensor:
        """[edges] destination of each edge."""
        return row_of_edges(self.indptr, self.row.numel())

    def at(self, positions: Tensor) -> Lists:
        """The edges at these ascending positions."""
        counts = torch.bincount(self.owners[positions], minlength=self.indptr.numel() - 1)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return Lists(indptr, self.row[positions], self.edge_ids[positions])


def choose_among(
    given: Mapping[EdgeType, Lists],
    num_sources: Mapping[NodeType, int],
    weights: Mapping[EdgeType, Tensor],
    fanout: int,
    generator: torch.Generator,
    *,
    replace: bool,
    labor: bool,
) -> dict[EdgeType, Lists]:
    """At most `fanout` edges for each node, of all its edges in `given` whatever their types.

    Args:
        given: all edges of the nodes.
        num_sources: how many sources of each type the rows of `given` count.
        weights: [edges] float64, positive, to draw by; relations without weigh 1.
        fanout: edges per node; exactly as many with `replace`, where there is one.
        generator: on the CPU; the same edges on any device.
        replace: draw with replacement.
        labor: one random number for each source node instead of one for each edge.
    """
    sources = _places(num_sources)
    targets = _places({t[2]: part.indptr.numel() - 1 for t, part in given.items()})
    source = torch.cat([part.row.long() + sources[t[0]] for t, part in given.items()])
    owner = torch.cat([part.owners + targets[t[2]] for t, part in given.items()])
    weight = torch.cat(
        [weights.get(t, torch.ones_like(p.row, dtype=torch.float64)) for t, p in given.items()]
    )
    # On the CPU: a GPU's generator has other numbers, and another logarithm.
    if replace:
        chosen = _repeated(owner, weight, fanout, generator)
    else:
        count = sum(num_sources.values()) if labor else owner.numel()
        times = -torch.log1p(
            -torch.rand(count, generator=generator, dtype=torch.float64, device="cpu")
        )
        times = times.to(owner.device)
        # Who comes first in a race of exponential times is drawn by weight, without replacement.
        order = ((times[source] if labor else times) / weight).argsort()
        degrees = torch.bincount(owner)
        chosen = first_of_each(order, owner, degrees.cumsum(0) - degrees, fanout)
    return _parted(given, chosen.sort().values)


def _places(counts: Mapping[NodeType, int]) -> dict[NodeType, int]:
    """Where the nodes of each type begin in a list of all."""
    places, total = {}, 0
    for node_type, count in counts.items():
        places[node_type] = total
        total += count
    return places


def _repeated(owner: Tensor, weight: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Positions of `count` edges of each destination that has one, drawn by weight."""
    by_owner = owner.argsort(stable=True)
    nodes, degrees = torch.unique_consecutive(owner[by_owner], return_counts=True)
    ends = degrees.cumsum(0)
    sums = torch.cat([weight.new_zeros(1), weight[by_owner].cumsum(0)])
    low, high = sums[ends - degrees], sums[ends]
    drawn = torch.rand(nodes.numel(), count, generator=generator, dtype=torch.float64, device="cpu")
    at = torch.searchsorted(sums, low[:, None] + drawn.to(owner.device) * (high - low)[:, None])
    # `sums` begins with a zero; rounding must not lead to another destination's edge.
    at = (at - 1).clamp(min=(ends - degrees)[:, None], max=(ends - 1)[:, None])
    positions: Tensor = by_owner[at.reshape(-1)]
    return positions


def _parted(given: Mapping[EdgeType, Lists], chosen: Tensor) -> dict[EdgeType, Lists]:
    """The chosen edges by relation; `chosen` are ascending positions in all lists together."""
    sizes = torch.tensor([part.row.numel() for part in given.values()], device=chosen.device)
    ends = sizes.cumsum(0)
    cuts = [0, *torch.searchsorted(chosen, ends).tolist()]
    return {
        edge_type: part.at(chosen[cuts[i] : cuts[i + 1]] - (ends[i] - sizes[i]))
        for i, (edge_type, part) in enumerate(given.items())
    }
