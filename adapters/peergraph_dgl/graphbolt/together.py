"""One fanout for the edges of all types together: chosen among whole lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from peergraph.aggregate.structure.rows import row_of_edges
from peergraph.sampling import Sample
from peergraph.store import EdgeType, NodeType, Store

from ..choosing import first_of_each


class Lists(NamedTuple):
    """Edges of one relation by destination: rows of sources in the sample, and edge ids."""

    indptr: Tensor
    row: Tensor
    edge_ids: Tensor


def lists_of(sample: Sample, edge_type: EdgeType) -> Lists:
    """The edges of the first hop."""
    block = sample.block(0, edge_type)
    assert block.edge_ids is not None
    return Lists(block.indptr, block.row, block.edge_ids)


def choose_together(
    sample: Sample,
    store: Store,
    weights: Mapping[EdgeType, str],
    fanout: int,
    number: int,
    *,
    replace: bool,
    labor: bool,
) -> dict[EdgeType, Lists]:
    """At most `fanout` edges for each node, of all its edges whatever their types.

    Args:
        sample: one hop, all edges of the nodes.
        weights: names of edge tables to draw by; relations without one weigh 1.
        fanout: edges per node; exactly as many with `replace`, where there is one.
        number: of the draw; the same edges on any device.
        replace: draw with replacement.
        labor: one random number for each source node instead of one for each edge.
    """
    given = {t: lists_of(sample, t) for t in store.edge_types}
    sources = _places({t: ids.numel() for t, ids in sample.nodes.items()})
    targets = _places({t[2]: part.indptr.numel() - 1 for t, part in given.items()})
    source = torch.cat([part.row.long() + sources[t[0]] for t, part in given.items()])
    owner = torch.cat([_owners(part) + targets[t[2]] for t, part in given.items()])
    weight = torch.cat([_weights(store, t, part, weights.get(t)) for t, part in given.items()])
    # On the CPU: a GPU's generator has other numbers, and another logarithm.
    generator = torch.Generator().manual_seed(number)
    if replace:
        chosen = _repeated(owner, weight, fanout, generator)
    else:
        count = sum(ids.numel() for ids in sample.nodes.values()) if labor else owner.numel()
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


def _owners(part: Lists) -> Tensor:
    """[edges] destination of each edge."""
    return row_of_edges(part.indptr, part.row.numel())


def _weights(store: Store, edge_type: EdgeType, part: Lists, name: str | None) -> Tensor:
    if name is None:
        return torch.ones(part.row.numel(), dtype=torch.float64, device=part.row.device)
    values = store.edge_table(name, edge_type).gather(part.edge_ids).reshape(-1)
    return values.to(part.row.device, torch.float64)


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
    result = {}
    for i, (edge_type, part) in enumerate(given.items()):
        at = chosen[cuts[i] : cuts[i + 1]] - (ends[i] - sizes[i])
        counts = torch.bincount(_owners(part)[at], minlength=part.indptr.numel() - 1)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        result[edge_type] = Lists(indptr, part.row[at], part.edge_ids[at])
    return result
