"""gather_tables against plain indexing, for tables of all kinds at once."""

from __future__ import annotations

import pytest
import torch

import peergraph
from peergraph.memory import Group, Table, gather_tables
from tests.memory.narrow_rows import expected_rows, narrow_table, values
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
