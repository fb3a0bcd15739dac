"""Partitions graphs and their features over the ranks of a test."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc
from peergraph.fullgraph.tensor.conversions import distribute
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.memory import Group


def shuffled_layout(group: Group, size: int, seed: int = 0) -> RowLayout:
    """Rows in random order, unequal numbers on the ranks; some ranks may have none."""
    generator = torch.Generator().manual_seed(seed + size)
    order = torch.randperm(size, generator=generator)
    cuts = torch.randint(size + 1, (group.world_size - 1,), generator=generator).sort().values
    bounds = [0, *cuts.tolist(), size]
    counts = [b - a for a, b in pairwise(bounds)]
    return RowLayout.from_order(group, order, counts)


def partition(
    edge_index: Tensor,
    sources: RowLayout,
    destinations: RowLayout,
    *,
    ids: torch.dtype = torch.int64,
    grouped: bool = False,
) -> PartitionedCsc:
    """Gives each rank the edges to its destinations.

    Args:
        edge_index: [2, edges] in the user's numbering, equal on all ranks.
        sources, destinations: the layouts of nodes.
        ids: of the rows that are given.
        grouped: each rank's edges are sorted by destination; else they are in the user's order.
    """
    group = destinations.group
    owners, local = destinations.locate(edge_index[1])
    key = owners * max(1, destinations.size) + local if grouped else owners
    order = torch.sort(key, stable=True).indices
    counts = torch.bincount(owners, minlength=group.world_size).tolist()
    edges = RowLayout.from_order(group, order, counts)
    mine = edges.positions.cpu()
    return PartitionedCsc.from_local_edges(
        sources,
        destinations,
        edges,
        sources.internal_rows[edge_index[0, mine].cpu()].to(ids),
        local[mine].to(ids),
    )


def leaf(full: Tensor, layout: RowLayout) -> PartitionedTensor:
    """Returns this rank's rows of a tensor as a leaf of autograd."""
    return distribute(full.detach(), layout).detach().requires_grad_(full.requires_grad)
