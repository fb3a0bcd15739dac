"""HGTConv as one attention over the edges of all types: the results and gradients of DGL."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("peergraph_dgl", exc_type=ImportError)

import dgl.nn as dglnn
from torch import Tensor

import peergraph_dgl
from peergraph.integration import explain
from tests.adapters.dgl.served import block, plain_graph, served

GRAPHS = {"graph": plain_graph, "block": block}


def layer(columns: int = 6, **options: Any) -> dglnn.HGTConv:
    """A layer whose priors and skips differ from those that a layer starts with."""
    torch.manual_seed(0)
    conv = dglnn.HGTConv(columns, 4, 2, 3, 4, **options)
    with torch.no_grad():
        for parameter in (*conv.relation_pri, conv.skip):
            parameter.add_(0.3 * torch.randn_like(parameter))
    return conv


def inputs(g: Any, columns: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Features, types of nodes, and types of edges; one type of each has none."""
    draws = torch.Generator().manual_seed(2)
    count = g.num_src_nodes()
    x = torch.randn(count, columns, generator=draws, dtype=torch.float64)
    nodes = torch.randint(0, 2, (count,), generator=draws)
    edges = torch.randint(1, 4, (g.num_edges(),), generator=draws)
    return x.to(device), nodes.to(device), edges.to(device)


def results(conv: Any, g: Any, x: Tensor, *types: Tensor, **options: Any) -> dict[str, Tensor]:
    torch.manual_seed(5)
    x = x.clone().requires_grad_()
    conv.zero_grad()
    out = conv(g, x, *types, **options)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out).to(out)).sum().backward()
    return {"out": out, "x": x.grad} | {name: p.grad for name, p in conv.named_parameters()}


def compare(conv: Any, plain: Any, device: torch.device, *arguments: Any, **options: Any) -> None:
    """Compares DGL's layer on the CPU with the accelerated one."""
    expected = results(conv, plain, *arguments, **options)
    fast = peergraph_dgl.accelerate(copy.deepcopy(conv)).to(device)
    g = served(plain, device)
    moved = [each.to(device) for each in arguments]
    assert "HGTConv: peergraph, fused" in explain(fast, g, *moved, **options)
    for name, value in results(fast, g, *moved, **options).items():
        torch.testing.assert_close(value.cpu(), expected[name], rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.parametrize("name", list(GRAPHS))
@pytest.mark.parametrize("columns", [6, 8])
def test_outputs_and_gradients(name: str, columns: int, device: torch.device) -> None:
    """With 8 columns, those of the result, the layer adds features as they are."""
    g = GRAPHS[name]()
    conv = layer(columns, use_norm=columns == 8, dropout=0.0).double()
    compare(conv, g, device, *inputs(g, columns, torch.device("cpu")))


def test_sorted_types_and_dropout() -> None:
    """Dropout draws the numbers that DGL draws."""
    g = plain_graph()
    x, nodes, edges = inputs(g, 6, torch.device("cpu"))
    types = nodes.sort()[0], edges.sort()[0]
    conv = layer(dropout=0.4).double()
    for presorted in (False, True):
        compare(conv, g, torch.device("cpu"), x, *types, presorted=presorted)


def test_calls_that_dgl_runs() -> None:
    g = plain_graph()
    x, nodes, edges = inputs(g, 6, torch.device("cpu"))
    conv = layer(dropout=0.0).double()
    fast = peergraph_dgl.accelerate(copy.deepcopy(conv))
    fast.linear_k.register_forward_hook(lambda *_: None)
    assert "HGTConv: DGL, " in explain(fast, g, x, nodes, edges)
    torch.testing.assert_close(fast(g, x, nodes, edges), conv(g, x, nodes, edges))
    peergraph_dgl.revert(fast)
    assert type(fast) is dglnn.HGTConv
    assert list(fast.state_dict()) == list(conv.state_dict())
