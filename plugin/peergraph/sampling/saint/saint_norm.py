"""GraphSAINT's normalisation: how often nodes and edges are in subgraphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from peergraph import _C
from peergraph.memory import Group, Table, host_rows
from peergraph.memory.device.launching import threads_of_rank
from peergraph.sampling.random_seeds import next_seed
from peergraph.sampling.saint.node_weights import ranks_of
from peergraph.sampling.saint.saint_sampler import SaintSampler

# Subgraphs between two looks at the coverage: few, so that no rank waits long for another.
_SUBGRAPHS = 64
_CHUNK = 1 << 16  # destinations that are read at once
_LARGEST_NORM = 1e4
_NEVER = 0.1  # in the place of the count, or of the norm, of what was in no subgraph


class SaintNorm(NamedTuple):
    """Coefficients by which a loss and sums over neighbours become unbiased, in host memory once on
    the machine. Dropping them on all ranks frees them.

    Args:
        nodes: [nodes] float32: subgraphs / (subgraphs with the node) / nodes.
        edges: [edges] float32, by edge id: subgraphs with the source / subgraphs with the edge, at
            most 10,000.
    """

    nodes: Table
    edges: Table


def measure_norm(
    sampler: SaintSampler, coverage: int, progress: Callable[[int], None] = lambda nodes: None
) -> SaintNorm:
    """Counts nodes and edges of subgraphs until each node is in `coverage` of them on average.

    Collective: the ranks sample together. The result depends on the seed that rank 0 draws from
    torch's default generator, not on the number of ranks. The formula is that of PyG.

    Args:
        sampler: the sampler.
        coverage: subgraphs with a node, on average.
        progress: called with the number of nodes of the subgraphs since the last call.
    """
    group, store = ranks_of(sampler.store), sampler.store
    first_seed = group.broadcast(next_seed() if group.rank == 0 else None)
    num_nodes, num_edges = sampler.num_nodes, store.num_edges(sampler.edge_type)
    node_counts = host_rows(group, (num_nodes,), torch.int64)
    edge_counts = host_rows(group, (num_edges,), torch.int64)
    subgraphs = nodes = 0
    while nodes < num_nodes * coverage:
        own = 0
        for i in range(subgraphs + group.rank, subgraphs + _SUBGRAPHS, group.world_size):
            sample = sampler.sample((first_seed + i) % 2**64)
            assert sample.edge_ids is not None
            (ids,) = sample.nodes.values()
            _count(node_counts, ids, group)
            _count(edge_counts, sample.edge_ids[sampler.edge_type], group)
            own += ids.numel()
        subgraphs += _SUBGRAPHS
        drawn = sum(group.all_gather(own))
        nodes += drawn
        progress(drawn)
    edges = _edge_norm(sampler, node_counts.as_tensor(), edge_counts.as_tensor(), group)

    def fill(norm: Tensor) -> None:
        counts = node_counts.as_tensor().float()
        counts[counts == 0] = _NEVER
        torch.div(subgraphs / counts, num_nodes, out=norm)

    return SaintNorm(host_rows(group, (num_nodes,), torch.float32, fill), edges)


def _count(counts: Table, ids: Tensor, group: Group) -> None:
    """Adds to counts in memory to which all ranks add at the same time."""
    _C.count_ids(
        ids.cpu(),
        limit=counts.rows,
        counts=counts.as_tensor(),
        is_shared=True,
        num_threads=threads_of_rank(group.world_size),
    )


def _edge_norm(
    sampler: SaintSampler, node_counts: Tensor, edge_counts: Tensor, group: Group
) -> Table:
    """Returns the coefficients of edges; each rank computes those into a share of the nodes."""
    norm = host_rows(group, (edge_counts.numel(),), torch.float32)
    values = norm.as_tensor()
    starts = range(0, sampler.num_nodes, _CHUNK)
    for start in starts[group.rank :: group.world_size]:
        stop = min(start + _CHUNK, sampler.num_nodes)
        part = sampler.store.read_csc(sampler.edge_type, start, stop)
        ids, sources = part.edge_ids.cpu(), part.indices.cpu().long()
        ratio = node_counts[sources].float() / edge_counts[ids].float()
        values[ids] = ratio.clamp(0, _LARGEST_NORM).nan_to_num(nan=_NEVER)
    group.barrier()
    return norm
