"""Regions, tables and groups over several ranks."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import stat
from multiprocessing.connection import Connection

import pytest
import torch
import torch.distributed as dist

from peergraph.memory import Group, SharedRegion, Table, Tiers
from peergraph.reference.gather import five_step_gather
from peergraph.testing import run_ranks
from tests.memory.tables import (
    DTYPES,
    TIER_KINDS,
    plain_gather,
    random_ids,
    random_rows,
    same_bits,
    split,
    table_of,
)

# (ranks, device): several ranks may share one GPU.
PLACES = [
    pytest.param(2, "cpu", id="2-cpu"),
    pytest.param(4, "cpu", id="4-cpu"),
    # Two ranks on the GPU of a machine that has only one.
    pytest.param(2, "cuda", id="2-on-a-gpu", marks=pytest.mark.gpus(1)),
    pytest.param(2, "cuda", id="2-gpus", marks=pytest.mark.gpus(2)),
    pytest.param(4, "cuda", id="4-gpus", marks=pytest.mark.gpus(4)),
]
TWO_RANKS = [PLACES[0], PLACES[2]]


def _group(device: str) -> Group:
    group = Group.current(timeout=60)
    assert group.device.type == device
    return group


def _group_basics(device: str) -> None:
    group = _group(device)
    assert (group.rank, group.world_size) == (dist.get_rank(), dist.get_world_size())
    assert group.all_gather(("rank", group.rank)) == [("rank", r) for r in range(group.world_size)]
    assert group.broadcast(group.rank * 10, src=1) == 10
    # Larger than one message of the store.
    big = group.broadcast(torch.arange(3_000_000) if group.rank == 0 else None)
    assert torch.equal(big, torch.arange(3_000_000))
    with pytest.raises(ValueError, match="src must be a rank of"):
        group.broadcast(1, src=group.world_size)
    for _ in range(30):
        group.barrier()
    again = Group.current(timeout=60)
    assert again.all_gather(1) == [1] * group.world_size
    other = Group.current(device="cpu", timeout=50)
    assert other.timeout == 50
    assert other.device.type == "cpu"
    other.barrier()


@pytest.mark.parametrize(("ranks", "device"), PLACES)
def test_group(ranks: int, device: str) -> None:
    run_ranks(_group_basics, ranks, device, device=device)


def _every_table(device: str) -> None:
    group = _group(device)
    for kind in TIER_KINDS:
        rows = random_rows((101, 3), torch.float32)
        table = table_of(rows, split(101, kind), group)
        ids = random_ids(101, (500,), torch.int64, seed=group.rank)
        assert same_bits(table.gather(ids.to(group.device)), plain_gather(rows, ids))
        assert same_bits(table.read(), rows)
        table.close()
    for dtype in DTYPES:
        for width in (1, 5):
            rows = random_rows((29, width), dtype)
            table = table_of(rows, split(29, "mixed"), group)
            assert same_bits(table.read(), rows)
            table.close()
    for shape in ((0, 3), (1,), (2, 2), (5, 0)):
        rows = random_rows(shape, torch.int16)
        table = table_of(rows, split(shape[0], "mixed"), group)
        assert same_bits(table.read(), rows)
        table.close()
    with pytest.raises(ValueError, match="creates a table"):
        Table.create((4 + group.rank,), torch.int8, Tiers(4 + group.rank), group)


@pytest.mark.parametrize(("ranks", "device"), PLACES)
def test_tables(ranks: int, device: str) -> None:
    run_ranks(_every_table, ranks, device, device=device)


def _writes_are_seen(device: str) -> None:
    group = _group(device)
    rows = random_rows((203, 3), torch.float64)
    order = torch.randperm(203, generator=torch.Generator().manual_seed(3)).int()
    table = Table.create(
        (203, 3), torch.float64, split(203, "mixed"), group, order=order.to(group.device)
    )
    # Every rank loads its share.
    bounds = [203 * r // group.world_size for r in range(group.world_size + 1)]
    table.load(rows[bounds[group.rank] : bounds[group.rank + 1]], bounds[group.rank])
    group.barrier()
    assert same_bits(table.read(), rows)
    group.barrier()
    # Every rank updates the rows r, r + W, ...
    mine = torch.arange(group.rank, 203, group.world_size)
    table.scatter(mine, rows[mine] * 2)
    group.barrier()
    assert same_bits(table.read(), rows * 2)
    table.close()


@pytest.mark.parametrize(("ranks", "device"), PLACES)
def test_writes_are_seen_by_all(ranks: int, device: str) -> None:
    run_ranks(_writes_are_seen, ranks, device, device=device)


def _regions(device: str) -> None:
    group = _group(device)
    for place in {"cpu", device}:
        # The first rank's part is empty.
        region = SharedRegion.create(8 * group.rank, group, None if place == device else place)
        assert region.sizes == [8 * r for r in range(group.world_size)]
        assert [address == 0 for address in region.addresses] == [
            size == 0 for size in region.sizes
        ]
        region.local(torch.int64, [group.rank]).fill_(group.rank)
        group.barrier()
        for rank in range(group.world_size):
            assert region.part(rank, torch.int64, [rank]).tolist() == [rank] * rank
        with pytest.raises(ValueError, match="takes 800 bytes, and the part of rank 1 has 8"):
            region.part(1, torch.int64, [100])
        with pytest.raises(ValueError, match="rank must be one of"):
            region.part(-1, torch.int64, [0])
        region.close()
        region.close()
        with pytest.raises(RuntimeError, match="has been closed"):
            region.local(torch.int64, [0])
    with pytest.raises(ValueError, match="num_bytes must not be negative, got -1"):
        SharedRegion.create(-1 if group.rank == 1 else 8, group)
    with pytest.raises(MemoryError, match="bytes"):
        SharedRegion.create(1 << 60 if group.rank == 1 else 8, group)
    with pytest.raises(ValueError, match="device must be cpu or the group's own"):
        SharedRegion.create(8, group, "meta")
    group.barrier()


@pytest.mark.parametrize(("ranks", "device"), PLACES)
def test_regions(ranks: int, device: str) -> None:
    run_ranks(_regions, ranks, device, device=device)


def _memory_is_private_and_nameless() -> None:
    group = _group("cpu")
    region = SharedRegion.create(4096, group)
    (own,) = _files_of_regions()
    assert stat.S_IMODE(os.stat(own).st_mode) == 0o600
    view = region.part(1 - group.rank, torch.uint8, [4096])
    region.close()
    assert _files_of_regions() == []
    assert view.sum() == 0  # the view keeps its memory mapped


def _files_of_regions() -> list[str]:
    """Those that this process has open."""
    files = []
    for path in (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")):
        # Other threads open and close files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(path).startswith("/memfd:peergraph "):
                files.append(path)
    return files


def test_host_memory_is_private_and_nameless() -> None:
    run_ranks(_memory_is_private_and_nameless, 2)


def _read_in_child(pipe: Connection, table: Table | bytes) -> None:
    if isinstance(table, bytes):
        table = pickle.loads(table)
    assert isinstance(table, Table)
    rows = table.read()
    error = ""
    try:
        table.group.barrier()
    except RuntimeError as raised:
        error = str(raised)
    table.close()
    pipe.send((rows.tolist(), error))


def _children(device: str, method: str) -> None:
    group = _group(device)
    rows = random_rows((31, 2), torch.int32)
    near = "host" if device == "cpu" else "replicated"
    order = table_of(torch.arange(30, -1, -1), split(31, near), group)
    table = table_of(rows, split(31, "mixed"), group, order=order)
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    handle = pickle.dumps(table) if method == "spawn" else table
    child = context.Process(target=_read_in_child, args=(sender, handle))  # type: ignore[attr-defined]
    child.start()
    sender.close()
    result, error = receiver.recv()
    child.join()
    assert child.exitcode == 0
    assert result == rows.tolist()
    assert "collectives are for the ranks themselves" in error
    # The child's end took nothing away.
    assert same_bits(table.read(), rows)
    group.barrier()
    table.scatter(torch.tensor([30]), torch.ones(1, 2, dtype=torch.int32))
    group.barrier()
    assert table.read(30).tolist() == [[1, 1]]
    table.close()
    order.close()


@pytest.mark.parametrize(("ranks", "device"), TWO_RANKS)
def test_pickled_to_a_spawned_child(ranks: int, device: str) -> None:
    run_ranks(_children, ranks, device, "spawn", device=device)


def test_used_and_closed_in_a_forked_child() -> None:
    run_ranks(_children, 2, "cpu", "fork")


def _handles(device: str) -> None:
    group = _group(device)
    rows = random_rows((20, 2), torch.float32)
    table = table_of(rows, split(20, "mixed"), group)
    # In the same process a copy shares the mappings and closes alone.
    copy = pickle.loads(pickle.dumps(table))
    region, same = table._regions["sharded"], copy._regions["sharded"]
    assert region.addresses == same.addresses
    copy.close()
    assert same_bits(table.read(), rows)
    # From rank to rank.
    moved = group.broadcast(table)
    assert same_bits(moved.read(), rows)
    group.barrier()
    moved.close()
    data = pickle.dumps(table)
    table.close()
    group.barrier()
    if device == "cpu":
        with pytest.raises(RuntimeError, match="which made this shared memory"):
            pickle.loads(data)
    with pytest.raises(RuntimeError, match="has been closed"):
        pickle.dumps(table)
    unsharable = table_of(rows, split(20, "host"), group, order=torch.arange(20).to(group.device))
    with pytest.raises(TypeError, match="its order only where the order is a Table"):
        pickle.dumps(unsharable)
    unsharable.close()


@pytest.mark.parametrize(("ranks", "device"), TWO_RANKS)
def test_handles(ranks: int, device: str) -> None:
    run_ranks(_handles, ranks, device, device=device)


def _orphan_handle(folder: str) -> None:
    group = _group("cpu")
    table = table_of(torch.arange(4), split(4, "host"), group)
    if group.rank == 0:
        with open(os.path.join(folder, "handle"), "wb") as file:
            pickle.dump(table, file)
    group.barrier()


def test_handle_of_ended_ranks(tmp_path: os.PathLike[str]) -> None:
    run_ranks(_orphan_handle, 2, str(tmp_path))
    with (
        open(os.path.join(tmp_path, "handle"), "rb") as file,
        pytest.raises(RuntimeError, match="which made this shared memory, is gone"),
    ):
        pickle.load(file)


def _five_steps(device: str) -> None:
    group = _group(device)
    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        for shape in ((17, 3), (17,), (17, 2, 2)):
            rows = random_rows(shape, dtype)
            shard = rows[group.rank :: group.world_size].contiguous().to(group.device)
            for count in (0, 1, 40 + group.rank):
                ids = random_ids(17, (count,), torch.int64, seed=group.rank)
                result = five_step_gather(shard, ids.to(group.device))
                assert same_bits(result, plain_gather(rows, ids))


@pytest.mark.parametrize(
    ("ranks", "device"),
    [PLACES[0], PLACES[3], PLACES[4]],  # NCCL wants a GPU for every rank
)
def test_five_step_gather(ranks: int, device: str) -> None:
    run_ranks(_five_steps, ranks, device, device=device)
