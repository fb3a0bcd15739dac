"""The lists of rows that chunks load and keep, and their bytes as planned."""

from __future__ import annotations

import torch

from peergraph.fullgraph import FullGraph, named_model
from peergraph.fullgraph.offload.chunks.source_transfers import SourceTransfers
from peergraph.fullgraph.offload.edges.offloaded_csc import OffloadedCsc
from peergraph.memory import Group
from peergraph.store import EDGE, NODE

NODES, DEGREE, CHUNKS, LABELLED = 2000, 12, 8, 0.25


def make_graph() -> FullGraph:
    """A random graph for layers of attention, with a quarter of the nodes labelled."""
    generator = torch.Generator().manual_seed(2)
    edges = torch.randint(NODES, (2, DEGREE * NODES), generator=generator)
    return FullGraph.build(
        Group.current("cpu"),
        NODES,
        edges,
        order="original",
        offload=True,
        num_chunks=CHUNKS,
        model=named_model([8, 8, 4], "gat", 2, LABELLED),
        memory_budget=1 << 28,
        host_memory=1 << 28,
    )


def list_bytes(transfers: SourceTransfers) -> int:
    """Returns the bytes of the row lists of all batches."""
    return sum(batch.reused.nbytes + batch.new.nbytes for batch in transfers.batches)


def test_bytes_are_planned() -> None:
    """The lists of all edges and of those to labelled nodes take what the plan counts."""
    graph = make_graph()
    structure = graph.structures[EDGE]
    assert isinstance(structure, OffloadedCsc)
    assert graph.plan.offload is not None
    mask = torch.rand(NODES, generator=torch.Generator().manual_seed(4)) < LABELLED
    labelled = structure.chunked.of_destinations(graph.node_layouts[NODE].select_mask(mask))
    num_bytes = list_bytes(structure.chunked.transfers()) + list_bytes(labelled.transfers())
    [planned] = [item for item in graph.plan.offload.items if item.name == "row lists"]
    assert num_bytes <= planned.num_bytes[0] <= 1.1 * num_bytes


def test_windows_and_rows_that_leave() -> None:
    """Windows have the sources of their chunks; rows leave that the next window does not have."""
    structure = make_graph().structures[EDGE]
    assert isinstance(structure, OffloadedCsc)
    chunked = structure.chunked
    transfers = chunked.transfers()
    for _ in range(2):  # as two passes ask for them
        windows = [transfers.rows(number) for number in range(CHUNKS)]
        for number, (chunk, window) in enumerate(zip(chunked.order, windows, strict=True)):
            assert sorted(window.tolist()) == chunked.sources(chunk).tolist()
            following = set(windows[number + 1].tolist()) if number + 1 < CHUNKS else set()
            expected = [p for p, row in enumerate(window.tolist()) if row not in following]
            assert transfers.leaving(number).tolist() == expected
    assert torch.equal(transfers.rows(2), windows[2])


def test_edges_to_labelled_nodes_have_no_numbers() -> None:
    """Numbers of edges are made when rows of edges are selected, not with the structure."""
    graph = make_graph()
    structure = graph.structures[EDGE]
    assert isinstance(structure, OffloadedCsc)
    mask = torch.arange(NODES) % 3 == 0
    chosen = graph.node_layouts[NODE].select_mask(mask)
    labelled = structure.chunked.of_destinations(chosen)
    assert not isinstance(labelled.edge_layout._parent_rows, torch.Tensor)
    resident, selected = structure.resident.local, labelled.resident.local
    rows = labelled.edge_layout.parent_rows
    assert rows is not None
    assert chosen.parent_rows is not None
    assert torch.equal(resident.indices[rows], selected.indices)
    expected = torch.repeat_interleave(
        torch.arange(len(chosen.parent_rows)), resident.indptr.diff()[chosen.parent_rows]
    )
    ends = torch.repeat_interleave(torch.arange(len(selected.indptr) - 1), selected.indptr.diff())
    assert torch.equal(ends, expected)
