"""Shares of edges: together all edges, each once, in the user's ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.fullgraph.layout.edge_share import (
    EdgeListReader,
    EdgeReader,
    EdgeShare,
    StoreReader,
    UnreadShare,
    edge_reader,
    first_bad_edge,
    pieces_of,
)
from peergraph.memory import Group
from peergraph.store import EDGE, EdgeSource, GraphSource, Store
from tests.named_case import named_case

from .partition_graphs import NUM_NODES, edge_graphs

CPU = torch.device("cpu")


def as_coo(edges: Tensor) -> EdgeReader:
    return edge_reader(edges, NUM_NODES)


def as_csc(edges: Tensor) -> EdgeReader:
    return edge_reader(Csc.from_edge_index(edges, NUM_NODES, NUM_NODES), NUM_NODES)


def as_tuple(edges: Tensor) -> EdgeReader:
    csc = Csc.from_edge_index(edges, NUM_NODES, NUM_NODES)
    return edge_reader((csc.indptr, csc.indices, csc.edge_ids), NUM_NODES)


def in_store(edges: Tensor) -> EdgeReader:
    group = Group(0, 1, CPU, 60.0)
    source = GraphSource.homogeneous(NUM_NODES, EdgeSource(coo=edges))
    return StoreReader(Store.build(source, group=group, progress=False), EDGE)


@pytest.mark.parametrize("reader_of", [as_coo, as_csc, as_tuple, in_store])
def test_shares_are_all_edges(reader_of: Callable[[Tensor], EdgeReader]) -> None:
    for name, edges in edge_graphs().items():
        reader = reader_of(edges)
        assert reader.num_edges == edges.shape[1]
        for ranks in (1, 2, 3, 7):
            with named_case(name, ranks):
                shares = [reader.read(rank, ranks, CPU) for rank in range(ranks)]
                counts = [reader.count(rank, ranks) for rank in range(ranks)]
                assert counts == [share.num_edges for share in shares]
                ids = torch.cat([share.edge_ids for share in shares])
                assert torch.equal(ids.sort().values, torch.arange(edges.shape[1]))
                assert torch.equal(torch.cat([s.source.long() for s in shares]), edges[0][ids])
                destinations = torch.cat([s.destination.long() for s in shares])
                assert torch.equal(destinations, edges[1][ids])
                if not name.startswith("hub"):  # one destination cannot be cut in a store
                    largest = max(share.num_edges for share in shares)
                    assert largest <= edges.shape[1] / ranks + 30


@pytest.mark.parametrize("reader_of", [as_coo, as_csc, as_tuple])
def test_digests_tell_edges_apart(reader_of: Callable[[Tensor], EdgeReader]) -> None:
    edges = edge_graphs()["uniform"]
    other = edges.clone()
    other[0, 7] += 1 if other[0, 7] < NUM_NODES - 1 else -1
    swapped = edges.clone()
    swapped[:, [3, 4]] = swapped[:, [4, 3]]
    digests = {reader_of(e).digest(CPU) for e in (edges, other, swapped, edges.int(), edges[:, 1:])}
    assert len(digests) == 5
    assert reader_of(edges.clone()).digest(CPU) == reader_of(edges).digest(CPU)


def test_first_edge_out_of_range() -> None:
    edges = torch.tensor([[0, 5, 2, -1], [1, 1, 9, 0]])
    share = edge_reader(edges, 5).read(0, 1, CPU)
    assert share.first_bad_edge(5, 5) == (1, "source", 5)
    assert share.first_bad_edge(6, 5) == (2, "destination", 9)
    assert share.first_bad_edge(6, 10) == (3, "source", -1)
    assert edge_reader(edges[:, :1], 5).read(0, 1, CPU).first_bad_edge(5, 5) is None
    assert edge_reader(edges[:, :0], 5).read(0, 1, CPU).first_bad_edge(0, 0) is None


def test_errors() -> None:
    with pytest.raises(TypeError, match="edges must be int32 or int64, got torch.float32"):
        edge_reader(torch.zeros((2, 3)), 5)
    with pytest.raises(ValueError, match=r"edges must be \[2, edges\], got \[3, 2\]"):
        edge_reader(torch.zeros((3, 2), dtype=torch.int64), 5)
    with pytest.raises(TypeError, match="a tuple .*, got list"):
        edge_reader([1, 2], 5)  # type: ignore[arg-type]
    indptr, indices = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="indptr must have 6 offsets"):
        edge_reader((indptr, indices), 5)
    with pytest.raises(ValueError, match="indptr must not fall"):
        edge_reader((torch.tensor([0, 2, 1, 2]), indices), 3)
    with pytest.raises(ValueError, match=r"edge_ids\[1\] = 0 repeats"):
        edge_reader((indptr, indices, torch.tensor([0, 0])), 2)


def test_pieces_that_are_kept_are_read_once() -> None:
    class Counted(EdgeListReader):
        reads = 0

        def read(self, *args: Any) -> EdgeShare:
            self.reads += 1
            return super().read(*args)

    edges = torch.tensor([[0, 1, 2, 2**40], [1, 2, 3, 0]])
    reader = Counted(edges)
    share = UnreadShare(reader, 0, 1, CPU, 2, keeps=True)
    for _ in range(3):
        pieces = list(pieces_of(share))
    assert reader.reads == 2
    assert torch.equal(torch.cat([piece.source.long() for piece in pieces]), edges[0])
    assert [piece.source.dtype for piece in pieces] == [torch.int32, torch.int64]
    assert first_bad_edge(share, 5, 5) == (3, "source", 2**40)
    share.release()
    assert torch.equal(share.piece(1).edge_ids, torch.tensor([2, 3]))
    assert reader.reads == 3
