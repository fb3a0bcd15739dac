"""Rows of tables split over machines: reads outside of loaders, options, and ranks that differ."""

from __future__ import annotations

import copy
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch_geometric.loader import NeighborLoader

import peergraph
import peergraph_pyg
from peergraph.errors import CollectiveMismatchError, PeerLostError
from peergraph.memory import DistributedTable, Group, RemoteRowsError
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, RowSource, Store
from tests.machines.hosts import device_of_rank, run_on_hosts
from tests.machines.split_graphs import split_graph
from tests.named_case import named_case

_NODES, _EDGES = 50, 300
# Of many cases, on a loaded machine.
_TIMEOUT_S = 400


def _tables() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(_NODES * 6).float().view(_NODES, 6), torch.arange(_EDGES * 3).view(-1, 3)


def _source(seed: int = 0, pieces: bool = False) -> GraphSource:
    x, w = _tables()
    random = torch.Generator().manual_seed(seed)
    edges = EdgeSource(coo=torch.randint(_NODES, (2, _EDGES), generator=random))
    table = RowSource((_NODES, 6), x.dtype, lambda begin, end: x[begin:end]) if pieces else x
    return GraphSource(
        {NODE: _NODES},
        {EDGE: edges},
        {NODE: {"x": table, "y": torch.arange(_NODES)}},
        {EDGE: {"w": w}},
    )


def _check_rows(store: Store) -> None:
    """Reads rows of all machines, collectively, and those of this one."""
    x, w = _tables()
    rank = dist.get_rank()
    random = torch.Generator().manual_seed(rank)
    for values, table in ((x, store.node_table("x")), (w, store.edge_table("w"))):
        assert isinstance(table, DistributedTable)
        assert table.shape == tuple(values.shape)
        ids = torch.randint(len(values), (3, 7 * rank), generator=random)
        assert torch.equal(table.collective_read(ids).cpu(), values[ids])
        every = torch.arange(len(values))
        near = every[~table.is_remote(every).cpu()].int()
        assert len(near) == table.row_set.split.local_rows
        assert torch.equal(table.gather(near).cpu(), values[near])
        remote = every[table.is_remote(every).cpu()]
        assert len(remote) + len(near) == len(every)
        with pytest.raises(RemoteRowsError, match=rf"has row {remote[0]} on machine .*collective"):
            table.gather(remote)
        with pytest.raises(RemoteRowsError, match="collective_read"):
            table.read()
        exchange = table._exchange and table._exchange()
        assert exchange is not None
        with exchange.open("one row") as session:
            fetched = session.fetch([(table, remote[:1])])
            with fetched.reading(), pytest.raises(RemoteRowsError, match=f"row {remote[1]} on"):
                table.gather(remote[:2])
        padded = table.gather(torch.cat([near[:2], torch.tensor([-1])]), padded=True)
        assert not padded[2].any()


def _stores(device: str, folder: str) -> None:
    place = device_of_rank(device)
    group = Group.current(device=place, timeout=60)
    machines = group.machines
    last = machines.ranks[-1][-1]
    for name, mine in {
        "sent by one rank": _source(pieces=True) if machines.rank == last else None,
        "brought by each machine": _source() if group.rank == 0 else None,
    }.items():
        for ratio in (0, 0.3, 1):
            with named_case(name, ratio):
                store = Store.build(mine, group=group, machines="shard", hot_ratio=ratio)
                split = store.node_table("x").row_set.split  # type: ignore[attr-defined]
                assert split.hot == round(ratio * _NODES)
                if ratio < 1:
                    _check_rows(store)
                assert torch.equal(store.node_table("y").read(), torch.arange(_NODES))
                store.close()
                with pytest.raises(RuntimeError, match="closed"):
                    store.node_table("x").collective_read(torch.arange(3))  # type: ignore[attr-defined]
    with named_case("read from a folder"):
        whole = Store.build(mine, group=group)
        if machines.index == 0:
            whole.save(Path(folder, "graph"))
        whole.close()
        dist.barrier()
        store = Store.load(Path(folder, "graph"), group=group, machines="shard")
        _check_rows(store)
        store.close()
    store = Store.build(mine, group=group, machines="shard")
    with named_case("what is not supported"):
        table = store.node_table("x")
        with pytest.raises(NotImplementedError, match="is not saved"):
            store.save("no folder is made")
        for call in (lambda: table.view, table.local_shard):
            with pytest.raises(NotImplementedError, match="split over machines"):
                call()
        with pytest.raises(NotImplementedError, match="cannot be written one by one"):
            table.scatter(torch.tensor([0]), torch.zeros(1, 6))
        with pytest.raises(ValueError, match="several machines"):
            table.as_tensor()
        with pytest.raises(IndexError, match="50"):
            table.gather(torch.tensor([50]))
    with named_case("the reversed graph, added tables, trained tables and counted reads"):
        reverse = store.reversed()
        assert reverse.node_table("x") is table
        added = store.add_node_table("z", torch.ones(_NODES, 8) if group.rank == 0 else None)
        assert bool(added.read().eq(1).all())
        embedding = peergraph.Embedding(store, 5)
        assert embedding(torch.arange(4, device=place)).shape == (4, 5)
        with store.measure() as measured:
            table.collective_read(torch.arange(_NODES))
        assert "_N.x" in str(measured)
        assert "_N.x" in str(store.memory())
    store.close()
    _options(group)


def _options(group: Group) -> None:
    mine = _source() if group.rank == 0 else None
    index = group.machines.index
    with named_case("ratios differ"), pytest.raises(ValueError, match="hot_ratio.* differ"):
        Store.build(mine, group=group, machines="shard", hot_ratio=0.1 * (1 + index))
    hotness = torch.rand(_NODES, generator=torch.Generator().manual_seed(index))
    with named_case("hotness differs"), pytest.raises(ValueError, match="hotness.* differ"):
        Store.build(mine, group=group, machines="shard", hotness=hotness)
    with (
        named_case("numbers of batches differ"),
        pytest.raises(ValueError, match="batches_per_exchange.* differ"),
    ):
        Store.build(mine, group=group, machines="shard", batches_per_exchange=1 + index)
    with named_case("one machine fails before the comparison"):
        bad = torch.rand(3) if index == 1 else hotness
        with pytest.raises(ValueError, match="hotness" if index == 1 else "on machine 1"):
            Store.build(mine, group=group, machines="shard", hotness=bad)
    with (
        named_case("a ratio for whole stores"),
        pytest.raises(ValueError, match='machines="shard"'),
    ):
        Store.build(mine, group=group, hot_ratio=0.5)
    with named_case("no ratio"), pytest.raises(ValueError, match="from 0 to 1"):
        Store.build(mine, group=group, machines="shard", hot_ratio=2)


@pytest.mark.parametrize("hosts", ["aab"])
def test_reads_and_options(hosts: str, tmp_path: Path) -> None:
    run_on_hosts(_stores, hosts, "cpu", str(tmp_path), timeout_s=_TIMEOUT_S)


@pytest.mark.gpus(2)
def test_reads_and_options_on_gpus(tmp_path: Path) -> None:
    run_on_hosts(_stores, "ab", "cuda", str(tmp_path), device="cuda", timeout_s=_TIMEOUT_S)


def _mismatches(device: str) -> None:
    rank = dist.get_rank()
    with named_case("another loader"):
        _, shared = split_graph(device)
        other = copy.copy(shared)
        del other.x
        graph = other if rank == 0 else shared
        loader = NeighborLoader(graph, [2], input_nodes=torch.arange(8), batch_size=2)
        with pytest.raises(
            CollectiveMismatchError, match=r"NeighborLoader of .*rank \d of machine"
        ):
            list(loader)
        with pytest.raises(PeerLostError):
            list(loader)
    dist.barrier()
    with named_case("only one rank samples ahead"):
        _, shared = split_graph(device, batches_per_exchange=3)
        loader = NeighborLoader(shared, [2], input_nodes=torch.arange(8), batch_size=2)
        iterated = loader if rank == 0 else peergraph_pyg.prefetch(loader, 0)
        with pytest.raises(CollectiveMismatchError, match="another loader is iterated"):
            next(iter(iterated))
    dist.barrier()
    with named_case("only one rank iterates"):
        _, shared = split_graph(device)
        store = peergraph_pyg.store_of(shared)
        assert store.group is not None
        store.group.timeout = 1.0
        loader = NeighborLoader(shared, [2], input_nodes=torch.arange(8), batch_size=2)
        if rank == 0:
            start = time.monotonic()
            match = r"rank 1 of machine 1 \(b\) did not come to round 0 of NeighborLoader .* 1 s"
            with pytest.raises(PeerLostError, match=match):
                next(iter(loader))
            assert time.monotonic() - start < 30
        dist.barrier()


def test_ranks_that_iterate_other_loaders() -> None:
    run_on_hosts(_mismatches, "ab", "cpu", timeout_s=_TIMEOUT_S)
