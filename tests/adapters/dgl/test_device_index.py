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

from tests.adapters.dgl.served import block, plain_graph, served, typed_graph

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


def assert_same(got: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        assert got.dtype == wanted.dtype
        assert torch.equal(got.cpu(), wanted)
    elif isinstance(wanted, (tuple, list)):
        assert len(got) == len(wanted)
        for ours, theirs in zip(got, wanted, strict=True):
            assert_same(ours, theirs)
    else:
        assert got == wanted


@pytest.mark.parametrize("idtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("graph", [plain_graph, block])
@pytest.mark.parametrize("name", ANSWERS)
def test_answers(
    name: str, graph: Callable[..., Any], idtype: torch.dtype, device: torch.device
) -> None:
    g = graph(idtype)
    assert_same(ANSWERS[name](served(g, device)), ANSWERS[name](g))


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
    got, wanted = moved.subgraph(nodes.to(device)), g.subgraph(nodes)
    assert got.device == device
    assert_same(got.edges(order="eid"), wanted.edges(order="eid"))
    assert_same(got.edata[dgl.EID], wanted.edata[dgl.EID])
    edges = torch.tensor([5, 9, 11])
    got, wanted = moved.edge_subgraph(edges.to(device)), g.edge_subgraph(edges)
    assert_same(got.edges(order="eid"), wanted.edges(order="eid"))
    assert_same(got.ndata[dgl.NID], wanted.ndata[dgl.NID])


def test_copies(device: torch.device) -> None:
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


@pytest.mark.gpus(1)
def test_graphs_made_of_tensors_of_a_gpu() -> None:
    g = plain_graph()
    src, dst = g.edges(order="eid")
    made = dgl.graph((src.cuda(), dst.cuda()), num_nodes=24)
    assert made.device == torch.device("cuda", 0)
    assert_same(made.in_degrees(), g.in_degrees())
    b = block()
    src, dst = b.edges(order="eid")
    made = dgl.create_block((src.cuda(), dst.cuda()), num_src_nodes=30, num_dst_nodes=10)
    assert made.device == torch.device("cuda", 0)
    assert_same(made.edges(order="eid"), b.edges(order="eid"))
    indptr, indices, edge_ids = g.adj_tensors("csc")
    made = dgl.graph(("csc", (indptr.cuda(), indices.cuda(), edge_ids.cuda())), num_nodes=24)
    assert_same(made.edges(order="eid"), g.edges(order="eid"))
    hetero = dgl.heterograph({("a", "to", "b"): (src.cuda(), dst.cuda())})
    assert hetero["to"].device == torch.device("cuda", 0)
    assert hetero.to("cpu").num_edges() == 70


def test_what_it_does_not_do(device: torch.device) -> None:
    g = served(plain_graph(), device)
    with pytest.raises(NotImplementedError, match="shared_memory is not there"):
        g.shared_memory("name")
    with pytest.raises(NotImplementedError, match="pin_memory_"):
        g._graph.pin_memory_()
    with pytest.raises(TypeError, match=r"move it by .to\('cpu'\)"):
        _ = g._graph.handle
