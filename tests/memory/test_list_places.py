"""Rows of lists, beside plain loops."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from peergraph.memory import Group, ListRows, ListTable, list_places
from peergraph.memory.table import gather_tables as module
from peergraph.memory.table.gather_tables import gather_tables
from tests.memory.no_memory import functions_without_memory
from tests.memory.tables import split, table_of
from tests.named_case import named_cases

STORED = 1020
SHAPES = [
    [],
    [(0, 1)],
    [(3, 1), (0, 1), (5, 1)],
    [(4, 2), (7, 3), (0, 2), (2, 1), (1, 3), (9, 2)],
    [(2, 0), (3, 2)],
    [(row % 4, 1 + row % 3) for row in range(101)],  # more than a kernel takes at a time
    [(6000, 3), (3, 1)],
]


def random_bounds(rows: int, width: int, random: torch.Generator) -> Tensor:
    """Rows are anywhere in the store; the lists of a row follow each other, some are empty."""
    bounds = torch.randint(4, (rows, width + 1), generator=random).cumsum(1)
    return bounds + torch.randint(1000, (rows, 1), generator=random)


def plain_places(bounds: Tensor) -> tuple[list[int], list[int]]:
    ends, places = [0], []
    for row in bounds.tolist():
        for begin, end in pairwise(row):
            places += range(begin, end)
            ends.append(len(places))
    return ends, places


@named_cases("shapes", SHAPES)
def test_places(shapes: list[tuple[int, int]], device: torch.device) -> None:
    random = torch.Generator().manual_seed(len(shapes))
    bounds = [random_bounds(*shape, random) for shape in shapes]
    places = list_places([(of.to(device), STORED) for of in bounds])
    assert [(ends.tolist(), at.tolist()) for ends, at in places] == [*map(plain_places, bounds)]
    assert all(of.device == device for pair in places for of in pair)


@pytest.mark.parametrize("wrong", [(5, 3, 3), (-1, 2, 2), (2, 2, 8)])
def test_damaged_bounds(wrong: tuple[int, ...], device: torch.device) -> None:
    bounds = torch.tensor([(0, 1, 7), wrong], device=device)
    with pytest.raises(RuntimeError, match="its tables are damaged"):
        list_places([(bounds[:1], 7), (bounds, 7)])


@named_cases("shapes", SHAPES[2:])
@pytest.mark.parametrize("route", ["together", "counted", "no memory", "no functions"])
def test_gathered_lists(
    shapes: list[tuple[int, int]],
    route: str,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lists of several tables, among rows of others."""
    without = {"no functions": None, "no memory": functions_without_memory()}
    if route in without:
        monkeypatch.setattr(module, "torch_functions", lambda _: without[route])
    kind = "on gpus" if route == "together" else "mixed"
    group, random = Group.current(device=device), torch.Generator().manual_seed(7)
    values = torch.randn(STORED, generator=random)
    elements = table_of(values, split(STORED, kind), group)
    labels = table_of(torch.arange(50), split(50, "replicated"), group)
    reads, expected = [], []
    for number, (count, width) in enumerate(shapes):
        bounds = random_bounds(50, width, random)
        table = table_of(bounds, split(50, kind), group)
        if route == "counted" and number % 2:
            table.count_reads()
        ids = torch.randint(50, (count,), generator=random)
        reads += [(ListTable(table, elements), ids.to(device)), (labels, ids)]
        expected.append((ids, *plain_places(bounds[ids])))
    results = iter(gather_tables(reads))
    for ids, ends, places in expected:
        lists = next(results)
        assert isinstance(lists, ListRows)
        assert lists.ends.tolist() == ends
        assert torch.equal(lists.elements.cpu(), values[places])
        assert lists.elements.device == device
        rows = next(results)
        assert isinstance(rows, Tensor)
        assert torch.equal(rows.cpu(), ids)
    tables = {id(table): table for table, _ in reads}.values()
    for table in [elements, *tables]:
        (table.bounds if isinstance(table, ListTable) else table).close()
