"""Sampling while a store is being measured: the same sample, and counts of what it read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from peergraph import _C
from peergraph.sampling.neighbor.compiled import make_native
from peergraph.sampling.sample import EdgeType, Sample
from peergraph.sampling.static_shape.static_shape_sample import FixedSample

if TYPE_CHECKING:
    from peergraph.sampling.neighbor.neighbor_sampler import NeighborSampler
    from peergraph.sampling.walks.random_walker import RandomWalker
    from peergraph.store import Store
    from peergraph.store.report.read_recorder import ReadRecorder

Drawn = TypeVar("Drawn", Sample, FixedSample)


def measured_sample(
    measuring: ReadRecorder, sampler: NeighborSampler, draw: Callable[[_C.KHopSampler], Drawn]
) -> Drawn:
    """Draws a sample and counts the lists and edge ids that it reads.

    Args:
        draw: samples with a native sampler.
    """
    # Where an edge lies in the lists is what tells the tier of its id; samplers by weights or times
    # look up more ids than they yield.
    by_position = sampler.edge_ids and not sampler.choices.reads_edges
    native = make_native(sampler, positions=True) if by_position else sampler.native
    with measuring.sampling.running():
        sample = draw(native)
    if by_position:
        assert sample.edge_ids is not None
        padded = isinstance(sample, FixedSample)
        sample.edge_ids = {
            t: _edge_ids(sampler.store, t, positions, padded)
            for t, positions in sample.edge_ids.items()
        }
    measuring.add_sample()
    for edge_type in sample.indptr:
        _count_lists(measuring, sampler, edge_type, sample)
    return sample


def count_walks(
    measuring: ReadRecorder, walker: RandomWalker, nodes: Tensor, positions: Tensor, restarts: bool
) -> Tensor | None:
    """Counts the lists that walks have read, and yields the ids of their edges, if wanted.

    Args:
        nodes: [S, length + 1] user ids.
        positions: [S, length] of the edges taken in the user's CSC, -1 where none was.
        restarts: whether a step without an edge may have been a restart, which reads no list.
    """
    store, metapath = walker.store, walker.metapath
    read = taken = positions >= 0
    if not restarts:  # where a walk ends, it has found an empty list
        read = torch.ones_like(taken)
        read[:, 1:] = taken[:, :-1]
    edge_ids = torch.empty_like(positions) if walker.edge_ids else None
    for place, edge_type in enumerate(metapath):
        steps = slice(place, None, len(metapath))
        users = nodes[:, :-1][:, steps].masked_fill(~read[:, steps], -1)
        rows = _internal(store, edge_type, users)
        measuring.add_lists(edge_type, rows, taken[:, steps].long())
        if edge_ids is not None:
            edge_ids[:, steps] = _edge_ids(store, edge_type, positions[:, steps], True)
    return edge_ids


def _internal(store: Store, edge_type: EdgeType, users: Tensor) -> Tensor:
    """Rows of lists of user ids; -1 stays."""
    to_internal = store.id_map(edge_type[2]).to_internal
    if to_internal is None or users.numel() == 0 or to_internal.rows == 0:
        return users
    return torch.where(users < 0, users, to_internal.as_tensor()[users.clamp(min=0)].long())


def _edge_ids(store: Store, edge_type: EdgeType, positions: Tensor, padded: bool) -> Tensor:
    table = store.csc(edge_type).edge_ids
    if table is None:
        return positions
    ids = table.gather(positions.contiguous(), padded=padded).long()
    return torch.where(positions < 0, positions, ids) if padded else ids


def _count_lists(
    measuring: ReadRecorder,
    sampler: NeighborSampler,
    edge_type: EdgeType,
    sample: Sample | FixedSample,
) -> None:
    store = sampler.store
    if store.num_edges(edge_type) == 0:
        return
    induced = sampler.subgraph == "induced"
    for hop in range(len(sample.indptr[edge_type])):
        if sampler.fanouts[edge_type][hop] == 0 and not induced:
            continue
        block = sample.block(hop, edge_type)
        end = block.first_target + block.num_targets
        targets = sample.nodes[edge_type[2]][block.first_target : end]
        rows = _internal(store, edge_type, targets)
        measuring.add_lists(edge_type, rows, block.indptr.diff().long())
