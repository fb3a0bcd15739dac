"""A store on each of several machines: the same graph, batches and losses as on one machine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv

import peergraph_pyg
from peergraph.memory import Group
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, RowSource, Store
from tests.adapters.pyg.graphs import check_batch, random_data, random_hetero
from tests.machines.hosts import device_of_rank, run_on_hosts
from tests.named_case import named_case


def _losses(device: str, bringing: str) -> list[list[float]]:
    """The losses of this rank over two epochs; ranks have different numbers of batches."""
    place = device_of_rank(device)
    data = random_data()
    machines = Group.current(device=place, timeout=60).machines
    brings = {"machine 0": machines.rank == 0, "each machine": machines.is_first_rank}[bringing]
    shared = peergraph_pyg.share(data if brings else None, device=place)
    assert torch.equal(shared.x.cpu(), data.x)
    assert torch.equal(shared.edge_index.cpu(), data.edge_index)
    assert shared.name == "random"
    seeds = torch.arange(data.num_nodes)[machines.rank :: machines.world_size]
    torch.manual_seed(0)
    model = DistributedDataParallel(SAGEConv(5, 4).to(place))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results = []
    for epoch in range(2):
        torch.manual_seed(100 * epoch + machines.rank)
        loader = NeighborLoader(shared, [3], input_nodes=seeds, batch_size=4, shuffle=True)
        losses = []
        with model.join():
            for batch in loader:
                check_batch(batch, data)
                batch = batch.to(place)
                optimizer.zero_grad()
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                loss = F.cross_entropy(out, batch.y[: batch.batch_size])
                loss.backward()
                optimizer.step()
                losses.append(float(loss))
        results.append(losses)
    dist.barrier()
    peergraph_pyg.store_of(shared).close()
    return results


@pytest.mark.parametrize("hosts", ["aabb", "abbb", "abab"])
def test_losses_are_those_of_one_machine(hosts: str) -> None:
    bringing = "each machine" if hosts == "abab" else "machine 0"
    results = run_on_hosts(_losses, hosts, "cpu", bringing)
    assert results == run_on_hosts(_losses, "aaaa", "cpu", "each machine")


@pytest.mark.gpus(2)
def test_losses_are_those_of_one_machine_on_gpus() -> None:
    _compare_losses_on_gpus("aa", ["ab"])


@pytest.mark.gpus(4)
def test_losses_are_those_of_one_machine_on_four_gpus() -> None:
    _compare_losses_on_gpus("aaaa", ["aabb", "abbb"])


def _compare_losses_on_gpus(one: str, layouts: list[str]) -> None:
    expected = run_on_hosts(_losses, one, "cuda", "machine 0", device="cuda")
    for hosts in layouts:
        with named_case(hosts):
            results = run_on_hosts(_losses, hosts, "cuda", "machine 0", device="cuda")
            torch.testing.assert_close(results, expected, rtol=1e-5, atol=1e-6)


def _source(seed: int = 0, nodes: int = 50, pieces: bool = False) -> GraphSource:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, 3, generator=random)
    edges = EdgeSource(coo=torch.randint(nodes, (2, 300), generator=random))
    table = RowSource((nodes, 3), torch.float32, lambda begin, end: x[begin:end]) if pieces else x
    weights = torch.rand(300, generator=random).double()
    return GraphSource({NODE: nodes}, {EDGE: edges}, {NODE: {"x": table}}, {EDGE: {"w": weights}})


def _check_same_store(store: Store, expected: GraphSource) -> None:
    edges = expected.edges[EDGE].coo
    assert edges is not None
    assert torch.equal(store.edge_index().cpu(), edges)
    assert torch.equal(store.node_table("x").read(), expected.node_tables[NODE]["x"])
    assert torch.equal(store.edge_table("w").read(), expected.edge_tables[EDGE]["w"])


def _checks_stores() -> None:
    group = Group.current(device="cpu", timeout=30)
    machines = group.machines
    last = machines.count - 1
    with named_case("a rank of the last machine brings the graph, with rows by a function"):
        mine = _source(pieces=True) if machines.rank == machines.ranks[last][-1] else None
        store = Store.build(mine, group=group)
        _check_same_store(store, _source())
        store.reversed()
        store.close()
    with named_case("parts of the ranks"):
        store = Store.build(_part(group), group=group)
        _check_same_store(store, _by_destination(_source()))
        store.close()
    with named_case("graphs that differ"):
        source = _source(seed=machines.index) if group.rank == 0 else None
        with pytest.raises(ValueError, match=r"different graphs: edges of .* on machine 1 \(b\)"):
            Store.build(source, group=group)
    with named_case("a table that one machine lacks"):
        source = _source() if group.rank == 0 else None
        if source is not None and machines.index:
            del source.node_tables[NODE]["x"]
        with pytest.raises(ValueError, match=r"different graphs: .*'x'.* missing on machine 1"):
            Store.build(source, group=group)
    with named_case("no graph"), pytest.raises(ValueError, match="no rank"):
        Store.build(None, group=group)
    with named_case("parts are not sent"):
        part = _part(group) if machines.index == 0 else None
        with pytest.raises(NotImplementedError, match="split over ranks"):
            Store.build(part, group=group)
    failing = pytest.raises((OSError, RuntimeError), match=r"no disk|could not send its graph")
    with named_case("rows fail on the machine that sends them"), failing:
        Store.build(_failing() if machines.rank == 0 else None, group=group)
    with named_case("a plan fails on one machine"):
        budget = {"host_budget": 10} if machines.index == last else {}
        with pytest.raises(MemoryError, match="" if budget else r"on machine 1 \(b; rank"):
            Store.build(_source() if group.rank == 0 else None, group=group, **budget)


def _by_destination(source: GraphSource) -> GraphSource:
    """With the edges in the order of their destinations."""
    coo = source.edges[EDGE].coo
    assert coo is not None
    order = coo[1].sort(stable=True).indices
    weights = source.edge_tables[EDGE]["w"]
    assert isinstance(weights, torch.Tensor)
    edges = {EDGE: EdgeSource(coo=coo[:, order])}
    return GraphSource(source.num_nodes, edges, source.node_tables, {EDGE: {"w": weights[order]}})


def _part(group: Group) -> GraphSource:
    """This rank's destinations, by the ranks of its machine."""
    whole = _by_destination(_source())
    coo = whole.edges[EDGE].coo
    x, weights = whole.node_tables[NODE]["x"], whole.edge_tables[EDGE]["w"]
    assert coo is not None
    assert isinstance(x, torch.Tensor)
    assert isinstance(weights, torch.Tensor)
    begin, end = (50 * r // group.world_size for r in (group.rank, group.rank + 1))
    mine = (coo[1] >= begin) & (coo[1] < end)
    counts = torch.bincount(coo[1, mine] - begin, minlength=end - begin)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return GraphSource(
        {NODE: 50},
        {EDGE: EdgeSource(csc=(indptr, coo[0, mine]))},
        {NODE: {"x": x[begin:end]}},
        {EDGE: {"w": weights[mine]}},
        {NODE: (begin, end)},
    )


def _failing() -> GraphSource:
    def rows(begin: int, end: int) -> Any:
        raise OSError("no disk")

    tables = {NODE: {"x": RowSource((50, 3), torch.float32, rows)}}
    return GraphSource({NODE: 50}, {EDGE: EdgeSource(coo=torch.zeros(2, 4).long())}, tables)


@pytest.mark.parametrize("hosts", ["aabb", "abb"])
def test_sources_and_their_errors(hosts: str) -> None:
    run_on_hosts(_checks_stores, hosts)


def _shares_hetero() -> None:
    rank = dist.get_rank()
    shared = peergraph_pyg.share(random_hetero() if rank == 0 else None, device="cpu")
    expected = random_hetero()
    assert shared.title == "library"
    for edge_type in expected.edge_types:
        assert torch.equal(shared[edge_type].edge_index.cpu(), expected[edge_type].edge_index)
    assert torch.equal(shared["paper"].x.cpu(), expected["paper"].x)
    with pytest.raises(TypeError, match="got str"):
        peergraph_pyg.share("no graph" if rank == 0 else None, device="cpu")
    with pytest.raises(TypeError, match="got NoneType"):
        peergraph_pyg.share(None, device="cpu")


def test_graphs_with_types_and_errors_of_share() -> None:
    run_on_hosts(_shares_hetero, "ab")


def test_other_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="machines must be one of"):
        Store.build(_source(), machines="both")
