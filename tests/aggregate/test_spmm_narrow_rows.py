"""Aggregation of rows that are stored in fewer bytes, read where they lie in a table."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import peergraph
from peergraph.aggregate import Csc, g_spmm, spmm_linear
from peergraph.aggregate.ops.side_by_side import sums_and_self_rows
from peergraph.memory import Group, TableRows
from tests.memory.narrow_rows import (
    STORAGES,
    can_be_apart,
    each_narrow_table,
    expected_rows,
    narrow_table,
    values,
)
from tests.memory.tables import random_ids, split
from tests.named_case import named_case, named_cases
from tests.pairwise import pairwise

from .graphs import assert_same, features, hub_graph, random_graph

_SHAPES = [(1,), (3,), (7,), (8,), (33,), (36,), (4, 8), (5, 7), (100,), (128,), (264,), (602,)]


def check(actual: Tensor, expected: Tensor) -> None:
    """The CPU adds in the order of dense rows, a GPU in the order of its lanes."""
    if actual.device.type == "cpu":
        assert torch.equal(actual, expected)
    assert_same(actual, expected)


@each_narrow_table(_SHAPES)
def test_every_reduction(
    storage: str,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    kind: str,
    id_dtype: torch.dtype,
    apart: bool,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = features(70, shape, torch.device("cpu"), dtype, grad=False)
    order = torch.randperm(70, generator=torch.Generator().manual_seed(2)).to(device)
    group = Group.current(device=device)
    table = narrow_table(stored, storage, split(70, kind), group, order=order, apart=apart)
    ids = random_ids(70, (40,), id_dtype).to(device)
    x = expected_rows(stored, storage)[ids.cpu().long()].to(device)
    csc, rows = random_graph(device, dtype=id_dtype).csc(), TableRows(table, ids)
    assert rows.can_be_read == (device.type == "cpu" or not table.tiers.disk)
    weights = features(csc.num_edges, (), device, dtype, grad=False)
    by_head = features(csc.num_edges, shape[:1], device, dtype, grad=False)
    with monkeypatch.context() as patch:
        if rows.can_be_read:
            patch.setattr(TableRows, "gather", lambda rows: pytest.fail("rows were gathered"))
        for reduce in ("sum", "mean", "max", "min"):
            check(g_spmm(csc, "copy_u", reduce, rows), g_spmm(csc, "copy_u", reduce, x))
            for e in (weights, by_head):
                check(g_spmm(csc, "mul", reduce, rows, e), g_spmm(csc, "mul", reduce, x, e))
    table.close()


def test_plain_torch(device: torch.device) -> None:
    graph, stored = random_graph(device), values((40, 24), torch.float32)
    for storage in STORAGES:
        with named_case(storage):
            table = narrow_table(stored, storage, split(40, "mixed"), Group.current(device=device))
            source, destination = graph.edge_index
            rows = expected_rows(stored, storage).to(device).double()[source]
            expected = rows.new_zeros(graph.num_destinations, 24).index_add(0, destination, rows)
            every = TableRows(table, torch.arange(40, device=device))
            actual = g_spmm(graph.csc(), "copy_u", "sum", every)
            assert actual.dtype == torch.float32
            torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-3)
            table.close()


@named_cases(
    ("storage", "columns", "out_dtype", "apart"),
    pairwise(
        STORAGES,
        [1, 7, 12, 40, 100],
        [torch.float32, torch.float16, torch.bfloat16],
        [False, True],
        allowed=lambda storage, columns, dtype, apart: can_be_apart(storage, "mixed", apart),
    ),
)
def test_sums_beside_the_rows_of_targets(
    storage: str, columns: int, out_dtype: torch.dtype, apart: bool, device: torch.device
) -> None:
    stored = features(70, (columns,), torch.device("cpu"), grad=False)
    group = Group.current(device=device)
    table = narrow_table(stored, storage, split(70, "mixed"), group, apart=apart)
    ids = random_ids(70, (40,), torch.int64).to(device)
    x = expected_rows(stored, storage)[ids.cpu()].to(device)
    matrix = random_graph(device).csc()
    for mean in (False, True):
        actual = sums_and_self_rows(matrix, TableRows(table, ids), mean, None, out_dtype)
        expected = sums_and_self_rows(matrix, x, mean, None, out_dtype)
        assert torch.equal(actual[:, columns:], expected[:, columns:])
        assert torch.equal(actual[:, columns:], x[: matrix.num_destinations].to(out_dtype))
        check(actual, expected)
    table.close()


def test_layers_multiply_sums(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = features(70, (24,), torch.device("cpu"), grad=False)
    ids = random_ids(70, (40,), torch.int64).to(device)
    csc = random_graph(device).csc()
    weight, self_weight = (features(5, (24,), device, seed=seed) for seed in (6, 7))
    for storage in ("bfloat16", "float8_e4m3", "int8:8"):
        table = narrow_table(stored, storage, split(70, "mixed"), Group.current(device=device))
        x = expected_rows(stored, storage)[ids.cpu()].to(device)
        expected = spmm_linear(csc, "mean", x, weight, self_weight)
        with monkeypatch.context() as patch, named_case(storage):
            patch.setattr(TableRows, "gather", lambda rows: pytest.fail("rows were gathered"))
            actual = spmm_linear(csc, "mean", TableRows(table, ids), weight, self_weight)
            assert_same(actual, expected)
            gradients = torch.autograd.grad(actual.square().sum(), (weight, self_weight))
            expected_result = torch.autograd.grad(expected.square().sum(), (weight, self_weight))
            for gradient, want in zip(gradients, expected_result, strict=True):
                torch.testing.assert_close(gradient, want, rtol=1e-3, atol=1e-2)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                narrowed = spmm_linear(csc, "mean", TableRows(table, ids), weight, self_weight)
            assert narrowed.dtype == torch.bfloat16
            torch.testing.assert_close(narrowed.float(), expected, rtol=5e-2, atol=0.3)
        table.close()


@pytest.mark.parametrize(("columns", "apart"), [(5, False), (12, True), (104, False), (128, True)])
def test_hubs(columns: int, apart: bool, device: torch.device) -> None:
    stored = features(60, (columns,), torch.device("cpu"), grad=False)
    csc = hub_graph(device, 3000).csc()
    ids = torch.arange(50, device=device).flip(0)
    group = Group.current(device=device)
    for storage in STORAGES:
        with named_case(storage):
            has_own_table = apart and can_be_apart(storage, "mixed", apart)
            table = narrow_table(stored, storage, split(60, "mixed"), group, apart=has_own_table)
            x = expected_rows(stored, storage)[ids.cpu()].to(device)
            for reduce in ("sum", "mean", "min"):
                rows = TableRows(table, ids)
                check(g_spmm(csc, "copy_u", reduce, rows), g_spmm(csc, "copy_u", reduce, x))
            table.close()


@named_cases(("storage", "rows"), pairwise(STORAGES, [1, 4]))
def test_few_rows(storage: str, rows: int, device: torch.device) -> None:
    stored = features(rows, (16,), torch.device("cpu"), grad=False)
    table = narrow_table(stored, storage, split(rows, "replicated"), Group.current(device=device))
    x = expected_rows(stored, storage).to(device)
    every = torch.arange(rows, device=device)
    for edges in (0, 1, 3):
        index = torch.zeros(2, edges, dtype=torch.int64, device=device)
        csc = Csc.from_edge_index(index, 3, rows)
        for reduce in ("sum", "max"):
            result = g_spmm(csc, "copy_u", reduce, TableRows(table, every))
            check(result, g_spmm(csc, "copy_u", reduce, x))
    none = Csc.from_edge_index(torch.zeros(2, 0, dtype=torch.int64, device=device), 0, rows)
    assert g_spmm(none, "copy_u", "sum", TableRows(table, every)).shape == (0, 16)
    table.close()


def test_what_needs_the_rows_gathers_them(device: torch.device) -> None:
    stored = features(70, (4,), torch.device("cpu"), grad=False)
    table = narrow_table(stored, "int8", split(70, "mixed"), Group.current(device=device))
    ids = random_ids(70, (40,), torch.int64).to(device)
    x = expected_rows(stored, "int8")[ids.cpu()].to(device)
    csc, rows = random_graph(device).csc(), TableRows(table, ids)
    weights = features(csc.num_edges, (), device)
    actual, expected = (
        g_spmm(csc, "mul", "sum", rows, weights),
        g_spmm(csc, "mul", "sum", x, weights),
    )
    assert torch.equal(actual, expected)
    gradients = [torch.autograd.grad(out.square().sum(), weights)[0] for out in (actual, expected)]
    assert torch.equal(*gradients)
    e = features(csc.num_edges, (4,), device, grad=False)
    assert torch.equal(g_spmm(csc, "add", "max", rows, e), g_spmm(csc, "add", "max", x, e))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert g_spmm(csc, "copy_u", "sum", rows).dtype == torch.bfloat16
    table.close()


@pytest.mark.parametrize(("storage", "apart"), [("bfloat16", False), ("int8", True)])
def test_ids_out_of_range(storage: str, apart: bool, device: torch.device) -> None:
    stored = features(70, (16,), torch.device("cpu"), grad=False)
    group = Group.current(device=device)
    table = narrow_table(stored, storage, split(70, "mixed"), group, apart=apart)
    ids = random_ids(70, (40,), torch.int64).to(device)
    ids[7] = 70

    def reduce_and_wait() -> None:
        g_spmm(random_graph(device).csc(), "copy_u", "sum", TableRows(table, ids))
        peergraph.synchronize()

    with pytest.raises(IndexError, match=r"ids\[7\] = 70 is out of range for a table of 70 rows"):
        reduce_and_wait()
    table.close()
    with pytest.raises(RuntimeError, match="closed"):
        reduce_and_wait()


def test_reads_that_pay(device: torch.device) -> None:
    stored = features(70, (64,), torch.device("cpu"), grad=False)
    ids = torch.arange(40, device=device)
    for kind, expected in (("replicated", True), ("host", device.type == "cpu")):
        table = narrow_table(stored, "int8", split(70, kind), Group.current(device=device))
        rows = TableRows(table, ids)
        assert rows.pays_to_read(40)
        assert rows.pays_to_read(1000) == expected
        table.close()
