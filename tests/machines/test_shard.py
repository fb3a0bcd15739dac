"""Rows of tables split over machines: the same batches as on one machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.loader import NeighborLoader

import peergraph_pyg
from peergraph.memory import DistributedTable, Group, Machines
from tests.adapters.pyg.graphs import random_data
from tests.machines.hosts import device_of_rank, run_on_hosts
from tests.named_case import named_case

_HOT = 0.25


def _tensors(batch: Any) -> dict[Any, Tensor]:
    """All tensors of a batch."""
    storages = batch.stores
    return {
        (getattr(s, "_key", None), name): value.cpu()
        for s in storages
        for name, value in s.items()
        if isinstance(value, Tensor)
    }


def _same(found: Iterable[Any], expected: Iterable[Any]) -> int:
    """Checks that batches are equal, bit for bit, and returns their number."""
    count = 0
    for mine, other in zip(found, expected, strict=True):
        left, right = _tensors(mine), _tensors(other)
        assert left.keys() == right.keys()
        for name, value in left.items():
            assert value.dtype == right[name].dtype, name
            assert torch.equal(value, right[name]), name
        count += 1
    return count


def _shared(device: torch.device, data: Any, machines: str, **options: Any) -> Any:
    machine = Group.current(device=device, timeout=60).machines
    mine = data if machine.is_first_rank else None
    return peergraph_pyg.share(mine, device=device, machines=machines, **options)


def _uneven_seeds(machines: Machines, count: int) -> Tensor:
    """Different numbers of seeds; the last rank has none."""
    if machines.rank == machines.world_size - 1:
        return torch.empty(0, dtype=torch.int64)
    return torch.arange(count)[machines.rank : count - 5 * machines.rank : machines.world_size]


def _homogeneous(device: torch.device) -> None:
    data = random_data()
    machines = Group.current(device=device).machines
    split = _shared(device, data, "shard", hot_ratio=_HOT)
    whole = _shared(device, data, "replicate")
    store = peergraph_pyg.store_of(split)
    assert isinstance(store.node_table("x"), DistributedTable)
    assert isinstance(store.edge_table("edge_attr", store.edge_types[0]), DistributedTable)
    assert not isinstance(store.node_table("y"), DistributedTable)
    seeds = _uneven_seeds(machines, data.num_nodes)
    with named_case("epochs with different numbers of batches"):
        batches = []
        for source in (split, whole):
            torch.manual_seed(machines.rank)
            loader = NeighborLoader(
                source, [4, 3], input_nodes=seeds, batch_size=4, shuffle=len(seeds) > 0
            )
            batches.append([batch for _ in range(2) for batch in loader])
        _same(*batches)
    store.close()
    peergraph_pyg.store_of(whole).close()


@pytest.mark.parametrize("hosts", ["abab"])
def test_batches(hosts: str) -> None:
    run_on_hosts(_run, hosts)


def _run() -> None:
    _homogeneous(device_of_rank("cpu"))
