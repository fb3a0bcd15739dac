"""How many rows the chunks of offloaded training read: expected, or counted of sampled nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.transport import Transport
from peergraph.fullgraph.layout.duplication import Duplication, cut_chunks
from peergraph.fullgraph.layout.edge_share import Share, pieces_of
from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.memory import Group
from peergraph.store import EdgeType, NodeType

# Chunks of each rank that are counted. Fewer chunks, by powers of two, are unions of these.
_FINEST = 1024
_MARK_BYTES = 1 << 26


@dataclass(frozen=True)
class Spread:
    """How many rows the chunks read, in rows of all nodes.

    Args:
        chunks: on each rank.
        alpha: rows that all chunks of all ranks need, each chunk's distinct rows counted
            (HongTu 2.4).
        batches: rows that cross the host links: those that the chunks of a batch need and the batch
            before had not, once for all ranks.
        counted: whether they were counted; else they are expected of a random order, which is the
            most that they can be.
        sent: rows that ranks receive from each other.
        degree: out-degree with which nodes of equal degree would need as many rows.
        network: of `sent`, rows that machines receive from each other, once for all ranks of a
            machine that receive the row in the same batch.
    """

    chunks: int
    alpha: float
    batches: float
    counted: bool
    sent: float = 0.0
    degree: float = math.inf
    network: float = 0.0

    def loaded(self, share: float = 1.0) -> float:
        """Rows that cross the host links if only a share of the nodes is summed at."""
        if share >= 1:
            return self.batches
        whole = _loaded(self.degree, self.chunks)
        return self.batches * _loaded(share * self.degree, self.chunks) / max(whole, 1e-9)

    def demand(self, share: float = 1.0) -> float:
        """Rows that chunks need if only a share of the nodes is summed at: `alpha` of all."""
        if share >= 1:
            return self.alpha
        whole = _distinct(self.degree, self.chunks)
        return self.alpha * _distinct(share * self.degree, self.chunks) / max(whole, 1e-9)

    def exchanged(self, share: float = 1.0) -> float:
        """Rows that ranks receive from each other if only a share of the nodes is summed at."""
        return self.sent * self.loaded(share) / max(self.batches, 1e-9)

    def distinct_sources(self, share: float = 1.0) -> float:
        """Rows that are a source of an edge to a share of the nodes."""
        return 1.0 if share >= 1 else -math.expm1(-share * self.degree)


def expected_spread(facts: GraphFacts, chunks: int) -> Spread:
    """Returns what chunks of a random order of nodes would read.

    The counted rows between ranks tell how out-degrees are spread: the mean degree alone would
    give more.
    """
    ranks = facts.world_size
    degree = _effective_degree(facts)
    alpha = max(1.0, _distinct(degree, ranks * chunks))
    batches = max(1.0, _loaded(degree, chunks))
    # Each rank receives the rows of its chunks that others have and its chunk before had not.
    sent = (ranks - 1) * _loaded(degree / ranks, chunks)
    network = _between_machines(degree, facts, chunks)
    return Spread(chunks, alpha, batches, False, sent, degree, network)


def spread_of(counted: Duplication, facts: GraphFacts) -> Spread:
    """Returns what plans compute with, of rows that were counted."""
    ranks, chunks = counted.world_size, counted.num_chunks
    # Of the rows that a rank receives, as many stay from the chunk before as of all rows.
    sent = counted.alpha * (ranks - 1) / ranks * counted.loaded / max(1, counted.distinct)
    # As many of them cross the network as in a random order.
    expected = expected_spread(facts, chunks)
    network = expected.network / max(expected.sent, 1e-9) * sent
    loaded = counted.loaded / max(1, counted.num_nodes)
    return Spread(chunks, counted.alpha, loaded, True, sent, _mean_degree(facts), network)


def spread_at(facts: GraphFacts, chunks: int, counted: Sequence[Spread]) -> Spread:
    """Returns what chunks read, by what was counted for as many chunks or for other numbers.

    Of other numbers, the nearest one tells how many of the rows that a random order would need
    beyond one for each node are needed.
    """
    expected = expected_spread(facts, chunks)
    if not counted:
        return expected
    nearest = min(counted, key=lambda s: abs(math.log(s.chunks / chunks)))
    if nearest.chunks == chunks:
        return nearest
    random = expected_spread(facts, nearest.chunks)

    def between(counted_rows: float, of_random: float, expected: float) -> float:
        share = (counted_rows - 1) / (of_random - 1) if of_random > 1 else 0.0
        return 1 + max(0.0, share) * (expected - 1)

    scale = nearest.sent / max(random.sent, 1e-9)
    return Spread(
        chunks,
        between(nearest.alpha, random.alpha, expected.alpha),
        between(nearest.batches, random.batches, expected.batches),
        True,
        scale * expected.sent,
        expected.degree,
        scale * expected.network,
    )


def _mean_degree(facts: GraphFacts) -> float:
    return sum(facts.num_edges) / max(1, sum(facts.rows))


def _effective_degree(facts: GraphFacts) -> float:
    """The out-degree with which nodes of equal degree would need as many rows as were counted."""
    ranks, mean = facts.world_size, _mean_degree(facts)
    total = sum(sum(map(sum, v.rows)) for v in facts.volumes.values())
    share = total / max(1, sum(facts.rows)) / ranks
    if ranks == 1 or not 0 < share < 0.999:
        return mean
    return min(mean, -ranks * math.log1p(-share))


def _distinct(degree: float, parts: int) -> float:
    """Rows that parts need, where each node has `degree` edges to random parts."""
    return parts * -math.expm1(-degree / parts)


def _loaded(degree: float, parts: int) -> float:
    """The same without rows that the part before had."""
    chance = -math.expm1(-degree / parts)
    return chance + (parts - 1) * chance * (1 - chance)


def _between_machines(degree: float, facts: GraphFacts, chunks: int) -> float:
    """Rows that cross the network, in rows of all nodes. A row that one rank of a machine has kept
    and another rank needs crosses it again.
    """
    chance = -math.expm1(-degree / (facts.world_size * chunks))
    total = 0.0
    for ranks in facts.machines:
        first, later = (-math.expm1(len(ranks) * math.log1p(-p)) if p < 1 else 1.0
                        for p in (chance, chance * (1 - chance)))  # fmt: skip
        elsewhere = 1 - len(ranks) / facts.world_size
        total += elsewhere * (first + (chunks - 1) * later)
    return total


def sample_rows(
    group: Group,
    parts: Mapping[NodeType, tuple[Tensor, tuple[int, ...]]],
    degrees: Mapping[NodeType, Tensor],
    shares: Mapping[EdgeType, Share],
) -> list[Duplication]:
    """Returns how many rows 2, 4, ... 1024 chunks of each rank need. Collective; synchronises.

    Marks the chunks that need every k-th node, with k such that the marks of a node type take
    64 MiB; with k = 1 the numbers are exact. Reads the edges once. Besides the marks, takes four
    bytes for each node, and about 40 for a moment.

    Args:
        group: the ranks.
        parts: order of the nodes, and the number of each rank's, by node type.
        degrees: [nodes] in-degrees by user id, by node type, on the group's device.
        shares: this rank's edges of each relation.
    """
    samples = {t: _Sample(*part, degrees[t]) for t, part in parts.items()}
    for edge_type, share in shares.items():
        sources, into = samples[edge_type[0]], samples[edge_type[2]].chunk_of_node
        for piece in pieces_of(share):
            sources.add(piece.source, piece.destination, into)
    for sample in samples.values():
        sample.marks = Transport.of(group).all_reduce(sample.marks)
    ranks, counted, chunks = len(next(iter(parts.values()))[1]), [], 2
    while chunks <= _FINEST:
        by_type = [sample.count(chunks) for sample in samples.values()]
        counted.append(Duplication(ranks, chunks, *map(sum, zip(*by_type, strict=True))))
        chunks *= 2
    return counted


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

    def count(self, chunks: int) -> tuple[int, int, int, int]:
        """Returns the nodes, and the rows that so many chunks of each rank need, scaled to all.

        These are the last arguments of :class:`Duplication`.
        """
        needs = self.marks.view(len(self.marks), self.ranks, chunks, _FINEST // chunks).any(-1)
        batches = needs.any(1)
        again = batches[:, 1:] & batches[:, :-1]
        scale = self.num_nodes / max(1, len(self.marks))
        demand, distinct, repeated = (round(int(x.sum()) * scale) for x in (needs, batches, again))
        return self.num_nodes, demand, distinct, distinct - repeated
