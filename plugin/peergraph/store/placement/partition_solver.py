"""Places partitions on GPUs that do not all reach each other (XGNN 4.2, Figure 8)."""

from __future__ import annotations

from collections.abc import Iterator

from peergraph.memory.table.partitions import Partitions, choose_sources
from peergraph.memory.topology.topology import Topology

# The limits of the search. For 8 GPUs, the rules prune so much that a tenth of the steps is rarely
# needed. At a limit, the result is the best placement so far.
_MAX_STEPS = 3000
_MAX_RESULTS = 200


def solve(topology: Topology) -> Partitions:
    """Places one partition for each GPU so that every GPU reaches all partitions. Deterministic.

    GPU g stores partition g. If a GPU reaches no copy of a partition, the GPU itself or one of its
    neighbours gets a copy, by XGNN's three rules:

    1. Balance: the copy goes to a GPU that stores the fewest partitions.
    2. Less replication: among these, to a GPU that most of the GPUs without the partition can read;
       if several are equal, to one that misses the partition itself.
    3. Of all placements that the search finds, the result has the best balance, then the fewest
       copies, then the highest bandwidth per partition on its slowest link.
    """
    search = _Search(topology)
    search.run()
    stored = search.best
    assert stored is not None, "a GPU can always store what it misses"
    count, rows = topology.num_gpus, topology.bulk.bandwidth
    parts = tuple(tuple(p for p in range(count) if bits >> p & 1) for bits in stored)
    source = tuple(tuple(choose_sources(stored, rows[g], g)[0]) for g in range(count))
    return Partitions("solver", parts, source)


class _Search:
    """A depth-first search over GPUs and the partitions that they do not reach."""

    def __init__(self, topology: Topology) -> None:
        self.rows = topology.bulk.bandwidth
        self.count = topology.num_gpus
        self.all = (1 << self.count) - 1
        self.reach = [(g, *topology.neighbors(g)) for g in range(self.count)]
        # The GPUs that can read each GPU: links may be one-way.
        self.readers = [
            [g for g in range(self.count) if holder in self.reach[g]]
            for holder in range(self.count)
        ]
        self.best: list[int] | None = None
        self.best_key = (-float("inf"), -float("inf"), 0.0)
        self.ideal_key = self._ideal()
        self.steps = 0
        self.results = 0
        self.states: set[tuple[int, ...]] = set()

    def run(self) -> None:
        """Searches until it finds an optimal placement, has seen all, or reaches a limit."""
        pending = [self._children(0, [1 << g for g in range(self.count)])]
        while pending and self.steps < _MAX_STEPS and self.results < _MAX_RESULTS:
            child = next(pending[-1], None)
            if child is None:
                pending.pop()
                continue
            self.steps += 1
            gpu, stored = child
            if gpu < self.count:
                pending.append(self._children(gpu, stored))
            elif self._judge(stored):
                return

    def _children(self, gpu: int, stored: list[int]) -> Iterator[tuple[int, list[int]]]:
        """Yields the next states: the GPU to look at, and each GPU's partitions as a bit set."""
        while gpu < self.count:
            missing = self.all & ~self._reached(gpu, stored)
            if missing:
                break
            gpu += 1
        else:
            yield gpu, stored
            return
        part = (missing & -missing).bit_length() - 1
        for holder in self._choose(part, gpu, stored):
            child = list(stored)
            child[holder] |= 1 << part
            state = tuple(child)
            # Different orders of insertion lead to the same sets.
            if state not in self.states and _copies(child) >= self.best_key[:2]:
                self.states.add(state)
                yield gpu, child

    def _reached(self, gpu: int, stored: list[int]) -> int:
        bits = 0
        for j in self.reach[gpu]:
            bits |= stored[j]
        return bits

    def _choose(self, part: int, gpu: int, stored: list[int]) -> list[int]:
        """Returns the GPUs that may get a copy, by XGNN's rules R_1 and R_2."""

        def misses(g: int) -> bool:
            return not self._reached(g, stored) >> part & 1

        weights = {}
        for holder in self.reach[gpu]:
            use = sum(misses(g) for g in self.readers[holder])
            weights[holder] = (-stored[holder].bit_count(), use, misses(holder))
        best = max(weights.values())
        return [holder for holder, weight in weights.items() if weight == best]

    def _judge(self, stored: list[int]) -> bool:
        """Compares a placement with the best one, by rule R_3. Returns whether it is optimal."""
        self.results += 1
        copies = _copies(stored)
        # If balance and copies are equal, the slowest link must be faster.
        least = self.best_key[2] if copies == self.best_key[:2] else 0.0
        bandwidth = float("inf")
        for gpu in range(self.count):
            bandwidth = min(bandwidth, choose_sources(stored, self.rows[gpu], gpu)[1])
            if bandwidth <= least:
                return False
        self.best, self.best_key = stored, (*copies, bandwidth)
        return self.best_key >= self.ideal_key

    def _ideal(self) -> tuple[float, float, float]:
        """Returns an upper bound for all placements, from the numbers of neighbours."""
        copies = max(-(-self.count // len(reach)) for reach in self.reach)
        total = self.count * -(-self.count // max(len(readers) for readers in self.readers))
        far = self.count - copies
        bandwidth = float("inf")
        for gpu, reach in enumerate(self.reach):
            links = [self.rows[gpu][j] for j in reach[1:]]
            rates = sorted(rate / k for rate in links for k in range(1, far + 1))
            carried = (r for r in reversed(rates) if sum(int(v / r + 1e-9) for v in links) >= far)
            bandwidth = min(bandwidth, next(carried, float("inf")))
            bandwidth = min(bandwidth, self.rows[gpu][gpu])
        return -copies, -total, bandwidth


def _copies(stored: list[int]) -> tuple[int, int]:
    """Returns balance and number of copies as numbers that are larger for better placements."""
    counts = [bits.bit_count() for bits in stored]
    return -max(counts), -sum(counts)
