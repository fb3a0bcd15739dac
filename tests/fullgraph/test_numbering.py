"""Orders of nodes: permutations that are the same on all ranks; parts that keep communities."""

from __future__ import annotations

import sys

import networkx as nx
import pytest
import torch

from peergraph.fullgraph.layout.blocks import (
    balance_cost,
    balance_costs,
    cut_blocks,
    imbalance,
)
from peergraph.fullgraph.layout.clusters import community_parts, is_symmetric
from peergraph.fullgraph.layout.metis import metis_parts
from peergraph.fullgraph.layout.numbering import (
    check_part,
    order_by_part,
    original_order,
    random_order,
    rank_of_nodes,
)
from peergraph.fullgraph.layout.volume import VolumeCounter
from tests.named_case import named_case

from .partition_graphs import NUM_NODES, brute_force_volume, edge_graphs, planted_graph

PARTITIONERS = {"communities": lambda *args: community_parts(*args)[0], "metis": metis_parts}


@pytest.fixture(params=PARTITIONERS)
def partitioner(request: pytest.FixtureRequest):
    if request.param == "metis":
        pytest.importorskip("pymetis")
    return PARTITIONERS[request.param]


def total_volume(edges: torch.Tensor, part: torch.Tensor, world_size: int) -> int:
    counter = VolumeCounter(part, part, world_size)
    counter.add(*edges)
    assert (
        list(map(list, counter.volume().rows))
        == brute_force_volume(edges, part, part, world_size)[0]
    )
    return sum(counter.volume().received)


def test_orders_are_permutations() -> None:
    for count in (0, 1, 7, 1000):
        with named_case(count):
            order = random_order(count, 3)
            assert torch.equal(order.sort().values, original_order(count))
            assert torch.equal(order, random_order(count, 3))
            internal = torch.empty_like(order)
            internal[order] = torch.arange(count)
            assert torch.equal(internal[order], torch.arange(count))
            assert torch.equal(order[internal], torch.arange(count))
    assert not torch.equal(random_order(1000, 3), random_order(1000, 4))


def test_random_order_leaves_the_generator_alone() -> None:
    torch.manual_seed(0)
    first = torch.rand(1)
    torch.manual_seed(0)
    random_order(10, 3)
    assert torch.equal(torch.rand(1), first)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_order_of_given_parts(dtype: torch.dtype) -> None:
    part = torch.randint(3, (100,), generator=torch.Generator().manual_seed(0)).to(dtype)
    order, counts = order_by_part(check_part(part, 100), 3)
    assert torch.equal(order.sort().values, torch.arange(100))
    assert torch.equal(rank_of_nodes(order, counts, torch.device("cpu")), part.short())
    for block in order.split(list(counts)):
        assert torch.equal(block, block.sort().values)


def test_communities_lie_together_in_their_part() -> None:
    nodes, edges, _ = planted_graph()
    costs = balance_costs([torch.bincount(edges[1], minlength=nodes)])
    part, community = community_parts(*edges, costs, 2, 0)
    order, counts = order_by_part(part, 2, community)
    assert torch.equal(order.sort().values, torch.arange(nodes))
    assert counts == order_by_part(part, 2)[1]
    keys = torch.stack([part, community, torch.arange(nodes)], 1)[order].tolist()
    assert keys == sorted(keys)
    place = torch.empty(nodes, dtype=torch.int64)
    place[order] = torch.arange(nodes)
    by_ids = torch.empty(nodes, dtype=torch.int64)
    by_ids[order_by_part(part, 2)[0]] = torch.arange(nodes)
    apart, before = ((p[edges[0]] - p[edges[1]]).abs().median() for p in (place, by_ids))
    assert int(apart) < int(before) / 3


def test_errors_of_given_parts() -> None:
    with pytest.raises(ValueError, match="node 2 is in part 3, expected parts 0 to 2"):
        order_by_part(torch.tensor([0, 2, 3, -1]), 3)
    with pytest.raises(TypeError, match=r"must hold integers, .* got torch.float32"):
        check_part(torch.zeros(3), 3)
    with pytest.raises(ValueError, match=r"each of 4 nodes, got shape \[3\]"):
        check_part(torch.zeros(3, dtype=torch.int64), 4)


@pytest.mark.parametrize("world_size", [2, 4])
def test_planted_communities_lower_the_volume(world_size: int, partitioner) -> None:
    nodes, edges, community = planted_graph()
    degrees = torch.bincount(edges[1], minlength=nodes)
    cost, costs = balance_cost(degrees), balance_costs([degrees])
    part = partitioner(*edges, costs, world_size, 0)
    order = random_order(nodes, 0)
    counts = cut_blocks(cost[order], world_size)
    scattered = rank_of_nodes(order, counts, torch.device("cpu")).long()
    # Whole communities, in equal numbers: as good as it gets.
    planted = community % world_size
    before, after, best = (total_volume(edges, p, world_size) for p in (scattered, part, planted))
    assert after < 0.6 * before
    assert after < 1.5 * best
    loads = torch.zeros(world_size, dtype=torch.float64).index_add_(0, part, cost)
    assert float(loads.max()) * world_size < 1.25
    assert imbalance(torch.bincount(part, minlength=world_size).tolist()) < 1.25
    assert torch.equal(part, partitioner(*edges, costs, world_size, 0))


def test_components_are_not_cut(partitioner) -> None:
    graph = nx.disjoint_union_all([nx.complete_graph(8)] * 16)
    edges = torch.tensor(list(graph.to_directed().edges)).t()
    costs = balance_costs([torch.bincount(edges[1], minlength=128)])
    part = partitioner(*edges, costs, 4, 0)
    assert total_volume(edges, part, 4) == 0
    assert torch.bincount(part).tolist() == [32] * 4


@pytest.mark.parametrize("world_size", [1, 3])
def test_any_graph_is_partitioned(world_size: int, partitioner) -> None:
    for name, edges in edge_graphs().items():
        with named_case(name):
            costs = balance_costs([torch.bincount(edges[1], minlength=NUM_NODES)])
            part = partitioner(*edges.long(), costs, world_size, 0)
            _, counts = order_by_part(part, world_size)
            assert sum(counts) == NUM_NODES
            cost = costs.sum(1)
            loads = torch.zeros(world_size, dtype=torch.float64).index_add_(0, part, cost)
            assert float(loads.max()) <= 1.25 * float(cost.sum()) / world_size + float(cost.max())


@pytest.mark.parametrize("nodes", [0, 1, 2])
def test_fewer_nodes_than_parts(nodes: int, partitioner) -> None:
    ends = torch.arange(nodes)
    part = partitioner(ends, ends.flip(0), balance_costs([torch.ones(nodes)]), 4, 0)
    assert order_by_part(part, 4)[1] == tuple(sorted(order_by_part(part, 4)[1], reverse=True))
    assert torch.bincount(part, minlength=4).max() <= 1


def test_symmetry() -> None:
    source, destination = planted_graph()[1]
    assert is_symmetric(source, destination)
    assert not is_symmetric(source[:-1], destination[:-1])


def test_metis_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ImportError, match=r'pip install "peergraph\[partition\]"'):
        metis_parts(torch.arange(9), torch.arange(9), torch.ones(9), 2, 0)
