"""Sums that kernels add to their output, and sums under other schedules than the default one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import Schedule
from peergraph.aggregate.kernels.spmm import add_spmm, spmm, spmm_transposed_atomic
from peergraph.aggregate.kernels.spmm_minmax import spmm_minmax
from peergraph.aggregate.sparse import edge_matrix
from peergraph.aggregate.sparse.column_blocks import column_block_count
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from tests.aggregate.graphs import TOLERANCE, Graph, features, hub_graph, random_graph
from tests.named_case import named_cases
from tests.pairwise import pairwise

SCHEDULES = [
    Schedule(chunk=32, long_row=64, warps_per_block=1),
    Schedule(chunk=7, long_row=7, warps_per_block=2),
    Schedule(chunk=1000, long_row=10, warps_per_block=1),
]
MESSAGES = {
    "copy_u": lambda u, e: u,
    "copy_e": lambda u, e: e,
    "mul": lambda u, e: u * e,
    "sub": lambda u, e: u - e,
}


def graph_of(kind: str, device: torch.device) -> Graph:
    """A row that a GPU cuts in chunks, rows that a warp reduces, or rows without edges."""
    if kind == "hub":
        return hub_graph(device, 1100)
    return random_graph(device, num_edges=0 if kind == "no edges" else 300)


def matrix_of(graph: Graph, schedule: Schedule | None = None) -> EdgeMatrix:
    order = graph.edge_index[1].argsort(stable=True)
    degrees = graph.edge_index[1].bincount(minlength=graph.num_destinations)
    indptr = torch.zeros(graph.num_destinations + 1, dtype=torch.int64, device=order.device)
    torch.cumsum(degrees, 0, out=indptr[1:])
    indices = graph.edge_index[0][order].contiguous()
    return EdgeMatrix(indptr, indices, graph.num_sources, edge_ids=order, schedule=schedule)


def operands(
    graph: Graph, message: str, width: int, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    device = graph.edge_index.device
    x = features(graph.num_sources, (width,), device, dtype, grad=False)
    e = features(graph.num_edges, (width,), device, dtype, seed=6, grad=False)
    return None if message == "copy_e" else x, None if message == "copy_u" else e


def expected_sums(graph: Graph, message: str, x: Tensor | None, e: Tensor | None) -> Tensor:
    """Sums in float64 by torch."""
    source, destination = graph.edge_index.long()
    u = None if x is None else x.double()[source]
    values = MESSAGES[message](u, None if e is None else e.double())
    out = values.new_zeros(graph.num_destinations, values.shape[1])
    return out.index_add_(0, destination, values)


@named_cases(
    ("kind", "dtype", "width", "message", "mean"),
    pairwise(
        ["hub", "random", "no edges"],
        list(TOLERANCE),
        [1, 3, 8, 33, 64, 100],
        list(MESSAGES),
        [False, True],
    ),
)
def test_add_spmm(
    kind: str,
    dtype: torch.dtype,
    width: int,
    message: str,
    mean: bool,
    device: torch.device,
) -> None:
    graph = graph_of(kind, device)
    x, e = operands(graph, message, width, dtype)
    out = features(graph.num_destinations, (width,), device, dtype, seed=7, grad=False)
    sums = expected_sums(graph, message, x, e)
    if mean:
        degrees = graph.edge_index[1].bincount(minlength=graph.num_destinations)
        sums /= degrees.clamp(min=1).unsqueeze(1)
    expected = (out.double() + sums).to(dtype)
    add_spmm(out, x, e, matrix_of(graph).tensors, message, mean)
    torch.testing.assert_close(out, expected, **TOLERANCE[dtype])


@named_cases(
    ("kind", "dtype", "width", "message", "accumulate", "mean"),
    pairwise(
        ["hub", "random"],
        list(TOLERANCE),
        [17, 33, 41, 47, 129, 602],
        ["copy_u", "mul"],
        [False, True],
        [False, True],
    ),
)
def test_rows_that_no_vector_divides(
    kind: str,
    dtype: torch.dtype,
    width: int,
    message: str,
    accumulate: bool,
    mean: bool,
    device: torch.device,
) -> None:
    """A GPU sums these from a padded copy of `x`, as the graphs have many edges for each source."""
    graph = graph_of(kind, device)
    x = features(graph.num_sources, (width,), device, dtype, grad=False)
    e = features(graph.num_edges, (1,), device, dtype, seed=6, grad=False)
    e = None if message == "copy_u" else e
    matrix = matrix_of(graph).tensors
    sums = expected_sums(graph, message, x, e)
    if mean:
        degrees = graph.edge_index[1].bincount(minlength=graph.num_destinations)
        sums /= degrees.clamp(min=1).unsqueeze(1)
    if accumulate:
        out = features(graph.num_destinations, (width,), device, dtype, seed=7, grad=False)
        sums += out
        add_spmm(out, x, e, matrix, message, mean)
    else:
        out = spmm(x, e, matrix, message, mean)
    torch.testing.assert_close(out, sums.to(dtype), **TOLERANCE[dtype])


@pytest.mark.parametrize(("width", "message"), [(4, "copy_u"), (20, "mul"), (17, "copy_u")])
def test_short_rows_in_runs(width: int, message: str, device: torch.device) -> None:
    """A warp of a GPU sums some of these rows one after the other, past long and empty ones."""
    generator = torch.Generator().manual_seed(3)
    num_rows, num_columns = 60_000, 5_000
    degrees = torch.randint(0, 20, (num_rows,), generator=generator)
    degrees[torch.rand(num_rows, generator=generator) < 0.3] = 0
    degrees[:: num_rows // 7] = 1_000
    rows = torch.arange(num_rows).repeat_interleave(degrees)
    columns = torch.randint(num_columns, (rows.numel(),), generator=generator)
    graph = Graph(torch.stack([columns, rows]).to(device), num_columns, num_rows)
    x = features(num_columns, (width,), device, grad=False)
    e = None if message == "copy_u" else features(graph.num_edges, (1,), device, grad=False)
    out = spmm(x, e, matrix_of(graph).tensors, message, False)
    expected = expected_sums(graph, message, x, e).float()
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-3)


def test_tiles_add_up(device: torch.device) -> None:
    """The sums of two column blocks of a matrix are those of the matrix."""
    graph = random_graph(device)
    x = features(graph.num_sources, (20,), device, grad=False)
    left = graph.edge_index[0] < 15
    out = torch.zeros(graph.num_destinations, 20, device=device)
    for is_in_tile in (left, ~left):
        tile = Graph(graph.edge_index[:, is_in_tile], graph.num_sources, graph.num_destinations)
        add_spmm(out, x, None, matrix_of(tile).tensors, "copy_u")
    expected = spmm(x, None, matrix_of(graph).tensors, "copy_u", False)
    torch.testing.assert_close(out, expected, **TOLERANCE[torch.float32])


@pytest.mark.parametrize("message", ["copy_u", "mul"])
def test_sums_in_blocks_of_columns(
    message: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_matrix, "column_block_count", lambda matrix, x: 3)
    graph = hub_graph(device, 1100)
    x = features(graph.num_sources, (20,), device, grad=False)
    e = None if message == "copy_u" else features(graph.num_edges, (1,), device, grad=False)
    whole = matrix_of(graph)
    blocked = matrix_of(graph)
    blocked.blocks_columns = True
    for mean in (False, True):
        expected, actual = (
            whole.sum_messages(x, e, message, mean),
            blocked.sum_messages(x, e, message, mean),
        )
        torch.testing.assert_close(actual, expected, **TOLERANCE[torch.float32])
    twice = blocked.sum_messages(x, e, message)
    blocked.add_messages(twice, x, e, message)
    torch.testing.assert_close(twice, 2 * whole.sum_messages(x, e, message), rtol=1e-4, atol=1e-3)
    assert blocked.transpose().blocks_columns
    y = features(graph.num_destinations, (20,), device, grad=False)
    torch.testing.assert_close(
        blocked.transpose().sum_messages(y, e, message),
        whole.transpose().sum_messages(y, e, message),
        **TOLERANCE[torch.float32],
    )
    assert len(blocked._column_blocks) == 1


def test_number_of_blocks_of_columns(device: torch.device) -> None:
    graph = random_graph(device)
    x = features(graph.num_sources, (20,), device, grad=False)
    assert column_block_count(matrix_of(graph).tensors, x) == 1  # which any cache holds


def test_rows_without_edges_stay(device: torch.device) -> None:
    graph = random_graph(device, num_edges=0)
    out = features(graph.num_destinations, (5,), device, grad=False)
    before = out.clone()
    add_spmm(out, features(graph.num_sources, (5,), device, grad=False), None,
             matrix_of(graph).tensors, "copy_u")  # fmt: skip
    assert torch.equal(out, before)


def test_out_that_cannot_be_added_to(device: torch.device) -> None:
    graph = random_graph(device)
    x = features(graph.num_sources, (5,), device, grad=False)
    matrix = matrix_of(graph).tensors
    out = torch.zeros(graph.num_destinations, 5, device=device)
    with pytest.raises(ValueError, match="out must be contiguous"):
        add_spmm(out.double(), x, None, matrix, "copy_u")
    with pytest.raises(ValueError, match="out must be contiguous"):
        add_spmm(out.repeat(1, 2)[:, ::2], x, None, matrix, "copy_u")


@named_cases(("schedule", "width", "message"), pairwise(SCHEDULES, [1, 33, 64], ["copy_u", "mul"]))
def test_schedules_give_the_same_sums(
    schedule: Schedule, width: int, message: str, device: torch.device
) -> None:
    graph = graph_of("hub", device)
    x, e = operands(graph, message, width, torch.float64)
    plain, other = matrix_of(graph).tensors, matrix_of(graph, schedule).tensors
    for mean in (False, True):
        expected = spmm(x, e, plain, message, mean)
        torch.testing.assert_close(spmm(x, e, other, message, mean), expected)
    for actual, expected_result in zip(
        spmm_minmax(x, e, other, message, False),
        spmm_minmax(x, e, plain, message, False),
        strict=True,
    ):
        assert torch.equal(actual, expected_result)
    by_row = features(graph.num_destinations, (width,), device, torch.float64, grad=False)
    torch.testing.assert_close(
        spmm_transposed_atomic(by_row, e, None, other, message),
        spmm_transposed_atomic(by_row, e, None, plain, message),
    )


@pytest.mark.parametrize(
    "wrong", [{"chunk": 0}, {"long_row": 0}, {"warps_per_block": 0}, {"warps_per_block": 3}]
)
def test_impossible_schedules(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        _C.Schedule(**wrong)
