"""Columns of shared graphs given to Peergraph's kernels as they are, and ids that are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.graphs import random_graph

# isort: split

import dgl
import dgl.function as fn
import torch
from dgl import nn as dglnn
from dgl.dataloading import LaborSampler, NeighborSampler
from torch import Tensor

import peergraph_dgl

WIDTH = 5


@pytest.fixture
def _always() -> Iterator[None]:
    peergraph_dgl.use_kernels("always")
    yield
    peergraph_dgl.use_kernels("auto")


def pooled(g: Any) -> Tensor:
    result: Tensor = dglnn.SumPooling()(g, g.ndata["x"])
    return result


def updated(message: Any, reduce: Any) -> Callable[[Any], Tensor]:
    def run(g: Any) -> Tensor:
        with g.local_scope():
            g.update_all(message, reduce)
            result: Tensor = g.ndata["h"]
            return result

    return run


OPERATIONS: dict[str, Callable[[Any], Tensor]] = {
    "copy_u": updated(fn.copy_u("x", "m"), fn.sum("m", "h")),
    "copy_e": updated(fn.copy_e("w", "m"), fn.max("m", "h")),
    "u_mul_e": updated(fn.u_mul_e("x", "w", "m"), fn.mean("m", "h")),
    "gspmm": lambda g: dgl.ops.u_mul_e_sum(g, g.ndata["x"], g.edata["w"]),
    "u_dot_v": lambda g: dgl.ops.u_dot_v(g, g.ndata["x"], g.ndata["x"]),
    "copy_edges": lambda g: dgl.ops.copy_e_sum(g, g.edata["w"]),
    "softmax": lambda g: dgl.ops.edge_softmax(g, g.edata["w"]),
    "pooling": pooled,
    "softmax of nodes": lambda g: dgl.softmax_nodes(g, "x"),
}


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name: str) -> None:
    g = random_graph()
    expected = OPERATIONS[name](g)
    result = peergraph_dgl.share(g, device="cpu")
    got = OPERATIONS[name](result)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    peergraph_dgl.store_of(result).close()


LAYERS: dict[str, Callable[[], Any]] = {
    "GINConv": lambda: dglnn.GINConv(torch.nn.Linear(WIDTH, 3), "max"),
    "GraphConv": lambda: dglnn.GraphConv(WIDTH, 3, allow_zero_in_degree=True, norm="none"),
    "SAGEConv": lambda: dglnn.SAGEConv(WIDTH, 3, "mean"),
    "GATConv": lambda: dglnn.GATConv(WIDTH, 3, 2, allow_zero_in_degree=True),
    "GATv2Conv": lambda: dglnn.GATv2Conv(WIDTH, 3, 2, allow_zero_in_degree=True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_accelerated_layers(name: str) -> None:
    g = random_graph()
    layer = LAYERS[name]()
    expected = layer(g, g.ndata["x"])
    result = peergraph_dgl.share(g, device="cpu")
    got = peergraph_dgl.accelerate(layer)(result, result.ndata["x"])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    peergraph_dgl.store_of(result).close()


@pytest.mark.parametrize(
    "sampler",
    [
        NeighborSampler([2]),
        NeighborSampler([2], mask="mask"),
        NeighborSampler([2], edge_dir="out"),
        LaborSampler([2]),
        LaborSampler([2], importance_sampling=-1),
    ],
    ids=["core", "mask", "out", "labor", "importance"],
)
def test_seeds_that_are_no_nodes(sampler: Any) -> None:
    """Also where DGL's C library draws, which would read what is not the graph's."""
    result = peergraph_dgl.share(random_graph(), device="cpu")
    for seed in (-1, 60):
        with pytest.raises(IndexError, match=rf"seeds\[1\] = {seed} is out of range for 60 nodes"):
            sampler.sample(result, torch.tensor([3, seed, -7]))
    peergraph_dgl.store_of(result).close()


def test_graphs_over_a_store_say_what_they_lack() -> None:
    result = peergraph_dgl.share(random_graph(), device="cpu")
    store = peergraph_dgl.store_of(result)
    over = peergraph_dgl.from_store(store)
    for change in (
        lambda: over.ndata.pop("x"),
        lambda: over.ndata.update({"x": torch.zeros(60)}),
        lambda: over.ndata.clear(),
        lambda: over.ndata.__delitem__("x"),
    ):
        with pytest.raises(NotImplementedError, match=r"columns are the tables.*share\(g\)"):
            change()
    for key in (3, [1, 2], slice(None), torch.tensor([1])):
        with pytest.raises(NotImplementedError, match=r"data\[name\]\[ids\]"):
            over.nodes[key]
        with pytest.raises(NotImplementedError, match=r"data\[name\]\[ids\]"):
            over.edges[key]
    assert list(over.nodes[None].data) == list(over.ndata)
    assert list(over.edges[None].data) == list(over.edata)
    with pytest.raises(NotImplementedError, match=r"g\['_E'\].*share\(g\)"):
        over["_E"]
    with pytest.raises(IndexError, match=r"v\[1\] = -1 is out of range for 60 nodes"):
        over.in_degrees([3, -1, 60])
    store.close()
