"""Partitions on GPUs that do not all reach each other: XGNN's pruned search (4.2, Figure 8)."""

from __future__ import annotations

from collections.abc import Iterator

from peergraph.memory.table.partitions import Partitions, choose_sources
from peergraph.memory.topology.topology import Topology

# Limits of the search. 8 GPUs rarely need a tenth of the steps, since the rules prune so much; at
# the limit the best placement so far counts.
_MAX_STEPS = 3000
_MAX_RESULTS = 200


def solve(topology: Topology) -> Partitions:
    """Places as many partitions as GPUs so that every GPU reaches each of them.

    GPU g stores partition g; a GPU that reaches no copy of a partition gets one on itself or on a
    neighbour, by XGNN's three rules: the GPU that stores least (balance), where most GPUs that miss
    the partition reach it, at best the one that misses it itself (less replication), and of the
    placements found the one whose slowest link has most bandwidth per partition. Of placements that
    differ in balance or number of copies the better one counts first. Deterministic.
    """
    search = _Search(topology)
    search.run()
    stored = search.best
    assert stored is not None, "a GPU can always store what it misses"
    count, rows = topology.num_gpus, topology.bulk.bandwidth
    held = tuple(tuple(p for p in range(count) if bits >> p & 1) for bits in stored)
    source = tuple(tuple(choose_sources(stored, rows[g], g)[0]) for g in range(count))
    return Partitions("solver", held, source)


class _Search:
    """Depth first over GPUs and the partitions that they miss."""

    def __init__(self, topology: Topology) -> None:
        self.rows = topology.bulk.bandwidth
        self.count = topology.num_gpus
        self.all = (1 << self.count) - 1
        self.reach = [(g, *topology.neighbors(g)) for g in range(self.count)]
        # Who reads a GPU: links may go one way only.
        self.readers = [
            [g for g in range(self.count) if holder in self.reach[g]]
            for holder in range(self.count)
        ]
        self.best: list[int] | None = None
        self.best_key = (-float("inf"), -float("inf"), 0.0)
        self.ideal_key = self._ideal()
        self.steps = 0
        self.results = 0
        self.seen: set[tuple[int, ...]] = set()

    def run(self) -> None:
        """Searches until the best conceivable placement, or the last one, or the limits."""
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
        """The next choices: (GPU to serve, bit sets of stored partitions)."""
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
            # The same sets are found in several orders of insertion.
            if state not in self.seen and _copies(child) >= self.best_key[:2]:
                self.seen.add(state)
                yield gpu, child

    def _reached(self, gpu: int, stored: list[int]) -> int:
        bits = 0
        for j in self.reach[gpu]:
            bits |= stored[j]
        return bits

    def _choose(self, part: int, gpu: int, stored: list[int]) -> list[int]:
        """R_1 and R_2: the holders of equal highest weight."""

        def misses(g: int) -> bool:
            return not self._reached(g, stored) >> part & 1

        weights = {}
        for holder in self.reach[gpu]:
            use = sum(misses(g) for g in self.readers[holder])
            weights[holder] = (-stored[holder].bit_count(), use, misses(holder))
        best = max(weights.values())
        return [holder for holder, weight in weights.items() if weight == best]

    def _judge(self, stored: list[int]) -> bool:
        """R_3; whether no placement can be better than this one."""
        self.results += 1
        copies = _copies(stored)
        # Where balance and copies tie, only a better slowest link counts.
        least = self.best_key[2] if copies == self.best_key[:2] else 0.0
        bandwidth = float("inf")
        for gpu in range(self.count):
            bandwidth = min(bandwidth, choose_sources(stored, self.rows[gpu], gpu)[1])
            if bandwidth <= least:
                return False
        self.best, self.best_key = stored, (*copies, bandwidth)
        return self.best_key >= self.ideal_key

    def _ideal(self) -> tuple[float, float, float]:
        """An upper bound for all placements, from the numbers of neighbours."""
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
    """Balance and number of copies, more is better."""
    counts = [bits.bit_count() for bits in stored]
    return -max(counts), -sum(counts)
