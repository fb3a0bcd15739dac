"""Sampling while a store is being measured: the same sample, and counts of what it read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from peergraph import _C
from peergraph.sampling.compiled import make_native
from peergraph.sampling.sample import EdgeType, Sample

if TYPE_CHECKING:
    from peergraph.sampling.neighbor import NeighborSampler
    from peergraph.store import Store
    from peergraph.store.reporting.measuring import Measuring


def measured_sample(
    measuring: Measuring, sampler: NeighborSampler, draw: Callable[[_C.KHopSampler], Sample]
) -> Sample:
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
        sample.edge_ids = {t: _edge_ids(sampler.store, t, sample) for t in sample.num_sampled_edges}
    measuring.add_sample()
    for edge_type in sample.num_sampled_edges:
        _count_lists(measuring, sampler, edge_type, sample)
    return sample


def _edge_ids(store: Store, edge_type: EdgeType, sample: Sample) -> Tensor:
    assert sample.edge_ids is not None
    positions = sample.edge_ids[edge_type]
    table = store.structure(edge_type).edge_ids
    return positions if table is None else table.gather(positions).long()


def _count_lists(
    measuring: Measuring, sampler: NeighborSampler, edge_type: EdgeType, sample: Sample
) -> None:
    store = sampler.store
    if store.num_edges(edge_type) == 0:
        return
    to_internal = store.id_map(edge_type[2]).to_internal
    induced = sampler.subgraph == "induced"
    for hop in range(len(sample.num_sampled_edges[edge_type])):
        if sampler.fanouts[edge_type][hop] == 0 and not induced:
            continue
        block = sample.block(hop, edge_type)
        end = block.first_target + block.num_targets
        targets = sample.nodes[edge_type[2]][block.first_target : end]
        rows = targets if to_internal is None else to_internal.as_tensor()[targets]
        measuring.add_lists(edge_type, rows, block.indptr.diff().long())
