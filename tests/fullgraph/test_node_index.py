"""Ends of partitioned edges select rows of nodes, masks select edges, loops are added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.fullgraph import (
    NodeIndex,
    PartitionedCsc,
    PartitionedEdgeIndex,
    distribute,
    self_loop_mask,
    with_self_loops,
    without_self_loops,
)
from peergraph.memory import Group
from peergraph.testing import run_ranks

from .partitioned import leaf, partition, shuffled_layout

SOURCES, DESTINATIONS, EDGES = 14, 11, 60


def graph(sources: int = SOURCES, destinations: int = DESTINATIONS, edges: int = EDGES) -> Tensor:
    random = torch.Generator().manual_seed(edges)
    ends = torch.rand(2, edges, generator=random) * torch.tensor([[sources], [destinations]])
    return ends.long()


def structures(group: Group, edge_index: Tensor, same_nodes: bool = False) -> PartitionedCsc:
    destinations = shuffled_layout(group, DESTINATIONS)
    sources = destinations if same_nodes else shuffled_layout(group, SOURCES)
    return partition(edge_index, sources, destinations)


def ids_of(structure: PartitionedCsc) -> Tensor:
    """[2, edges] of the user's ids."""
    index = PartitionedEdgeIndex(structure)
    return torch.stack([index[0].full_tensor(), index[1].full_tensor()])


def ends_have_ids(group: Group) -> None:
    edges = graph()
    structure = structures(group, edges)
    index = PartitionedEdgeIndex(structure)
    assert index.shape == (2, EDGES)
    assert index.dtype == torch.int64
    row, col = index
    assert isinstance(row, NodeIndex)
    assert row.numel() == EDGES
    assert int(col.sum()) == int(edges[1].sum())
    torch.testing.assert_close(ids_of(structure), edges)
    torch.testing.assert_close((row == col).full_tensor(), edges[0] == edges[1])


def ends_select_rows(group: Group) -> None:
    edges = graph()
    index = PartitionedEdgeIndex(structures(group, edges))
    for end in (0, 1):
        nodes = index[end].nodes
        for shape in ((nodes.size,), (nodes.size, 3), (nodes.size, 2, 3)):
            full = torch.randn(shape, dtype=torch.float64, requires_grad=True)
            scale = torch.randn(EDGES, *shape[1:], dtype=torch.float64)
            (full[edges[end]] * scale).sum().backward()
            x = leaf(full, nodes)
            result = x[index[end]]
            torch.testing.assert_close(result.full_tensor(), full[edges[end]])
            (result * distribute(scale, index.structure.edge_layout)).sum().backward()
            torch.testing.assert_close(x.grad.full_tensor(), full.grad)
        ids = torch.arange(nodes.size)
        mine = leaf(ids, nodes).index_select(0, index[end])
        torch.testing.assert_close(mine.full_tensor(), edges[end])
        wide = leaf(torch.randn(nodes.size, 2), nodes)
        columns = wide.t().index_select(1, index[end])
        torch.testing.assert_close(columns.full_tensor(), wide.full_tensor().t()[:, edges[end]])


def masks_select_edges(group: Group) -> None:
    edges = graph()
    structure = structures(group, edges)
    index = PartitionedEdgeIndex(structure)
    mask = torch.arange(EDGES) % 3 == 0
    few = index[:, distribute(mask, structure.edge_layout)]
    torch.testing.assert_close(ids_of(few.structure), edges[:, mask])
    assert index[:, mask].structure is few.structure
    assert index[:, torch.ones(EDGES, dtype=torch.bool)] is index
    none = index[:, torch.zeros(EDGES, dtype=torch.bool)]
    assert none.shape == (2, 0)


def loops_are_added(group: Group) -> None:
    edges = graph(DESTINATIONS)
    edges[0, :4] = edges[1, :4]
    for same_nodes in (True, False):
        structure = structures(group, edges, same_nodes)
        loop = edges[0] == edges[1]
        torch.testing.assert_close(self_loop_mask(structure).full_tensor(), loop)
        rest = without_self_loops(structure)
        torch.testing.assert_close(ids_of(rest), edges[:, ~loop])
        assert without_self_loops(rest) is rest
        for count in (0, 3, DESTINATIONS):
            loops = with_self_loops(structure, count)
            expected = torch.cat([edges, torch.arange(count).repeat(2, 1)], dim=1)
            torch.testing.assert_close(ids_of(loops.structure), expected)
            rows = torch.randn(EDGES, 2)
            of_nodes = torch.randn(DESTINATIONS, 2)
            actual = loops.append(
                leaf(rows, structure.edge_layout), leaf(of_nodes, structure.destination_layout)
            )
            torch.testing.assert_close(actual.full_tensor(), torch.cat([rows, of_nodes[:count]]))
        with pytest.raises(ValueError, match="count must be 0 to"):
            with_self_loops(structure, DESTINATIONS + 4)


def other_rows_raise(group: Group) -> None:
    structure = structures(group, graph())
    index = PartitionedEdgeIndex(structure)
    with pytest.raises(ValueError, match="x must have the rows of the sources"):
        index[0].select_rows(leaf(torch.randn(EDGES, 2), structure.edge_layout))


CASES: list[Callable[[Group], None]] = [
    ends_have_ids,
    ends_select_rows,
    masks_select_edges,
    loops_are_added,
    other_rows_raise,
]


def run(names: list[str]) -> None:
    torch.manual_seed(0)
    group = Group.current("cpu")
    cases: dict[str, Any] = {case.__name__: case for case in CASES}
    for name in names:
        cases[name](group)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ends_and_edges(ranks: int) -> None:
    run_ranks(run, ranks, [case.__name__ for case in CASES])
