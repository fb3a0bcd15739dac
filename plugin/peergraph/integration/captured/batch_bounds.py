"""The capacities of batches of a static shape, from drawn batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil

import torch

from peergraph.integration.captured.training_batches import BatchRequest, SampleCounts
from peergraph.sampling import NeighborSampler, StaticShape
from peergraph.store import EdgeType, NodeType

# How many standard deviations the capacities are above the largest of the drawn samples. A batch of
# 1024 seeds then has 3 to 5 % of padding, and about one batch in a million does not fit.
_DEVIATIONS = 3.0


def find_bounds(core: NeighborSampler, requests: Iterable[BatchRequest]) -> SampleCounts:
    """Returns capacities for batches, from samples of such.

    Synchronises.

    Args:
        core: the sampler of the batches.
        requests: of full batches, at least two.
    """
    samples = [core.sample(r.nodes, i, **r.times) for i, r in enumerate(requests)]
    nodes = [sample.num_sampled_nodes for sample in samples]
    edges = [sample.num_sampled_edges for sample in samples]
    return SampleCounts(
        {t: _bounds_of([counts[t] for counts in nodes]) for t in nodes[0]},
        {t: _bounds_of([counts[t] for counts in edges]) for t in edges[0]},
    )


def _bounds_of(counts: list[list[int]]) -> list[int]:
    table = torch.tensor(counts, dtype=torch.float64, device="cpu")  # [tries, hops]
    # A count equal to its capacity would mean that the sample did not fit.
    bounds = (table.amax(0) + _DEVIATIONS * table.std(0)).ceil().long() + 1
    result: list[int] = bounds.tolist()
    return result


def raise_bounds(bounds: SampleCounts, counts: Iterable[SampleCounts]) -> SampleCounts:
    """Returns capacities for samples with these counts, too."""
    for each in counts:
        bounds = SampleCounts(
            bounds.nodes | {t: _raised(bounds.nodes[t], n) for t, n in each.nodes.items()},
            bounds.edges | {t: _raised(bounds.edges[t], n) for t, n in each.edges.items()},
        )
    return bounds


def _raised(bounds: list[int], counts: list[int]) -> list[int]:
    pairs = zip(bounds, counts, strict=True)
    return [bound if count < bound else ceil(1.02 * count) + 1 for bound, count in pairs]


def fits(
    shape: StaticShape,
    num_nodes: Mapping[NodeType, list[int]],
    num_edges: Mapping[EdgeType, list[int]],
) -> bool:
    """Returns whether a sample has fewer nodes and edges of each hop than the capacities.

    One row of each hop is then padding, at which the padding edges of the next hop end.

    Args:
        shape: the capacities.
        num_nodes: seeds, new nodes of each hop, by type.
        num_edges: edges of each hop, by type.
    """
    pairs = [(counts, shape.rows_per_hop[t]) for t, counts in num_nodes.items()]
    pairs += [(counts, shape.edges_per_hop[t]) for t, counts in num_edges.items()]
    return all(
        count < bound
        for counts, bounds in pairs
        for count, bound in zip(counts, bounds, strict=True)
    )
