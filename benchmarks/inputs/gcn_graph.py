"""Undirected graphs with GCN's normalisation: what full-graph training runs over."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inputs.counter_hash import CHUNK, hash_range, stream_key
from inputs.graphs import GraphSpec, weighted_nodes

# Numbers of nodes are multiples of this, so that up to eight ranks get equal blocks of rows.
_MULTIPLE = 8
# Pairs drawn beyond half the edges, as repeated pairs and self loops are left out.
_OVERSAMPLING = {"reddit": 1.0084}
_DEFAULT_OVERSAMPLING = 1.0001


@dataclass(frozen=True)
class GcnGraph:
    """D^-1/2 (A + I) D^-1/2 of an undirected graph A, by destination.

    Args:
        indptr: [nodes + 1] int64.
        indices: [edges] int32 sources, ascending for each destination, self loops among them.
        weights: [edges] float32.
    """

    indptr: Tensor
    indices: Tensor
    weights: Tensor

    @property
    def num_nodes(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.indices.numel()


def _pairs(spec: GraphSpec, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Draws both ends of `count` edges by the nodes' weights, int64."""
    ends = []
    for tag in (11, 12):
        nodes = torch.empty(count, dtype=torch.int64, device=device)
        for begin in range(0, count, CHUNK):
            end = min(count, begin + CHUNK)
            hashed = hash_range(stream_key(spec.seed, tag), begin, end, device)
            nodes[begin:end] = weighted_nodes(spec, hashed)
        ends.append(nodes)
    return ends[0], ends[1]


def undirected_edges(spec: GraphSpec, device: torch.device) -> Tensor:
    """Returns destination * nodes + source of both directions of each edge, ascending, int64.

    No edge repeats, and none is a self loop. There are about as many as the preset has.
    """
    n = spec.num_nodes
    factor = _OVERSAMPLING.get(spec.name.partition("/")[0], _DEFAULT_OVERSAMPLING)
    first, second = _pairs(spec, int(spec.num_edges / 2 * factor), device)
    differ = first != second
    first, second = first[differ], second[differ]
    keys = torch.cat([first * n + second, second * n + first])
    del first, second, differ
    return torch.unique_consecutive(torch.sort(keys)[0])


def make_gcn_graph(spec: GraphSpec, device: torch.device) -> GcnGraph:
    """Makes the graph; nodes without edges but their self loop are added up to a multiple of 8."""
    keys, n = undirected_edges(spec, device), spec.num_nodes
    padded = -(-n // _MULTIPLE) * _MULTIPLE
    destination = torch.div(keys, n, rounding_mode="floor")
    keys += destination * (padded - n)
    del destination
    loops = torch.arange(padded, device=device) * (padded + 1)
    keys = torch.sort(torch.cat([keys, loops]))[0]
    destination = torch.div(keys, padded, rounding_mode="floor")
    source = keys.sub_(destination * padded).to(torch.int32)
    degrees = torch.bincount(destination, minlength=padded)
    indptr = torch.zeros(padded + 1, dtype=torch.int64, device=device)
    torch.cumsum(degrees, 0, out=indptr[1:])
    scale = degrees.float().rsqrt()
    return GcnGraph(indptr, source, scale[destination] * scale[source])
