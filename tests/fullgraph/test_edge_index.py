"""The object that scripts hold in place of a list of edges."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from peergraph.fullgraph.structure.edge_index import PartitionedEdgeIndex
from peergraph.fullgraph.structure.edge_reversal import reverse_edges
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.aggregate.graphs import random_graph

from .partitioned import leaf, partition, shuffled_layout


def check_edge_index() -> None:
    group = Group.current("cpu")
    graph = random_graph(torch.device("cpu"), 40, 30, 300)
    sources, destinations = shuffled_layout(group, 40), shuffled_layout(group, 30)
    edge_index = PartitionedEdgeIndex(partition(graph.edge_index, sources, destinations))
    assert isinstance(edge_index, torch.Tensor)
    assert tuple(edge_index.shape) == tuple(edge_index.size()) == (2, 300)
    assert (edge_index.size(1), edge_index.numel(), edge_index.dim()) == (300, 600, 2)
    assert (edge_index.dtype, edge_index.device.type) == (torch.int64, "cpu")
    assert not edge_index.is_cuda
    assert not edge_index.is_sparse
    assert not edge_index.is_floating_point()
    assert len(edge_index) == 2
    layout = edge_index.structure.edge_layout
    source, destination = edge_index
    expected = graph.edge_index[:, layout.positions]
    assert torch.equal(source.to_local(), expected[0])
    assert torch.equal(destination.to_local(), expected[1])
    assert edge_index[0] is source
    assert edge_index[-1] is edge_index[1, :] is edge_index.unbind(0)[1] is destination
    for same in (
        edge_index.to("cpu"),
        edge_index.cpu(),
        edge_index.contiguous(),
        edge_index.clone(),
        edge_index.detach(),
        copy.deepcopy(edge_index),
        copy.copy(edge_index),
    ):
        assert same.structure is edge_index.structure
    assert repr(edge_index).startswith("PartitionedEdgeIndex(PartitionedCsc(40 sources, 30 dest")
    for refused in (
        lambda: edge_index.max(),
        lambda: edge_index + 1,
        lambda: edge_index[:, :3],
        lambda: edge_index.unbind(1),
        lambda: edge_index.t(),
        lambda: edge_index.to(torch.int32),
        lambda: torch.cat([edge_index, edge_index], 1),
        edge_index.numpy,
        edge_index.tolist,
        edge_index.share_memory_,
        edge_index.data_ptr,
        lambda: edge_index.apply_(abs),
        lambda: np.asarray(edge_index),
        lambda: np.from_dlpack(edge_index),
        lambda: torch.from_dlpack(edge_index),
    ):
        with pytest.raises(NotImplementedError, match=r"edge_index\[0\] and edge_index\[1\]"):
            refused()


def check_flip() -> None:
    """Edges in the other direction keep their ids; their features move to them and back."""
    group = Group.current("cpu")
    graph = random_graph(torch.device("cpu"), 40, 30, 300)
    sources, destinations = shuffled_layout(group, 40), shuffled_layout(group, 30)
    edge_index = PartitionedEdgeIndex(partition(graph.edge_index, sources, destinations))
    flipped = edge_index.flip(0)
    for other in (edge_index.flip([0]), torch.flip(edge_index, [0]), edge_index[[1, 0]]):
        assert other.structure is flipped.structure
    assert flipped.flip(0).structure is edge_index.structure
    ends = torch.stack([end.full_tensor() for end in flipped])
    assert torch.equal(ends, graph.edge_index.flip(0))
    assert flipped.structure.destination_layout is edge_index.structure.source_layout
    owners, _ = sources.locate(flipped[1].to_local())
    assert bool((owners == group.rank).all())
    reversal = reverse_edges(edge_index.structure)
    assert reversal.structure is flipped.structure
    features = torch.arange(600.0).view(300, 2)
    x = leaf(features.requires_grad_(), edge_index.structure.edge_layout)
    moved = reversal.to_reversed(x)
    assert moved.row_layout is flipped.structure.edge_layout
    assert torch.equal(moved.full_tensor(), features)
    back = reversal.from_reversed(moved * moved)
    assert torch.equal(back.full_tensor(), features.square())
    back.sum().backward()
    assert torch.equal(x.grad.full_tensor(), 2 * features)
    if group.world_size > 1:
        with pytest.raises(ValueError, match="must have the rows of the edges"):
            reversal.from_reversed(x)


@pytest.mark.parametrize("ranks", [1, 3])
def test_flipped_edges(ranks: int) -> None:
    run_ranks(check_flip, ranks)


@pytest.mark.parametrize("ranks", [1, 3])
def test_it_looks_like_a_list_of_edges(ranks: int) -> None:
    run_ranks(check_edge_index, ranks)
