"""Rows of tables split over machines: batches and losses of one machine, and counted traffic."""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.nn import SAGEConv

import peergraph_pyg
from peergraph.memory import DistributedTable, Group
from peergraph.memory.device.launching import most_blocks
from peergraph.store import Store
from tests.adapters.pyg.graphs import random_data, random_hetero
from tests.machines.hosts import device_of_rank, run_on_hosts
from tests.machines.shard_loaders import (
    check_hetero_loaders,
    check_ingested,
    check_loaders,
    check_refused,
)
from tests.named_case import named_case

_HOT = 0.25
# Of many cases, on a loaded machine.
_TIMEOUT_S = 400


def _data() -> Data:
    """With two wide tables of nodes, one of edges, and narrow ones."""
    data = random_data()
    data.wide = torch.arange(60 * 9, dtype=torch.int64).view(60, 3, 3)
    return data


def _hetero() -> HeteroData:
    data = random_hetero()
    for node_type in ("paper", "author"):
        data[node_type].x = data[node_type].x.repeat(1, 4)
    edges = data["author", "writes", "paper"]
    edges.edge_attr = edges.edge_attr.repeat(1, 5)
    return data


def _tensors(batch: Any) -> dict[Any, Tensor]:
    return {
        (getattr(storage, "_key", None), name): value.cpu()
        for storage in batch.stores
        for name, value in storage.items()
        if isinstance(value, Tensor)
    }


def _check_same(actual: Iterable[Any], expected: Iterable[Any], least: int = 0) -> None:
    """Checks that batches are equal, bit for bit, and that there are at least `least`."""
    count = 0
    for mine, other in zip(actual, expected, strict=True):
        left, right = _tensors(mine), _tensors(other)
        assert left.keys() == right.keys()
        for name, value in left.items():
            assert value.dtype == right[name].dtype, name
            assert torch.equal(value, right[name]), name
        count += 1
    assert count >= least


class _Graphs:
    """The same graph split over machines and whole on each, and this rank's part of the seeds."""

    def __init__(
        self,
        device: torch.device,
        data: Any,
        batches_per_exchange: int = 1,
        hot_ratio: float = _HOT,
    ) -> None:
        group = Group.current(device=device, timeout=120)
        self.machines = group.machines
        mine = data if self.machines.is_first_rank else None
        self.batches_per_exchange = batches_per_exchange
        self.split = peergraph_pyg.share(
            mine,
            device=device,
            machines="shard",
            hot_ratio=hot_ratio,
            batches_per_exchange=batches_per_exchange,
        )
        self.whole = peergraph_pyg.share(mine, device=device, machines="replicate")

    @property
    def store(self) -> Store:
        return peergraph_pyg.store_of(self.split)

    def seeds(self, count: int) -> Tensor:
        """Different numbers of seeds; the last rank has none."""
        rank, world_size = self.machines.rank, self.machines.world_size
        if rank == world_size - 1:
            return torch.empty(0, dtype=torch.int64)
        return torch.arange(count)[rank : count - 9 * rank : world_size]

    def check(self, batches: Any, least: int = 0) -> None:
        """Checks that `batches` of both graphs are equal, from the same state of the generator."""
        results = []
        for graph in (self.split, self.whole):
            torch.manual_seed(self.machines.rank)
            results.append(list(batches(graph)))
        _check_same(*results, least)

    def close(self) -> None:
        for graph in (self.split, self.whole):
            peergraph_pyg.store_of(graph).close()


def _loader(graph: Any, seeds: Tensor, **options: Any) -> NeighborLoader:
    shuffle = len(seeds) > 0  # torch does not shuffle an empty list
    return NeighborLoader(
        graph, [4, 3], input_nodes=seeds, batch_size=3, shuffle=shuffle, **options
    )


def _check_homogeneous(graphs: _Graphs, only: Collection[str] = ()) -> None:
    """Checks all cases, or only those with some names."""
    seeds = graphs.seeds(60)
    least = 2 if graphs.machines.rank == 0 else 0

    def epochs(graph: Any) -> Iterator[Any]:
        loader = _loader(graph, seeds)
        for _ in range(2):
            yield from loader

    def left_early(graph: Any) -> Iterator[Any]:
        loader = _loader(graph, seeds)
        for number, batch in enumerate(loader):
            yield batch
            if number == graphs.machines.rank:
                break
        yield next(iter(loader), batch) if len(seeds) else None
        if not len(seeds):
            next(iter(loader), None)
        yield from loader

    def two_at_once(graph: Any) -> Iterator[Any]:
        # All neighbors: the threads of two loaders that draw numbers do not take turns.
        pairs = torch.arange(24).view(2, 12)
        links = LinkNeighborLoader(graph, [-1], edge_label_index=pairs, batch_size=4)
        nodes = NeighborLoader(graph, [-1], input_nodes=torch.arange(12), batch_size=4)
        for pair in zip(links, nodes, strict=True):
            yield from pair

    def links(graph: Any) -> Iterator[Any]:
        pairs = torch.arange(24).view(2, 12)
        yield from LinkNeighborLoader(
            graph, [3], edge_label_index=pairs, batch_size=4, neg_sampling_ratio=1.0
        )

    def keyed(graph: Any) -> Iterator[Any]:
        loader = peergraph_pyg.stateful(_loader(graph, seeds, transform=_add_noise), seed=7)
        yield from loader
        loader.set_epoch(3, start_batch=1)
        yield from loader

    def changed(graph: Any) -> Iterator[Any]:
        yield from _loader(graph, seeds, transform_sampler_output=_reverse_nodes)

    def not_ahead(graph: Any) -> Iterator[Any]:
        for batch in peergraph_pyg.prefetch(_loader(graph, seeds), depth=0):
            torch.rand(1)
            yield batch

    def lazy(graph: Any) -> Iterator[Any]:
        for batch in _loader(peergraph_pyg.lazy(graph), seeds):
            batch.x = batch.x + 0
            yield batch

    def stores(graph: Any) -> Iterator[Any]:
        pair = peergraph_pyg.stores(peergraph_pyg.store_of(graph))
        yield from NeighborLoader(pair, [3], input_nodes=torch.arange(9), batch_size=4)

    for case in (epochs, left_early, two_at_once, links, keyed, changed, not_ahead, lazy, stores):
        if only and case.__name__ not in only:
            continue
        with named_case(case.__name__):
            graphs.check(lambda graph, case=case: [b for b in case(graph) if b is not None], least)


def _add_noise(batch: Any) -> Any:
    batch.noise = torch.rand(3)
    return batch


def _reverse_nodes(sample: Any) -> Any:
    """Has the nodes of a sample in the reversed order."""
    last = len(sample.node) - 1
    sample.node = sample.node.flip(0)
    sample.row, sample.col = last - sample.row, last - sample.col
    return sample


def _check_heterogeneous(graphs: _Graphs) -> None:
    seeds = torch.arange(graphs.machines.rank, 40, graphs.machines.world_size)

    def nodes(graph: Any) -> Iterator[Any]:
        yield from NeighborLoader(graph, [3, 2], input_nodes=("paper", seeds), batch_size=4)

    def links(graph: Any) -> Iterator[Any]:
        edge_type = ("author", "writes", "paper")
        edges = graph[edge_type].edge_index.cpu()[:, :20]
        yield from LinkNeighborLoader(
            graph, [2, 2], edge_label_index=(edge_type, edges), batch_size=8
        )

    for case in (nodes, links):
        with named_case("types", case.__name__):
            graphs.check(case, 2)


def _check_traffic(graphs: _Graphs) -> None:
    """In each round, a machine receives each cold row that its batches need once, and no others."""
    machines, store = graphs.machines, graphs.store
    table = store.node_table("x")
    assert isinstance(table, DistributedTable)
    split = table.row_set.split
    seeds = graphs.seeds(60)
    # Ends loops before this one, in which threads of other ranks may still answer.
    table.collective_read(torch.empty(0, dtype=torch.int64))
    before = store.network_traffic()
    remote_rows: list[set[int]] = []
    edges: list[set[int]] = []
    for batch in _loader(graphs.split, seeds):
        remote = [batch.n_id[table.is_remote(batch.n_id).cpu()].cpu()]
        of_edges = store.edge_table("edge_attr", store.edge_types[0])
        assert isinstance(of_edges, DistributedTable)
        remote_rows.append(set(remote[0].tolist()))
        edges.append(set(batch.e_id[of_edges.is_remote(batch.e_id)].tolist()))
    # Counts the answers of ranks without seeds, too: their threads end with this loop.
    table.collective_read(torch.empty(0, dtype=torch.int64))
    traffic = store.network_traffic() - before
    results: list[Any] = [None] * machines.world_size
    dist.all_gather_object(results, (remote_rows, edges, traffic))
    mine = [results[rank] for rank in machines.local_ranks]
    most = max(len(each[0]) for each in mine)

    def distinct(part: int) -> int:
        per_round = graphs.batches_per_exchange
        rounds = (slice(t, t + per_round) for t in range(0, most, per_round))
        return sum(len(set().union(*(s for each in mine for s in each[part][r]))) for r in rounds)

    nodes, links = distinct(0), distinct(1)
    assert nodes > 0 or most == 0  # a machine whose ranks have no seeds needs no rows
    assert split.hot == round(_HOT * 60)
    assert sum(each[2].ids_sent for each in mine) == nodes + links
    # The tables x and wide, and edge_attr.
    assert sum(each[2].rows_received for each in mine) == 2 * nodes + links
    total = [
        sum(getattr(each[2], name) for each in results) for name in ("rows_sent", "bytes_sent")
    ]
    received = ("rows_received", "bytes_received")
    assert total == [sum(getattr(each[2], name) for each in results) for name in received]


def _losses(
    graph: Any, graphs: _Graphs, device: torch.device, *, deterministic: bool = True
) -> list[float]:
    """Of two epochs; ranks have different numbers of batches, and the last has none.

    Args:
        deterministic: otherwise a GPU adds numbers in any order, and losses differ in the last bit.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    torch.manual_seed(0)
    model = DistributedDataParallel(SAGEConv(5, 4).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    loader = _loader(graph, graphs.seeds(60))
    for epoch in range(2):
        torch.manual_seed(100 * epoch + graphs.machines.rank)
        with model.join():
            for batch in loader:
                optimizer.zero_grad()
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                loss = F.cross_entropy(out, batch.y[: batch.batch_size])
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    torch.use_deterministic_algorithms(False)
    return losses


def _check_raising(graphs: _Graphs) -> None:
    """One rank leaves its loop by an exception that it catches; others go on."""
    seeds = torch.arange(12)

    def run(graph: Any) -> Iterator[Any]:
        loader = NeighborLoader(graph, [2], input_nodes=seeds, batch_size=3)
        try:
            for number, batch in enumerate(loader):
                if number == 1 and graphs.machines.rank == 0:
                    raise KeyError("of the loop")
                yield batch
        except KeyError:
            gc.collect()
        yield from loader

    graphs.check(run, 5)


def _check_blocks(graphs: _Graphs) -> None:
    """The limit of thread blocks applies to the gathers of batches, and to nothing else."""
    results: list[int] = []

    def note(batch: Any) -> Any:
        results.append(most_blocks())
        return batch

    seeds = graphs.seeds(60)
    for _ in peergraph_pyg.prefetch(_loader(graphs.split, seeds, transform=note), max_blocks=7):
        assert most_blocks() == 0
    assert results == [7] * -(-len(seeds) // 3)


def _all_cases(device: str, batches_per_exchange: int) -> None:
    place = device_of_rank(device)
    graphs = _Graphs(place, _data(), batches_per_exchange)
    _check_homogeneous(graphs)
    with named_case("traffic"):
        _check_traffic(graphs)
    with named_case("losses"):
        result = _losses(graphs.split, graphs, place)
        assert result == _losses(graphs.whole, graphs, place)
    with named_case("an exception in one loop"):
        _check_raising(graphs)
    with named_case("blocks of a gather"):
        _check_blocks(graphs)
    graphs.close()
    graphs = _Graphs(place, _hetero(), batches_per_exchange)
    _check_heterogeneous(graphs)
    graphs.close()
    with named_case("all rows on each machine"):
        graphs = _Graphs(place, Data(x=_data().x, edge_index=_data().edge_index), hot_ratio=1)
        graphs.check(lambda graph: _loader(graph, graphs.seeds(60)))
        assert graphs.store.network_traffic().rows_received == 0
        graphs.close()


@pytest.mark.parametrize(("hosts", "batches_per_exchange"), [("aabb", 1), ("abca", 1), ("aabb", 3)])
def test_batches_and_losses_are_those_of_one_machine(hosts: str, batches_per_exchange: int) -> None:
    run_on_hosts(_all_cases, hosts, "cpu", batches_per_exchange, timeout_s=_TIMEOUT_S)


def _cases_by_layout(device: str, batches_per_exchange: int) -> None:
    """The cases that depend on the numbers of ranks of the machines."""
    place = device_of_rank(device)
    graphs = _Graphs(place, _data(), batches_per_exchange)
    _check_homogeneous(graphs, ("epochs", "left_early"))
    with named_case("traffic"):
        _check_traffic(graphs)
    with named_case("losses"):
        result = _losses(graphs.split, graphs, place)
        assert result == _losses(graphs.whole, graphs, place)
    graphs.close()


def _few_cases(folder: Path) -> None:
    graphs = _Graphs(torch.device("cpu"), _data())
    seeds = graphs.seeds(60)
    graphs.check(lambda graph: _loader(graph, seeds))
    _check_traffic(graphs)
    check_loaders(graphs.check, graphs.machines)
    check_refused(graphs.split)
    graphs.close()
    graphs = _Graphs(torch.device("cpu"), _hetero())
    check_hetero_loaders(graphs.check, graphs.machines)
    graphs.close()
    with named_case("a store made of files"):
        check_ingested(folder, Group.current(device="cpu", timeout=120))


def test_machines_with_one_rank_and_with_three(tmp_path: Path) -> None:
    run_on_hosts(_few_cases, "abbb", tmp_path, timeout_s=_TIMEOUT_S)


@pytest.mark.gpus(2)
@pytest.mark.parametrize("batches_per_exchange", [1, 3])
def test_batches_and_losses_are_those_of_one_machine_on_gpus(batches_per_exchange: int) -> None:
    run_on_hosts(
        _all_cases, "ab", "cuda", batches_per_exchange, device="cuda", timeout_s=_TIMEOUT_S
    )


def _first_losses(device: str, deterministic: bool) -> None:
    """Trains as the first work of new processes: the rank without batches has not launched any
    kernel before.
    """
    place = device_of_rank(device)
    graphs = _Graphs(place, _data())
    losses = _losses(graphs.split, graphs, place, deterministic=deterministic)
    assert len(losses) == (0 if dist.get_rank() else 20)
    graphs.close()


@pytest.mark.gpus(2)
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_rank_without_batches_answers_beside_a_waiting_kernel_of_nccl(
    deterministic: bool,
) -> None:
    run_on_hosts(_first_losses, "ab", "cuda", deterministic, device="cuda")


@pytest.mark.gpus(4)
@pytest.mark.parametrize("batches_per_exchange", [1, 3])
@pytest.mark.parametrize("hosts", ["aabb", "abbb", "abca"])
def test_batches_and_losses_are_those_of_one_machine_on_four_gpus(
    hosts: str, batches_per_exchange: int
) -> None:
    run_on_hosts(
        _cases_by_layout, hosts, "cuda", batches_per_exchange, device="cuda", timeout_s=_TIMEOUT_S
    )
