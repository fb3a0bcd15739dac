"""The rows of other machines that lists of ids need."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import peergraph
from peergraph.memory.distributed.found_rows import find_rows
from peergraph.memory.distributed.layout import Layout
from peergraph.memory.distributed.machine_split import MachineSplit
from peergraph.memory.distributed.routes import Routes, numbers_of
from peergraph.memory.distributed.wanted_rows import WantedRows, wanted_rows
from peergraph.memory.group.machines import Machines, Place
from tests.memory.split_layout import split_layout
from tests.memory.tables import random_ids

_HOSTS = ["a", "ab", "aabb", "abbb", "abca", "abbccdddd"]
_SHIFT = 40


def _reference(
    hosts: str, split: MachineSplit, order: list[int] | None, ids: list[int]
) -> tuple[list[int], list[int], list[int], list[tuple[int, int, int]]]:
    """Row by row: local rows, positions, slots, and the fetcher, sender and number of each row."""
    names = list(dict.fromkeys(hosts))
    ranks = [[r for r, host in enumerate(hosts) if host == name] for name in names]
    local, remote = [], []
    for position, user_id in enumerate(ids):
        row = user_id if order is None else order[user_id]
        number, machine = divmod(row - split.hot, split.machines)
        if row < split.hot:
            local.append(row)
        elif machine == split.index:
            local.append(split.hot + number)
        else:
            local.append(-1)
            sender = ranks[machine][number % len(ranks[machine])]
            fetcher = number % len(ranks[split.index])
            remote.append(((fetcher, sender, number), position))
    remote.sort()
    keys = sorted({key for key, _ in remote})
    return local, [p for _, p in remote], [keys.index(key) for key, _ in remote], keys


def _check(
    hosts: str, layout: Layout, order: Tensor | None, lists: list[Tensor], requests: WantedRows
) -> None:
    row_set = layout.sets[0]
    internal = None if order is None else order.tolist()
    joined = [i for ids in lists for i in ids.flatten().tolist()]
    _, _, _, keys = _reference(hosts, row_set.split, internal, joined)
    actual = requests.rows.keys.cpu().numpy()
    assert actual.dtype == np.int64
    routes = sorted({key[:2] for key in keys})
    assert numbers_of(actual).tolist() == [number for _, _, number in keys]
    assert len(set((actual >> _SHIFT).tolist())) == len(routes)
    assert (actual[1:] > actual[:-1]).all()
    ranks = len(layout.routes.fetcher_bounds) - 1
    for fetcher in range(ranks):
        part = requests.by_fetcher[fetcher]
        assert numbers_of(part).tolist() == [n for f, _, n in keys if f == fetcher]
    if keys:
        assert np.array_equal(np.concatenate(requests.by_fetcher), actual)
    for ids in lists:
        local, positions, _, own = _reference(
            hosts, row_set.split, internal, ids.flatten().tolist()
        )
        location = requests.rows.location_of(ids)
        assert location is not None
        assert location.local.tolist() == local
        assert sorted(location.positions.tolist()) == sorted(positions)
        slots = location.slots.tolist()
        assert sorted(set(slots)) == [keys.index(key) for key in own]
        assert all(local[p] == -1 for p in positions)
        expected = layout.routes.keys(
            row_set.split, row_set.internal_row(ids.to(location.local.device))[location.positions]
        )
        assert torch.equal(requests.rows.keys[location.slots], expected)


@pytest.mark.parametrize("hosts", _HOSTS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_of_a_list(hosts: str, dtype: torch.dtype, device: torch.device) -> None:
    rows, last = 101, len(hosts) - 1
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    for hot in (0, 13, rows):
        for numbers in (None, order.int(), order):
            layout = split_layout(hosts, rows, hot, device, numbers, rank=last if hot else 0)
            table = layout.tables[layout.sets[0]][0]
            for count in (0, 1, 5, 400):
                ids = random_ids(rows, (count,), dtype, seed=count).to(device)
                requests = wanted_rows([(table, ids)], layout)[layout.sets[0]]
                assert requests.mask == 1
                _check(hosts, layout, numbers, [ids], requests)


def test_slots_follow_keys_and_positions(device: torch.device) -> None:
    layout = split_layout("ab", 11, 3, device)
    ids = torch.tensor([[10, 4, 0], [10, 6, 4]], device=device)
    rows = find_rows(ids, layout.sets[0], layout.routes)
    assert rows.location.local.tolist() == [-1, -1, 0, -1, -1, -1]
    assert rows.location.positions.tolist() == [1, 5, 4, 0, 3]
    assert rows.location.slots.tolist() == [0, 0, 1, 2, 2]
    assert rows.keys.tolist() == rows.host_keys.tolist() == [0, 1, 3]


@pytest.mark.parametrize("remote", [True, False])
def test_all_or_none_on_another_machine(remote: bool, device: torch.device) -> None:
    layout = split_layout("ab", 50_000, 0, device)
    ids = torch.arange(1 if remote else 0, 50_000, 2, device=device)
    rows = find_rows(ids, layout.sets[0], layout.routes)
    numbers = torch.arange(25_000)
    if remote:
        assert torch.equal(rows.location.local, torch.full_like(ids, -1))
        assert torch.equal(rows.location.positions.cpu(), numbers)
        assert torch.equal(rows.location.slots.cpu(), numbers)
        assert torch.equal(rows.keys.cpu(), numbers)
    else:
        assert torch.equal(rows.location.local.cpu(), numbers)
        assert rows.location.positions.numel() == rows.keys.numel() == len(rows.host_keys) == 0


def test_many_ids_agree_with_torch(device: torch.device) -> None:
    """So many ids that a CPU uses several threads, and a GPU several blocks."""
    layout = split_layout("aabbb", 90_000, 1000, device)
    row_set, routes = layout.sets[0], layout.routes
    ids = random_ids(90_000, (200_000,), torch.int64)
    rows = find_rows(ids.to(device), row_set, routes)
    local = row_set.split.local_row(ids)
    (positions,) = torch.where(local == -1)
    routes_on_cpu = Routes(Machines(0, [Place(h, "", "") for h in "aabbb"]), torch.device("cpu"))
    keys = routes_on_cpu.keys(row_set.split, ids[positions])
    keys, by_key = keys.sort(stable=True)
    distinct, slots = keys.unique_consecutive(return_inverse=True)
    assert torch.equal(rows.location.local.cpu(), local)
    assert torch.equal(rows.location.positions.cpu(), positions[by_key])
    assert torch.equal(rows.location.slots.cpu(), slots)
    assert torch.equal(rows.keys.cpu(), distinct)
    assert torch.equal(torch.from_numpy(rows.host_keys), distinct)


def test_keys_of_more_than_32_bits(device: torch.device) -> None:
    rows = 3 << 33
    layout = split_layout("abc", rows, 5, device)
    ids = torch.tensor([rows - 1, 5, 0, rows - 2, rows - 1, rows - 3, 6], device=device)
    table = layout.tables[layout.sets[0]][0]
    _check("abc", layout, None, [ids], wanted_rows([(table, ids)], layout)[layout.sets[0]])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_several_lists(dtype: torch.dtype, device: torch.device) -> None:
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    layout = split_layout("abb", 60, 7, device, order)
    table = layout.tables[layout.sets[0]][0]
    lists = [
        random_ids(60, shape, dtype, seed=3).to(device) for shape in ((40,), (0,), (3, 4), (1,))
    ]
    lists.append(random_ids(60, (9,), torch.int64))  # on the CPU
    requests = [(table, ids) for ids in (*lists, lists[0])]
    _check("abb", layout, order, lists, wanted_rows(requests, layout)[layout.sets[0]])


def test_ids_out_of_range_on_the_cpu() -> None:
    layout = split_layout("ab", 10, 2, torch.device("cpu"))
    table = layout.tables[layout.sets[0]][0]
    good, bad = torch.tensor([1, 2, 3]), torch.tensor([4, 10])
    for lists in ([bad], [good, bad]):
        with pytest.raises(IndexError, match=r"ids\[1\] = 10 is out of range for a table of 10"):
            wanted_rows([(table, ids) for ids in lists], layout)


@pytest.mark.gpus(1)
@pytest.mark.parametrize("is_ordered", [False, True])
def test_ids_out_of_range_on_a_gpu(is_ordered: bool) -> None:
    device = torch.device("cuda", 0)
    layout = split_layout("ab", 10, 2, device, torch.arange(10) if is_ordered else None)
    ids = torch.tensor([1, 3, -1, 10, 3], device=device)
    with pytest.raises(IndexError, match=r"ids\[2\] = -1 is out of range for a table of 10 rows"):
        find_rows(ids, layout.sets[0], layout.routes)
    peergraph.synchronize()
    rows = find_rows(ids[:2], layout.sets[0], layout.routes)
    assert rows.location.positions.tolist() == [1]
