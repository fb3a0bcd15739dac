"""Whole graphs over several machines: results, bytes on the network, sources, lost ranks."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import peergraph_pyg
from peergraph.aggregate import layers
from peergraph.errors import CollectiveMismatchError, PeerLostError
from peergraph.fullgraph import FullGraph, named_model
from peergraph.fullgraph.exchange.halo import HaloPlan
from peergraph.fullgraph.exchange.machine_halo import MachineHaloPlan
from peergraph.fullgraph.exchange.transport import Transport
from peergraph.fullgraph.layout.machine_placement import place_parts, rows_between_parts
from peergraph.memory import Group, SharedRegion, WorldGroup
from peergraph.store import EDGE, NODE
from tests.adapters.pyg.graphs import random_data
from tests.default_device import cpu_by_default
from tests.machines.full_graph_runs import Results, dgl_runs, pyg_runs
from tests.machines.hosts import device_of_rank, run_on_hosts
from tests.machines.offloaded_graphs import check_offloaded_bytes, check_written_rows
from tests.named_case import named_case

CPU = torch.device("cpu")
HAS_DGL = importlib.util.find_spec("dgl") is not None
NODES, EDGES, COLUMNS = 60, 500, 8


pytestmark = pytest.mark.usefixtures("one_thread_a_rank")


def _runs(device: str, hosts: str = "", with_dgl: bool = False) -> Results:
    results = pyg_runs(device_of_rank(device), hosts)
    if with_dgl:
        results |= dgl_runs()
    if device == "cpu":
        _check_bytes()
        check_offloaded_bytes()
        check_written_rows()
        _check_ranks()
        _check_sources()
    dist.barrier()
    return results


@pytest.fixture(scope="module")
def expected() -> Results:
    """In this process."""
    with cpu_by_default():
        results = pyg_runs(CPU)
        return results | (dgl_runs() if HAS_DGL else {})


def _compare(actual: list[Results], expected: Results, tolerance: float) -> None:
    for rank, results in enumerate(actual):
        for name, tensors in results.items():
            with named_case(name, "rank", rank):
                torch.testing.assert_close(tensors, expected[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("hosts", ["aabb", "abbb", "abab"])
def test_results_are_those_of_one_process(hosts: str, expected: Results) -> None:
    with_dgl = HAS_DGL and hosts == "abab"
    _compare(run_on_hosts(_runs, hosts, "cpu", hosts, with_dgl, timeout_s=400), expected, 1e-9)


@pytest.mark.gpus(2)
def test_results_are_those_of_one_process_on_two_gpus(expected: Results) -> None:
    _compare(run_on_hosts(_runs, "ab", "cuda", device="cuda", timeout_s=400), expected, 1e-8)


@pytest.mark.gpus(4)
@pytest.mark.parametrize("hosts", ["aabb", "abbb", "abab"])
def test_results_are_those_of_one_process_on_four_gpus(hosts: str, expected: Results) -> None:
    results = run_on_hosts(_runs, hosts, "cuda", hosts, device="cuda", timeout_s=400)
    _compare(results, expected, 1e-8)


def _edges(seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(NODES, (2, EDGES), generator=random)


def _total(group: Group, count: int) -> int:
    return sum(group.all_gather(count))


def _check_bytes() -> None:
    """A row and its gradient cross the network once for each machine that needs the row."""
    edges = _edges()
    graph = FullGraph.build(
        Group.current("cpu"), NODES, edges, order="random", model=named_model([8, 8])
    )
    group, structure, layout = graph.group, graph.structures[EDGE], graph.node_layouts[NODE]
    machine_of = torch.tensor([group.machines.machine_of(r) for r in range(group.world_size)])
    rank_of = layout.locate(torch.arange(NODES))[0]
    source, destination = edges
    crosses = machine_of[rank_of[source]] != machine_of[rank_of[destination]]
    source, destination = source[crosses], destination[crosses]
    of_machines = {*zip(source.tolist(), machine_of[rank_of[destination]].tolist(), strict=True)}
    of_ranks = {*zip(source.tolist(), rank_of[destination].tolist(), strict=True)}
    row_bytes = 8 * COLUMNS
    transport = Transport.of(group)

    def sent(work: Any) -> int:
        before = transport.network_bytes
        work()
        return _total(group, transport.network_bytes - before)

    x = graph.node_rows(torch.randn(NODES, COLUMNS, dtype=torch.float64)).requires_grad_()
    for reduce in ("sum", "max"):
        with named_case(reduce):
            out: list[torch.Tensor] = []
            forward = sent(lambda r=reduce, o=out: o.append(structure.spmm("copy_u", r, x)))
            assert forward == len(of_machines) * row_bytes
            assert sent(out[0].sum().backward) == len(of_machines) * row_bytes
    plan = structure.resident.plan
    assert isinstance(plan, MachineHaloPlan)
    direct, _ = HaloPlan.make(layout, plan.halo_rows)
    assert sent(lambda: direct.gather(x.to_local().detach())) == len(of_ranks) * row_bytes
    assert len(of_machines) < len(of_ranks)
    [volume] = graph.plan.facts.volumes.values()
    assert sum(volume.network_received) == len(of_machines)
    assert graph.plan.network is not None
    assert "over the network" in structure.last_exchange
    with pytest.raises(ValueError, match="in_kernel"):
        FullGraph.build(group.node_group, NODES, edges, mode="in_kernel")
    with pytest.raises(NotImplementedError, match="several machines"):
        structure.mode = "in_kernel"


def _check_ranks() -> None:
    group = Group.current("cpu")
    world = WorldGroup.of(group)
    assert WorldGroup.of(world) is world
    with pytest.raises(ValueError, match="disagree about seed: 0 on rank.* of machine 0 .a.*"):
        world.agree(seed=group.machines.index)
    with pytest.raises(ValueError, match="share no memory"):
        SharedRegion.create(8, world)
    with pytest.raises(CollectiveMismatchError, match=r"machine 0 \(a\) called Group.barrier"):
        world.barrier() if group.machines.index == 0 else world.all_gather(0)
    large = torch.full((300_000,), world.rank)
    assert [int(x[-1]) for x in world.all_gather(large)] == list(range(world.world_size))
    assert world.broadcast(world.rank, src=1) == 1
    if group.world_size > 1:
        with pytest.raises(RuntimeError, match="no process group of their own"):
            Transport.of(group).all_reduce(torch.ones(1))
    with pytest.raises(ValueError, match="selected is for transports with slots"):
        Transport.of(world).start({}, {}, selected={})


def _check_sources() -> None:
    data = random_data()
    rank = dist.get_rank()
    with named_case("one rank brings the graph"):
        mine = data if rank == 0 else None
        graph = peergraph_pyg.full_graph(mine, device="cpu")
        assert torch.equal(graph.x.full_tensor(), data.x)
        assert torch.equal(graph.edge_attr.full_tensor(), data.edge_attr)
        assert graph.name == data.name
    with named_case("graphs that differ"):
        data.edge_index = _edges(Group.current("cpu").machines.index)
        with pytest.raises(ValueError, match="disagree about edges"):
            peergraph_pyg.full_graph(data, device="cpu")


LONG_S = 120.0


def _lose(victims: list[int]) -> tuple[str, float]:
    """Trains until a rank is lost; victims end after some exchanges."""
    group = Group.current("cpu", timeout=LONG_S)
    graph = FullGraph.build(group, NODES, _edges(), order="random")
    structure = graph.structures[EDGE]
    x = graph.node_rows(torch.randn(NODES, COLUMNS)).requires_grad_()
    weight = torch.ones(2, COLUMNS, requires_grad=True)
    start = time.monotonic()
    try:
        for step in range(100_000):
            if step == 3 and graph.group.rank in victims:
                os.kill(os.getpid(), signal.SIGKILL)
            layers.sage(structure, x, weight).sum().backward()
    except PeerLostError as error:
        return str(error), time.monotonic() - start
    raise AssertionError("no rank was lost")


@pytest.mark.parametrize(("hosts", "victims"), [("aabb", [3]), ("abb", [1, 2])])
def test_a_lost_rank_or_machine_is_named(hosts: str, victims: list[int]) -> None:
    for rank, result in enumerate(
        run_on_hosts(_lose, hosts, victims, may_die=victims, timeout_s=400)
    ):
        if rank in victims:
            continue
        message, seconds = result
        assert "machine 1 (b" in message, message
        if hosts[rank] == "b":  # of the same machine
            assert "rank 3 of machine 1 (b) died (pid " in message, message
        assert seconds < 0.8 * LONG_S


def test_parts_that_need_each_other_are_on_one_machine() -> None:
    part = torch.arange(40) % 4
    random = torch.Generator().manual_seed(0)
    # Parts 0 and 2 need each other's rows, as do parts 1 and 3.
    source = torch.randint(40, (400,), generator=random)
    destination = (source + 2 * torch.randint(2, (400,), generator=random)) % 4
    destination += 4 * torch.randint(10, (400,), generator=random)
    rows = rows_between_parts(source, destination, part, 4)
    pairs = {*zip(source.tolist(), (destination % 4).tolist(), strict=True)}
    assert rows == [
        [sum(s % 4 == owner and p == other for s, p in pairs) for owner in range(4)]
        for other in range(4)
    ]
    ranks = place_parts(rows, [(0, 1), (2, 3)])
    assert sorted(ranks) == [0, 1, 2, 3]
    assert {frozenset(p for p in range(4) if ranks[p] in m) for m in ((0, 1), (2, 3))} == {
        frozenset((0, 2)),
        frozenset((1, 3)),
    }
    assert place_parts(rows, [(0, 2), (1, 3)]) == [0, 1, 2, 3]
