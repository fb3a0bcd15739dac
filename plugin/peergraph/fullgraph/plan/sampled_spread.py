"""Estimates how many rows the chunks of a graph need, from a sample of its nodes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.transport import Transport
from peergraph.fullgraph.layout.duplication import Duplication, cut_chunks
from peergraph.fullgraph.layout.edge_share import Share, pieces_of
from peergraph.fullgraph.plan.counted_spread import spread_of
from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.fullgraph.plan.offload_spread import Spread
from peergraph.memory import Group
from peergraph.store import EdgeType, NodeType

# Chunks of each rank that are counted. Fewer chunks, by powers of two, are unions of these.
_FINEST = 1024
_MARK_BYTES = 1 << 26


def sample_spreads(
    group: Group,
    parts: Mapping[NodeType, tuple[Tensor, tuple[int, ...]]],
    degrees: Mapping[NodeType, Tensor],
    shares: Mapping[EdgeType, Share],
    facts: GraphFacts,
) -> list[Spread]:
    """Returns how many rows 2, 4, ... 1024 chunks of each rank need. Collective; synchronises.

    Marks the chunks that need every k-th node, with k such that the marks of a node type take
    64 MiB; with k = 1 the numbers are exact. Reads the edges once. Besides the marks, takes four
    bytes for each node, and about 40 for a moment.

    Args:
        group: the ranks.
        parts: order of the nodes, and the number of each rank's, by node type.
        degrees: [nodes] in-degrees by user id, by node type, on the group's device.
        shares: this rank's edges of each relation.
        facts: of the graph.
    """
    samples = {t: _Sample(*part, degrees[t]) for t, part in parts.items()}
    for edge_type, share in shares.items():
        sources, into = samples[edge_type[0]], samples[edge_type[2]].chunk_of_node
        for piece in pieces_of(share):
            sources.add(piece.source, piece.destination, into)
    for sample in samples.values():
        sample.marks = Transport.of(group).all_reduce(sample.marks)
    edges = sum(sum(volume.num_edges) for volume in facts.volumes.values())
    degree = edges / max(1, sum(facts.rows))
    spreads, chunks = [], 2
    while chunks <= _FINEST:
        counted = _total([sample.count(chunks) for sample in samples.values()])
        spreads.append(spread_of(counted, degree, facts))
        chunks *= 2
    return spreads


class _Sample:
    """Marks which chunks need which sampled nodes of one type.

    Args:
        order: [nodes] the node at each internal row.
        counts: nodes of each rank.
        degrees: [nodes] in-degrees by user id, on the device of the marks.
    """

    def __init__(self, order: Tensor, counts: tuple[int, ...], degrees: Tensor) -> None:
        self.num_nodes, self.ranks, device = order.numel(), len(counts), degrees.device
        order = order.to(device)
        cuts = cut_chunks(degrees[order], counts, _FINEST)
        sizes = torch.tensor([row for of_rank in cuts for row in of_rank], device=device)
        sizes = sizes.view(self.ranks, -1).diff().flatten()
        numbers = torch.arange(sizes.numel(), dtype=torch.int32, device=device)
        by_row = numbers.repeat_interleave(sizes, output_size=self.num_nodes)
        self.chunk_of_node = torch.empty_like(by_row).index_copy_(0, order, by_row)
        # Even strides would meet every other node of graphs whose ids alternate.
        self.stride = -(-self.num_nodes * numbers.numel() // _MARK_BYTES) | 1
        nodes = torch.arange(0, self.num_nodes, self.stride, device=device)
        self.marks = torch.zeros((nodes.numel(), numbers.numel()), dtype=torch.bool, device=device)
        # A chunk also needs the rows of its own nodes.
        self.marks[torch.arange(nodes.numel(), device=device), self.chunk_of_node[nodes].long()] = (
            True
        )

    def add(self, sources: Tensor, destinations: Tensor, chunk_of_node: Tensor) -> None:
        """Marks, for each edge from a sampled node, that the destination's chunk needs the node.

        Args:
            sources: [edges] nodes of this type.
            destinations: [edges] nodes of any type.
            chunk_of_node: of that type.
        """
        device = self.marks.device
        chosen = (sources % self.stride == 0).nonzero().squeeze(1)
        nodes = sources[chosen].to(device).long() // self.stride
        chunks = chunk_of_node[destinations[chosen].to(device).long()].long()
        self.marks[nodes, chunks] = True

    def count(self, chunks: int) -> Duplication:
        """Returns the rows that so many chunks of each rank need, scaled to all nodes."""
        needs = self.marks.view(len(self.marks), self.ranks, chunks, _FINEST // chunks).any(-1)
        batches = needs.any(1)
        again = batches[:, 1:] & batches[:, :-1]
        scale = self.num_nodes / max(1, len(self.marks))
        needed, distinct, repeated = (round(int(x.sum()) * scale) for x in (needs, batches, again))
        return Duplication(
            self.ranks, chunks, self.num_nodes, needed, distinct, distinct - repeated
        )


def _total(by_type: list[Duplication]) -> Duplication:
    """Adds up the rows of all node types."""
    return Duplication(
        by_type[0].world_size,
        by_type[0].num_chunks,
        sum(of_type.num_nodes for of_type in by_type),
        sum(of_type.needed for of_type in by_type),
        sum(of_type.distinct for of_type in by_type),
        sum(of_type.loaded for of_type in by_type),
    )
