"""Undirected graphs with GCN's normalisation: what full-graph training runs over."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inputs.counter_hash import CHUNK, hash_range, shift_right, stream_key
from inputs.graphs import GraphSpec, coprime, get_spec, weighted_nodes

# Numbers of nodes are multiples of this, so that up to eight ranks get equal blocks of rows.
_MULTIPLE = 8
# Pairs drawn beyond half the edges, as repeated pairs and self loops are left out.
_OVERSAMPLING = {"reddit": 1.0084}
_DEFAULT_OVERSAMPLING = 1.0001
ARRANGEMENTS = ("", "sorted", "communities")
# Of graphs with communities: nodes of one, and of how many edges one leaves its community.
_COMMUNITY, _LEAVING = 512, 10
# Their nodes are numbered by multiples of about this share of the nodes.
_SPREAD = 0.7548776662466927


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

    def edge_index(self, with_loops: bool = True) -> Tensor:
        """[2, edges] int64 sources and destinations."""
        nodes = torch.arange(self.num_nodes, device=self.indices.device)
        target = nodes.repeat_interleave(self.indptr.diff(), output_size=self.num_edges)
        edges = torch.stack([self.indices.long(), target])
        return edges if with_loops else edges[:, edges[0] != edges[1]]


def parse_name(name: str) -> tuple[GraphSpec, str]:
    """Returns the preset of "PRESET:ARRANGEMENT" and the arrangement.

    "sorted": nodes are numbered by degree, the largest first. "communities": nine of ten edges stay
    within 512 nodes, whose numbers tell nothing about it. Without one: no communities, and nodes of
    all degrees lie scattered.
    """
    preset, _, arrangement = name.partition(":")
    if arrangement not in ARRANGEMENTS:
        names = ", ".join(filter(None, ARRANGEMENTS))
        raise ValueError(f"unknown arrangement {arrangement!r} of a graph; there are {names}")
    return get_spec(preset), arrangement


def _pairs(
    spec: GraphSpec, count: int, device: torch.device, by_community: bool
) -> tuple[Tensor, Tensor]:
    """Draws both ends of `count` edges by the nodes' weights, int64."""
    n, ends = spec.num_nodes, []
    for tag in (11, 12):
        nodes = torch.empty(count, dtype=torch.int64, device=device)
        for begin in range(0, count, CHUNK):
            end = min(count, begin + CHUNK)
            hashed = hash_range(stream_key(spec.seed, tag), begin, end, device)
            nodes[begin:end] = weighted_nodes(spec, hashed)
        ends.append(nodes)
    first, second = ends
    if by_community:
        for begin in range(0, count, CHUNK):
            end = min(count, begin + CHUNK)
            hashed = shift_right(hash_range(stream_key(spec.seed, 13), begin, end, device), 20)
            member = first[begin:end] // _COMMUNITY * _COMMUNITY
            member += shift_right(hashed, 20) % _COMMUNITY
            stays = hashed % _LEAVING > 0
            second[begin:end] = torch.where(stays, member.clamp_(max=n - 1), second[begin:end])
        # Numbers of neighbours lie far apart.
        multiplier = coprime(n, _SPREAD)
        first, second = first * multiplier % n, second * multiplier % n
    return first, second


def communities_of(spec: GraphSpec, num_nodes: int, device: torch.device) -> Tensor:
    """Returns for each node its place in an order that keeps communities together, int64.

    Args:
        spec: of a graph that is arranged by "communities".
        num_nodes: of the graph as it was made, with nodes that were added at the end.
        device: of the result.
    """
    n = spec.num_nodes
    places = torch.arange(num_nodes, device=device)
    places[:n] = places[:n] * pow(coprime(n, _SPREAD), -1, n) % n
    return places


def undirected_edges(spec: GraphSpec, device: torch.device, arrangement: str = "") -> Tensor:
    """Returns destination * nodes + source of both directions of each edge, ascending, int64.

    No edge repeats, and none is a self loop. There are about as many as the preset has.
    """
    n = spec.num_nodes
    factor = _OVERSAMPLING.get(spec.name.partition("/")[0], _DEFAULT_OVERSAMPLING)
    is_clustered = arrangement == "communities"
    first, second = _pairs(spec, int(spec.num_edges / 2 * factor), device, is_clustered)
    differ = first != second
    first, second = first[differ], second[differ]
    if arrangement == "sorted":
        degrees = torch.bincount(first, minlength=n) + torch.bincount(second, minlength=n)
        place = torch.empty(n, dtype=torch.int64, device=device)
        order = torch.sort(degrees, descending=True, stable=True).indices
        place[order] = torch.arange(n, device=device)
        first, second = place[first], place[second]
    keys = torch.cat([first * n + second, second * n + first])
    del first, second, differ
    return torch.unique_consecutive(torch.sort(keys)[0])


def make_gcn_graph(spec: GraphSpec, device: torch.device, arrangement: str = "") -> GcnGraph:
    """Makes the graph; nodes without edges but their self loop are added up to a multiple of 8."""
    keys, n = undirected_edges(spec, device, arrangement), spec.num_nodes
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
