"""Predicted times of sums, against the formulas of a machine with round figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from benchmarks.placing.machines import machine

from peergraph.fullgraph.exchange.mode_cost import MODES, quickest, sum_costs
from peergraph.fullgraph.layout.volume import Volume
from peergraph.memory import Topology
from peergraph.memory.device.default_machine import WorkRates
from tests.named_case import named_case

from .partition_graphs import brute_force_volume, edge_graphs

OWN, LINK = 1000.0, 100.0


STAGE = 5e-5  # seconds of launches


def round_machine(count: int, link: float = LINK, cache: int = 1) -> Topology:
    topology = Topology.from_matrix(
        [[OWN if i == j else link for j in range(count)] for i in range(count)],
        10.0,
        memory=1 << 30,
        ingress=[link if count > 1 else 0.0] * count,
    )
    return replace(topology, caches=(cache,) * count)


def reads(edges: int, width: int, cached: float = 0.0) -> float:
    """Seconds in which rows of so many edges are read, with 8 bytes of each edge and slice."""
    slices = -(-width // 512)
    memory, cache = max(width, 128) + 8 * slices, width + 8 * slices
    return edges * (cached * cache / 2 + (1 - cached) * memory) / (2.35 * OWN)


def test_two_ranks() -> None:
    volume = Volume(((50, 20), (10, 50)), ((300, 100), (40, 360)))
    rows, width = (60, 70), 256
    costs = sum_costs(volume, rows, rows, width, round_machine(2))

    def shares(edges: int, count: int) -> float:
        return reads(edges, width, 0.5 / (count * width))

    # Rank 0 packs 10 rows, receives 20 while it sums 300 edges, then sums 100; the sums are
    # written, then read and written. Copies are read and written.
    row = width / (2 * OWN)
    first = shares(300, 60) + row * 60 + 10 * width / OWN
    rank_0 = max(first, 20 * width / LINK) + shares(100, 20) + row * (2 * 60 + 20 + 10)
    first = shares(360, 70) + row * 70 + 20 * width / OWN
    rank_1 = max(first, 10 * width / LINK) + shares(40, 10) + row * (2 * 70 + 10 + 20)
    assert costs["halo"].seconds == pytest.approx(max(rank_0, rank_1) + 2 * STAGE)
    assert costs["halo"].received == (20 * width, 10 * width)
    assert costs["halo"].buffers == ((20 + 10) * width, (10 + 20) * width)
    # The blocks take longer to arrive than the local sums.
    waits = width * 70 / LINK
    first = shares(300, 60) + row * 60
    rank_0 = max(first, waits) + shares(100, 70) + row * (2 * 60 + 70 + 60)
    first = shares(360, 70) + row * 70
    rank_1 = max(first, width * 60 / LINK) + shares(40, 60) + row * (2 * 70 + 60 + 70)
    assert costs["blocks"].seconds == pytest.approx(max(rank_0, rank_1) + 2 * STAGE)
    assert costs["blocks"].received == (70 * width, 60 * width)
    assert costs["blocks"].buffers == (70 * width, 60 * width)
    # Rank 0 publishes 10 rows.
    links = 10 * width / OWN + 100 * width / LINK + row * 60 + STAGE
    assert costs["in_kernel"].seconds == pytest.approx(links)
    assert costs["in_kernel"].received == (100 * width, 40 * width)
    assert costs["in_kernel"].buffers == (10 * width, 70 * width)  # few of the rows, or all


def test_nothing_is_exchanged_by_one_rank() -> None:
    written = 9 * 4 / (2 * OWN)
    for cached, cache, edges in ((0.0, 0, 30), (1.0, 36, 30), (0.25, 18, 30), (1.0, 1, 128 * 9)):
        volume = Volume(((5,),), ((edges,),))
        costs = sum_costs(volume, (9,), (9,), 4, round_machine(1, cache=cache))
        assert set(costs) == set(MODES)
        for cost in costs.values():
            assert cost.seconds == pytest.approx(reads(edges, 4, cached) + written + STAGE)
            assert cost.received == cost.buffers == (0,)
    wide = sum_costs(Volume(((5,),), ((30,),)), (9,), (9,), 1200, round_machine(1, cache=0))
    assert wide["blocks"].seconds == pytest.approx(reads(30, 1200) + 300 * written + STAGE)


MEASURED = {
    # On H200s, in milliseconds: ranks, columns, then blocks, halo and in the kernel.
    "products": [
        (1, 47, 5.8, None, None),
        (1, 128, 14.6, None, None),
        (1, 602, 77.6, None, None),
        (2, 16, 2.02, 2.74, 7.21),
        (2, 64, 3.45, 4.17, 24.0),
        (2, 128, 7.48, 8.19, 47.5),
    ],
    "reddit": [
        (1, 41, 2.59, None, None),
        (1, 128, 6.6, None, None),
        (1, 602, 32.0, None, None),
        (2, 16, 0.684, 0.754, 6.84),
        (2, 64, 1.70, 1.77, 22.5),
        (2, 128, 3.49, 3.56, 44.1),
    ],
}
GRAPHS = {"products": (2_449_032, 126_200_000), "reddit": (232_968, 114_800_000)}


def test_predictions_are_near_what_was_measured() -> None:
    for graph, rows in MEASURED.items():
        nodes, edges = GRAPHS[graph]
        for ranks, columns, *milliseconds in rows:
            block = nodes // ranks
            rows_by_pair = ((int(0.98 * block),) * ranks,) * ranks
            volume = Volume(rows_by_pair, ((edges // ranks**2,) * ranks,) * ranks)
            h200s = machine("full2").subset(range(ranks))
            counts = (block,) * ranks
            costs = sum_costs(volume, counts, counts, 4 * columns, h200s)
            for mode, measured in zip(("blocks", "halo", "in_kernel"), milliseconds, strict=True):
                with named_case(graph, ranks, columns, mode):
                    if measured is not None:
                        assert 1e3 * costs[mode].seconds == pytest.approx(measured, rel=0.3)
                        if mode == "in_kernel":
                            assert 1e3 * costs[mode].seconds == pytest.approx(measured, rel=0.06)


def test_in_kernel_has_to_be_clearly_quicker() -> None:
    seconds = {"halo": 6.0, "blocks": 7.0, "in_kernel": 4.1}
    assert quickest(seconds, MODES, WorkRates()) == "halo"
    assert quickest({**seconds, "in_kernel": 3.9}, MODES, WorkRates()) == "in_kernel"
    assert quickest({**seconds, "in_kernel": 3.9}, ["blocks", "halo"], WorkRates()) == "halo"
    assert quickest(seconds, ["in_kernel"], WorkRates()) == "in_kernel"


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
                senders = [q for q in range(ranks) if q != rank and rows[rank][q]]
                assert blocks[rank] == 16 * sum(counts[q] for q in senders)
            if not any(volume.received):
                assert not any((*halo, *blocks, *in_kernel))


def test_machines_without_links_have_no_kernel_mode() -> None:
    volume = Volume(((1, 1), (1, 1)), ((1, 1), (1, 1)))
    costs = sum_costs(volume, (5, 5), (5, 5), 4, machine("pcie2"))
    assert set(costs) == {"halo", "blocks"}
    with pytest.raises(ValueError, match="topology must have 2 GPUs, as many as ranks, got 4"):
        sum_costs(volume, (5, 5), (5, 5), 4, machine("full4"))
