"""Rows partly on the device, and rows that are stored in a narrower type."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from peergraph.fullgraph import FullGraph, RowLayout, named_model
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.passes.chunk_pass import ChunkPass
from peergraph.fullgraph.offload.rows.narrow_rows import NarrowRows
from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
from peergraph.fullgraph.offload.rows.split_rows import SplitRows
from peergraph.memory import Group
from peergraph.store import EDGE
from peergraph.testing import run_ranks
from tests.fullgraph.gpu_numbers import GPU_NUMBERS, each_place
from tests.named_case import named_case

from .test_row_allocator import ROWS, bytes_of, check_store

NODES = 200


def check_split(folder: str) -> None:
    """A split store is as any other, wherever it is cut."""
    group = Group.current()
    layout = RowLayout.contiguous(group, ROWS * group.world_size)
    for tier in ("host", "file"):
        for on_device in (2, 4, 12, ROWS - 2):
            for dtype, ids in ((torch.float32, torch.int32), (torch.float16, torch.int64)):
                with named_case(tier, on_device, dtype):
                    row = 6 * dtype.itemsize
                    host = 1 << 16 if tier == "host" else 0
                    # A part of the budget is left to rows of few nodes.
                    room = -(-on_device * row * 32 // 31) + 1
                    stores = RowAllocator(group, room, host, folder=folder,
                                       sequential_device_bytes=room)  # fmt: skip
                    store = stores.allocate(layout, (6,), dtype)
                    assert isinstance(store, SplitRows)
                    assert store.first_count == on_device
                    check_store(store, ids)
                    assert store.moved_bytes(0, ROWS) == (ROWS - on_device) * row
                    assert store.moved_bytes(0, 1) == 0
                    assert store.moved_bytes(ROWS - 1, ROWS) == row
                    assert bytes_of(stores)["device"] == (on_device * row, 0)
                    store.release()
                    assert bytes_of(stores)["device"] == (0, on_device * row)
                    again = stores.allocate(layout, (6,), dtype)
                    assert bytes_of(stores)["device"] == (on_device * row, 0)
                    again.release()


@each_place(1, 2)
def test_split_rows(world_size: int, device_type: str, tmp_path: object) -> None:
    run_ranks(check_split, world_size, str(tmp_path), device=device_type)


def check_narrow() -> None:
    group = Group.current()
    layout = RowLayout.contiguous(group, ROWS * group.world_size)
    # All values of the test have few bits.
    for narrow in (torch.bfloat16, torch.float16):
        for dtype in (torch.float32, torch.float64):
            for device_bytes in (0, 1 << 12, 1 << 16):
                stores = RowAllocator(group, device_bytes, 1 << 16, narrow_dtype=narrow,
                                   sequential_device_bytes=device_bytes)  # fmt: skip
                with named_case(narrow, dtype, device_bytes):
                    store = stores.allocate(layout, (64,), dtype, narrow=True)
                    assert isinstance(store, NarrowRows)
                    assert (store.dtype, store.in_place) == (dtype, False)
                    assert store.num_bytes == ROWS * 128
                    check_store(store, torch.int32)
                    assert sum(use.used for use in stores.use.values()) == ROWS * 128
                    # Values are rounded.
                    rows = torch.full((2, 64), 1 + 2.0**-20, dtype=dtype, device=store.device)
                    store.write(3, rows)
                    assert bool((store.read(3, 5) == 1).all())


def test_narrow_rows() -> None:
    run_ranks(check_narrow, 1)


@pytest.mark.parametrize("ranks", GPU_NUMBERS[:1])
def test_narrow_rows_on_gpus(ranks: int) -> None:
    run_ranks(check_narrow, ranks, device="cuda")


def test_only_wider_floats_are_narrowed() -> None:
    group = Group(0, 1, torch.device("cpu"), 60.0)
    layout = RowLayout.contiguous(group, ROWS)
    stores = RowAllocator(group, 0, 1 << 20, narrow_dtype=torch.bfloat16)
    for dtype in (torch.float16, torch.bfloat16, torch.int64, torch.bool):
        assert type(stores.allocate(layout, (3,), dtype, narrow=True)) is not NarrowRows
    assert type(stores.allocate(layout, (3,), torch.float32)) is not NarrowRows


def test_passes_over_split_rows() -> None:
    """Chunks on the device, on the host and on both are read and written; bytes are counted."""
    group = Group(0, 1, torch.device("cpu"), 60.0)
    layout = RowLayout.contiguous(group, 100)
    stores = RowAllocator(group, 1 << 10, 1 << 16, sequential_device_bytes=45 * 12 + 32)
    one = stores.allocate(layout, (3,), torch.float32)
    other = stores.allocate(layout, (3,), torch.float32, tier="host")
    assert isinstance(one, SplitRows)
    full = torch.arange(300.0).view(100, 3)
    one.write(0, full)
    for read, write in ((one, other), (other, one)):
        with ChunkPass(Chunks.even(layout, 7), reads=[read], writes=[write]) as chunk_pass:
            for chunk in chunk_pass:
                chunk.write(write, chunk.rows(read) + 1)
        moved = chunk_pass.counts.to_device, chunk_pass.counts.from_device
        assert moved == ((660, 1200) if read is one else (1200, 660))
    assert torch.equal(one.read(0, 100), full + 2)


def losses(hidden_dtype: torch.dtype | None, offload: bool = True) -> list[float]:
    """Losses of two layers of sums, of which all rows are stored outside of the device."""
    group = Group(0, 1, torch.device("cpu"), 60.0)
    generator = torch.Generator().manual_seed(3)
    edges = torch.randint(NODES, (2, 900), generator=generator)
    x = torch.randn(NODES, 16, generator=generator)
    y = torch.randint(4, (NODES,), generator=generator)
    graph = FullGraph.build(
        group, NODES, edges, order="random", offload=offload, model=named_model([16, 16, 16, 4]),
        memory_budget=50_000 if offload else 1 << 24, num_chunks=32 if offload else None,
        hidden_dtype=hidden_dtype,
    )  # fmt: skip
    rows, labels = graph.node_rows(x), graph.node_rows(y)
    mask = graph.node_rows(torch.arange(NODES) % 3 == 0)
    torch.manual_seed(2)
    layers = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)])
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.02)
    results = []
    for _ in range(8):
        h = rows
        for number, layer in enumerate(layers):
            h = graph.structures[EDGE].spmm("copy_u", "mean", torch.relu(h) if number else h)
            h = layer(h)
        loss = nn.functional.cross_entropy(h[mask], labels[mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results.append(loss.item())
    if offload and hidden_dtype is not None:
        assert graph.offloaded is not None
        assert graph.offloaded.allocator.narrow_dtype == hidden_dtype
    return results


def test_losses_of_narrow_rows_differ_by_little() -> None:
    resident, exact = losses(None, offload=False), losses(None)
    assert exact == pytest.approx(resident, rel=1e-5)
    # bfloat16 has 8 bits: rows are off by 2^-9, losses by less than 2^-8.
    rounded = losses(torch.bfloat16)
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=2**-8)
    assert losses(torch.float16) == pytest.approx(exact, rel=2**-10)
    assert losses(torch.bfloat16) == rounded


def test_dtypes_of_stored_rows_are_checked() -> None:
    with pytest.raises(ValueError, match=r"hidden_dtype must be torch.bfloat16, torch.float16 or"):
        losses(torch.float32)
    with pytest.raises(ValueError, match="a dtype of stored rows is for offloaded training"):
        losses(torch.bfloat16, offload=False)
