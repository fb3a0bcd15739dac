"""Rows in device memory, host memory and files, and their allocator."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from peergraph.fullgraph.layout.blocks import balance_cost
from peergraph.fullgraph.layout.duplication import cut_chunks
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.passes.chunk_pass import ChunkPass
from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
from peergraph.fullgraph.offload.rows.row_store import RowStore, Tier
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.fullgraph.gpu_numbers import GPU_NUMBERS
from tests.named_case import named_case
from tests.pairwise import pairwise

ROWS = 37
TIERS: list[Tier] = ["device", "host", "file"]
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.uint8, torch.bool),
]
SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (2, 5), (128,), (0,)]


def values_of(dtype: torch.dtype, shape: tuple[int, ...], rows: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-9, 10, (rows, *shape), generator=generator, device="cpu")
    return (values > 0) if dtype == torch.bool else values.to(dtype)


def check_rows(folder: str) -> None:
    group = Group.current()
    layout = RowLayout.contiguous(group, ROWS * group.world_size)
    stores = RowAllocator(group, 1 << 24, 1 << 24, folder=folder)
    for case in pairwise(TIERS, DTYPES, SHAPES, [torch.int32, torch.int64]):
        tier, dtype, shape, ids = case.values
        with named_case(tier, dtype, shape, ids):
            store = stores.allocate(layout, shape, dtype, tier=tier)
            assert (store.tier, store.features, store.dtype) == (tier, shape, dtype)
            check_store(store, ids)
            store.release()


def check_store(store: RowStore, ids: torch.dtype) -> None:
    device = store.device
    full = values_of(store.dtype, store.features, ROWS)
    store.write(0, full.to(device))
    assert torch.equal(store.read(0, ROWS).cpu(), full)
    part = values_of(store.dtype, store.features, 9, seed=1)
    store.write(5, part.to(device))
    full[5:14] = part
    out = store.empty(10)
    assert store.read(3, 13, out) is out
    assert torch.equal(out.cpu(), full[3:13])
    assert store.read(4, 4).shape == (0, *store.features)
    # A transposed tensor, whose rows are not side by side.
    if len(store.features) == 1:
        turned = full[:8].t().contiguous().t().to(device)
        store.write(0, turned)
    rows = torch.tensor([30, 2, 2, 36, 0], dtype=ids)
    assert torch.equal(store.gather(rows.to(device)).cpu(), full[rows.long()])
    assert len(store.gather(rows[:0].to(device))) == 0
    distinct = torch.tensor([36, 1, 7], dtype=ids)
    values = values_of(store.dtype, store.features, 3, seed=2)
    store.scatter(distinct.to(device), values.to(device))
    full[distinct.long()] = values
    assert torch.equal(store.read(0, ROWS).cpu(), full)
    if store.dtype != torch.bool:
        store.add(distinct.to(device), values.to(device))
        full[distinct.long()] += values
        assert torch.equal(store.read(0, ROWS).cpu(), full)
    store.zero_()
    assert not store.read(0, ROWS).any()


@pytest.mark.parametrize("ranks", [1, 2])
def test_rows_are_read_and_written_on_all_tiers(ranks: int, tmp_path: Path) -> None:
    run_ranks(check_rows, ranks, str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ranks", GPU_NUMBERS)
def test_rows_on_gpus(ranks: int, tmp_path: Path) -> None:
    run_ranks(check_rows, ranks, str(tmp_path), device="cuda")


@pytest.fixture
def layout() -> RowLayout:
    return RowLayout.contiguous(Group(0, 1, torch.device("cpu"), 10.0), 100)


def bytes_of(stores: RowAllocator) -> dict[str, tuple[int, int]]:
    return {name: (use.used, use.spare) for name, use in stores.use.items()}


def test_roles_choose_tiers_by_what_is_left(layout: RowLayout, tmp_path: Path) -> None:
    stores = RowAllocator(layout.group, 5000, 4500, folder=tmp_path)
    allocated = [stores.allocate(layout, (10,), torch.float32, "source") for _ in range(3)]
    assert [store.tier for store in allocated] == ["device", "host", "file"]
    assert stores.allocate(layout, (), torch.float32).tier == "host"
    stores.sequential_device_bytes = 1000
    assert stores.allocate(layout, (), torch.float32, "given").tier == "host"
    assert stores.allocate(layout, (2,), torch.float32).tier == "device"
    assert bytes_of(stores)["device"] == (4000, 800)
    assert bytes_of(stores)["host"] == (4000, 400)


def test_memory_of_released_stores_serves_the_next(layout: RowLayout) -> None:
    stores = RowAllocator(layout.group, 0, 10_000)
    first = stores.allocate(layout, (10,), torch.float32)
    address = first.memory.data_ptr()
    first.release()
    assert bytes_of(stores)["host"] == (0, 4000)
    again = stores.allocate(layout, (5,), torch.float64)
    assert again.memory.data_ptr() == address
    with pytest.raises(RuntimeError, match="has no memory: it was released"):
        first.read(0, 1)
    del again
    gc.collect()
    assert bytes_of(stores)["host"] == (0, 4000)
    # Another size takes the place of memory that is kept, within the budget.
    other = stores.allocate(layout, (20,), torch.float32)
    assert bytes_of(stores)["host"] == (8000, 0)
    assert stores.use["host"].peak == 8000
    other.release()
    assert bytes_of(stores)["host"] == (0, 8000)


def test_no_more_memory_is_freed_than_is_needed(layout: RowLayout) -> None:
    stores = RowAllocator(layout.group, 0, 10_000)
    allocated = [stores.allocate(layout, (width,), torch.float32) for width in (2, 4, 8)]
    for store in allocated:
        store.release()
    assert bytes_of(stores)["host"] == (0, 5600)
    # 7,200 bytes have room once the smallest block that suffices is gone.
    large = stores.allocate(layout, (18,), torch.float32)
    assert bytes_of(stores)["host"] == (7200, 2400)
    large.release()
    whole = stores.allocate(layout, (25,), torch.float32)
    assert bytes_of(stores)["host"] == (whole.num_bytes, 0)
    assert stores.use["host"].peak == 10_000


def test_too_little_memory_is_told(layout: RowLayout, tmp_path: Path) -> None:
    stores = RowAllocator(layout.group, 10, 20)
    message = (
        r"hidden rows of layer 2 \[100, 10\] float32 of rank 0 need 4000 bytes; left by the "
        r"budgets: device 10 of 10, host 20 of 20; no folder for files was given"
    )
    with pytest.raises(MemoryError, match=message):
        stores.allocate(layout, (10,), torch.float32, "source", what="hidden rows of layer 2")
    with pytest.raises(MemoryError, match="need 4000 bytes in the tier device"):
        stores.allocate(layout, (10,), torch.float32, tier="device")
    with pytest.raises(ValueError, match="role must be source, sequential or given, got 'other'"):
        stores.allocate(layout, (10,), torch.float32, "other")  # type: ignore[arg-type]


def test_host_without_memory_goes_to_files(
    layout: RowLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEERGRAPH_HOST_MEMORY", "1000")
    stores = RowAllocator(layout.group, 0, 1 << 20, folder=tmp_path)
    assert stores.allocate(layout, (10,), torch.float32).tier == "file"
    stores = RowAllocator(layout.group, 0, 1 << 20)
    with pytest.raises(MemoryError, match="the host has 1000 bytes free"):
        stores.allocate(layout, (10,), torch.float32)
    assert RowAllocator(layout.group, 0).use["host"].budget == 1000


def test_full_disk_is_an_error_that_leaves_nothing(
    layout: RowLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = RowAllocator(layout.group, 0, 0, folder=tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="4000 bytes on disk cannot be had: No space left"):
        stores.allocate(layout, (10,), torch.float32)
    assert not list(tmp_path.iterdir())
    assert bytes_of(stores)["file"] == (0, 0)


def check_interrupted(folder: str) -> None:
    group = Group.current()
    layout = RowLayout.contiguous(group, 20)
    stores = RowAllocator(group, 0, 0, folder=folder)
    store = stores.allocate(layout, (4,), torch.float32)
    chunks = Chunks.even(layout, 4)
    with ChunkPass(chunks, reads=[store], writes=[store]) as chunk_pass:
        for chunk in chunk_pass:
            if chunk.index == 2:
                os._exit(9) if group.rank == 1 else os.kill(os.getpid(), 2)
            chunk.write(store, chunk.rows(store) + 1)


def test_interrupts_and_deaths_leave_no_files(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="rank"):
        run_ranks(check_interrupted, 2, str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_rows_written_after_they_were_read_are_copied(layout: RowLayout) -> None:
    stores = RowAllocator(layout.group, 0, 1 << 20)
    one, other = (stores.allocate(layout, (3,), torch.float32) for _ in range(2))
    full = torch.arange(300.0).view(100, 3)
    one.write(0, full)
    with ChunkPass(Chunks.even(layout, 7), reads=[one], writes=[other]) as chunk_pass:
        for chunk in chunk_pass:
            rows = chunk.rows(one)
            chunk.write(other, rows)
            assert rows.shape == (chunk.stop - chunk.start, 3)
    assert torch.equal(other.memory, full)
    assert (chunk_pass.counts.to_device, chunk_pass.counts.from_device) == (1200, 1200)


def test_errors_of_passes_name_the_argument(layout: RowLayout) -> None:
    stores = RowAllocator(layout.group, 0, 1 << 20)
    store = stores.allocate(layout, (3,), torch.float32)
    other = RowLayout.contiguous(layout.group, 99)
    chunks = Chunks.even(layout, 2)
    with pytest.raises(ValueError, match="reads must have the rows of"):
        ChunkPass(Chunks.even(other, 2), reads=[store])
    with ChunkPass(chunks, writes=[store]) as chunk_pass:
        for chunk in chunk_pass:
            with pytest.raises(ValueError, match="is not one of the pass's reads"):
                chunk.rows(store)
            with pytest.raises(ValueError, match=r"rows must be \[50, 3\] torch.float32, got"):
                chunk.write(store, torch.zeros(50, 2))
            with pytest.raises(ValueError, match="is not one of the pass's sources"):
                chunk.sources(store)
            chunk.write(store, torch.ones(50, 3))
    assert store.memory.eq(1).all()
    for offsets in ([0], [0, 50], [0, 60, 50, 100], [1, 100]):
        with pytest.raises(ValueError, match="offsets must ascend from 0 to the 100 local rows"):
            Chunks(layout, offsets)
    with pytest.raises(ValueError, match="count must be at least one chunk, got 0"):
        Chunks.even(layout, 0)


def test_balanced_chunks_have_about_equal_cost(layout: RowLayout) -> None:
    cost = torch.ones(100)
    cost[10] = 200.0
    chunks = Chunks.balanced(layout, 3, cost)
    assert chunks.count == 3
    sums = [cost[slice(*chunks.range(chunk))].sum().item() for chunk in range(3)]
    assert sum(sums) == 299
    assert max(sums) <= 211
    assert Chunks.balanced(layout, 4, torch.ones(100)).sizes == (25, 25, 25, 25)
    degrees = torch.arange(100) % 7 * 10
    [cuts] = cut_chunks(degrees, [100], 9)  # as a plan counts them
    assert Chunks.balanced(layout, 9, balance_cost(degrees)).offsets == tuple(cuts)
    with pytest.raises(ValueError, match=r"cost must be \[100\], got \[3\]"):
        Chunks.balanced(layout, 2, torch.ones(3))
    mask = torch.arange(100) % 3 == 0
    selected = chunks.select(layout.select_mask(mask))
    assert selected.sizes == tuple(int(mask[slice(*chunks.range(c))].sum()) for c in range(3))
