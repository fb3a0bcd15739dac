"""Draws by weights, with replacement and among what is not in the future: are they fair?"""

from __future__ import annotations

from itertools import combinations, permutations, product

import numpy as np
import pytest
import torch
from scipy import stats

from peergraph.reference.weighted_temporal import exponential
from peergraph.sampling import NeighborSampler
from tests.named_case import named_cases
from tests.sampling.plain_store import EDGE, NODE, PlainStore, csc_with_degrees
from tests.sampling.uniformity import LEAST_P, assert_uniform

WEIGHTS = [
    [1.0, 2.0, 3.0],
    [0.5, 0.25, 8.0, 1.0],
    [1e-3, 1.0, 1.0, 0.0, 2.0],
    [3.0, 1.0, 1.0, 2.0, 1.0, 4.0],
]


def drawn(
    device: torch.device,
    fanout: int,
    times: int,
    *,
    degree: int = 0,
    weights: list[float] | None = None,
    node_times: list[int] | None = None,
    seed_time: int = 0,
    replace: bool = False,
) -> np.ndarray:
    """[times, fanout] neighbours of one node, each time as a seed of its own."""
    degree = degree or len(weights or node_times or [])
    store = PlainStore.homogeneous(csc_with_degrees([degree]), device=device)
    options: dict[str, object] = {}
    if weights is not None:
        store.add_table(EDGE, "w", np.array(weights))
        options["weights"] = "w"
    if node_times is not None:
        store.add_table(NODE, "t", np.array(node_times))
        options["node_time"] = "t"
    sampler = NeighborSampler(store, [fanout], edge_ids=False, replace=replace, **options)
    sample = sampler.sample(
        torch.zeros(times, dtype=torch.int64),
        fanout,
        seed_time=torch.full((times,), seed_time) if node_times else None,
    )
    assert sample.num_sampled_edges[EDGE] == [times * fanout]
    return sample.nodes[NODE][sample.row[EDGE]].view(times, fanout).cpu().numpy()


def assert_follows(outcomes: np.ndarray, chances: dict[tuple[int, ...], float]) -> None:
    """Chi-square test of rows against the probability of each row."""
    assert sum(chances.values()) == pytest.approx(1)
    distinct, counts = np.unique(outcomes, axis=0, return_counts=True)
    counted = {tuple(row): int(count) for row, count in zip(distinct.tolist(), counts, strict=True)}
    possible = {outcome: p for outcome, p in chances.items() if p > 0}
    assert set(counted) <= set(possible)
    observed = np.array([counted.get(outcome, 0) for outcome in possible])
    expected = np.array(list(possible.values())) * len(outcomes)
    usual = expected >= 5  # rare ones together, as the test is one for large counts
    observed = np.append(observed[usual], observed[~usual].sum())
    expected = np.append(expected[usual], expected[~usual].sum())
    usable = expected > 0
    statistic = ((observed - expected)[usable] ** 2 / np.maximum(expected[usable], 1)).sum()
    assert stats.chi2.sf(statistic, max(1, usable.sum() - 1)) > LEAST_P


def chances_one_by_one(weights: list[float], fanout: int) -> dict[tuple[int, ...], float]:
    """Of each set of neighbours, when they are drawn one after the other without replacement."""
    chances = dict.fromkeys(combinations(range(len(weights)), fanout), 0.0)
    for order in permutations(range(len(weights)), fanout):
        left, chance = sum(weights), 1.0
        for i in order:
            chance *= weights[i] / left if left > 0 else 0
            left -= weights[i]
        chances[tuple(sorted(order))] += chance
    return chances


@named_cases(
    ("weights", "fanout"),
    [
        (w, fanout) for w in WEIGHTS for fanout in (1, 2, 3) if fanout != len(w)
    ],  # else all are taken
)
def test_weights_without_replacement(
    device: torch.device, weights: list[float], fanout: int
) -> None:
    outcomes = drawn(device, fanout, 20_000, weights=weights)
    assert_follows(np.sort(outcomes, axis=1), chances_one_by_one(weights, fanout))


@named_cases("weights", WEIGHTS)
@named_cases("fanout", [1, 4, 40])
def test_weights_with_replacement(device: torch.device, weights: list[float], fanout: int) -> None:
    outcomes = drawn(device, fanout, 40_000 // fanout, weights=weights, replace=True)
    chances = {(i,): w / sum(weights) for i, w in enumerate(weights)}
    assert_follows(outcomes.reshape(-1, 1), chances)


def test_draws_with_replacement_are_independent(device: torch.device) -> None:
    weights = [1.0, 2.0, 3.0]
    outcomes = drawn(device, 2, 20_000, weights=weights, replace=True)
    chances = {(i, j): weights[i] * weights[j] / 36 for i in range(3) for j in range(3)}
    assert_follows(outcomes, chances)


@pytest.mark.parametrize(("degree", "fanout"), [(2, 2), (3, 3), (7, 2)])
def test_with_replacement(device: torch.device, degree: int, fanout: int) -> None:
    outcomes = drawn(device, fanout, 40 * degree**fanout, degree=degree, replace=True)
    assert_uniform(outcomes, degree**fanout)


def test_weights_of_a_hub(device: torch.device) -> None:
    weights = (np.arange(3000) % 3 + 1.0).tolist()
    for replace in (False, True):
        outcomes = drawn(device, 5, 4000, weights=weights, replace=replace)
        assert_follows(outcomes.reshape(-1, 1) % 3, {(i,): (i + 1) / 6 for i in range(3)})


def test_weightless_edges_come_last(device: torch.device) -> None:
    weights = [0.0, 1.0, 0.0, 1e-30, 0.0]
    outcomes = drawn(device, 3, 6000, weights=weights)
    assert (outcomes == 1).any(axis=1).all()
    assert (outcomes == 3).any(axis=1).all()
    others = outcomes[~np.isin(outcomes, [1, 3])]
    assert_uniform(others.reshape(-1, 1), 3)
    replaced = drawn(device, 3, 6000, weights=[0.0, 0.0, 0.0, 0.0], replace=True)
    assert_uniform(replaced.reshape(-1, 1), 4)


@pytest.mark.parametrize("replace", [False, True])
@named_cases("node_times", [[5, 0, 9, 3, 5, 7, 2], [0, 2, 3, 5, 5, 7, 9], [5, 5, 5, 5]])
def test_uniform_among_the_past(device: torch.device, node_times: list[int], replace: bool) -> None:
    past = [i for i, t in enumerate(node_times) if t <= 5]
    for fanout in (1, 2, 3):
        outcomes = drawn(
            device, fanout, 12_000, node_times=node_times, seed_time=5, replace=replace
        )
        if replace:
            sets = list(product(past, repeat=fanout))
        else:
            sets, outcomes = list(combinations(past, fanout)), np.sort(outcomes, axis=1)
        assert_follows(outcomes, dict.fromkeys(sets, 1 / len(sets)))


@pytest.mark.parametrize("ordered", [False, True])
def test_uniform_among_the_past_of_a_hub(device: torch.device, ordered: bool) -> None:
    node_times = np.random.default_rng(6).permutation(3000)
    node_times = np.sort(node_times) if ordered else node_times
    outcomes = drawn(device, 40, 2000, node_times=node_times.tolist(), seed_time=999)
    assert all(np.unique(row).size == 40 for row in outcomes)
    assert (node_times[outcomes] <= 999).all()
    assert (np.diff(node_times[outcomes], axis=1) > 0).all()
    assert_uniform(node_times[outcomes].reshape(-1, 1), 1000)


def test_exponential() -> None:
    randoms = np.random.default_rng(5).integers(0, 2**64, 3000, dtype=np.uint64).tolist()
    values = [exponential(r) for r in [0, 2**64 - 1, 2**63, 2**63 + 2**62, *randoms]]
    middles = [((r >> 12) * 2 + 1) * 2.0**-53 for r in [0, 2**64 - 1, 2**63, 2**63 + 2**62]]
    np.testing.assert_allclose(values[:4], -np.log(middles), rtol=1e-15)
    assert stats.kstest(values[4:], "expon").pvalue > LEAST_P
