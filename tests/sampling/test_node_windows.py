"""Negatives in windows of time, against plain loops and distributions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from peergraph.sampling import NodeWindows, hard_negatives, in_batch_negatives
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Store

LEAST, MOST = -(2**63), 2**63 - 1
TIMES = torch.arange(1000).flip(0) // 2  # two nodes of each time, in falling order


@pytest.fixture
def store(device: torch.device) -> Any:
    edges = {EDGE: EdgeSource(coo=torch.tensor([[0, 1], [1, 0]]))}
    tables = {NODE: {"time": TIMES, "wide": torch.zeros(1000, 2, dtype=torch.int64)}}
    source = GraphSource({NODE: len(TIMES)}, edges, tables)
    with Store.build(source, plan="host", device=device) as built:
        yield built


def windows_of(store: Store, *windows: tuple[int, int]) -> NodeWindows:
    earliest, latest = torch.tensor(windows).t()
    return NodeWindows(store, NODE, "time", latest, earliest)


def counted(windows: NodeWindows, positive: int, weights: Tensor | None = None) -> Tensor:
    """How often each node is drawn for a positive."""

    def draw_nodes(count: int) -> Tensor:
        if weights is None:
            return torch.randint(len(TIMES), (count,))
        return torch.multinomial(weights, count, replacement=True)

    torch.manual_seed(3)
    drawn = windows.draw(torch.full((4000,), positive), draw_nodes, weights)
    return torch.bincount(drawn, minlength=len(TIMES))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("window", [(LEAST, 400), (100, 299), (250, 254), (8, 8)])
def test_nodes_are_drawn_among_those_in_the_window(
    store: Store, window: tuple[int, int], weighted: bool
) -> None:
    """Wide windows by rejection; narrow ones, in part, by reading all times."""
    weights = None
    if weighted:
        weights = (torch.arange(1000) % 3).float()
    counts = counted(windows_of(store, (0, 0), window), 1, weights)
    first, last = window
    inside = (first <= TIMES) & (last >= TIMES)
    expected = inside.double() * (1 if weights is None else weights.double())
    assert int(counts[expected == 0].sum()) == 0
    expected = expected[expected > 0]
    observed = counts[inside if weights is None else inside & (weights > 0)]
    assert stats.chisquare(observed, 4000 * expected / expected.sum()).pvalue > 1e-4


def test_nodes_with_one_time_of_many(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejection alone would not find them; the times are read a few rows at a time."""
    monkeypatch.setattr("peergraph.sampling.negative.node_windows._ROUNDS", (1,))
    monkeypatch.setattr("peergraph.sampling.negative.node_windows._ROWS_AT_ONCE", 64)
    counts = counted(windows_of(store, (123, 124)), 0)
    at = ((TIMES >= 123) & (TIMES <= 124)).nonzero().view(-1)
    assert int(counts[at].sum()) == 4000
    assert stats.chisquare(counts[at]).pvalue > 1e-4


@pytest.mark.parametrize("window", [(LEAST, -1), (500, MOST), (30, 20)])
def test_windows_without_nodes_take_the_oldest(store: Store, window: tuple[int, int]) -> None:
    counts = counted(windows_of(store, window), 0)
    assert counts.nonzero().view(-1).tolist() == [998]


def test_in_batch_negatives(store: Store) -> None:
    random = torch.Generator().manual_seed(0)
    source = torch.randint(20, (150,), generator=random)
    destination = torch.randint(1000, (150,), generator=random)
    latest = torch.randint(100, 500, (150,), generator=random)
    windows = windows_of(store, *((int(t) - 90, int(t)) for t in latest))
    got = in_batch_negatives(source, destination, 60, 5, num_nodes=1000, windows=windows)
    positives = set(zip(source.tolist(), destination.tolist(), strict=True))
    for i in range(150):
        inside = {n for n in destination.tolist() if latest[i] - 90 <= TIMES[n] <= latest[i]}
        fitting = {n for n in inside if (int(source[i]), n) not in positives}
        assert fitting, "of 150 destinations, about 27 are in a window"
        assert set(got.destination[i].tolist()) <= fitting
    outside = windows_of(store, *[(700, 800)] * 150)
    got = in_batch_negatives(source, destination, 2, 5, num_nodes=1000, windows=outside)
    assert set(got.destination.flatten().tolist()) == {998}


def test_in_batch_negatives_are_drawn_as_often_as_they_are_destinations(store: Store) -> None:
    source = torch.arange(30)
    destination = torch.cat(
        [torch.full((15,), 100), torch.full((10,), 900), torch.arange(800, 805)]
    )
    windows = windows_of(store, *[(0, 100)] * 30)
    got = in_batch_negatives(source, destination, 4000, 1, num_nodes=1000, windows=windows)
    # Node 100 is too late. Positive 15 is (15, 900): the last five are left to it.
    for positive, expected in ((0, [10, 1, 1, 1, 1, 1]), (15, [0, 1, 1, 1, 1, 1])):
        counts = torch.bincount(got.destination[positive], minlength=1000)
        observed = counts[[900, 800, 801, 802, 803, 804]]
        assert int(observed.sum()) == 4000
        shares = torch.tensor(expected, dtype=torch.float64)
        fits = shares > 0
        assert int(observed[~fits].sum()) == 0
        assert stats.chisquare(observed[fits], 4000 * (shares / shares.sum())[fits]).pvalue > 1e-4


def test_hard_negatives(store: Store, device: torch.device) -> None:
    candidates = torch.tensor([[5, 900, 7, 800, -1], [8, -1, -1, -1, -1]], device=device)
    source = torch.tensor([0, 1, 0], device=device)
    windows = windows_of(store, (0, 120), (0, 120), (480, 600)).to(device)
    got = hard_negatives(candidates, source, 4000, 3, num_nodes=1000, windows=windows)
    first, second, third = got.destination.cpu()
    for drawn, allowed in ((first, [800, 900]), (third, [5, 7])):
        counts = torch.bincount(drawn, minlength=1000)
        assert int(counts[allowed].sum()) == 4000
        assert stats.chisquare(counts[allowed]).pvalue > 1e-4
    # Node 8 is too late for its source, which gets random nodes.
    counts = torch.bincount(second, minlength=1000)
    inside = TIMES <= 120
    assert int(counts[~inside].sum()) == 0
    assert stats.chisquare(counts[inside]).pvalue > 1e-4


def test_errors(store: Store) -> None:
    with pytest.raises(TypeError, match="node_time: expected 'wide' to have one column"):
        NodeWindows(store, NODE, "wide", torch.arange(3))
    with pytest.raises(TypeError, match="latest: expected"):
        NodeWindows(store, NODE, "time", torch.rand(3))
    with pytest.raises(ValueError, match="earliest: expected 3 times as latest, got 2"):
        NodeWindows(store, NODE, "time", torch.arange(3), torch.arange(2))
    with pytest.raises(ValueError, match="windows: expected 2 as source, got 1"):
        in_batch_negatives(
            torch.arange(2),
            torch.arange(2),
            1,
            0,
            num_nodes=9,
            windows=windows_of(store, (0, 1)),
        )
