"""`node_parts`: parts of equal size with few edges between them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from peergraph.fullgraph import node_parts

METIS, RECURSIVE = (
    pytest.param(m, marks=pytest.mark.skipif(not find_spec("pymetis"), reason="needs pymetis"))
    for m in ("metis", "metis_recursive")
)


def communities(count: int, size: int) -> Tensor:
    """Edges within groups of nodes, whose numbers are mixed, and a few between them."""
    random = torch.Generator().manual_seed(0)
    group = torch.arange(count).repeat_interleave(12 * size)
    within = torch.randint(size, (2, group.numel()), generator=random) + size * group
    between = torch.randint(count * size, (2, count * size // 4), generator=random)
    numbers = torch.randperm(count * size, generator=random)
    return numbers[torch.cat([within, between], 1)]


@pytest.mark.parametrize("method", ["auto", "communities", METIS, RECURSIVE])
def test_few_edges_between_equal_parts(method: str, device: torch.device) -> None:
    edge_index = communities(20, 30).to(device)
    part = node_parts(edge_index, 600, 5, method=method)
    assert part.device == edge_index.device
    sizes = torch.bincount(part, minlength=5)
    assert len(sizes) == 5
    assert int(sizes.max()) <= 1.3 * 120
    cut = (part[edge_index[0]] != part[edge_index[1]]).float().mean()
    assert float(cut) < 0.1  # of random parts, four fifths
    assert torch.equal(part, node_parts(edge_index, 600, 5, method=method))


@pytest.mark.parametrize("method", ["communities", METIS, RECURSIVE])
def test_small_graphs(method: str) -> None:
    none = torch.empty(2, 0, dtype=torch.long)
    assert node_parts(none, 0, 3, method=method).tolist() == []
    assert set(node_parts(none, 4, 1, method=method).tolist()) == {0}
    part = node_parts(torch.tensor([[0, 1], [1, 2]]), 3, 9, method=method)
    assert part.shape == (3,)
    assert int(part.min()) >= 0
    assert int(part.max()) < 9


def test_errors() -> None:
    edge_index = torch.tensor([[0], [1]])
    with pytest.raises(ValueError, match="method"):
        node_parts(edge_index, 2, 2, method="random")
    with pytest.raises(ValueError, match="num_parts"):
        node_parts(edge_index, 2, 0)
