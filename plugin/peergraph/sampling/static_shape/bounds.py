"""The capacities of samples of a static shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from peergraph.number_arguments import check_real
from peergraph.sampling.arguments import check_int_range
from peergraph.sampling.neighbor.neighbor_sampler import NeighborSampler
from peergraph.sampling.sample import EdgeType, NodeType, Sample
from peergraph.sampling.static_shape.static_shape_sample import StaticShape

MaxNodes = Sequence[int] | Mapping[NodeType, Sequence[int]]
MaxEdges = Sequence[int] | Mapping[EdgeType, Sequence[int]]
Key = TypeVar("Key", NodeType, EdgeType)

_MOST = 2**31 - 2  # rows of a type with the padding row, edges of a hop


def make_shape(
    sampler: NeighborSampler,
    num_seeds: int | Mapping[NodeType, int],
    max_nodes: MaxNodes | None,
    max_edges: MaxEdges | None,
) -> StaticShape:
    """Returns the capacities for the arguments of :class:`StaticShapeSampler`; errors as there."""
    store, num_hops = sampler.store, sampler.num_hops
    types, relations = list(store.node_types), list(store.edge_types)
    if not isinstance(num_seeds, Mapping):
        if len(types) != 1:
            raise ValueError(f"num_seeds: expected a dict by node type, the store has {types}")
        num_seeds = {types[0]: num_seeds}
    for node_type in num_seeds:
        if node_type not in types:
            raise ValueError(f"num_seeds: {node_type!r} is not one of {types}")
    nodes = _bounds("max_nodes", max_nodes, types, num_hops)
    edges = _bounds("max_edges", max_edges, relations, num_hops)
    capacities = {
        t: [check_int_range("num_seeds", num_seeds.get(t, 0), 0, _MOST - 1)] for t in types
    }
    sampled: dict[EdgeType, list[int]] = {t: [] for t in relations}
    for hop in range(num_hops):
        for edge_type in relations:
            targets = capacities[edge_type[2]]
            most = _most_edges(
                sampler, edge_type, hop, sum(targets) if sampler.frontier == "all" else targets[hop]
            )
            capacity = edges[edge_type][hop] if edge_type in edges else most
            if capacity is None:
                raise ValueError(
                    f"max_edges: needed, for hop {hop} takes all neighbours by {edge_type}"
                )
            sampled[edge_type].append(check_int_range("max_edges", capacity, 0, _MOST))
        for node_type in types:
            most = sum(sampled[e][hop] for e in relations if e[0] == node_type)
            if not sampler.disjoint:
                most = min(most, store.num_nodes(node_type))
            capacity = nodes[node_type][hop] if node_type in nodes else most
            capacities[node_type].append(check_int_range("max_nodes", capacity, 0, _MOST))
    for node_type, counts in capacities.items():
        check_int_range(f"max_nodes: rows of type {node_type!r}", sum(counts) + 1, 1, _MOST)
        counts[0] += 1  # the padding row
    return StaticShape(capacities, sampled)


def _most_edges(
    sampler: NeighborSampler, edge_type: EdgeType, hop: int, targets: int
) -> int | None:
    """Returns the largest possible number of edges; None if the fanout does not bound it."""
    fanout = sampler.fanouts[edge_type][hop]
    num_edges = sampler.store.num_edges(edge_type)
    if targets == 0 or num_edges == 0:
        return 0
    if fanout < 0:
        return None
    return targets * (fanout if sampler.options.replace else min(fanout, num_edges))


def _bounds(
    name: str,
    limits: Sequence[int] | Mapping[Key, Sequence[int]] | None,
    types: Sequence[Key],
    num_hops: int,
) -> dict[Key, Sequence[int]]:
    if limits is None:
        return {}
    if not isinstance(limits, Mapping):
        if len(types) != 1:
            raise ValueError(f"{name}: expected a dict by type, the store has {list(types)}")
        limits = {types[0]: limits}
    for key, bounds in limits.items():
        if key not in types:
            raise ValueError(f"{name}: {key!r} is not one of {list(types)}")
        if len(bounds) != num_hops:
            raise ValueError(f"{name}: expected {num_hops} bounds for {key!r}, got {list(bounds)}")
    return dict(limits)


def sample_bounds(
    samples: Iterable[Sample], slack: float = 1.25
) -> tuple[dict[NodeType, list[int]], dict[EdgeType, list[int]]]:
    """Returns `max_nodes` and `max_edges` for a :class:`StaticShapeSampler`, from given samples.

    Args:
        samples: samples of batches of the size that will be sampled.
        slack: factor, 1 to 1000, between the largest count in the samples and the bound.

    Raises:
        ValueError: no sample, or a `slack` out of range.
    """
    check_real("slack", slack, 1, 1000)
    max_nodes: dict[NodeType, list[int]] = {}
    max_edges: dict[EdgeType, list[int]] = {}
    for sample in samples:
        for node_type, counts in sample.num_sampled_nodes.items():
            _raise_to(max_nodes, node_type, counts[1:], slack)
        for edge_type, sampled in sample.num_sampled_edges.items():
            _raise_to(max_edges, edge_type, sampled, slack)
    if not max_nodes:
        raise ValueError("samples: expected at least one")
    return max_nodes, max_edges


def _raise_to(bounds: dict[Key, list[int]], key: Key, counts: Sequence[int], slack: float) -> None:
    least = [int(count * slack) for count in counts]
    bounds[key] = [max(pair) for pair in zip(bounds.get(key, least), least, strict=True)]
