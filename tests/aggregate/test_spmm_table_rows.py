"""Aggregation of rows that are read where they lie in a table."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

import peergraph
from peergraph.aggregate import Csc, g_spmm
from peergraph.memory import Group, Table, TableRows
from tests.memory.tables import TIER_KINDS, split, table_of
from tests.named_case import named_case, named_cases

from .graphs import DTYPES, features, hub_graph, random_graph

WIDTHS = [(1,), (3,), (5,), (8,), (100,), (4, 6)]


def rows_of(
    device: torch.device, shape: tuple[int, ...], kind: str, dtype: torch.dtype = torch.float32
) -> tuple[Table, Tensor, Tensor]:
    """A table of 70 rows, 40 ids into it with repeats, and the rows of these."""
    values = features(70, shape, torch.device("cpu"), dtype, grad=False)
    order = torch.randperm(70, generator=torch.Generator().manual_seed(2)).to(device)
    table = table_of(values, split(70, kind), Group.current(device=device), order=order)
    ids = torch.randint(70, (40,), generator=torch.Generator().manual_seed(3)).to(device)
    return table, ids, values[ids.cpu()].to(device)


def reduce_and_wait(csc: Csc, rows: TableRows) -> None:
    g_spmm(csc, "copy_u", "sum", rows)
    peergraph.synchronize()


@named_cases("kind", TIER_KINDS)
def test_tiers(kind: str, device: torch.device) -> None:
    table, ids, x = rows_of(device, (8,), kind)
    csc = random_graph(device).csc()
    for reduce in ("sum", "mean", "max", "min"):
        result = g_spmm(csc, "copy_u", reduce, TableRows(table, ids))
        assert torch.equal(result, g_spmm(csc, "copy_u", reduce, x)), reduce
    table.close()


@named_cases("shape", WIDTHS)
def test_widths(shape: tuple[int, ...], device: torch.device) -> None:
    for dtype, id_dtype in product(DTYPES, [torch.int32, torch.int64]):
        with named_case(dtype, id_dtype):
            check_width(shape, dtype, id_dtype, device)


def check_width(
    shape: tuple[int, ...], dtype: torch.dtype, id_dtype: torch.dtype, device: torch.device
) -> None:
    table, ids, x = rows_of(device, shape, "mixed", dtype)
    csc = random_graph(device, dtype=id_dtype).csc()
    rows = TableRows(table, ids.to(id_dtype))
    assert rows.shape == x.shape
    assert torch.equal(rows.gather(), x)
    weights = features(csc.num_edges, (), device, dtype, grad=False)
    for reduce in ("mean", "max"):
        assert torch.equal(g_spmm(csc, "copy_u", reduce, rows), g_spmm(csc, "copy_u", reduce, x))
        actual = g_spmm(csc, "mul", reduce, rows, weights)
        assert torch.equal(actual, g_spmm(csc, "mul", reduce, x, weights))
    by_head = features(csc.num_edges, shape[:1], device, dtype, grad=False)
    expected = g_spmm(csc, "mul", "sum", x, by_head)
    assert torch.equal(g_spmm(csc, "mul", "sum", rows, by_head), expected)
    table.close()


def test_hubs(device: torch.device) -> None:
    graph = hub_graph(device, 3000)
    values = features(60, (12,), torch.device("cpu"), grad=False)
    table = table_of(values, split(60, "mixed"), Group.current(device=device))
    ids = torch.arange(50, device=device).flip(0)
    csc, x = graph.csc(), values[ids.cpu()].to(device)
    for reduce in ("sum", "min"):
        result = g_spmm(csc, "copy_u", reduce, TableRows(table, ids))
        assert torch.equal(result, g_spmm(csc, "copy_u", reduce, x))
    table.close()


def test_what_needs_the_rows_gathers_them(device: torch.device) -> None:
    table, ids, x = rows_of(device, (4,), "mixed")
    csc, rows = random_graph(device).csc(), TableRows(table, ids)
    weights = features(csc.num_edges, (), device)
    actual = g_spmm(csc, "mul", "sum", rows, weights)
    expected = g_spmm(csc, "mul", "sum", x, weights)
    assert torch.equal(actual, expected)
    gradients = [torch.autograd.grad(out.square().sum(), weights)[0] for out in (actual, expected)]
    assert torch.equal(*gradients)
    for message in ("add", "div"):
        e = features(csc.num_edges, (4,), device, grad=False)
        assert torch.equal(g_spmm(csc, message, "max", rows, e), g_spmm(csc, message, "max", x, e))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert g_spmm(csc, "copy_u", "sum", rows).dtype == torch.bfloat16
    table.close()


def test_errors(device: torch.device) -> None:
    table, ids, _ = rows_of(device, (4,), "mixed")
    csc = random_graph(device).csc()
    with pytest.raises(TypeError, match="ids must be an int32 or int64 tensor, got torch.float32"):
        TableRows(table, ids.float())
    with pytest.raises(ValueError, match="ids must have one dimension"):
        TableRows(table, ids.view(2, -1))
    with pytest.raises(ValueError, match=r"x must have 40 rows \(sources\), got \[39, 4\]"):
        g_spmm(csc, "copy_u", "sum", TableRows(table, ids[1:]))
    bad = ids.clone()
    bad[7] = 70
    with pytest.raises(IndexError, match=r"ids\[7\] = 70 is out of range for a table of 70 rows"):
        reduce_and_wait(csc, TableRows(table, bad))
    table.close()
    with pytest.raises(RuntimeError, match="closed"):
        g_spmm(csc, "copy_u", "sum", TableRows(table, ids))


def test_empty(device: torch.device) -> None:
    table, ids, _ = rows_of(device, (4,), "mixed")
    none = torch.zeros(0, dtype=torch.int64, device=device)
    csc = Csc(torch.zeros(4, dtype=torch.int64, device=device), none, 0)
    assert torch.equal(
        g_spmm(csc, "copy_u", "sum", TableRows(table, ids[:0])), torch.zeros(3, 4, device=device)
    )
    table.close()


def test_reads_that_pay(device: torch.device) -> None:
    table, ids, _ = rows_of(device, (4,), "replicated")
    assert TableRows(table, ids).pays_to_read(1000)
    table.close()
    table, ids, _ = rows_of(device, (4,), "host")
    rows = TableRows(table, ids)
    assert rows.pays_to_read(40)
    assert rows.pays_to_read(1000) == (device.type == "cpu")
    table.close()


def test_ids_that_change_later(device: torch.device) -> None:
    table, ids, x = rows_of(device, (4,), "mixed")
    csc = random_graph(device).csc()
    copied = ids.clone()
    rows = TableRows(table, copied)
    copied.data.zero_()
    for _ in range(2):
        assert torch.equal(g_spmm(csc, "copy_u", "sum", rows), g_spmm(csc, "copy_u", "sum", x))
        assert torch.equal(rows.gather(), x)
        assert torch.equal(rows.first(3).gather(), x[:3])
        copied.data.fill_(1)
    table.close()
