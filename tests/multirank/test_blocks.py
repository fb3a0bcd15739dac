"""Tables whose sharded rows are split in contiguous blocks, or round robin."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from peergraph.memory import Group, Table, Tiers
from peergraph.memory.table.partitions import Partitions
from peergraph.memory.table.tier_sizes import Split, shard_rows
from peergraph.testing import run_ranks
from tests.memory.tables import plain_gather, random_ids, random_rows, same_bits
from tests.multirank.test_memory import PLACES

# The last block is shorter, or empty; no row is sharded; sharded rows are behind and before others.
TIERS = [Tiers(0, 12), Tiers(5, 13, 7), Tiers(0, 5), Tiers(2, 0, 1), Tiers(0, 1, 3), Tiers(0, 3)]


def make(values: torch.Tensor, tiers: Tiers, group: Group, split: Split, **order: Any) -> Table:
    table = Table.create(tuple(values.shape), values.dtype, tiers, group, split=split, **order)
    if group.rank == 0:
        table.load(values, chunk_bytes=3 * table.row_bytes)
    group.barrier()
    return table


def _reads_and_writes(split: Split) -> None:
    group = Group.current(timeout=60)
    for number, tiers in enumerate(TIERS):
        rows = random_rows((tiers.rows, 5), torch.int16, seed=number)
        order = torch.randperm(tiers.rows, generator=torch.Generator().manual_seed(number))
        for options in ({}, {"order": order.to(group.device)}):
            table = make(rows, tiers, group, split, **options)
            ids = random_ids(tiers.rows, (5000,), torch.int64, seed=group.rank)
            assert same_bits(table.gather(ids), plain_gather(rows, ids))
            assert same_bits(table.gather(ids.to(group.device)), plain_gather(rows, ids))
            assert same_bits(table.read(), rows)
            assert same_bits(table.read(1, tiers.rows - 1), rows[1:-1])
            counter = table.count_reads()
            table.gather(torch.arange(tiers.rows, device=group.device))
            reads = counter.totals()[0]
            sizes = [len(shard) for shard in shard_rows(tiers.sharded, group.world_size, split)]
            assert reads[: 1 + group.world_size] == [tiers.replicated, *sizes]
            table.counter = None
            group.barrier()
            changed = random_rows((tiers.rows, 5), torch.int16, seed=100 + number)
            if group.rank == group.world_size - 1:
                table.scatter(torch.arange(tiers.rows), changed)
            group.barrier()
            assert same_bits(table.read(), changed)
            group.barrier()
            table.close()


def _local_shards(split: Split) -> None:
    group = Group.current(timeout=60)
    for number, tiers in enumerate(TIERS):
        rows = random_rows((tiers.rows, 2, 3), torch.int32, seed=number)
        table = make(rows, tiers, group, split)
        shards = [table.shard_rows(rank) for rank in range(group.world_size)]
        assert table.shard_rows() == shards[group.rank]
        first, end = tiers.replicated, tiers.replicated + tiers.sharded
        assert sorted(row for shard in shards for row in shard) == list(range(first, end))
        if split == "blocks":
            assert [row for shard in shards for row in shard] == list(range(first, end))
        mine = table.local_shard()
        assert mine.device == group.device
        assert same_bits(mine, rows[list(shards[group.rank])])
        mine += group.rank + 1
        if mine.is_cuda:
            torch.cuda.synchronize()
        group.barrier()
        for rank, shard in enumerate(shards):
            rows[list(shard)] += rank + 1
        assert same_bits(table.read(), rows)
        group.barrier()
        table.close()


def _handles() -> None:
    group = Group.current(timeout=60)
    rows = random_rows((11, 3), torch.int32)
    table = make(rows, Tiers(2, 7, 2), group, "blocks")
    copy = pickle.loads(pickle.dumps(table))
    assert copy.split == "blocks"
    assert same_bits(copy.read(), rows)
    copy.close()
    group.barrier()
    table.close()
    with pytest.raises(ValueError, match="rank . creates a table .*blocks"):
        Table.create(
            (4,),
            torch.int64,
            Tiers(0, 4),
            group,
            split="blocks" if group.rank else "round_robin",
        )


def _copies_of_shards() -> None:
    group = Group.current(timeout=60)
    both = Partitions("test", ((0, 1), (0, 1)), ((0, 0), (1, 1)))
    rows = random_rows((9, 3), torch.int32)
    table = make(rows, Tiers(1, 7, 1), group, "blocks", partitions=both)
    assert same_bits(table.read(), rows)
    group.barrier()
    if group.rank == 1:
        table.scatter(torch.arange(9), -rows)
    group.barrier()
    assert same_bits(table.read(), -rows)
    with pytest.raises(ValueError, match=r"rank . stores the shards \(0, 1\), not shard . alone"):
        table.local_shard()
    group.barrier()
    table.close()


@pytest.mark.parametrize("split", ["round_robin", "blocks"])
@pytest.mark.parametrize(("ranks", "device"), PLACES)
def test_reads_and_writes(ranks: int, device: str, split: Split) -> None:
    run_ranks(_reads_and_writes, ranks, split, device=device)
    run_ranks(_local_shards, ranks, split, device=device)


def test_handles_and_disagreement() -> None:
    run_ranks(_handles, 2)


def test_copies_of_shards() -> None:
    run_ranks(_copies_of_shards, 2)


def test_one_rank(device: torch.device) -> None:
    group = Group.current(device=device)
    rows = random_rows((7, 2), torch.float32)
    table = make(rows, Tiers(2, 4, 1), group, "blocks")
    assert table.shard_rows() == range(2, 6)
    assert same_bits(table.local_shard(), rows[2:6])
    assert same_bits(table.read(), rows)
    with pytest.raises(ValueError, match=r"rank must be one of 0\.\.0, got 1"):
        table.shard_rows(1)
    table.close()


def test_another_split() -> None:
    with pytest.raises(ValueError, match='split must be "round_robin" or "blocks", got \'hash\''):
        Table.create((3,), torch.int64, Tiers(0, 3), Group.current(device="cpu"), split="hash")  # type: ignore[arg-type]
