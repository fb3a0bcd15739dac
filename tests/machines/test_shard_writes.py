"""Rows that are written, and samples that are made, on GPUs just before an exchange reads them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch_geometric.loader import NeighborLoader

import peergraph_pyg
from peergraph.memory import DistributedTable, Group
from tests.adapters.pyg.graphs import random_data
from tests.machines.hosts import device_of_rank, run_on_hosts
from tests.named_case import named_case

# About 0.2 s. Whoever does not wait for the writes reads long before them.
_CYCLES = 400_000_000


def _written() -> None:
    """Each rank writes its rows in the stream of its loop; one of them does so late."""
    device = device_of_rank("cuda")
    torch.cuda.set_device(device)
    group = Group.current(device=device, timeout=60)
    data = random_data()
    rank = dist.get_rank()
    # A rank without batches reads its rows in the session's threads.
    for num_seeds, late in (((24, 24), 0), ((24, 24), 1), ((24, 0), 1), ((0, 24), 0)):
        with named_case(num_seeds, late):
            mine = data if group.machines.is_first_rank else None
            shared = peergraph_pyg.share(mine, device=device, machines="shard", hot_ratio=0.25)
            store = peergraph_pyg.store_of(shared)
            table = store.node_table("x")
            assert isinstance(table, DistributedTable)
            every = torch.arange(table.local.rows, device=device)
            rows = table.local.gather(every) + 1
            seeds = torch.arange(num_seeds[rank])
            batches = iter(NeighborLoader(shared, [4, 3], input_nodes=seeds, batch_size=3))
            torch.cuda.synchronize()
            dist.all_reduce(torch.zeros(1))
            if rank == late:
                torch.cuda._sleep(_CYCLES)
            table.local.scatter(every, rows)
            for batch in batches:
                assert torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()] + 1)
            store.close()


def _check_late_sample() -> None:
    """A batch that needs no rows of other machines waits for its sample, in another stream too."""
    device = device_of_rank("cuda")
    torch.cuda.set_device(device)
    group = Group.current(device=device, timeout=60)
    mine = random_data() if group.machines.is_first_rank else None
    shared = peergraph_pyg.share(mine, device=device, machines="shard", hot_ratio=0.25)
    store = peergraph_pyg.store_of(shared)
    assert store.exchange is not None
    streams = store.exchange.streams
    assert None not in streams
    sample = torch.zeros(1, device=device)
    torch.cuda.synchronize()
    with store.exchange.open("a late sample") as session:
        with torch.cuda.stream(streams.ids):
            torch.cuda._sleep(_CYCLES)
            sample.fill_(1)
            fetched = session.request([])
        with torch.cuda.stream(streams.rows):
            fetched.send()
        with torch.cuda.stream(streams.batches):
            fetched.wait()
            assert sample.cpu().item() == 1
    store.close()


# Over Gloo, two ranks have one GPU. NCCL takes a GPU for each rank.
_NETWORKS = [
    pytest.param("cpu", marks=pytest.mark.gpus(1), id="gloo"),
    pytest.param("cuda", marks=pytest.mark.gpus(2), id="nccl"),
]


@pytest.mark.parametrize("ranks_on", _NETWORKS)
def test_a_batch_is_made_after_its_sample(ranks_on: str) -> None:
    run_on_hosts(_check_late_sample, "ab", device=ranks_on)


@pytest.mark.parametrize("ranks_on", _NETWORKS)
def test_rows_are_read_after_earlier_writes(ranks_on: str) -> None:
    run_on_hosts(_written, "ab", device=ranks_on)
