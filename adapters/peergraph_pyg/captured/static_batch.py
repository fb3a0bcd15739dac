"""Batches of a static shape: samples with padding, made into batches by the loader's own code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import SequentialSampler
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from peergraph import sampling
from peergraph.sampling import Sample, StaticShape, StaticShapeSample
from peergraph.store import EDGE, NODE, EdgeType, NodeType

from ..loader.batch_csc import cache_csc

# Samples from which the capacities are found, and how many standard deviations the capacities are
# above the largest of them. A batch of 1024 seeds then has 3 to 5 % of padding, and about one batch
# in a million does not fit.
_TRIES = 16
_DEVIATIONS = 3.0


class Counts(NamedTuple):
    """The numbers of new nodes and of edges of each hop, by type."""

    nodes: dict[NodeType, list[int]]
    edges: dict[EdgeType, list[int]]


def counts_of(sample: Sample | SamplerOutput | HeteroSamplerOutput) -> Counts:
    """Returns the counts of a sample."""
    nodes, edges = sample.num_sampled_nodes, sample.num_sampled_edges
    if isinstance(sample, SamplerOutput):
        nodes, edges = {NODE: nodes}, {EDGE: edges}
    return Counts({t: counts[1:] for t, counts in nodes.items()}, dict(edges))


def seed_type(loader: Any) -> NodeType:
    """Returns the node type of a loader's seeds."""
    return loader.input_data.input_type or NODE


def find_bounds(loader: Any, core: sampling.NeighborSampler) -> Counts:
    """Returns capacities for full batches of a loader, from samples of batches.

    Synchronises. Draws no numbers from torch's default generators.

    Args:
        loader: with at least one full batch.
        core: the sampler of its batches.
    """
    node_type = seed_type(loader)
    samples = [
        counts_of(core.sample({node_type: seeds}, number))
        for number, seeds in enumerate(_trial_seeds(loader))
    ]
    return Counts(
        {t: _bounds_of([each.nodes[t] for each in samples]) for t in samples[0].nodes},
        {t: _bounds_of([each.edges[t] for each in samples]) for t in samples[0].edges},
    )


def _bounds_of(counts: list[list[int]]) -> list[int]:
    table = torch.tensor(counts, dtype=torch.float64, device="cpu")  # [tries, hops]
    # A count equal to its capacity would mean that the sample did not fit.
    bounds = (table.amax(0) + _DEVIATIONS * table.std(0)).ceil().long() + 1
    result: list[int] = bounds.tolist()
    return result


def raise_bounds(bounds: Counts, counts: Iterable[Counts]) -> Counts:
    """Returns capacities for samples with these counts, too."""
    for each in counts:
        bounds = Counts(
            {t: _raised(bounds.nodes[t], of_type) for t, of_type in each.nodes.items()},
            {t: _raised(bounds.edges[t], of_type) for t, of_type in each.edges.items()},
        )
    return bounds


def _raised(bounds: list[int], counts: list[int]) -> list[int]:
    return [max(bound, ceil(1.02 * count) + 1) for bound, count in zip(bounds, counts, strict=True)]


def _trial_seeds(loader: Any) -> Iterable[Tensor]:
    nodes, size = loader.input_data.node, loader.batch_size
    last = nodes.numel() - size
    if isinstance(loader.sampler, SequentialSampler):
        for begin in {last * i // (_TRIES - 1) for i in range(_TRIES)}:
            yield nodes[begin : begin + size]
        if last == 0:  # the deviation needs two
            yield nodes
        return
    generator = torch.Generator().manual_seed(0)
    for _ in range(_TRIES):
        # Batches of distinct seeds, without a permutation of all.
        chosen = torch.randint(nodes.numel(), (size,), generator=generator, device="cpu")
        yield nodes[chosen] if last > 8 * size else nodes[_permutation(nodes, generator)[:size]]


def _permutation(nodes: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randperm(nodes.numel(), generator=generator, device="cpu")


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


def make_batch(
    loader: Any, sample: StaticShapeSample, input_id: Tensor, pad_with: int | None = None
) -> Any:
    """Returns the batch of a sample, as the loader makes it of its own samples.

    Padding rows have the attributes of one of the seeds (of another type: of node 0), so that no
    function finds values in them that nodes do not have.

    Args:
        loader: of the batch.
        sample: a sample with valid padding that :func:`fits`.
        input_id: [seeds] positions of the seeds among the loader's input nodes.
        pad_with: which of the seeds, for a batch with memory of its own. None: the first one; the
            batch then shares the sample's memory, without a pass over nodes or edges.
    """
    if pad_with is not None:
        sample = _padded_copy(sample, seed_type(loader), pad_with)
    padded = _as_unpadded(sample)
    out = loader.node_sampler.output_of(padded)
    out.metadata = (input_id, None)
    cache_csc(padded)
    return loader.filter_fn(out)


def _padded_copy(
    sample: StaticShapeSample, node_type: NodeType, pad_with: int
) -> StaticShapeSample:
    """Returns a copy in which padding of the seeds' type is one of the seeds."""
    nodes = {t: ids.clone() for t, ids in sample.nodes.items()}
    ids = nodes[node_type]
    nodes[node_type] = torch.where(sample.is_padding(node_type), ids[pad_with], ids)
    edge_ids = sample.edge_ids
    return replace(
        sample,
        nodes=nodes,
        edge_index={t: edges.clone() for t, edges in sample.edge_index.items()},
        edge_ids=None if edge_ids is None else {t: e.clone() for t, e in edge_ids.items()},
    )


def _as_unpadded(sample: StaticShapeSample) -> Sample:
    """Returns a sample in which padding is nodes and edges like others."""
    return Sample(
        nodes=sample.nodes,
        row=sample.row,
        col=sample.col,
        edge_ids=sample.edge_ids,
        batch=None,
        duplicate_counts=None,
        num_sampled_nodes={t: list(rows) for t, rows in sample.shape.rows_per_hop.items()},
        num_sampled_edges={t: list(edges) for t, edges in sample.shape.edges_per_hop.items()},
        indptr=sample.indptr,
        first_target=sample.first_target,
    )
