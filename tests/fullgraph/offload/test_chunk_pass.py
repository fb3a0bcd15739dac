"""Passes over chunks, compared with plain indexing of all rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from peergraph.fullgraph.offload.chunks.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.chunks.source_transfers import Switches
from peergraph.fullgraph.offload.passes.chunk_pass import ChunkPass
from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
from peergraph.fullgraph.offload.rows.row_store import RowStore, Tier
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.fullgraph.gpu_numbers import GPU_NUMBERS, each_place
from tests.fullgraph.offload.chunked_graphs import ChunkedGraph, make_graph
from tests.named_case import named_case

TIERS: list[Tier] = ["device", "host", "file"]
GRAPHS = {
    "even": {"num_nodes": 40, "num_edges": 300},
    "a hub": {"num_nodes": 23, "num_edges": 4000, "hub": True},
    "no edges": {"num_nodes": 9, "num_edges": 0},
    "two types": {"num_nodes": 17, "num_edges": 90, "num_sources": 31},
}
SWITCHES = [(True, True), (True, False), (False, True), (False, False)]


def graphs(group: Group) -> list[tuple[str, ChunkedGraph]]:
    results = []
    for name, options in GRAPHS.items():
        ranks = group.world_size
        rows = options["num_nodes"]
        counts = [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]
        if ranks == 3:
            counts = [0, rows - 5, 5]
        if "num_sources" in options:
            sources = options["num_sources"]
            rest = [0] * (ranks - 1)
            options = {**options, "source_counts": [*rest[1:], sources - 4, 4][-ranks:]}
            if ranks == 1:
                options["source_counts"] = [sources]
        results.append((name, make_graph(group, counts=counts, **options)))
    return results


def allocator(group: Group, folder: str, tier: Tier = "host") -> RowAllocator:
    """Without room on the device for copies of rows of other tiers."""
    return RowAllocator(group, 1 << 26 if tier == "device" else 0, 1 << 26, folder=folder)


def filled(stores: RowAllocator, layout: object, rows: Tensor, tier: Tier) -> RowStore:
    store = stores.allocate(layout, rows.shape[1:], rows.dtype, tier=tier)
    first = layout.offsets[layout.group.rank]
    store.write(0, rows[first : first + layout.local_count].to(store.device))
    return store


def own(layout: object, rows: Tensor) -> Tensor:
    first = layout.offsets[layout.group.rank]
    return rows[first : first + layout.local_count]


def check_passes(folder: str) -> None:
    group = Group.current()
    for name, graph in graphs(group):
        for tier in TIERS:
            for count in (1, 4):
                with named_case(name, tier, count):
                    stores = allocator(group, folder, tier)
                    check_sums(graph, graph.chunked(count), stores, tier)
                    check_gradients(graph, graph.chunked(count), stores, tier)
        for tier in ("host", "file"):
            with named_case(name, tier, "copied to the device"):
                stores = allocator(group, folder, "device")
                check_sums(graph, graph.chunked(4), stores, tier)
                use = stores.use["device"]
                copied = graph.resident.edge_layout.local_count >= graph.source_layout.local_count
                rows = graph.source_layout.local_count * copied
                assert (use.used, use.peak) == (0, 24 * rows)
        for switches in SWITCHES[1:]:  # The passes above have both.
            with named_case(name, *switches):
                stores = allocator(group, folder)
                check_sums(graph, graph.chunked(4, Switches(*switches)), stores, "host")
                check_gradients(graph, graph.chunked(4, Switches(*switches)), stores, "host")


def check_sums(graph: ChunkedGraph, csc: ChunkedCsc, stores: RowAllocator, tier: Tier) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(graph.source_layout.size, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(graph.destination_layout.size, 3, generator=generator, dtype=torch.float64)
    expected = y.index_add(0, graph.destinations, x[graph.sources])
    source = filled(stores, graph.source_layout, x, tier)
    added = filled(stores, graph.destination_layout, y, tier)
    out = stores.allocate(graph.destination_layout, (3,), torch.float64, tier=tier)
    indices = []
    with ChunkPass(csc.chunks, reads=[added], sources=[(source, csc)], writes=[out]) as chunk_pass:
        for chunk in chunk_pass:
            rows, edges = chunk.sources(source)
            assert edges.num_sources == len(rows) == len(chunk.source_rows(csc))
            chunk.write(out, edges.spmm("copy_u", "sum", rows) + chunk.rows(added))
            indices.append(chunk.index)
    assert sorted(indices) == list(range(csc.chunks.count))
    actual = out.read(0, graph.destination_layout.local_count).cpu()
    torch.testing.assert_close(actual, own(graph.destination_layout, expected))


def run_gradients(csc: ChunkedCsc, stores: RowAllocator, tier: Tier, grad: Tensor) -> Tensor:
    layout = csc.source_layout
    gradient = stores.allocate(layout, grad.shape[1:], grad.dtype, tier=tier)
    upper = filled(stores, csc.destination_layout, grad, tier)
    with ChunkPass(csc.chunks, reads=[upper], gradients=[(gradient, csc)]) as chunk_pass:
        for chunk in chunk_pass:
            edges = chunk.csc(csc)
            x = grad.new_zeros((edges.num_sources, *grad.shape[1:]), device=csc.resident.device)
            x.requires_grad_()
            out = edges.spmm("copy_u", "sum", x)
            (of_x,) = torch.autograd.grad(out, x, chunk.rows(upper))
            chunk.add_source_gradients(gradient, of_x)
    return gradient.read(0, layout.local_count).cpu().clone()


def check_gradients(graph: ChunkedGraph, csc: ChunkedCsc, stores: RowAllocator, tier: Tier) -> None:
    generator = torch.Generator().manual_seed(2)
    size = graph.destination_layout.size
    grad = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    expected = torch.zeros(graph.source_layout.size, 3, dtype=torch.float64)
    expected.index_add_(0, graph.sources, grad[graph.destinations])
    actual = run_gradients(csc, stores, tier, grad)
    torch.testing.assert_close(actual, own(graph.source_layout, expected))
    single = [run_gradients(csc, stores, tier, grad.float()) for _ in range(2)]
    assert torch.equal(*single)


@each_place(1, 3)
def test_sums_and_gradients_are_those_of_plain_indexing(
    world_size: int, device_type: str, tmp_path: object
) -> None:
    run_ranks(check_passes, world_size, str(tmp_path), device=device_type)


def check_structures() -> None:
    group = Group.current()
    for name, graph in graphs(group):
        csc = graph.chunked(4)
        with named_case(name, "selection"):
            check_selection(graph, csc)
        chunks = None if graph.source_layout is graph.destination_layout else "sources"
        with named_case(name, "reversed"):
            check_reversed(graph, csc, chunks is not None)


def check_selection(graph: ChunkedGraph, csc: ChunkedCsc) -> None:
    generator = torch.Generator().manual_seed(3)
    full = torch.rand(graph.destination_layout.size, generator=generator) < 0.4
    x = torch.randn(graph.source_layout.size, 2, generator=generator, dtype=torch.float64)
    w = torch.randn(len(graph.sources), generator=generator, dtype=torch.float64)
    mask = own(graph.destination_layout, full)
    layout = graph.destination_layout.select_mask(mask.to(csc.resident.device))
    selected = csc.of_destinations(layout)
    sums = torch.zeros(len(full), 2, dtype=torch.float64)
    sums.index_add_(0, graph.destinations, x[graph.sources] * w.unsqueeze(1))
    device = csc.resident.device
    weights = w[graph.rank_edges(layout.group.rank)].to(device)[selected.edge_layout.parent_rows]
    stores = RowAllocator(layout.group, 1 << 26, 1 << 26)
    source = filled(stores, graph.source_layout, x, "host")
    parts = {}
    with ChunkPass(selected.chunks, sources=[(source, selected)]) as chunk_pass:
        for chunk in chunk_pass:
            rows, edges = chunk.sources(source)
            begin, end = selected.edge_chunks.range(chunk.index)
            parts[chunk.index] = edges.spmm("mul", "sum", rows, weights[begin:end])
    expected = own(graph.destination_layout, sums)[mask]
    torch.testing.assert_close(torch.cat([parts[chunk] for chunk in sorted(parts)]).cpu(), expected)


def check_reversed(graph: ChunkedGraph, csc: ChunkedCsc, two_types: bool) -> None:
    chunks = Chunks.even(graph.source_layout, 3) if two_types else None
    back = csc.reversed(chunks)
    assert csc.reversed() is back
    generator = torch.Generator().manual_seed(4)
    y = torch.randn(graph.destination_layout.size, 2, generator=generator, dtype=torch.float64)
    w = torch.randn(len(graph.sources), generator=generator, dtype=torch.float64)
    sums = torch.zeros(graph.source_layout.size, 2, dtype=torch.float64)
    sums.index_add_(0, graph.sources, y[graph.destinations] * w.unsqueeze(1))
    group = graph.source_layout.group
    mine = w[graph.rank_edges(group.rank)].to(group.device)
    weights = csc.reverse_edge_rows(mine)
    ids = back.edge_layout.positions.cpu()
    assert torch.equal(weights.cpu(), w[ids])
    stores = RowAllocator(group, 1 << 26, 1 << 26)
    upper = filled(stores, graph.destination_layout, y, "device")
    out = stores.allocate(graph.source_layout, (2,), torch.float64)
    with ChunkPass(back.chunks, sources=[(upper, back)], writes=[out]) as chunk_pass:
        for chunk in chunk_pass:
            rows, edges = chunk.sources(upper)
            begin, end = back.edge_chunks.range(chunk.index)
            chunk.write(out, edges.spmm("mul", "sum", rows, weights[begin:end]))
    result = out.read(0, graph.source_layout.local_count).cpu()
    torch.testing.assert_close(result, own(graph.source_layout, sums))


@each_place(1, 2, 3)
def test_reversed_and_selected_structures(world_size: int, device_type: str) -> None:
    run_ranks(check_structures, world_size, device=device_type)


def check_overlap(rows: int, edges: int) -> None:
    """Copies run beside long and short work on chunks, and all rows are right all the same."""
    group = Group.current()
    counts = [rows // group.world_size] * group.world_size
    graph = make_graph(group, sum(counts), edges, counts, hub=True)
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(sum(counts), 24, generator=generator)
    sums = torch.zeros_like(x, dtype=torch.float64)
    sums.index_add_(0, graph.destinations, x.double()[graph.sources])
    back = torch.zeros_like(sums).index_add_(0, graph.sources, sums[graph.destinations])
    csc = graph.chunked(6)
    device = csc.resident.device
    stores = RowAllocator(group, 0, 1 << 30)
    source = filled(stores, graph.source_layout, x, "host")
    layout = graph.destination_layout
    results = []
    for cycles in (0, 3_000_000, 0):
        out = stores.allocate(layout, (24,), torch.float32, tier="host")
        grad = stores.allocate(layout, (24,), torch.float64, tier="host")
        with ChunkPass(csc.chunks, sources=[(source, csc)], writes=[out]) as chunk_pass:
            for chunk in chunk_pass:
                wait(cycles * (chunk.index % 2), device)
                window, structure = chunk.sources(source)
                chunk.write(out, structure.spmm("copy_u", "sum", window))
                wait(cycles, device)
        with ChunkPass(csc.chunks, reads=[out], gradients=[(grad, csc)]) as chunk_pass:
            for chunk in chunk_pass:
                structure = chunk.csc(csc)
                wait(cycles * (chunk.index % 3 == 0), device)
                upper = chunk.rows(out).double()
                lower = structure.spmm_transposed("copy_u", upper, None, backward="transpose")
                chunk.add_source_gradients(grad, lower)
        results.append((out.read(0, layout.local_count), grad.read(0, layout.local_count)))
    for pair in results[1:]:
        assert all(map(torch.equal, pair, results[0]))
    torch.testing.assert_close(
        results[0][0].cpu().double(), own(layout, sums), rtol=1e-4, atol=2e-3
    )
    torch.testing.assert_close(results[0][1].cpu(), own(layout, back), rtol=1e-4, atol=2e-2)


def wait(cycles: int, device: torch.device) -> None:
    if device.type == "cuda" and cycles:
        torch.cuda._sleep(cycles)


def test_copies_beside_work() -> None:
    run_ranks(check_overlap, 2, 600, 4000)


@pytest.mark.parametrize("ranks", GPU_NUMBERS)
def test_copies_beside_work_on_gpus(ranks: int) -> None:
    run_ranks(check_overlap, ranks, 160_000, 1_500_000, device="cuda")


def check_ranks_that_differ() -> None:
    """Ranks may place their rows in different tiers and order their chunks in different ways."""
    group = Group.current()
    nodes = 12 * group.world_size
    counts = [12] * group.world_size
    for local in (True, False):
        graph = make_graph(group, nodes, 100, counts)
        if local:  # No rank needs rows of another.
            graph.sources = graph.destinations // 12 * 12 + graph.sources % 12
        layout = graph.destination_layout
        mine = graph.rank_edges(group.rank)
        first = layout.offsets[group.rank]
        graph.resident = PartitionedCsc.from_local_edges(
            layout,
            layout,
            graph.resident.edge_layout,
            graph.sources[mine],
            graph.destinations[mine] - first,
        )
        one, other = graph.chunked(4), graph.chunked(4, Switches(orders_chunks=False))
        stores = RowAllocator(group, (1 - group.rank) << 20, 1 << 20)
        x = torch.randn(nodes, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        tiers: list[Tier] = ["device", "host"]
        source = filled(stores, layout, x, tiers[group.rank])
        expected = torch.zeros_like(x).index_add_(0, graph.destinations, x[graph.sources])
        for structures in ((one,), (other, one), (one, other)):
            total = torch.zeros(12, 2, dtype=torch.float64)
            sources = [(source, csc) for csc in structures]
            with ChunkPass(one.chunks, sources=sources) as chunk_pass:
                for chunk in chunk_pass:
                    for csc in structures:
                        rows, edges = chunk.sources(source, csc)
                        total[chunk.start : chunk.stop] += edges.spmm("copy_u", "sum", rows)
            torch.testing.assert_close(total, own(layout, expected) * len(structures))


def test_tiers_of_ranks_may_differ() -> None:
    run_ranks(check_ranks_that_differ, 2)
