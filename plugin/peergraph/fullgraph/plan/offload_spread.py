"""How many rows the chunks of offloaded training read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from peergraph.fullgraph.plan.memory_items import GraphFacts


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

    def needed(self, share: float = 1.0) -> float:
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
    rows = max(1, sum(facts.rows))
    ranks = facts.world_size
    edges = sum(sum(v.num_edges) for v in facts.volumes.values())
    degree = effective_degree(facts, edges / rows)
    alpha = max(1.0, _distinct(degree, ranks * chunks))
    batches = max(1.0, _loaded(degree, chunks))
    # Each rank receives the rows of its chunks that others have and its chunk before had not.
    sent = (ranks - 1) * _loaded(degree / ranks, chunks)
    network = _between_machines(degree, facts, chunks)
    return Spread(chunks, alpha, batches, False, sent, degree, network)


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


def effective_degree(facts: GraphFacts, mean: float) -> float:
    """The out-degree with which nodes of equal degree would need as many rows as were counted."""
    ranks = facts.world_size
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
