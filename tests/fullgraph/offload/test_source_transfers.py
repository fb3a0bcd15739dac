"""Rows and bytes that batches move, compared with plain set arithmetic."""

from __future__ import annotations

import pytest
import torch

from peergraph.fullgraph.offload.chunks.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.chunks.source_transfers import Switches
from peergraph.fullgraph.offload.passes.chunk_pass import ChunkPass
from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.fullgraph.offload.chunked_graphs import ChunkedGraph, make_graph
from tests.named_case import named_case

CHUNKS = 5
SWITCHES = [(True, True), (True, False), (False, True), (False, False)]


def needed_sets(graph: ChunkedGraph, orders: list[tuple[int, ...]]) -> list[list[set[int]]]:
    """Internal rows that each rank needs in each batch."""
    layout = graph.destination_layout
    result = []
    for rank, order in enumerate(orders):
        first, count = layout.offsets[rank], layout.counts[rank]
        offsets = [count * chunk // CHUNKS for chunk in range(CHUNKS + 1)]
        offsets[1] = 0
        batches = []
        for chunk in order:
            begin, end = first + offsets[chunk], first + offsets[chunk + 1]
            inside = (graph.destinations >= begin) & (graph.destinations < end)
            batches.append(set(graph.sources[inside].tolist()))
        result.append(batches)
    return result


def expected_counts(
    graph: ChunkedGraph, rank: int, sources: list[list[set[int]]], switches: tuple[bool, bool]
) -> dict[str, int]:
    """What rank `rank` does as the owner of rows and as their reader, by HongTu's definitions."""
    deduplicate, reuse = switches
    layout = graph.source_layout
    own = set(range(layout.offsets[rank], layout.offsets[rank] + layout.counts[rank]))
    totals = dict.fromkeys(("vanilla", "distinct", "loaded", "sent", "reused", "returned"), 0)
    window: set[int] = set()
    for batch in range(CHUNKS):
        of_ranks = [sets[batch] for sets in sources]
        before = [sets[batch - 1] if batch and reuse else set() for sets in sources]
        after = [sets[batch + 1] if batch + 1 < CHUNKS and reuse else set() for sets in sources]
        totals["vanilla"] += sum(len(rows & own) for rows in of_ranks)
        totals["distinct"] += len(set().union(*of_ranks) & own)
        new = [(rows - old) & own for rows, old in zip(of_ranks, before, strict=True)]
        totals["sent"] += sum(len(rows) for r, rows in enumerate(new) if r != rank)
        mine = (set().union(*of_ranks) if deduplicate else of_ranks[rank]) & own
        following = mine | (of_ranks[rank] - own)
        reused = following & window if reuse else set()
        totals["reused"] += len(reused)
        totals["loaded"] += len((following - reused) & own)
        if not deduplicate:
            totals["loaded"] += sum(len(rows) for r, rows in enumerate(new) if r != rank)
        totals["returned"] += len((of_ranks[rank] - after[rank]) - own)
        window = following
    return totals


def check_counts() -> None:
    group = Group.current()
    ranks = group.world_size
    counts = [30 // ranks + (rank < 30 % ranks) for rank in range(ranks)]
    if ranks == 3:
        counts = [0, 21, 9]
    graph = make_graph(group, 30, 140, counts, seed=5)
    for switches in SWITCHES:
        for orders_chunks in (False, True):
            with named_case(*switches, orders_chunks):
                check_pass(group, graph, switches, orders_chunks)


def check_pass(
    group: Group, graph: ChunkedGraph, switches: tuple[bool, bool], orders_chunks: bool
) -> None:
    csc = graph.chunked(CHUNKS, Switches(*switches, orders_chunks))
    orders = group.all_gather(csc.order)
    assert all(sorted(order) == list(range(CHUNKS)) for order in orders)
    if not orders_chunks:
        assert csc.order == tuple(range(CHUNKS))
    sources = needed_sets(graph, orders)
    expected = expected_counts(graph, group.rank, sources, switches)
    transfers = csc.transfers()
    counters = vars(transfers.counts)
    assert counters == {name: expected[name] for name in counters}
    stores = RowAllocator(group, 0, 1 << 24)
    width = 3
    x = stores.allocate(graph.source_layout, (width,), torch.float32, tier="host")
    y = stores.allocate(graph.destination_layout, (width,), torch.float32, tier="host")
    gradient = stores.allocate(graph.source_layout, (width,), torch.float32, tier="host")
    x.zero_()
    with ChunkPass(csc.chunks, sources=[(x, csc)], writes=[y]) as chunk_pass:
        for chunk in chunk_pass:
            rows, edges = chunk.sources(x)
            chunk.write(y, edges.spmm("copy_u", "sum", rows))
    row = 4 * width
    counts = chunk_pass.counts
    assert counts.to_device == expected["loaded"] * row
    assert counts.to_ranks == expected["sent"] * row
    assert counts.reused == expected["reused"] * row
    assert counts.from_device == graph.destination_layout.local_count * row
    with ChunkPass(csc.chunks, gradients=[(gradient, csc)]) as chunk_pass:
        for chunk in chunk_pass:
            chunk.add_source_gradients(gradient, torch.ones(len(chunk.source_rows(csc)), width))
    assert chunk_pass.counts.to_ranks == expected["returned"] * row
    first = graph.source_layout.offsets[group.rank]
    own = range(first, first + graph.source_layout.local_count)
    if switches[0]:  # Owners' windows have rows that only others need.
        unions = [set().union(*(sets[batch] for sets in sources)) for batch in range(CHUNKS)]
        visits = [sum(node in union for union in unions) for node in own]
        leaves = visits
        if switches[1]:
            leaves = [
                sum(
                    node in unions[batch] and (batch + 1 == CHUNKS or node not in unions[batch + 1])
                    for batch in range(CHUNKS)
                )
                for node in own
            ]
        others = [sets for rank, sets in enumerate(sources) if rank != group.rank]
        added = [
            count + sum(node in rows for sets in others for rows in sets)
            for node, count in zip(own, visits, strict=True)
        ]
        assert gradient.memory[:, 0].tolist() == added
        again = sum(max(0, count - 1) for count in leaves)
        zeros = sum(count == 0 for count in leaves)
        if not switches[1]:  # Rows are added to zeros.
            again, zeros = sum(leaves), len(own)
        assert chunk_pass.counts.to_device == again * row
        assert chunk_pass.counts.from_device == (sum(leaves) + zeros) * row
    else:
        of_nodes = [sum(node in rows for sets in sources for rows in sets) for node in own]
        assert gradient.memory[:, 0].tolist() == of_nodes


@pytest.mark.parametrize("ranks", [1, 3])
def test_rows_that_move_are_those_of_set_arithmetic(ranks: int) -> None:
    run_ranks(check_counts, ranks)


def check_order() -> None:
    group = Group.current()
    nodes = 40 * group.world_size
    graph = make_graph(group, nodes, 1, [40] * group.world_size)
    # Chunk c and chunk c + 4 of 8 share all sources.
    destinations = torch.arange(nodes).repeat_interleave(6)
    block = destinations % 20 // 5
    graph.sources = block * 5 + torch.arange(len(block)) % 5
    graph.destinations = destinations
    mine = graph.rank_edges(group.rank)
    first = graph.destination_layout.offsets[group.rank]
    layout = graph.destination_layout
    edge_counts = [int(graph.rank_edges(rank).sum()) for rank in range(group.world_size)]
    positions = mine.nonzero().squeeze(1)
    edges = type(layout)(group, edge_counts, positions)
    graph.resident = type(graph.resident).from_local_edges(
        layout, layout, edges, graph.sources[mine], destinations[mine] - first
    )
    loaded = {}
    for orders_chunks in (False, True):
        cut = graph.chunked(2).chunks
        chunks = type(cut)(layout, range(0, 41, 5))
        csc = ChunkedCsc(graph.resident, chunks, Switches(orders_chunks=orders_chunks))
        loaded[orders_chunks] = sum(group.all_gather(csc.transfers().counts.loaded))
    assert loaded == {False: 40, True: 20}


@pytest.mark.parametrize("ranks", [1, 2])
def test_chunks_that_share_rows_follow_each_other(ranks: int) -> None:
    run_ranks(check_order, ranks)
