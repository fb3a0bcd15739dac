"""The ranks that transfer rows between machines."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

from peergraph.memory.distributed.machine_split import MachineSplit
from peergraph.memory.distributed.routes import Routes, numbers_of, split_keys
from peergraph.memory.group.machines import Machines, Place

_ROWS, _HOT = 101, 13


@pytest.mark.parametrize("hosts", ["ab", "aabb", "abbb", "abca", "aaaabbc", "cababac"])
def test_sorted_keys_are_messages(hosts: str) -> None:
    places = [Place(host, "", "") for host in hosts]
    for rank in range(len(hosts)):
        machines = Machines(rank, places)
        mine = machines.local_ranks.index(rank)
        split = MachineSplit(_ROWS, _HOT, machines.count, machines.index)
        fetched: list[list[int]] = [[] for _ in machines.local_ranks]
        sent: defaultdict[int, list[int]] = defaultdict(list)
        remote = []
        for row in range(_HOT, _ROWS):
            number, machine = divmod(row - _HOT, machines.count)
            if machine == machines.index:
                continue
            remote.append(row)
            senders, fetcher = machines.ranks[machine], number % len(machines.local_ranks)
            fetched[fetcher].append(number)
            if fetcher == mine:
                sent[senders[number % len(senders)]].append(number)
        routes = Routes(machines, torch.device("cpu"))
        keys = routes.keys(split, torch.tensor(remote).flip(0)).unique().numpy()
        assert len(keys) == len(remote)
        by_fetcher = split_keys(keys, routes.fetcher_bounds)
        assert [sorted(numbers_of(part).tolist()) for part in by_fetcher] == list(
            map(sorted, fetched)
        )
        assert routes.partners == sorted(sent)
        by_partner = split_keys(by_fetcher[mine], routes.partner_bounds)
        assert [numbers_of(part).tolist() for part in by_partner] == [
            sent[partner] for partner in routes.partners
        ]
