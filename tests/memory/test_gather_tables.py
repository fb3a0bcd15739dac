"""gather_tables against plain indexing, for tables of all kinds at once."""

from __future__ import annotations

import pytest
import torch

import peergraph
from peergraph.memory import Group, Table, gather_tables
from tests.memory.narrow_rows import STORAGES, expected_rows, narrow_table, values
from tests.memory.tables import TIER_KINDS, plain_gather, random_rows, same_bits, split, table_of
from tests.named_case import named_cases


@named_cases("kind", TIER_KINDS)
@pytest.mark.parametrize("count", [0, 1, 5000])
def test_tables_of_all_kinds(kind: str, count: int, device: torch.device) -> None:
    group = Group.current(device=device)
    tiers = split(101, kind)
    wide, labels = random_rows((101, 8), torch.float32), random_rows((101,), torch.int64)
    narrow, order = values((101, 12), torch.float32), torch.randperm(101)
    tables = [
        table_of(wide, tiers, group),
        table_of(labels, tiers, group, order=order.to(device)),
        *(narrow_table(narrow, storage, tiers, group) for storage in ("float16", "int8:4")),
    ]
    tables[1].count_reads()  # such tables are gathered alone
    ids, others = (torch.randint(101, (count,)) for _ in range(2))
    on_device = ids.to(device)  # one tensor for several tables
    expected = [
        plain_gather(wide, ids),
        plain_gather(labels, ids),
        plain_gather(expected_rows(narrow, "float16"), others),
        plain_gather(expected_rows(narrow, "int8:4"), ids),
    ]
    reads = list(zip(tables, (on_device, on_device, others.int(), on_device), strict=True))
    results = gather_tables(reads)
    for result, rows in zip(results, expected, strict=True):
        assert result.device == device
        same = same_bits if rows.dtype == torch.int64 or rows.shape[1:] == (8,) else torch.equal
        assert same(result.cpu(), rows)
    for table in tables:
        table.close()


@named_cases("kind", TIER_KINDS)
def test_many_tables(kind: str, device: torch.device) -> None:
    """Tables that a GPU reads in one launch differ in sizes, ids, tiers and scales."""
    group = Group.current(device=device)
    columns = (4, 8, 2, 4, 260, 1, 300, 33, 132)  # in vectors of several widths, by lines or not
    plain, tables = [], []
    for number, width in enumerate(columns):
        size = 50 + 17 * number
        plain.append(
            random_rows((size, width), (torch.float32, torch.int16, torch.uint8)[number % 3])
        )
        tables.append(table_of(plain[-1], split(size, kind), group))
    for number, storage in enumerate(STORAGES * 2):
        size = 40 + 11 * number
        rows = values((size, 12 + number % 2 * 8), torch.float32)
        plain.append(expected_rows(rows, storage))
        are_apart = kind not in ("disk", "all") and storage == "int8" and number % 2 == 1
        tables.append(narrow_table(rows, storage, split(size, kind), group, apart=are_apart))
    counts = [0, 1, 7, 3000, 40]
    ids = [torch.randint(len(rows), (counts[i % 5],)) for i, rows in enumerate(plain)]
    results = gather_tables([(t, each.to(device)) for t, each in zip(tables, ids, strict=True)])
    for number, (result, rows, each) in enumerate(zip(results, plain, ids, strict=True)):
        same = same_bits if number < len(columns) else torch.equal  # zeros are decoded as 0.0
        assert same(result.cpu(), plain_gather(rows, each))
    for table in tables:
        table.close()


@pytest.mark.gpus(1)
def test_in_a_graph() -> None:
    """A CUDA graph gathers rows of several tables for the ids that it finds when it runs."""
    gpu = torch.device("cuda", 0)
    group = Group.current(device=gpu)
    rows = [random_rows((60, 8), torch.int32) for _ in range(4)]
    tables = [table_of(each, split(60, "sharded"), group) for each in rows]
    ids = torch.zeros(500, dtype=torch.int64, device=gpu)
    reads = [(table, ids) for table in tables]
    gather_tables(reads)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = gather_tables(reads)
    for seed in range(3):
        torch.manual_seed(seed)
        drawn = torch.randint(60, (500,))
        ids.copy_(drawn)
        other = [torch.full((1 << 12,), 7.0, device=gpu) for _ in range(8)]  # reuses freed memory
        graph.replay()
        for result, each in zip(results, rows, strict=True):
            assert torch.equal(result.cpu(), each[drawn])
        del other
    for table in tables:
        table.close()


def test_shapes(device: torch.device) -> None:
    group = Group.current(device=device)
    rows = random_rows((6, 2, 3), torch.float64)
    table = table_of(rows, split(6, "replicated"), group)
    ids = torch.tensor([[5, 0], [1, 1]])
    first, second = gather_tables([(table, ids.to(device)), (table, ids[0])])
    assert same_bits(first, plain_gather(rows, ids))
    assert same_bits(second, plain_gather(rows, ids[0]))
    assert gather_tables([]) == []
    table.close()


def _gather_and_wait(*reads: tuple[Table, torch.Tensor]) -> None:
    gather_tables(reads)
    peergraph.synchronize()


def test_errors(device: torch.device) -> None:
    group = Group.current(device=device)
    small, large = (table_of(random_rows((n, 2), torch.float32), split(n, "replicated"), group)
                    for n in (3, 9))  # fmt: skip
    ids = torch.tensor([0, 4])
    with pytest.raises(IndexError, match="4 is out of range for a table of 3 rows"):
        _gather_and_wait((large, ids), (small, ids))
    with pytest.raises(TypeError, match="ids must be int32 or int64"):
        gather_tables([(large, ids), (small, ids.float())])
    small.close()
    with pytest.raises(RuntimeError, match="closed"):
        gather_tables([(large, ids), (small, ids)])
    large.close()
