"""Predicted times of sums, against the formulas of a machine with round figures."""

from __future__ import annotations

import pytest
import torch

from peergraph.fullgraph.exchange.mode_cost import MODES, sum_costs
from peergraph.fullgraph.layout.volume import Volume
from peergraph.memory import Topology, machine
from tests.named_case import named_case

from .partition_graphs import brute_force_volume, edge_graphs

OWN, LINK = 1000.0, 100.0


def round_machine(count: int, link: float = LINK) -> Topology:
    return Topology.from_matrix(
        [[OWN if i == j else link for j in range(count)] for i in range(count)],
        10.0,
        memory=1 << 30,
        ingress=[link if count > 1 else 0.0] * count,
    )


def test_two_ranks() -> None:
    volume = Volume(((50, 20), (10, 50)), ((300, 100), (40, 360)))
    rows, width = (60, 70), 8
    costs = sum_costs(volume, rows, rows, width, round_machine(2))
    # Rank 0 packs 10 rows, receives 20 while it sums 300 edges, then sums 100; the sums are
    # written, then read and written.
    copies = 8 * 30 / OWN
    rank_0 = 8 * ((300 + 60) / OWN + 10 * 2 / OWN + (100 + 120) / OWN) + copies
    rank_1 = 8 * ((360 + 70) / OWN + 20 * 2 / OWN + (40 + 140) / OWN) + copies
    assert costs["halo"].seconds == pytest.approx(max(rank_0, rank_1))
    assert costs["halo"].received == (20 * width, 10 * width)
    assert costs["halo"].buffers == ((20 + 10) * width, (10 + 20) * width)
    # The blocks take longer to arrive than the local sums.
    waits = 8 * 70 / LINK
    copies = 8 * 130 / OWN
    rank_0 = max(8 * 360 / OWN, waits) + 8 * 220 / OWN + copies
    rank_1 = max(8 * 430 / OWN, 8 * 60 / LINK) + 8 * 180 / OWN + copies
    assert costs["blocks"].seconds == pytest.approx(max(rank_0, rank_1))
    assert costs["blocks"].received == (70 * width, 60 * width)
    assert costs["blocks"].buffers == (70 * width, 60 * width)
    assert costs["in_kernel"].seconds == pytest.approx(8 * (100 / LINK + 60 / OWN))
    assert costs["in_kernel"].received == (100 * width, 40 * width)
    assert costs["in_kernel"].buffers == (0, 0)


def test_nothing_is_exchanged_by_one_rank() -> None:
    costs = sum_costs(Volume(((5,),), ((30,),)), (9,), (9,), 4, round_machine(1))
    assert set(costs) == set(MODES)
    for cost in costs.values():
        assert cost.seconds == pytest.approx(4 * 39 / OWN)
        assert cost.received == cost.buffers == (0,)


def test_bytes_of_counted_graphs() -> None:
    ranks = 4
    part = torch.randint(ranks, (60,), generator=torch.Generator().manual_seed(0))
    counts = tuple(torch.bincount(part, minlength=ranks).tolist())
    for name, edges in edge_graphs().items():
        with named_case(name):
            rows, pairs = brute_force_volume(edges, part, part, ranks)
            volume = Volume(tuple(map(tuple, rows)), tuple(map(tuple, pairs)))
            costs = sum_costs(volume, counts, counts, 16, machine("full4"))
            halo, blocks, in_kernel = (costs[mode].received for mode in MODES)
            for rank in range(ranks):
                assert halo[rank] <= blocks[rank]
                assert halo[rank] <= in_kernel[rank]
                needed = [q for q in range(ranks) if q != rank and rows[rank][q]]
                assert blocks[rank] == 16 * sum(counts[q] for q in needed)
            if volume.total == 0:
                assert not any((*halo, *blocks, *in_kernel))


def test_machines_without_links_have_no_kernel_mode() -> None:
    volume = Volume(((1, 1), (1, 1)), ((1, 1), (1, 1)))
    costs = sum_costs(volume, (5, 5), (5, 5), 4, machine("pcie2"))
    assert set(costs) == {"halo", "blocks"}
    with pytest.raises(ValueError, match="topology must have 2 GPUs, as many as ranks, got 4"):
        sum_costs(volume, (5, 5), (5, 5), 4, machine("full4"))
