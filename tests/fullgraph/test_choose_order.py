"""The order of nodes is chosen by counted volume, the same on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.fullgraph.layout.edge_share import edge_reader
from peergraph.fullgraph.layout.numbering import rank_of_nodes
from peergraph.fullgraph.plan.choose_order import ChosenOrder, OrderChooser, check_order
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.named_case import named_case

from .partition_graphs import NUM_NODES, brute_force_volume, edge_graphs, planted_graph

N, E = "_N", ("_N", "_E", "_N")
Graph = tuple[dict[str, int], dict[tuple[str, str, str], Tensor]]


def graphs() -> dict[str, Graph]:
    result: dict[str, Graph] = {n: ({N: NUM_NODES}, {E: e}) for n, e in edge_graphs().items()}
    nodes, edges, _ = planted_graph()
    result["planted"] = ({N: nodes}, {E: edges})
    result["two nodes"] = ({N: 2}, {E: torch.tensor([[0, 1, 1], [1, 0, 1]])})
    result["no nodes"] = ({N: 0}, {E: torch.zeros((2, 0), dtype=torch.int64)})
    random = torch.Generator().manual_seed(0)
    to = torch.stack(
        [torch.randint(40, (200,), generator=random), torch.randint(25, (200,), generator=random)]
    )
    result["types"] = (
        {"a": 40, "b": 25, "c": 3},
        {("a", "to", "b"): to, ("b", "of", "a"): to.flip(0)},
    )
    return result


def choose(graph: Graph, order: Any, group: Group) -> ChosenOrder:
    num_nodes, edges = graph
    shares = {
        t: edge_reader(e, num_nodes[t[2]]).read(group.rank, group.world_size, group.device)
        for t, e in edges.items()
    }
    return OrderChooser(group, num_nodes, shares, seed=0).choose(check_order(order, num_nodes))


def check(graph: Graph, chosen: ChosenOrder, world_size: int) -> None:
    num_nodes, edges = graph
    cpu = torch.device("cpu")
    for node_type, (order, counts) in chosen.parts.items():
        assert torch.equal(order.sort().values, torch.arange(num_nodes[node_type]))
        assert len(counts) == world_size
    rank = {t: rank_of_nodes(*parts, cpu).long() for t, parts in chosen.parts.items()}
    for t, e in edges.items():
        rows, pairs = brute_force_volume(e, rank[t[0]], rank[t[2]], world_size)
        assert list(map(list, chosen.volumes[t].rows)) == rows
        assert list(map(list, chosen.volumes[t].edges)) == pairs


def of_rank(names: Mapping[str, list[str]]) -> dict[str, Any]:
    group = Group.current()
    by_key = {}
    for name, graph in graphs().items():
        for order in names.get(name, names["any"]):
            with named_case(name, order):
                chosen = choose(graph, order, group)
                check(graph, chosen, group.world_size)
                orders = {t: (o.tolist(), c) for t, (o, c) in chosen.parts.items()}
                by_key[f"{name}, {order}"] = (chosen.name, chosen.reason, orders, chosen.candidates)
    return by_key


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_choose_the_same_counted_order(world_size: int) -> None:
    names = {"any": ["auto", "random"], "planted": ["auto", "communities", "original"]}
    results = run_ranks(of_rank, world_size, names)
    assert all(result == results[0] for result in results)
    actual = results[0]
    name, reason, _, candidates = actual["planted, auto"]
    if world_size == 1:
        assert (name, reason) == ("original", "one rank has all rows")
        return
    assert name in ("communities", "metis")  # METIS where it is installed
    assert candidates[name] < 0.6 * candidates["random"]
    assert f"{candidates['random']:,}" in reason
    # A uniform graph has nothing to gain.
    assert actual["uniform, auto"][0] == "random"
    assert "no other order lowers the rows" in actual["uniform, auto"][1]
    # The user's order of a path is as good as it gets.
    path = actual["path, auto"]
    assert path[3]["original"] == 1
    assert path[0] in ("original", "communities", "metis")


def test_orders_by_type() -> None:
    group = Group(0, 1, torch.device("cpu"), 60.0)
    graph = graphs()["types"]
    part = torch.zeros(25, dtype=torch.int64)
    chosen = choose(graph, {"a": "random", "b": part}, group)
    check(graph, chosen, 1)
    assert chosen.name == "given, original, random"
    assert (
        choose(graph, {"a": "random", "b": part, "c": "original"}, group).reason == "as asked for"
    )


def test_errors() -> None:
    counts = {"a": 3, "b": 4}
    with pytest.raises(ValueError, match="order must be one of auto, random, .* got 'best'"):
        check_order("best", counts)
    with pytest.raises(
        ValueError, match=r"a dict of parts by node type for the types \['a', 'b'\]"
    ):
        check_order(torch.zeros(3, dtype=torch.int64), counts)
    with pytest.raises(ValueError, match="order names the node type 'c'"):
        check_order({"c": "random"}, counts)
    with pytest.raises(ValueError, match="each of 4 nodes"):
        check_order({"b": torch.zeros(3, dtype=torch.int64)}, counts)
    group = Group(0, 1, torch.device("cpu"), 60.0)
    with pytest.raises(ValueError, match="node 1 is in part 1, expected parts 0 to 0"):
        choose(graphs()["two nodes"], torch.tensor([0, 1]), group)
