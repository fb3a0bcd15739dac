"""Readouts of partitioned graphs, of batches too, are DGL's, with its gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.full_graph_operations import weighted_sum, whole  # isort: split

import dgl
import dgl.nn as dglnn
import torch
import torch.distributed as dist
from torch import Tensor, nn

import peergraph_dgl
from peergraph.testing import run_ranks

pytestmark = pytest.mark.usefixtures("one_thread_a_rank")


def ring(count: int) -> Any:
    ids = torch.arange(count)
    return dgl.graph((ids, (ids + 1) % max(1, count)), num_nodes=count)


def homogeneous() -> Any:
    """Graphs of 4, 1, 0 and 6 nodes, with equal rows, NaN and infinities."""
    g = dgl.batch([ring(4), dgl.graph(([], []), num_nodes=1), ring(0), ring(6)])
    draws = torch.Generator().manual_seed(0)
    x = torch.randint(-2, 3, (11, 3), generator=draws).double()
    x[4, 0], x[6, 1], x[7, 2], x[8, 2] = torch.nan, torch.nan, torch.inf, -torch.inf
    g.ndata["x"] = x
    g.edata["f"] = torch.randint(-2, 3, (10, 2, 2), generator=draws).double()
    return g


def finite() -> Any:
    g = homogeneous()
    g.ndata["x"] = g.ndata["x"].nan_to_num(0, 3, -3)
    return g


def typed() -> Any:
    def one(users: int, items: int) -> Any:
        edges = torch.arange(users), torch.arange(users) % items
        return dgl.heterograph(
            {("user", "buys", "item"): edges}, num_nodes_dict={"user": users, "item": items}
        )

    g = dgl.batch([one(3, 2), one(5, 1)])
    g.nodes["user"].data["x"] = torch.arange(16.0, dtype=torch.float64).view(8, 2).sin()
    g.edges["buys"].data["f"] = torch.arange(8.0, dtype=torch.float64).cos()
    return g


def of_nodes_and_edges(g: Any, x: Tensor, f: Tensor) -> Any:
    with g.local_scope():
        (node_type, *_), edge_type = reversed(g.ntypes), g.canonical_etypes[0]
        g.nodes[node_type].data["x"], g.edges[edge_type].data["f"] = x, f
        for op in ("sum", "mean", "max", "min"):
            yield dgl.readout_nodes(g, "x", op=op, ntype=node_type)
            yield dgl.readout_edges(g, "f", op=op, etype=edge_type)
        total = dgl.sum_nodes(g, "x", ntype=node_type).nan_to_num(1, 2, 3)
        yield dgl.broadcast_nodes(g, total, ntype=node_type).square()
        yield dgl.broadcast_edges(g, total, etype=edge_type)
        yield dgl.softmax_edges(g, "f", etype=edge_type)


def pooled(make: Callable[[], nn.Module], g: Any, x: Tensor, f: Tensor) -> Any:
    torch.manual_seed(0)
    yield make().double()(g, x)


POOLS = {
    "sum": dglnn.SumPooling,
    "mean": dglnn.AvgPooling,
    "max": dglnn.MaxPooling,
    "attention": lambda: dglnn.GlobalAttentionPooling(nn.Linear(3, 1)),
    "set": lambda: dglnn.Set2Set(3, 2, 1),
}


def results_and_gradients(g: Any, operation: Callable[..., Any]) -> list[Tensor]:
    """Results of an operation, and the gradients of features of nodes and edges."""
    features = next(frame["x"] for frame in g._node_frames if "x" in frame)
    leaves = [each.detach().clone().requires_grad_() for each in (features, g._edge_frames[0]["f"])]
    outs = list(operation(g, *leaves))
    total = sum(weighted_sum(out.nan_to_num(0, 0, 0)) for out in outs)
    total.backward()  # type: ignore[union-attr]
    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
    return [whole(rows) for rows in (*outs, *gradients)]


CASES: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    "graphs": (homogeneous, of_nodes_and_edges),
    "types": (typed, of_nodes_and_edges),
    **{f"{name} pooling": (finite, partial(pooled, make)) for name, make in POOLS.items()},
}


def _on_ranks(options: dict[str, Any]) -> dict[str, list[Tensor]]:
    results = {}
    for name, (make, operation) in CASES.items():
        results[name] = results_and_gradients(
            peergraph_dgl.full_graph(make(), **options), operation
        )
    shared = peergraph_dgl.share(homogeneous(), device="cpu")
    results["shared graphs"] = results_and_gradients(
        peergraph_dgl.full_graph(shared), of_nodes_and_edges
    )
    return results


@pytest.mark.parametrize(
    ("world_size", "options"),
    [(1, {}), (3, {}), (2, {"offload": True, "num_chunks": 2})],
    ids=["one rank", "three ranks", "offloaded"],
)
def test_batches_are_read_out_as_dgl_does(world_size: int, options: dict[str, Any]) -> None:
    expected = {
        name: results_and_gradients(make(), operation) for name, (make, operation) in CASES.items()
    }
    expected["shared graphs"] = expected["graphs"]
    for actual in run_ranks(_on_ranks, world_size, options, timeout_s=200):
        for name, tensors in expected.items():
            assert len(actual[name]) == len(tensors), name
            for i, (ours, theirs) in enumerate(zip(actual[name], tensors, strict=True)):
                torch.testing.assert_close(
                    ours, theirs, rtol=1e-9, atol=1e-9, equal_nan=True, msg=f"{name}, {i}"
                )


def _check_unequal_batches() -> str:
    g = ring(5)
    g.set_batch_num_nodes(torch.tensor([2, 3] if dist.get_rank() == 0 else [3, 2]))
    with pytest.raises(ValueError, match="batch_num_nodes") as caught:
        peergraph_dgl.full_graph(g)
    return str(caught.value)


def test_batches_that_differ_are_refused() -> None:
    for message in run_ranks(_check_unequal_batches, 2):
        assert "on rank 1" in message


def _check_graphs_of_one_node() -> None:
    part = peergraph_dgl.full_graph(dgl.batch([ring(1)] * 5))
    part.ndata["x"] = part.nodes().double().unsqueeze(1)
    for read_out in (dgl.sum_nodes, dgl.max_nodes):
        result = read_out(part, "x")
        assert type(result) is Tensor
        assert torch.equal(result, torch.arange(5.0).double().unsqueeze(1))


def test_results_of_as_many_graphs_as_nodes_are_plain() -> None:
    run_ranks(_check_graphs_of_one_node, 2)


def _check_edges_of_a_batch() -> None:
    batch = peergraph_dgl.full_graph(homogeneous())
    with pytest.raises(NotImplementedError, match="edges of a batch of graphs"):
        batch.remove_edges(torch.tensor([0]))
    single = finite()
    single.set_batch_num_nodes(torch.tensor([11]))
    single.set_batch_num_edges(torch.tensor([10]))
    part = peergraph_dgl.full_graph(single)
    assert dgl.sum_edges(part, "f").shape == (1, 2, 2)
    part.remove_edges(torch.tensor([0, 3]))
    assert part.batch_num_edges().tolist() == [8]
    expected = dgl.remove_edges(single, torch.tensor([0, 3])).edata["f"].sum(0, keepdim=True)
    assert torch.equal(dgl.sum_edges(part, "f"), expected)


def test_edges_of_a_batch_do_not_change() -> None:
    run_ranks(_check_edges_of_a_batch, 2)
