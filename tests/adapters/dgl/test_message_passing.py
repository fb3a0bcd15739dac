"""DGL's message passing by Peergraph's kernels gives what DGL's own gives."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("peergraph_dgl", exc_type=ImportError)

import dgl
import dgl.function as fn

import peergraph_dgl
from tests.adapters.dgl.served import (
    assert_close,
    block,
    grads,
    leaf,
    plain_graph,
    served,
    typed_graph,
)
from tests.named_case import named_case, named_cases

OPS = ("add", "sub", "mul", "div")
SHAPES = [
    ((), ()),
    ((5,), (5,)),
    ((5,), (1,)),
    ((5,), ()),
    ((3, 4), (3, 1)),
    ((3, 4), (1, 4)),
    ((1,), (6,)),
    ((4,), (3, 1)),
]


def check(
    run: Callable[..., Tensor], graph: Any, device: torch.device, *features: Tensor | None
) -> None:
    """Values and gradients of `run(graph, *features)` against DGL's on the CPU."""
    results = []
    for g, place in ((graph, torch.device("cpu")), (served(graph, device), device)):
        leaves = [None if f is None else leaf(f, place) for f in features]
        out = run(g, *[tensor for tensor in leaves if tensor is not None])
        # As DGL's callers do, which spares the gradients of rows without edges.
        out = out.masked_fill(out.isinf(), 0)
        results.append([out, *grads(out, leaves)])
    for got, expected in zip(results[1], results[0], strict=True):
        assert_close(got, expected)


def values(rows: int, *shape: int) -> Tensor:
    """Positive, so that dividing is safe; all different, so that no two are the extremum."""
    generator = torch.Generator().manual_seed(rows + sum(shape))
    return torch.rand(rows, *shape, generator=generator) + 0.5


@named_cases("message", ["copy_u", "copy_e", *OPS])
def test_spmm(message: str, device: torch.device) -> None:
    for graph, reduce in itertools.product([plain_graph, block], ["sum", "mean", "max", "min"]):
        g = graph()
        x, e = values(g.num_src_nodes(), 5), values(g.num_edges(), 5)
        name = f"{message}_{reduce}" if message.startswith("copy") else f"u_{message}_e_{reduce}"
        operands = {"copy_u": [x], "copy_e": [e]}.get(message, [x, e])
        with named_case(graph.__name__, reduce):
            check(getattr(dgl.ops, name), g, device, *operands)


@named_cases("shapes", SHAPES)
def test_spmm_broadcasts(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], device: torch.device
) -> None:
    g = plain_graph()
    x, e = values(g.num_nodes(), *shapes[0]), values(g.num_edges(), *shapes[1])
    for op, reduce in itertools.product(OPS, ["sum", "mean", "max"]):
        with named_case(op, reduce):
            check(getattr(dgl.ops, f"u_{op}_e_{reduce}"), g, device, x, e)


@pytest.mark.parametrize("op", [*OPS, "dot"])
def test_sddmm(op: str, device: torch.device) -> None:
    for idtype in (torch.int32, torch.int64):
        with named_case(idtype):
            check_sddmm(op, block(idtype), device)


def check_sddmm(op: str, g: Any, device: torch.device) -> None:
    rows = {"u": g.num_src_nodes(), "v": g.num_dst_nodes(), "e": g.num_edges()}
    shapes = (((5,), (5,)), ((3, 4), (3, 4)), ((3, 4), (1, 4)), ((4,), (3, 1)))
    for (lhs, rhs), (left, right) in itertools.product(itertools.permutations("uve", 2), shapes):
        if op == "dot" and left[-1] != right[-1]:
            continue
        function = getattr(dgl.ops, f"{lhs}_{op}_{rhs}")
        with named_case(lhs, rhs, left, right):
            check(function, g, device, values(rows[lhs], *left), values(rows[rhs], *right))


def test_dot_of_different_widths(device: torch.device) -> None:
    g = served(plain_graph(), device)
    x, e = values(24, 4).to(device), values(90, 1).to(device)
    with pytest.raises(ValueError, match="dot: the last dimensions differ, 4 and 1"):
        dgl.ops.u_dot_e(g, x, e)


@pytest.mark.parametrize("target", ["u", "v"])
def test_copy_u_and_copy_v(target: str, device: torch.device) -> None:
    g = block()
    rows = g.num_src_nodes() if target == "u" else g.num_dst_nodes()
    check(getattr(dgl.ops, f"copy_{target}"), g, device, values(rows, 3))


@pytest.mark.parametrize("norm_by", ["dst", "src"])
def test_edge_softmax(norm_by: str, device: torch.device) -> None:
    g = plain_graph()
    some = torch.arange(5, 60, 3)

    def of_all(g: Any, scores: Tensor) -> Any:
        return dgl.ops.edge_softmax(g, scores, norm_by=norm_by)

    def of_some(g: Any, scores: Tensor) -> Any:
        return dgl.ops.edge_softmax(g, scores, some.to(g.device), norm_by)

    shapes: list[tuple[int, ...]] = [(), (4,), (4, 1)]
    for shape in shapes:
        scores = values(g.num_edges(), *shape)
        with named_case(shape):
            check(of_all, g, device, scores)
            check(of_some, g, device, scores[some])


@pytest.mark.parametrize("norm_by", ["dst", "src"])
def test_edge_softmax_of_types(norm_by: str, device: torch.device) -> None:
    g = typed_graph()
    scores = [values(g.num_edges(etype), 2) for etype in g.canonical_etypes]

    def run(g: Any, *scores: Tensor) -> Tensor:
        by_type = dict(zip(g.canonical_etypes, scores, strict=True))
        out = dgl.ops.edge_softmax(g, by_type, norm_by=norm_by)
        return torch.cat([out[etype] for etype in g.canonical_etypes])

    check(run, g, device, *scores)


def test_edge_softmax_of_some_edges_of_types(device: torch.device) -> None:
    g = served(typed_graph(), device)
    scores = {etype: torch.zeros(1, device=device) for etype in g.canonical_etypes}
    with pytest.raises(NotImplementedError, match="eids of edge_softmax in a graph of several"):
        dgl.ops.edge_softmax(g, scores, torch.zeros(1, dtype=torch.int64, device=device))


@pytest.mark.parametrize("reduce", ["sum", "max", "min"])
def test_several_relations_at_once(reduce: str, device: torch.device) -> None:
    g = typed_graph()
    features = [values(g.num_nodes(ntype), 3) for ntype in g.ntypes]

    def run(g: Any, *features: Tensor) -> Tensor:
        for ntype, feature in zip(g.ntypes, features, strict=True):
            g.nodes[ntype].data["x"] = feature
        g.update_all(fn.copy_u("x", "m"), getattr(fn, reduce)("m", "y"))
        return torch.cat([g.nodes[ntype].data["y"] for ntype in ("user", "game")])

    if reduce == "sum":
        check(run, g, device, *features)
    else:
        with torch.no_grad():
            # DGL's own gradients of extrema over several relations are those of one relation.
            expected = run(g, *features)
            moved = [feature.to(device) for feature in features]
            assert_close(run(served(g, device), *moved), expected)


def test_apply_edges_of_several_relations(device: torch.device) -> None:
    g = typed_graph()
    features = [values(g.num_nodes(ntype), 3) for ntype in g.ntypes]

    def run(g: Any, *features: Tensor) -> Tensor:
        for ntype, feature in zip(g.ntypes, features, strict=True):
            g.nodes[ntype].data["x"] = feature
        g.apply_edges(fn.u_add_v("x", "x", "s"))
        return torch.cat([g.edges[etype].data["s"] for etype in g.canonical_etypes])

    check(run, g, device, *features)


def test_relation_without_edges(device: torch.device) -> None:
    """DGL's own kernels for several relations go wrong with one."""
    g = served(typed_graph(played_by=0), device)
    for ntype in g.ntypes:
        g.nodes[ntype].data["x"] = -values(g.num_nodes(ntype), 3).to(device)
    g.apply_edges(fn.u_add_v("x", "x", "s"))
    g.update_all(fn.copy_u("x", "m"), fn.max("m", "y"))
    follows = g.edges[("user", "follows", "user")].data["s"]
    u, v = g.edges(etype="follows")
    x = g.nodes["user"].data["x"]
    assert_close(follows, (x[u] + x[v]).cpu())
    expected = torch.full((12, 3), -torch.inf)
    expected.scatter_reduce_(0, v.cpu()[:, None].expand(-1, 3), x.cpu()[u.cpu()], "amax")
    assert_close(g.nodes["user"].data["y"], expected.masked_fill(expected.isinf(), 0))


def test_multi_update_all(device: torch.device) -> None:
    g = typed_graph()
    x = values(g.num_nodes("user"), 3)
    y = values(g.num_nodes("maker"), 3)

    def run(g: Any, x: Tensor, y: Tensor, cross: str) -> Tensor:
        with g.local_scope():
            g.nodes["user"].data["x"] = x
            g.nodes["maker"].data["x"] = y
            copy = (fn.copy_u("x", "m"), fn.mean("m", "h"))
            g.multi_update_all({"plays": copy, "makes": copy}, cross)
            return g.nodes["game"].data["h"]

    for cross in ("sum", "mean", "max", "stack"):
        with named_case(cross):
            check(functools.partial(run, cross=cross), g, device, x, y)


def test_user_defined_functions(device: torch.device) -> None:
    g = plain_graph()

    def run(g: Any, x: Tensor, w: Tensor) -> Tensor:
        with g.local_scope():
            g.ndata["x"], g.edata["w"] = x, w
            g.update_all(
                lambda edges: {"m": edges.src["x"] * edges.data["w"] + edges.dst["x"]},
                lambda nodes: {"h": nodes.mailbox["m"].cumsum(1).amax(1)},
            )
            g.apply_edges(lambda edges: {"s": edges.src["h"] - edges.dst["x"]})
            g.update_all(fn.copy_e("s", "m"), fn.sum("m", "h"), lambda n: {"h": n.data["h"] * 2})
            return g.ndata["h"]

    check(run, g, device, values(g.num_nodes(), 4), values(g.num_edges(), 1))


def test_send_and_recv_pull_and_push(device: torch.device) -> None:
    g = plain_graph()

    def run(g: Any, x: Tensor) -> Tensor:
        with g.local_scope():
            g.ndata["x"] = x
            g.pull(torch.tensor([3, 5], device=g.device), fn.copy_u("x", "m"), fn.sum("m", "h"))
            g.push(torch.tensor([4], device=g.device), fn.copy_u("x", "m"), fn.max("m", "k"))
            edges = torch.arange(0, 20, 2, device=g.device)
            g.send_and_recv(edges, fn.copy_u("x", "m"), fn.mean("m", "l"))
            return torch.cat([g.ndata["h"], g.ndata["k"], g.ndata["l"]])

    check(run, g, device, values(g.num_nodes(), 4))


@pytest.fixture
def always() -> Iterator[None]:
    """Peergraph's kernels for all graphs on the CPU."""
    peergraph_dgl.use_kernels("always")
    yield
    peergraph_dgl.use_kernels("auto")


def test_segment_reduce(device: torch.device) -> None:
    lengths = torch.tensor([3, 0, 5, 1, 0])
    x = values(9, 4)
    for reduce in ("sum", "mean", "max", "min"):
        expected = dgl.ops.segment_reduce(lengths, x, reduce)
        peergraph_dgl.use_kernels("always")
        try:
            got = dgl.ops.segment_reduce(lengths.to(device), x.to(device), reduce)
        finally:
            peergraph_dgl.use_kernels("auto")
        with named_case(reduce):
            assert_close(got, expected)


@pytest.mark.usefixtures("always")
def test_segments_of_more_rows_than_there_are() -> None:
    with pytest.raises(ValueError, match="indptr must run from 0 to 9 edges, got 0 to 10"):
        dgl.ops.segment_reduce(torch.tensor([3, 7]), values(9, 4), "sum")


@pytest.mark.parametrize("width", [4, 20])
def test_gather_mm(width: int, device: torch.device) -> None:
    a, b = values(30, width), values(3, width, 6)
    which = torch.arange(30) % 3
    expected = torch.stack([a[i] @ b[which[i]] for i in range(30)])
    got = dgl.ops.gather_mm(a.to(device), b.to(device), idx_b=which.to(device))
    assert_close(got, expected)


@pytest.mark.usefixtures("always")
def test_segment_mm() -> None:
    a, b = values(9, 4), values(3, 4, 6)
    expected = torch.cat([a[:5] @ b[0], a[5:] @ b[2]])
    assert_close(dgl.ops.segment_mm(a, b, torch.tensor([5, 0, 4])), expected)
    with pytest.raises(ValueError, match="b: expected three dimensions"):
        dgl.ops.segment_mm(a, b[0], torch.tensor([9]))


@pytest.mark.usefixtures("always")
def test_all_graphs_of_the_cpu() -> None:
    g = plain_graph()
    x = values(g.num_nodes(), 4)
    got = dgl.ops.copy_u_sum(g, x)
    assert "peergraph" in g._graph._cache
    peergraph_dgl.use_kernels("auto")
    assert_close(got, dgl.ops.copy_u_sum(g, x))


def test_settings() -> None:
    with pytest.raises(ValueError, match="setting: expected one of auto, always, got 'no'"):
        peergraph_dgl.use_kernels("no")


def test_uninstall_and_install_again() -> None:
    from peergraph_dgl.backend import message_passing

    before = dgl.ops.gspmm
    message_passing.uninstall()
    try:
        assert dgl.ops.gspmm is not before
        assert dgl.ops.gspmm.__module__ == "dgl.ops.spmm"
        assert not hasattr(dgl.ops.gspmm, "__wrapped__")
    finally:
        message_passing.install()
    assert hasattr(dgl.ops.gspmm, "__wrapped__")


def test_the_c_library_refuses_such_a_graph(device: torch.device) -> None:
    g = served(plain_graph(), device)
    with pytest.raises(TypeError, match="DeviceIndex"):
        dgl.batch([g, g])
    assert dgl.batch([g.to("cpu")] * 2).num_edges() == 2 * g.num_edges()
