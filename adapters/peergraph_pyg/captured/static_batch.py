"""Batches of a static shape: samples with padding, made into batches by the loader's own code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import SequentialSampler

from peergraph import sampling
from peergraph.sampling import Sample, StaticShape, StaticShapeSample
from peergraph.store import EDGE, NODE

from ..loader.batch_csc import cache_csc
from ..loader.sampler import homogeneous_output

# Samples from which the capacities are found, and how many standard deviations the capacities are
# above the largest of them. A batch of 1024 seeds then has 3 to 5 % of padding, and about one batch
# in a million does not fit.
_TRIES = 16
_DEVIATIONS = 3.0

Counts = list[list[int]]
"""New nodes of each hop, and edges of each hop."""


def find_bounds(loader: Any, core: sampling.NeighborSampler) -> Counts:
    """Returns capacities for full batches of a loader, from samples of batches.

    Synchronises. Draws no numbers from torch's default generators.

    Args:
        loader: with at least one full batch.
        core: the sampler of its batches.
    """
    counts = []
    for number, seeds in enumerate(_trial_seeds(loader)):
        sample = core.sample(seeds, number)
        nodes, edges = sample.num_sampled_nodes[NODE][1:], sample.num_sampled_edges[EDGE]
        counts.append([nodes, edges])
    found = torch.tensor(counts, dtype=torch.float64, device="cpu")  # [tries, 2, hops]
    spread = _DEVIATIONS * found.std(0)
    # A count equal to its capacity would mean that the sample did not fit.
    bounds = (found.amax(0) + spread).ceil().long() + 1
    result: Counts = bounds.tolist()
    return result


def raise_bounds(bounds: Counts, counts: Iterable[Counts]) -> Counts:
    """Returns capacities for samples with these counts, too."""
    for found in counts:
        bounds = [
            [max(bound, ceil(1.02 * count) + 1) for bound, count in zip(*pair, strict=True)]
            for pair in zip(bounds, found, strict=True)
        ]
    return bounds


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


def fits(shape: StaticShape, num_nodes: list[int], num_edges: list[int]) -> bool:
    """Returns whether a sample has fewer nodes and edges of each hop than the capacities.

    One row of each hop is then padding, at which the padding edges of the next hop end.

    Args:
        shape: the capacities.
        num_nodes: seeds, new nodes of each hop.
        num_edges: edges of each hop.
    """
    rows, edges = shape.rows_per_hop[NODE], shape.edges_per_hop[EDGE]
    counts = (*num_nodes, *num_edges)
    return all(count < bound for count, bound in zip(counts, (*rows, *edges), strict=True))


def make_batch(
    loader: Any, sample: StaticShapeSample, input_id: Tensor, pad_with: int | None = None
) -> Any:
    """Returns the batch of a sample, as the loader makes it of its own samples.

    Padding rows have the attributes of one of the seeds, so that no function finds values in them
    that nodes do not have.

    Args:
        loader: of the batch.
        sample: a sample with valid padding that :func:`fits`.
        input_id: [seeds] positions of the seeds among the loader's input nodes.
        pad_with: which of the seeds, for a batch with memory of its own. None: the first one; the
            batch then shares the sample's memory, without a pass over nodes or edges.
    """
    if pad_with is not None:
        sample = _padded_copy(sample, pad_with)
    padded = _as_unpadded(sample)
    out = homogeneous_output(padded)
    out.metadata = (input_id, None)
    cache_csc(padded)
    return loader.filter_fn(out)


def _padded_copy(sample: StaticShapeSample, pad_with: int) -> StaticShapeSample:
    """Returns a copy in which padding is one of the seeds."""
    nodes, edge_ids = sample.nodes[NODE], sample.edge_ids
    return replace(
        sample,
        nodes={NODE: torch.where(sample.is_padding(NODE), nodes[pad_with], nodes)},
        edge_index={EDGE: sample.edge_index[EDGE].clone()},
        edge_ids=None if edge_ids is None else {EDGE: edge_ids[EDGE].clone()},
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
        num_sampled_nodes={NODE: list(sample.shape.rows_per_hop[NODE])},
        num_sampled_edges={EDGE: list(sample.shape.edges_per_hop[EDGE])},
        indptr=sample.indptr,
        first_target=sample.first_target,
    )
