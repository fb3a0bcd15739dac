"""Edges of partitioned graphs that are dropped in each epoch, and functions that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

# First: it skips where there is no DGL.
import tests.adapters.dgl.full_graph_models  # noqa: F401

# isort: split

import dgl
import dgl.function as fn
import torch
from dgl.nn.pytorch import GATConv, GraphConv
from torch import Tensor

import peergraph_dgl
from peergraph.testing import run_ranks
from peergraph_dgl import compat

NODES = 40


def graph() -> Any:
    random = torch.Generator().manual_seed(0)
    ends = torch.randint(NODES, (2, 4 * NODES), generator=random)
    g = dgl.add_self_loop(dgl.graph(tuple(ends), num_nodes=NODES))
    g.ndata["x"] = torch.randn(NODES, 6, generator=random, dtype=torch.float64)
    g.edata["w"] = torch.rand(g.num_edges(), generator=random, dtype=torch.float64)
    return g


def typed() -> Any:
    random = torch.Generator().manual_seed(0)

    def ends(sources: int, targets: int, count: int) -> tuple[Tensor, ...]:
        return tuple(torch.randint(n, (count,), generator=random) for n in (sources, targets))

    g = dgl.heterograph({("u", "a", "v"): ends(9, 12, 40), ("v", "b", "u"): ends(12, 9, 30)},
                        num_nodes_dict={"u": 9, "v": 12})  # fmt: skip
    g.edges["a"].data["w"] = torch.rand(40, generator=random, dtype=torch.float64)
    return g


def full(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def results(g: Any) -> list[Any]:
    """Edges and data, and what layers and maxima make of them, with gradients."""
    data = [g.edata[name] for name in sorted(g.edata)]
    outcomes = [*g.edges(), *data, g.in_degrees(), g.out_degrees()]
    for make in (lambda: GraphConv(6, 4, allow_zero_in_degree=True),
                 lambda: GATConv(6, 4, 2, allow_zero_in_degree=True)):  # fmt: skip
        torch.manual_seed(1)
        layer, x = make().double(), g.ndata["x"].detach().clone().requires_grad_()
        out = layer(g, x)
        out.square().sum().backward()
        outcomes += [out, x.grad, *(parameter.grad for parameter in layer.parameters())]
    with g.local_scope():
        g.update_all(fn.u_mul_e("x", "w", "m"), fn.max("m", "out"))
        outcomes.append(g.ndata["out"])
    return [full(value) for value in outcomes]


def softmax_of(norm_by: str) -> Callable[[Any], list[Any]]:
    def run(g: Any) -> list[Any]:
        ids = torch.randperm(g.num_edges())[:70]
        scores = g.edata["w"].unsqueeze(1).detach().clone().requires_grad_()
        attention = torch.zeros_like(scores)
        attention[ids] = dgl.ops.edge_softmax(g, scores[ids], eids=ids, norm_by=norm_by)
        attention.square().sum().backward()
        return [full(attention), full(scores.grad)]

    return run


def epochs(g: Any) -> list[Any]:
    """Trains with other edges in each epoch."""
    layer, drop = GraphConv(6, 4, allow_zero_in_degree=True).double(), dgl.DropEdge(0.5)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    losses = []
    for _ in range(3):
        loss = layer(drop(g), g.ndata["x"]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def of_types(g: Any) -> list[Any]:
    dropped = dgl.remove_edges(dgl.DropEdge(0.3)(g), torch.tensor([1, 2]), etype="b")
    ends = [full(end) for etype in g.canonical_etypes for end in dropped.edges(etype=etype)]
    return [*ends, full(dropped.edges["a"].data["w"])]


HALF = torch.arange(NODES * 4 + NODES) % 2 == 0
PROGRAMS: dict[str, Callable[[Any], list[Any]]] = {
    "DropEdge": lambda g: results(dgl.DropEdge(0.4)(dgl.DropEdge(0.2)(g))),
    "reversed": lambda g: results(dgl.DropEdge(0.4)(dgl.reverse(g, copy_edata=True))),
    "no loops": lambda g: results(dgl.remove_self_loop(g)),
    "ids": lambda g: results(dgl.remove_edges(g, [3, 5, 99], store_ids=True)),
    "edge_subgraph": lambda g: results(dgl.edge_subgraph(g, HALF, relabel_nodes=False)),
    "FeatMask": lambda g: [full(dgl.FeatMask(0.4, ["x"])(g).ndata["x"])],
    "softmax": softmax_of("dst"),
    "softmax by source": softmax_of("src"),
    "epochs": epochs,
    "types": of_types,
}
IN_CHUNKS = [name for name in PROGRAMS if not name.startswith("softmax")]


def _check(names: list[str], options: dict[str, Any]) -> None:
    for name in names:
        make = typed if name == "types" else graph
        torch.manual_seed(5)
        expected = PROGRAMS[name](make())
        torch.manual_seed(5)
        full_graph = PROGRAMS[name](peergraph_dgl.full_graph(make(), **options))
        for number, (value, right) in enumerate(zip(full_graph, expected, strict=True)):
            torch.testing.assert_close(
                value, right, msg=lambda text, at=(name, number): f"{at}: {text}"
            )


@pytest.mark.parametrize(
    ("ranks", "options"), [(1, {}), (3, {}), (1, {"offload": True, "num_chunks": 2})]
)
def test_changed_edges(
    ranks: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run_ranks(_check, ranks, IN_CHUNKS if options else list(PROGRAMS), options)


def _check_refused() -> None:
    part = peergraph_dgl.full_graph(graph())
    for full_name in compat.REFUSED:
        owner, name = compat.find(full_name)
        arguments = [object.__new__(owner), part] if isinstance(owner, type) else [part]
        with pytest.raises(NotImplementedError, match=r"before peergraph_dgl\.full_graph"):
            getattr(owner, name)(*arguments)
    with pytest.raises(NotImplementedError, match="full_graph"):
        dgl.batch([part, part])
    with pytest.raises(NotImplementedError, match="full_graph"):
        _ = part.is_multigraph
    with pytest.raises(NotImplementedError, match="relabel_nodes=False"):
        part.edge_subgraph([0, 1])
    with pytest.raises(IndexError):
        dgl.remove_edges(part, [10_000])


def test_refused_functions() -> None:
    run_ranks(_check_refused, 1)
