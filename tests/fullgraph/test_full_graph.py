"""Graphs partitioned over ranks: the same edges, sums and tables as on one rank without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import peergraph.fullgraph.graph as graph_module
from peergraph.aggregate import Csc, g_spmm
from peergraph.fullgraph import FullGraph, distribute, named_model
from peergraph.memory import Group, Topology
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Store
from peergraph.testing import run_ranks
from tests.named_case import named_case

from .partition_graphs import NUM_NODES, edge_graphs, planted_graph

Edges = dict[tuple[str, str, str], Tensor]
A_TO_B, B_OF_A, A_TO_A = ("a", "to", "b"), ("b", "of", "a"), ("a", "near", "a")


def typed_graph() -> tuple[dict[str, int], Edges]:
    random = torch.Generator().manual_seed(3)

    def ends(sources: int, destinations: int, count: int) -> Tensor:
        drawn = [torch.randint(n, (count,), generator=random) for n in (sources, destinations)]
        return torch.stack(drawn)

    edges = {A_TO_B: ends(30, 17, 120), B_OF_A: ends(17, 30, 90), A_TO_A: ends(30, 30, 0)}
    return {"a": 30, "b": 17, "alone": 4}, edges


def check(graph: FullGraph, num_nodes: dict[str, int], edges: Edges) -> None:
    """Compares layouts, edges and sums with those of the whole graph."""
    random = torch.Generator().manual_seed(9)
    x = {t: torch.randn(n, 3, generator=random, dtype=torch.float64) for t, n in num_nodes.items()}
    for node_type, layout in graph.node_layouts.items():
        assert layout.size == num_nodes[node_type]
        rows = graph.node_rows(x[node_type], node_type)
        assert torch.equal(rows.to_local(), x[node_type][layout.positions])
        assert torch.equal(rows.full_tensor(), x[node_type])
    for edge_type, whole in edges.items():
        source, destination = whole.long()
        structure = graph.structures[edge_type]
        layout = graph.edge_layouts[edge_type]
        assert structure.edge_layout is layout
        assert layout.size == source.numel()
        ids = torch.arange(source.numel())
        assert torch.equal(graph.edge_rows(ids, edge_type).full_tensor(), ids)
        # Each edge is on the rank of its destination.
        into = graph.node_layouts[edge_type[2]].locate(destination[layout.positions])[0]
        assert (into == graph.group.rank).all()
        csc = Csc.from_edge_index(whole.long(), num_nodes[edge_type[2]], num_nodes[edge_type[0]])
        weights = torch.randn(source.numel(), generator=random, dtype=torch.float64)
        actual = structure.spmm(
            "mul",
            "sum",
            distribute(x[edge_type[0]], graph.node_layouts[edge_type[0]]),
            distribute(weights, layout),
        )
        expected = g_spmm(csc, "mul", "sum", x[edge_type[0]], weights)
        torch.testing.assert_close(actual.full_tensor(), expected)
        assert torch.equal(structure.in_degrees().full_tensor().long(), csc.in_degrees().long())
        assert torch.equal(structure.out_degrees().full_tensor().long(), csc.out_degrees().long())
        volume = graph.order.volumes[edge_type]
        assert volume.received[graph.group.rank] == sum(structure.plan.halo_counts)
        assert volume.num_edges[graph.group.rank] == layout.local_count


def part_of(count: int, ranks: int) -> Tensor:
    return torch.arange(count) * 7 % 5 % ranks


def all_graphs() -> None:
    group = Group.current()
    for name, edges in edge_graphs().items():
        with named_case(name):
            check(FullGraph.build(group, NUM_NODES, edges), {NODE: NUM_NODES}, {EDGE: edges})
    small = torch.tensor([[0, 1, 1, 1], [1, 0, 1, 1]])
    for count, edges in ((0, small[:, :0]), (1, small[:, :0]), (2, small)):
        with named_case("few nodes", count):
            check(FullGraph.build(group, count, edges), {NODE: count}, {EDGE: edges})


def all_forms() -> None:
    group = Group.current()
    edges = edge_graphs()["uniform"]
    csc = Csc.from_edge_index(edges, NUM_NODES, NUM_NODES)
    part = part_of(NUM_NODES, group.world_size)
    forms: dict[str, tuple[Any, Any]] = {
        "csc": (csc, "auto"),
        "tuple": ((csc.indptr.int(), csc.indices.int(), csc.edge_ids), "random"),
        "original": (edges, "original"),
        "communities": (edges.int(), "communities"),
        "given": (edges, part),
        "given by type": (edges, {NODE: part.int()}),
    }
    for name, (form, order) in forms.items():
        with named_case(name):
            graph = FullGraph.build(group, NUM_NODES, form, order=order)
            check(graph, {NODE: NUM_NODES}, {EDGE: edges})
            if name.startswith("given"):
                owner = graph.node_layouts[NODE].locate(torch.arange(NUM_NODES))[0]
                assert torch.equal(owner, part)
            if name == "original":
                assert torch.equal(graph.node_layouts[NODE].internal_rows, torch.arange(NUM_NODES))


def types_and_stores(orders: tuple[str, ...] = ("auto", "random", "original")) -> None:
    group = Group.current()
    num_nodes, edges = typed_graph()
    for order in ("auto", "random", "communities", {"a": part_of(30, group.world_size)}):
        with named_case("types", order):
            check(FullGraph.build(group, num_nodes, edges, order=order), num_nodes, edges)
    nodes, planted, _ = planted_graph(12, 10)
    table = torch.arange(nodes * 2).reshape(nodes, 2)
    weights = torch.arange(planted.shape[1])
    homogeneous = GraphSource.homogeneous(
        nodes, EdgeSource(coo=planted), {"x": table}, {"w": weights}
    )
    typed = GraphSource(num_nodes, {t: EdgeSource(coo=e) for t, e in edges.items()})
    for name, source, counts, of in (
        ("planted", homogeneous, {NODE: nodes}, {EDGE: planted}),
        ("typed", typed, num_nodes, edges),
    ):
        local_source = source if group.rank == 0 else None
        with Store.build(local_source, group=group, progress=False, memory_budget=1 << 20) as store:
            for order in orders:
                with named_case("store", name, order):
                    graph = FullGraph.from_store(store, order=order)
                    check(graph, counts, of)
            if name == "planted":
                rows = graph.node_rows(store.node_table("x"))
                assert torch.equal(rows.full_tensor(), table)
                assert torch.equal(graph.edge_rows(store.edge_table("w")).full_tensor(), weights)
                assert graph.plan.facts.row_bytes == {NODE: 16}
                assert graph.plan.facts.edge_row_bytes == {EDGE: 8}


def wrong_arguments() -> None:
    group = Group.current()
    edges = edge_graphs()["uniform"]
    bad = edges.clone()
    bad[0, 399] = bad[1, 301] = NUM_NODES
    with pytest.raises(IndexError, match="edges: the destination of edge 301 is 60, out of range"):
        FullGraph.build(group, NUM_NODES, bad)
    num_nodes, typed = typed_graph()
    typed[A_TO_B][1, 5] = -3
    message = (
        r"edges of \('a', 'to', 'b'\): the destination of edge 5 is -3, .* 17 nodes of type 'b'"
    )
    with pytest.raises(IndexError, match=message):
        FullGraph.build(group, num_nodes, typed)
    with pytest.raises(ValueError, match="more than memory_budget"):
        FullGraph.build(group, NUM_NODES, edges, memory_budget=100, offload=False)
    with pytest.raises(ValueError, match="not enough for offloaded training"):
        FullGraph.build(group, NUM_NODES, edges, memory_budget=100)
    if group.world_size == 1:
        return
    with pytest.raises(ValueError, match="the ranks disagree about edges of"):
        FullGraph.build(group, NUM_NODES, edges[:, : 300 + group.rank])
    with pytest.raises(ValueError, match="the ranks disagree about edges of"):
        FullGraph.build(group, NUM_NODES, edges.roll(group.rank))
    part = part_of(NUM_NODES, group.world_size).roll(group.rank)
    with pytest.raises(ValueError, match="the ranks disagree about order"):
        FullGraph.build(group, NUM_NODES, edges, order=part)
    # The ranks go on together.
    check(FullGraph.build(group, NUM_NODES, edges), {NODE: NUM_NODES}, {EDGE: edges})


def unread_shares() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_module, "_BYTES_OF_KEPT_EDGE", 1 << 60)
        patch.setattr(graph_module, "PIECE_EDGES", 37)
        all_forms()
        types_and_stores(("random",))
        wrong_arguments()


CASES: list[Callable[[], None]] = [
    *(all_graphs, all_forms, types_and_stores, wrong_arguments, unread_shares),
]


def run_cases() -> None:
    for case in CASES:
        with named_case(case.__name__):
            case()


@pytest.mark.parametrize("world_size", [1, 3])
def test_graphs_are_the_same_on_ranks(world_size: int) -> None:
    run_ranks(run_cases, world_size)


def test_one_process_without_ranks() -> None:
    edges = edge_graphs()["uniform"]
    two = Topology.default(2)
    graph = FullGraph.build(None, NUM_NODES, edges, model=named_model([3, 8, 2]), topology=two)
    check(graph, {NODE: NUM_NODES}, {EDGE: edges})
    assert repr(graph) == "FullGraph(60 nodes, 400 edges, order original, rank 0 of 1)"
    assert "model: gcn 3-8-2" in str(graph.plan)
    assert "links of default figures[0]" in str(graph.plan)


def test_errors_before_anything_is_read() -> None:
    group = Group(0, 1, torch.device("cpu"), 60.0)
    edges = edge_graphs()["uniform"]
    with pytest.raises(TypeError, match="num_nodes of '_N' must be an int, got 1.5"):
        FullGraph.build(group, 1.5, edges)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_nodes of 'a' must not be negative, got -1"):
        FullGraph.build(group, {"a": -1}, {})
    with pytest.raises(ValueError, match="at least one node type"):
        FullGraph.build(group, {}, {})
    with pytest.raises(ValueError, match=r"edges must be a dict by relation for the types \['a'\]"):
        FullGraph.build(group, {"a": 3}, edges)
    with pytest.raises(ValueError, match=r"name the node type 'b', expected one of \['a'\]"):
        FullGraph.build(group, {"a": 3}, {A_TO_B: edges})
    with pytest.raises(ValueError, match="by relation .* got the key 'to'"):
        FullGraph.build(group, {"a": 3}, {"to": edges})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="topology must be a peergraph.memory.Topology"):
        FullGraph.build(group, NUM_NODES, edges, topology="full3")
    rows = FullGraph.build(group, NUM_NODES, edges)
    with pytest.raises(ValueError, match=r"table must have 60 rows, got shape \[59\]"):
        rows.node_rows(torch.zeros(59))
