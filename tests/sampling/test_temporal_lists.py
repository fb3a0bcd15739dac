"""Temporal samples of lists that are sorted by time, unsorted, and both in one graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from peergraph.reference.picks import picks
from peergraph.reference.sampling import Csc
from peergraph.reference.weighted_temporal import Choice
from peergraph.sampling import NeighborSampler
from tests.named_case import named_case, named_cases
from tests.pairwise import pairwise
from tests.sampling.plain_store import (
    EDGE,
    INDEX_DTYPES,
    LAYOUTS,
    NODE,
    PlainStore,
    csc_with_degrees,
    random_csc,
)
from tests.sampling.reference_samples import assert_equals_reference

NODES = 120
SORTED = {"all lists": slice(0, None), "no list": slice(NODES, None), "half": slice(1, None, 2)}


def sort_lists(csc: Csc, times: np.ndarray, which: str) -> Csc:
    """Sorts the lists of the nodes ``SORTED[which]`` by the times of their edges."""
    order = np.arange(csc.indices.size)
    for node in range(NODES)[SORTED[which]]:
        at = slice(int(csc.indptr[node]), int(csc.indptr[node + 1]))
        order[at] = order[at][np.argsort(times[at], kind="stable")]
    ids = None if csc.edge_ids is None else csc.edge_ids[order]
    return Csc(csc.indptr, csc.indices[order], ids)


def temporal_store(
    rng: np.random.Generator,
    of: str,
    which: str,
    dtype: type,
    own_edge_ids: bool,
    device: torch.device,
    layout: str = "single",
    index_dtype: torch.dtype = torch.int64,
) -> tuple[PlainStore, np.ndarray]:
    """A store with a table "t" of few different times, so that many are equal; and its values."""
    csc = random_csc(rng, NODES, NODES, 12, own_edge_ids=own_edge_ids)
    edges = csc.indices.size
    times = rng.integers(0, 20, NODES if of == "node" else edges).astype(dtype)
    by_position = times[csc.indices if of == "node" else slice(None)]
    if of == "node" or own_edge_ids:
        if of == "edge":
            by_position = times[csc.edge_ids]
        csc = sort_lists(csc, by_position, which)
    else:  # the position is the id: the times are sorted, not the edges
        times = times[sort_lists(Csc(csc.indptr, np.arange(edges)), times, which).indices]
    store = PlainStore.homogeneous(
        csc, layout=LAYOUTS[layout], index_dtype=index_dtype, device=device
    )
    store.add_table(NODE if of == "node" else EDGE, "t", times)
    return store, times


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@named_cases(
    ("of", "which", "dtype", "strategy", "replace", "own_edge_ids", "layout", "index_dtype"),
    pairwise(
        ["node", "edge"],
        list(SORTED),
        [np.int32, np.int64],
        ["uniform", "last"],
        [False, True],
        [False, True],
        ["single", "renumbered", "three tiers"],
        INDEX_DTYPES,
    ),
)
def test_against_the_reference(
    device: torch.device,
    of: str,
    which: str,
    dtype: type,
    strategy: str,
    replace: bool,
    own_edge_ids: bool,
    layout: str,
    index_dtype: torch.dtype,
) -> None:
    rng = np.random.default_rng(41)
    store, times = temporal_store(rng, of, which, dtype, own_edge_ids, device, layout, index_dtype)
    seeds = {NODE: torch.from_numpy(rng.integers(0, NODES, 40))}
    # Some seeds are before all times, some after all.
    latest = {NODE: torch.from_numpy(rng.integers(-3, 23, 40))}
    starts = {NODE: latest[NODE] - torch.from_numpy(rng.integers(-2, 15, 40))}
    options = {"replace": replace, "temporal_strategy": strategy, f"{of}_time": "t"}
    for fanouts, window, start in [
        ([4, 3], None, None),
        ([1, 8, 2], None, None),
        ([-1, 2], 5, None),
        ([0, 2], None, None),
        ([4, 3], 9, None),
        ([3, 3], None, starts),
        ([2, -1], 7, starts),
    ]:
        with named_case(fanouts, window, start is None):
            choice = Choice(
                replace=replace,
                times=times,
                edge_time=of == "edge",
                last=strategy == "last",
                window=window,
            )
            sampler = NeighborSampler(store, fanouts, time_window=window, **options)
            assert (sampler._time_order is not None) == (which == "all lists")
            assert_equals_reference(
                store,
                sampler,
                seeds,
                6,
                choices={EDGE: choice},
                seed_time=latest,
                seed_start=start,
            )


def test_a_list_and_its_sorted_list_draw_alike(device: torch.device) -> None:
    # The neighbours that are admitted have the same places in both lists, so the draws, too.
    admitted, late = list(range(0, 60, 3)), 100
    unsorted = np.array([5 if i in admitted else late for i in range(60)])
    drawn = []
    for times in (unsorted, np.sort(unsorted)):
        store = PlainStore.homogeneous(csc_with_degrees([60]), device=device)
        store.add_table(EDGE, "t", times)
        sampler = NeighborSampler(store, [7], edge_time="t")
        sample = sampler.sample(torch.tensor([0]), 3, seed_time=torch.tensor([50]))
        drawn.append(sample.edge_ids[EDGE].tolist())
    places = sorted(picks(len(admitted), 7, 3, 0, 0))
    assert drawn == [[admitted[place] for place in places], places]


def test_hubs(device: torch.device) -> None:
    # Around the fanout up to which neighbours are drawn, and the lengths at which a block takes
    # over from a warp.
    for degree in (255, 256, 257, 2047, 2048, 2049, 2050, 6000):
        for ordered, fanout in [
            (False, 200),
            (True, 200),
            (False, 2048),
            (True, 2048),
            (True, 2049),
        ]:
            with named_case(degree, ordered, fanout):
                rng = np.random.default_rng(42)
                times = rng.integers(0, 1000, degree)
                times = np.sort(times) if ordered else times
                store = PlainStore.homogeneous(csc_with_degrees([degree]), device=device)
                store.add_table(EDGE, "t", times)
                assert_equals_reference(
                    store,
                    NeighborSampler(store, [fanout], edge_time="t"),
                    {NODE: torch.tensor([0, 0])},
                    7,
                    choices={EDGE: Choice(times=times, edge_time=True)},
                    seed_time={NODE: torch.tensor([1000, 990])},
                )


@named_cases(
    ("of", "which", "strategy"), pairwise(["node", "edge"], list(SORTED), ["uniform", "last"])
)
def test_threads(of: str, which: str, strategy: str) -> None:
    rng = np.random.default_rng(43)
    store, _ = temporal_store(rng, of, which, np.int64, of == "node", torch.device("cpu"))
    sampler = NeighborSampler(store, [5, 5], temporal_strategy=strategy, **{f"{of}_time": "t"})
    seeds = torch.from_numpy(rng.integers(0, NODES, 4000))
    latest = torch.from_numpy(rng.integers(-3, 23, 4000))
    samples = []
    for number in (1, 3, 8):
        with threads(number):
            samples.append(sampler.sample(seeds, 2, seed_time=latest))
    for other in samples[1:]:
        assert torch.equal(samples[0].row[EDGE], other.row[EDGE])
        assert torch.equal(samples[0].edge_ids[EDGE], other.edge_ids[EDGE])


def test_more_times_than_are_kept() -> None:
    # 100 lists of 90,000 neighbours: their times are read again for the choice.
    degree, targets, fanout = 90_000, 100, 5
    rng = np.random.default_rng(44)
    for ordered, dtype in [(False, np.int64), (False, np.int32), (True, np.int32)]:
        with named_case(ordered, dtype):
            times = rng.integers(0, 1000, degree).astype(dtype)
            times = np.sort(times) if ordered else times
            csc = csc_with_degrees([degree], num_nodes=degree)
            store = PlainStore.homogeneous(csc, device=torch.device("cpu"))
            store.add_table(EDGE, "t", times)
            latest = rng.integers(1, 1000, targets)
            for strategy in ("uniform", "last"):
                sampler = NeighborSampler(
                    store, [fanout], edge_time="t", temporal_strategy=strategy
                )
                sample = sampler.sample(
                    torch.zeros(targets, dtype=torch.int64), 8, seed_time=torch.from_numpy(latest)
                )
                want = []
                for target in range(targets):
                    admitted = np.flatnonzero(times <= latest[target])
                    chosen = (
                        admitted[np.argsort(times[admitted], kind="stable")][-fanout:]
                        if strategy == "last"
                        else admitted[sorted(picks(admitted.size, fanout, 8, 0, target))]
                    )
                    want += chosen[np.argsort(times[chosen], kind="stable")].tolist()
                assert sample.edge_ids[EDGE].tolist() == want


def test_writes_end_bisection(device: torch.device) -> None:
    rng = np.random.default_rng(46)
    store, times = temporal_store(rng, "edge", "all lists", np.int64, True, device)
    table = store.edge_table("t")
    sampler = NeighborSampler(store, [3, 2], edge_time="t")
    assert sampler._time_order is not None
    assert sampler._time_order.holds()
    unsorted = rng.permutation(times)
    store.add_table(EDGE, "t", unsorted)  # as rows that are written: other values, at their place
    table._parts[0].copy_(torch.from_numpy(unsorted))
    table.write_mark.value = 2
    seeds = {NODE: torch.arange(NODES)}
    latest = {NODE: torch.from_numpy(rng.integers(0, 20, NODES))}
    choices = {EDGE: Choice(times=unsorted, edge_time=True)}
    assert_equals_reference(store, sampler, seeds, 5, choices=choices, seed_time=latest)
    assert NeighborSampler(store, [3], edge_time="t")._time_order is None


def test_tables_that_may_change_unseen_are_read_whole(device: torch.device) -> None:
    rng = np.random.default_rng(47)
    store, _ = temporal_store(rng, "node", "all lists", np.int32, True, device)
    store.node_table("t").write_mark.value = None
    assert NeighborSampler(store, [3], node_time="t")._time_order is None


LEAST, MOST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max


@named_cases(("in_order", "last"), pairwise([True, False], [True, False]))
def test_windows_over_all_integers(device: torch.device, in_order: bool, last: bool) -> None:
    times = np.array([LEAST, LEAST, LEAST + 1, -(2**53) - 1, -(2**53), 0, 2**53, 2**53 + 1, MOST])
    times = times if in_order else times[[3, 8, 0, 1, 6, 7, 2, 5, 4]]
    store = PlainStore.homogeneous(csc_with_degrees([9]), device=device)
    store.add_table(EDGE, "t", times)
    strategy = "last" if last else "uniform"
    for latest in (LEAST, LEAST + 1, -(2**53), 0, 2**53 + 1, MOST):
        for window in (0, 1, 2**53, MOST):
            for start in (None, LEAST, -(2**53), 1, MOST):
                with named_case(latest, window, start):
                    for fanout in (-1, 2):
                        sampler = NeighborSampler(
                            store,
                            [fanout],
                            edge_time="t",
                            time_window=window,
                            temporal_strategy=strategy,
                        )
                        choice = Choice(times=times, edge_time=True, window=window, last=last)
                        assert_equals_reference(
                            store,
                            sampler,
                            {NODE: torch.tensor([0])},
                            3,
                            choices={EDGE: choice},
                            seed_time={NODE: torch.tensor([latest])},
                            seed_start=None if start is None else {NODE: torch.tensor([start])},
                        )


def test_windows_by_type(device: torch.device) -> None:
    """A number for each type; types without one have no lower limit."""
    rng = np.random.default_rng(48)
    sizes = {"a": 30, "b": 40, "c": 20}
    relations = {(s, "to", d): random_csc(rng, sizes[s], sizes[d], 8) for s in sizes for d in sizes}
    for of in ("node", "edge"):
        with named_case(of):
            store = PlainStore(sizes, relations, device=device)
            choices = {}
            if of == "node":
                windows = {"a": 3, "b": 8}
                tables = {t: rng.integers(0, 20, sizes[t]) for t in ("a", "b")}
            else:
                windows = {("a", "to", "b"): 3, ("c", "to", "c"): 8}
                keys = [*windows, ("b", "to", "a")]
                tables = {t: rng.integers(0, 20, relations[t].indices.size) for t in keys}
            for key, values in tables.items():
                store.add_table(key, "t", values)
                for edge_type in relations:
                    if key in (edge_type, edge_type[0]):
                        window = windows.get(key)
                        choices[edge_type] = Choice(
                            times=values, edge_time=of == "edge", window=window
                        )
            sampler = NeighborSampler(store, [3, 3], time_window=windows, **{f"{of}_time": "t"})
            seeds = {"b": torch.arange(40), "c": torch.arange(20)}
            latest = {t: torch.from_numpy(rng.integers(0, 22, len(i))) for t, i in seeds.items()}
            starts = {t: x - 6 for t, x in latest.items()}
            for start in (None, starts):
                assert_equals_reference(
                    store,
                    sampler,
                    seeds,
                    2,
                    choices=choices,
                    seed_time=latest,
                    seed_start=start,
                )
