"""Distinct remote rows, against brute force."""

from __future__ import annotations

import pytest
import torch

from peergraph.fullgraph.layout import volume as volume_module
from peergraph.fullgraph.layout.numbering import order_by_part, rank_of_nodes
from peergraph.fullgraph.layout.volume import Volume, VolumeCounter
from tests.named_case import named_case

from .partition_graphs import NUM_NODES, brute_force_volume, edge_graphs


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_volume_is_that_of_brute_force(
    world_size: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_module, "_CHUNK_EDGES", 64)
    random = torch.Generator().manual_seed(0)
    part = torch.randint(world_size, (NUM_NODES,), generator=random)
    for name, edges in edge_graphs().items():
        with named_case(name):
            counter = VolumeCounter(part.to(device), part.short().to(device), world_size)
            counter.add(*edges.to(device))
            rows, counts = brute_force_volume(edges, part, part, world_size)
            result = counter.volume()
            assert list(map(list, result.rows)) == rows
            assert list(map(list, result.edges)) == counts
            assert sum(result.num_edges) == edges.shape[1]


def test_bipartite_relation_in_pieces() -> None:
    random = torch.Generator().manual_seed(0)
    edges = torch.stack(
        [torch.randint(50, (300,), generator=random), torch.randint(20, (300,), generator=random)]
    )
    sources, destinations = torch.arange(50) % 3, torch.arange(20) // 10
    counter = VolumeCounter(sources, destinations, 3)
    for piece in edges.split(70, 1):
        counter.add(*piece)
    rows, counts = brute_force_volume(edges, sources, destinations, 3)
    assert list(map(list, counter.volume().rows)) == rows
    assert list(map(list, counter.volume().edges)) == counts


def test_what_ranks_receive_and_send() -> None:
    volume = Volume(((5, 1, 2), (3, 9, 0), (4, 4, 7)), ((6, 1, 2), (3, 9, 0), (8, 4, 7)))
    assert volume.received == (3, 3, 8)
    assert volume.sent == (7, 5, 2)
    assert volume.largest == 8
    assert volume.remote_edges == (3, 3, 12)
    assert (volume + volume).rows[2] == (8, 8, 14)
    with pytest.raises(ValueError, match=r"rows must be \[1\]\[1\]"):
        Volume(((1, 2),), ((1,),))


def test_ranks_of_nodes() -> None:
    part = torch.tensor([2, 0, 1, 2, 0])
    order, counts = order_by_part(part, 4)
    assert order.tolist() == [1, 4, 2, 0, 3]
    assert counts == (2, 1, 2, 0)
    assert torch.equal(rank_of_nodes(order, counts, torch.device("cpu")).long(), part)
