"""Graphs whose structure is torch tensors answer as DGL's own do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("peergraph_dgl", exc_type=ImportError)

import dgl

from peergraph_dgl.backend import message_passing
from peergraph_dgl.backend.device_index import is_device_index
from peergraph_dgl.backend.edge_list import edge_list_of
from tests.adapters.dgl.served import block, plain_graph, served, typed_graph
from tests.conftest import require_gpus
from tests.named_case import named_case
from tests.pairwise import pairwise

Answer = Callable[[Any], Any]


def ids(*values: int) -> Callable[[Any], torch.Tensor]:
    return lambda g: torch.tensor(values, dtype=g.idtype, device=g.device)


# What DGL's own graph and ours must say alike, whatever the order of edges is said to be.
ANSWERS: dict[str, Answer] = {
    "in_degrees": lambda g: g.in_degrees(),
    "in_degrees of some": lambda g: g.in_degrees(ids(3, 3, 0)(g)),
    "out_degrees": lambda g: g.out_degrees(),
    "out_degrees of some": lambda g: g.out_degrees(ids(2, 1)(g)),
    "edges in order": lambda g: g.edges(form="all", order="eid"),
    "edges by ends": lambda g: g.edges(form="uv", order="srcdst"),
    "find_edges": lambda g: g.find_edges(ids(7, 0, 7)(g)),
    "in_edges": lambda g: sort(g.in_edges(ids(4, 2)(g), form="all")),
    "in_edges of none": lambda g: g.in_edges(ids()(g), form="all"),
    "out_edges": lambda g: sort(g.out_edges(ids(4, 2)(g), form="all")),
    "has_edges_between": lambda g: g.has_edges_between(*g.find_edges(ids(3, 4)(g))),
    "edge_ids": lambda g: sort(g.edge_ids(*g.find_edges(ids(3)(g)), return_uv=True)),
    "number of nodes": lambda g: (g.num_src_nodes(), g.num_dst_nodes(), g.num_edges()),
    "multigraph": lambda g: g.is_multigraph,
    "adjacency": lambda g: g.adj_external().to_dense(),
    "adjacency tensors": lambda g: g.adj_tensors("coo"),
    "idtype": lambda g: (g.idtype, g.int().idtype, g.long().idtype),
    "reversed": lambda g: g.reverse().edges(order="eid") if not g.is_block else (),
}


def sort(edges: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    order = edges[2].argsort()
    return tuple(tensor[order] for tensor in edges)


def assert_same(got: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert got.dtype == expected.dtype
        assert torch.equal(got.cpu(), expected)
    elif isinstance(expected, (tuple, list)):
        assert len(got) == len(expected)
        for ours, theirs in zip(got, expected, strict=True):
            assert_same(ours, theirs)
    else:
        assert got == expected


@pytest.mark.parametrize("graph", [plain_graph, block])
@pytest.mark.parametrize("idtype", [torch.int64, torch.int32])
def test_answers(graph: Callable[..., Any], idtype: torch.dtype, device: torch.device) -> None:
    for name, answer in ANSWERS.items():
        g = graph(idtype)
        with named_case(name):
            assert_same(answer(served(g, device)), answer(g))


def test_whole_graph_moves_with_its_data(device: torch.device) -> None:
    g = typed_graph()
    g.nodes["user"].data["x"] = torch.arange(12)
    g.edges["plays"].data["w"] = torch.arange(25)
    moved = served(g, device)
    assert moved.device == device
    assert moved.to(device) is moved
    back = moved.to("cpu")
    assert back.device.type == "cpu"
    for etype in g.canonical_etypes:
        assert_same(back.edges(etype=etype), g.edges(etype=etype))
    assert_same(back.nodes["user"].data["x"], torch.arange(12))
    assert dgl.add_self_loop(back, etype="follows").num_edges("follows") == 42


def test_types(device: torch.device) -> None:
    g = typed_graph()
    moved = served(g, device)
    assert moved.ntypes == g.ntypes
    assert moved.canonical_etypes == g.canonical_etypes
    assert repr(moved) == repr(g)
    plays = moved["plays"]
    assert (plays.srctypes, plays.dsttypes) == (["user"], ["game"])
    assert_same(plays.in_degrees(), g["plays"].in_degrees())
    part = dgl.edge_type_subgraph(moved, ["plays", "follows"])
    assert part.device == device
    assert set(part.etypes) == {"plays", "follows"}
    assert_same(part.edges(etype="plays"), g.edges(etype="plays"))


def test_subgraphs(device: torch.device) -> None:
    g = plain_graph()
    moved = served(g, device)
    nodes = torch.tensor([3, 4, 5, 6, 7])
    got, expected = moved.subgraph(nodes.to(device)), g.subgraph(nodes)
    assert got.device == device
    assert_same(got.edges(order="eid"), expected.edges(order="eid"))
    assert_same(got.edata[dgl.EID], expected.edata[dgl.EID])
    edges = torch.tensor([5, 9, 11])
    got, expected = moved.edge_subgraph(edges.to(device)), g.edge_subgraph(edges)
    assert_same(got.edges(order="eid"), expected.edges(order="eid"))
    assert_same(got.ndata[dgl.NID], expected.ndata[dgl.NID])


@pytest.mark.parametrize("played_by", [0, 14])
def test_edges_with_all_nodes(played_by: int, device: torch.device) -> None:
    """Of several relations DGL's index gives no list of the nodes that are preserved."""
    g = typed_graph(played_by)
    moved = served(g, device)
    edges = {"plays": torch.tensor([3, 1]), "makes": torch.tensor([8])}
    on_device = {etype: ids.to(device) for etype, ids in edges.items()}
    got = moved.edge_subgraph(on_device, relabel_nodes=False)
    expected = g.edge_subgraph(edges, relabel_nodes=False)
    removed = dgl.remove_edges(moved, on_device["plays"], etype="plays")
    for ours, theirs in ((got, expected), (removed, dgl.remove_edges(g, edges["plays"], "plays"))):
        assert ours.device == device
        for etype in g.canonical_etypes:
            assert_same(ours.edges(etype=etype), theirs.edges(etype=etype))
        for ntype in g.ntypes:
            assert ours.num_nodes(ntype) == g.num_nodes(ntype)


def test_copied_and_pickled_graphs(device: torch.device) -> None:
    moved = served(block(), device)
    moved.edata["w"] = torch.rand(70, device=device)
    for other in (copy.deepcopy(moved), pickle.loads(pickle.dumps(moved)), moved.clone()):
        assert other.device == device
        assert other.is_block
        assert_same(other.edges(), [tensor.cpu() for tensor in moved.edges()])
        assert_same(other.edata["w"], moved.edata["w"].cpu())


def test_frames_and_scopes(device: torch.device) -> None:
    b = served(block(), device)
    with b.local_scope():
        b.srcdata["h"] = torch.rand(30, 2, device=device)
        b.dstdata["h"] = torch.rand(10, 2, device=device)
        assert b.srcdata["h"].device == device
    assert "h" not in b.srcdata
    with pytest.raises(dgl.DGLError, match="Expect number of features to match"):
        b.srcdata["h"] = torch.rand(29, 2, device=device)


@pytest.fixture(params=["cpu", "cuda"])
def foreign(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A device that DGL's library cannot have a graph on: a GPU, or the CPU for once."""
    if request.param == "cpu":
        monkeypatch.setattr(message_passing, "is_unsupported_by_dgl", lambda _: True)
        return torch.device("cpu")
    require_gpus(1)
    return torch.device("cuda", 0)


def test_graphs_made_of_tensors_of_a_device(foreign: torch.device) -> None:
    """By DGL's own functions, from edges and from sparse matrices."""
    generator = torch.Generator().manual_seed(2)
    src = torch.randint(0, 30, (70,), generator=generator)
    dst = torch.randint(0, 10, (70,), generator=generator)
    far = src.to(foreign), dst.to(foreign)
    degrees = torch.bincount(dst, minlength=30)

    def check(result: Any, etype: Any = None) -> None:
        assert is_device_index(result._graph)
        assert result.device == foreign
        assert_same(result.edges(order="eid", etype=etype), (src, dst))
        assert_same(
            result.in_degrees(etype=etype), degrees[: result.num_dst_nodes(result.dsttypes[-1])]
        )

    check(dgl.graph(far, num_nodes=30))
    check(dgl.create_block(far, num_src_nodes=30, num_dst_nodes=10))
    two = dgl.heterograph({("a", "to", "b"): far, ("b", "back", "a"): far[::-1]})
    check(two["to"])
    assert_same(two.edges(etype="back", order="eid"), (dst, src))
    block = {("a", "to", "b"): far, ("a", "also", "b"): far}
    check(dgl.create_block(block, {"a": 30}, {"b": 10}), "also")

    by_dst, by_src = dst.argsort(stable=True), src.argsort(stable=True)
    into = torch.cat([dst.new_zeros(1), degrees.cumsum(0)])
    out_of = torch.cat([src.new_zeros(1), torch.bincount(src, minlength=30).cumsum(0)])
    for matrix in (("csc", (into, src[by_dst], by_dst)), ("csr", (out_of, dst[by_src], by_src))):
        arrays = tuple(array.to(foreign) for array in matrix[1])
        check(dgl.graph((matrix[0], arrays), num_nodes=30))
    ordered = dgl.graph(("csc", (into.to(foreign), far[0][by_dst.to(foreign)], [])), num_nodes=30)
    assert_same(ordered.edges(order="eid"), (src[by_dst], dst[by_dst]))


def test_computation_on_part_of_a_graph(foreign: torch.device) -> None:
    """For which DGL makes another graph."""
    src, dst = torch.tensor([0, 1, 2, 2]), torch.tensor([1, 2, 0, 1])
    g = dgl.graph((src.to(foreign), dst.to(foreign)))
    g.ndata["x"] = torch.tensor([1.0, 2.0, 4.0], device=foreign)
    g.pull(
        torch.tensor([1], device=foreign), dgl.function.copy_u("x", "m"), dgl.function.sum("m", "y")
    )
    assert g.ndata["y"].tolist() == [0, 5, 0]
    same = g.clone()
    assert_same(same.edges(order="eid"), (src, dst))


def test_what_it_does_not_do(device: torch.device) -> None:
    g = served(plain_graph(), device)
    with pytest.raises(NotImplementedError, match="shared_memory is not implemented"):
        g.shared_memory("name")
    with pytest.raises(NotImplementedError, match="pin_memory_"):
        g._graph.pin_memory_()
    with pytest.raises(TypeError, match=r"move it by .to\('cpu'\)"):
        _ = g._graph.handle


@pytest.mark.parametrize(
    ("dtype", "order", "layout"),
    pairwise([torch.int32, torch.int64], ["none", "same", "reversed"], ["coo", "csc", "csr"]),
)
def test_relations_of_dgls_own_index(layout: str, order: str, dtype: torch.dtype) -> None:
    """Edges come in the order of their ids, whatever formats there are."""
    src = torch.tensor([3, 0, 2, 2, 1], dtype=dtype)
    dst = torch.tensor([0, 0, 1, 3, 3], dtype=dtype)
    numbers = torch.arange(5, dtype=dtype)
    numbers = {"none": numbers[:0], "same": numbers, "reversed": numbers.flip(0)}[order]
    offsets = torch.tensor([0, 2, 3, 3, 5, 5], dtype=dtype)
    if layout == "coo":
        g = dgl.graph((src, dst), num_nodes=5)
    else:
        g = dgl.graph((layout, (offsets, src, numbers)), num_nodes=5)
    edges = edge_list_of(g._graph, 0)
    expected = g.edges(order="eid")
    assert (edges.num_src, edges.num_dst, edges.num_edges) == (5, 5, 5)
    assert torch.equal(edges.src, expected[0])
    assert torch.equal(edges.dst, expected[1])
    assert (edges.src.dtype, edges.device.type) == (dtype, "cpu")


@pytest.mark.parametrize("formats", ["csc", "csr", ["csr", "csc"]], ids=str)
@pytest.mark.parametrize("created", [False, True])
def test_relations_of_graphs_that_allow_no_coo(formats: Any, created: bool) -> None:
    """Of those, DGL gives no edges in the order of their ids."""
    for g in (plain_graph(), dgl.graph(([], []), num_nodes=3)):
        limited = g.formats(formats)
        if created:
            limited.create_formats_()
        edges = edge_list_of(limited._graph, 0)
        assert torch.equal(torch.stack([edges.src, edges.dst]), torch.stack(g.edges()))
        assert is_device_index(served(limited, torch.device("cpu"))._graph)


@pytest.mark.parametrize("layout", ["coo", "csc"])
def test_relations_without_edges(layout: str) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    data = (none, none) if layout == "coo" else (layout, (torch.zeros(4).long(), none, none))
    edges = edge_list_of(dgl.graph(data, num_nodes=3)._graph, 0)
    assert (edges.num_src, edges.num_dst, edges.num_edges) == (3, 3, 0)
    assert edges.in_degrees().tolist() == [0, 0, 0]
