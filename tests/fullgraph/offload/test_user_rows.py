"""Features that are read where the user has them: tensors, mapped files, tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from peergraph.fullgraph import FullGraph, RowLayout, named_model
from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
from peergraph.fullgraph.offload.rows.user_rows import UserRows, store_table
from peergraph.fullgraph.offload.tensor.offloaded_tensor import OffloadedTensor
from peergraph.memory import Group
from peergraph.store import EDGE, EdgeSource, GraphSource, Store
from peergraph.testing import run_ranks
from tests.fullgraph.gpu_numbers import each_place
from tests.fullgraph.partitioned import shuffled_layout
from tests.named_case import named_case

ROWS = 53


def values_of(dtype: torch.dtype, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randint(-9, 10, (ROWS, *shape), generator=generator, device="cpu").to(dtype)


def check_rows(folder: str) -> None:
    group = Group.current()
    for layout in (shuffled_layout(group, ROWS), RowLayout.contiguous(group, ROWS)):
        for dtype, shape in ((torch.float32, (3,)), (torch.float16, (2, 4)), (torch.float64, (1,))):
            full = values_of(dtype, *shape)
            name = f"{folder}/{group.rank}-{dtype}"
            mapped = torch.from_file(name, shared=True, size=full.numel(), dtype=dtype)
            mapped.view(full.shape).copy_(full)
            for kind, table in (("memory", full), ("file", mapped.view(full.shape))):
                with named_case(layout, dtype, kind):
                    check_store(layout, full, table)


def check_store(layout: RowLayout, full: Tensor, table: Tensor) -> None:
    device = layout.group.device
    stores = RowAllocator(layout.group, 1 << 20, 0)
    store = store_table(stores, table, layout, "features")
    assert type(store) is UserRows
    assert (store.tier, store.in_place) == ("user", False)
    assert all(use.used == 0 for use in stores.use.values())
    expected = full[layout.positions.cpu()]
    count = layout.local_count
    assert torch.equal(store.read(0, count).cpu(), expected)
    assert store.read(count, count).shape == (0, *full.shape[1:])
    if count:
        out = store.empty(count - 1)
        assert store.read(1, count, out) is out
        assert torch.equal(out.cpu(), expected[1:])
        rows = torch.tensor([count - 1, 0, 0], dtype=torch.int32)
        assert torch.equal(store.gather(rows.to(device)).cpu(), expected[rows.long()])
    assert len(store.gather(torch.empty(0, dtype=torch.int64, device=device))) == 0


@each_place(1, 3)
def test_rows_are_read_where_they_are(world_size: int, device_type: str, tmp_path: Path) -> None:
    run_ranks(check_rows, world_size, str(tmp_path), device=device_type)


def make_edges() -> Tensor:
    return torch.randint(ROWS, (2, 300), generator=torch.Generator().manual_seed(2))


@pytest.fixture
def graph() -> FullGraph:
    group = Group(0, 1, torch.device("cpu"), 60.0)
    return FullGraph.build(group, ROWS, make_edges(), order="random", offload=True, num_chunks=4,
                           model=named_model([8, 8, 3]), memory_budget=1 << 16)  # fmt: skip


def test_features_are_not_copied(graph: FullGraph) -> None:
    x = values_of(torch.float32, 8)
    assert graph.offloaded is not None
    graph.offloaded.allocator.sequential_device_bytes = 0
    rows = graph.node_rows(x)
    assert graph.offloaded.allocator.use["host"].used == 0
    assert torch.equal(rows.full_tensor(), x)
    # A tensor whose rows are not side by side is copied.
    wide = values_of(torch.float32, 16)
    part = graph.node_rows(wide[:, ::2])
    assert graph.offloaded.allocator.use["host"].used == ROWS * 8 * 4
    assert torch.equal(part.full_tensor(), wide[:, ::2])


def test_features_that_change_are_refused(graph: FullGraph) -> None:
    x = values_of(torch.float32, 8)
    assert graph.offloaded is not None
    graph.offloaded.allocator.sequential_device_bytes = 0
    rows = graph.node_rows(x)
    x[3] = 0
    with pytest.raises(RuntimeError, match=r"tensor \[53, 8\] was changed in place"):
        rows.full_tensor()


def test_sums_are_kept_as_long_as_features_are_the_same(graph: FullGraph) -> None:
    x = values_of(torch.float32, 8)
    assert graph.offloaded is not None
    graph.offloaded.allocator.sequential_device_bytes = 0
    rows = graph.node_rows(x)
    weight = torch.eye(8).requires_grad_()
    structure, (source, target) = graph.structures[EDGE], make_edges()
    # Writes without a trace, after the first epoch that keeps the sum, and after later ones.
    changes: list[Callable[[], object] | None] = [
        *(None, lambda: x.data.mul_(2), None, None, lambda: x.numpy().__iadd__(1), None)
    ]
    for change in changes:
        sums = structure.spmm("copy_u", "sum", rows)
        again = structure.spmm("copy_u", "sum", rows)
        assert isinstance(sums, OffloadedTensor)
        assert isinstance(again, OffloadedTensor)
        assert again._content is sums._content
        (sums @ weight).square().mean().backward()
        full = torch.zeros_like(x).index_add_(0, target, x[source])
        assert torch.equal(sums.full_tensor(), full)
        if change is not None:
            change()
    x.zero_()
    with pytest.raises(RuntimeError, match="was changed in place"):
        structure.spmm("copy_u", "sum", rows)


def test_rows_of_users_are_not_written() -> None:
    group = Group(0, 1, torch.device("cpu"), 60.0)
    layout = RowLayout.contiguous(group, ROWS)
    x = values_of(torch.float32, 2)
    store = UserRows(layout, x, RowAllocator(group, 0, 0))
    for write in (
        lambda: store.write(0, x),
        lambda: store.scatter(torch.arange(3), x[:3]),
        lambda: store.add(torch.arange(3), x[:3]),
        store.zero_,
    ):
        with pytest.raises(RuntimeError, match="rows cannot be written"):
            write()
    with pytest.raises(RuntimeError, match="has no memory"):
        _ = store.memory
    store.release()
    with pytest.raises(RuntimeError, match="was released"):
        store.read(0, 3)


def test_tables_are_read_where_they_are() -> None:
    group = Group(0, 1, torch.device("cpu"), 60.0)
    x = values_of(torch.float32, 8)
    edges = torch.randint(ROWS, (2, 100), generator=torch.Generator().manual_seed(1))
    source = GraphSource.homogeneous(ROWS, EdgeSource(coo=edges), node_tables={"x": x})
    store = Store.build(source, group=group, progress=False)
    graph = FullGraph.from_store(store, offload=True, num_chunks=2, order="random")
    assert graph.offloaded is not None
    graph.offloaded.allocator.sequential_device_bytes = 0
    rows = graph.node_rows(store.node_table("x"))
    assert graph.offloaded.allocator.use["host"].used == 0
    assert torch.equal(rows.full_tensor(), x)
    sums = graph.structures[EDGE].spmm("copy_u", "sum", rows).full_tensor()
    torch.testing.assert_close(sums, torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]]))


def test_mapped_arrays_of_numpy(graph: FullGraph, tmp_path: Path) -> None:
    x = values_of(torch.float32, 8)
    np.save(tmp_path / "x.npy", x.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r+")
    assert graph.offloaded is not None
    graph.offloaded.allocator.sequential_device_bytes = 0
    rows = graph.node_rows(torch.from_numpy(mapped))
    assert torch.equal(rows.full_tensor(), x)
