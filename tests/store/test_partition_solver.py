"""Placement of partitions: XGNN's figures, exhaustive search on small machines."""

from __future__ import annotations

import itertools
import math

import pytest
from benchmarks.placing.machines import MACHINES, machine

from peergraph.memory.table.partitions import Partitions, choose_sources
from peergraph.memory.topology.rates import Matrix
from peergraph.memory.topology.topology import Topology
from peergraph.store.placement.partition_solver import solve
from tests.named_case import named_case

PAIRS_OF_4 = list(itertools.combinations(range(4), 2))


def from_links(count: int, links: dict[tuple[int, int], float]) -> Topology:
    bandwidth = [[900.0 if i == j else 0.0 for j in range(count)] for i in range(count)]
    for (a, b), rate in links.items():
        bandwidth[a][b] = bandwidth[b][a] = rate
    return Topology.from_matrix(bandwidth, 10, memory=1)


def assert_valid(partitions: Partitions, topology: Topology) -> None:
    """Every GPU reads every partition from itself or a neighbour that stores it."""
    count = topology.num_gpus
    assert len(partitions.stored) == len(partitions.source) == count
    for gpu, source in enumerate(partitions.source):
        assert len(source) == count
        for part, holder in enumerate(source):
            assert part in partitions.stored[holder]
            assert holder == gpu or holder in topology.neighbors(gpu)
            assert holder == gpu or part not in partitions.stored[gpu]


def assert_uses_all_links(partitions: Partitions, topology: Topology) -> None:
    counts = partitions.access_counts()
    for gpu in range(topology.num_gpus):
        assert all(counts[gpu][j] for j in topology.neighbors(gpu))


def test_every_gpu_reads_every_partition() -> None:
    for name in MACHINES:
        with named_case(name):
            topology = machine(name)
            assert_valid(solve(topology), topology)


def test_dgx1_as_in_figure_7() -> None:
    """One extra partition on each GPU, every link used, and as much as its bandwidth asks for."""
    topology = machine("dgx1")
    partitions = solve(topology)
    assert [len(parts) for parts in partitions.stored] == [2] * 8
    assert all(gpu in parts for gpu, parts in enumerate(partitions.stored))
    assert_uses_all_links(partitions, topology)
    # 6 partitions come over 6 links of 25 GB/s.
    assert partitions.min_bandwidth(topology.bulk.bandwidth) == 25e9


COPIES = [
    ("single", 1, 1),
    ("pcie2", 2, 4),
    ("full4", 1, 4),
    ("full8", 1, 8),
    ("full16", 1, 16),
    ("dgx1-clique4", 1, 4),
    ("dgx1-ring4", 2, 8),
    ("dgx1-6", 2, 12),
    # GPU 4 has one neighbour, so two GPUs hold five partitions (XGNN 6.4: unused memory).
    ("dgx1-5", 3, 9),
]


def test_partitions_with_copies_of_hot_rows() -> None:
    for name, copies, total in COPIES:
        with named_case(name):
            partitions = solve(machine(name))
            assert partitions.copies == copies
            assert sum(map(len, partitions.stored)) == total


def test_six_gpus_as_in_the_paper() -> None:
    """XGNN 6.6: the solver stores 2 of 6 partitions on a GPU."""
    assert solve(machine("dgx1-6")).stored_share == pytest.approx(2 / 6)


def exhaustive(topology: Topology) -> tuple[float, float, float]:
    """The best placement by balance, copies and slowest link, of all there are."""
    count, bandwidth = topology.num_gpus, topology.bulk.bandwidth
    cells = [(g, p) for g in range(count) for p in range(count) if g != p]
    best: tuple[float, float, float] = (-math.inf, -math.inf, 0.0)
    for bits in range(1 << len(cells)):
        stored = [{g} for g in range(count)]
        for k, (g, p) in enumerate(cells):
            if bits >> k & 1:
                stored[g].add(p)
        key = (-max(map(len, stored)), -sum(map(len, stored)))
        if key >= best[:2] and (rate := exhaustive_bandwidth(stored, bandwidth)):
            best = max(best, (*key, rate))
    return best


def exhaustive_bandwidth(stored: list[set[int]], bandwidth: Matrix) -> float:
    """XGNN's MinBandwidth with the best sources; 0 where a GPU does not reach a partition."""
    least = math.inf
    for gpu, row in enumerate(bandwidth):
        far = [p for p in range(len(stored)) if p not in stored[gpu]]
        holders = [[j for j, r in enumerate(row) if r and p in stored[j]] for p in far]
        rates = [
            min((row[j] / choice.count(j) for j in choice), default=math.inf)
            for choice in itertools.product(*holders)
        ]
        least = min(least, max(rates, default=0.0), row[gpu] / len(stored[gpu]))
    return least


def test_four_gpus_against_exhaustive_search() -> None:
    for mask in range(1, 1 << 6, 3):
        with named_case("links", mask):
            links = {
                pair: 50.0 if (mask + k) % 3 else 25.0
                for k, pair in enumerate(PAIRS_OF_4)
                if mask >> k & 1
            }
            topology = from_links(4, links)
            partitions = solve(topology)
            assert_valid(partitions, topology)
            copies, total, rate = exhaustive(topology)
            assert partitions.copies == -copies
            num_copies = sum(map(len, partitions.stored))
            # Balance comes first at every step, which can cost one copy more than there must be.
            assert -total <= num_copies <= 1 - total
            if num_copies == -total:
                assert partitions.min_bandwidth(topology.bulk.bandwidth) == pytest.approx(rate)


def test_links_of_one_direction() -> None:
    topology = Topology.from_matrix([[900, 50], [0, 900]], 10, memory=1)
    partitions = solve(topology)
    assert partitions.stored == ((0,), (0, 1))
    assert partitions.source == ((0, 1), (1, 1))


@pytest.mark.parametrize("neighbors", [(1,), (1, 4), (1, 2, 4, 8)])
def test_sixteen_gpus(neighbors: tuple[int, ...]) -> None:
    links = {(g, (g + k) % 16): 25.0 * k for g in range(16) for k in neighbors}
    topology = from_links(16, links)
    partitions = solve(topology)
    assert_valid(partitions, topology)
    reach = max(len(topology.neighbors(g)) + 1 for g in range(16))
    # Not always the fewest: the search is bounded.
    assert partitions.copies <= -(-16 // reach) + 2


def test_sources_share_links_by_bandwidth() -> None:
    # Partitions 1, 2, 3 are on GPUs 1 and 2; the link to 1 carries two of them as fast.
    stored = [0b0001, 0b1110, 0b1110, 0b1000]
    source, rate = choose_sources(stored, (900.0, 50.0, 25.0, 0.0), 0)
    assert rate == 25.0
    assert sorted(source[1:]) == [1, 1, 2]


def test_partitions_print() -> None:
    text = str(solve(machine("dgx1-ring4")))
    assert "at most 2 on each GPU" in text
    assert "GPU 3 stores" in text
