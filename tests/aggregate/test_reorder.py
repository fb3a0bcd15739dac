"""Renumbering by communities: the same sums, and communities that lie together."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from peergraph.aggregate import Csc, g_sddmm, g_spmm, reorder
from tests.named_case import named_case

from .graphs import Graph, features, hub_graph, random_graph


def community_graph(
    device: torch.device, communities: int = 20, size: int = 30, degree: int = 12
) -> tuple[Csc, Tensor]:
    """Nine of ten edges stay in the community of their end; nodes in random order."""
    random = torch.Generator().manual_seed(0)
    count = communities * size
    target = torch.arange(count).repeat_interleave(degree)
    near = target // size * size + torch.randint(size, (count * degree,), generator=random)
    far = torch.randint(count, (count * degree,), generator=random)
    source = torch.where(torch.rand(count * degree, generator=random) < 0.9, near, far)
    place = torch.randperm(count, generator=random)
    edge_index = torch.stack([place[source], place[target]]).to(device)
    return Csc.from_edge_index(edge_index, count, count), place.to(device)


def spread(csc: Csc) -> float:
    """The median distance of the numbers at the ends of an edge."""
    target = torch.arange(csc.num_destinations, device=csc.device)
    target = target.repeat_interleave(csc.in_degrees())
    return float((csc.indices - target).abs().float().median())


def test_communities_lie_together(device: torch.device) -> None:
    csc, _ = community_graph(device)
    reordered, order = reorder(csc)
    assert torch.equal(order.sort().values, torch.arange(600, device=device))
    assert spread(csc) > 120
    assert spread(reordered) < 30


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_results_are_the_same(dtype: torch.dtype, device: torch.device) -> None:
    graphs = {
        "any order": random_graph(device, 40, 40, dtype=dtype),
        "grouped": random_graph(device, 40, 40, dtype=dtype, grouped=True),
        "no edges": random_graph(device, 40, 40, num_edges=0, dtype=dtype),
    }
    for (name, graph), width in product(graphs.items(), [1, 5, 64]):
        with named_case(name, width):
            check_results(graph, width, device)


def check_results(graph: Graph, width: int, device: torch.device) -> None:
    csc = graph.csc()
    reordered, order = reorder(csc, rounds=3)
    x = features(40, (width,), device)
    weights = features(csc.num_edges, (), device, grad=False)
    expected = g_spmm(csc, "mul", "sum", x, weights)
    out = g_spmm(reordered, "mul", "sum", x[order], weights)
    result = torch.empty_like(expected).index_copy(0, order, out)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(
        torch.autograd.grad(result.square().sum(), x),
        torch.autograd.grad(expected.square().sum(), x),
    )
    by_edge = g_sddmm(reordered, "dot", x[order], x[order])
    torch.testing.assert_close(by_edge, g_sddmm(csc, "dot", x, x))


def test_hubs(device: torch.device) -> None:
    graph = hub_graph(device, 3000)
    edge_index = graph.edge_index
    csc = Csc.from_edge_index(edge_index, 50, 50)
    reordered, order = reorder(csc)
    x = features(50, (8,), device, torch.float64, grad=False)
    for reduce in ("mean", "max"):
        expected = g_spmm(csc, "copy_u", reduce, x)
        assert torch.allclose(g_spmm(reordered, "copy_u", reduce, x[order]), expected[order])


def test_limit_and_seed(device: torch.device) -> None:
    csc, _ = community_graph(device)
    _, first = reorder(csc, seed=3)
    _, again = reorder(csc, seed=3)
    assert torch.equal(first, again)
    _, alone = reorder(csc, largest=1)
    assert torch.equal(alone, torch.arange(600, device=device))


def test_errors(device: torch.device) -> None:
    with pytest.raises(ValueError, match="as many sources as destinations, got 40 and 30"):
        reorder(random_graph(device).csc())
    csc, _ = community_graph(device, 2)
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        reorder(csc, rounds=0)
    with pytest.raises(ValueError, match="largest must be at least 1, got -1"):
        reorder(csc, largest=-1)
