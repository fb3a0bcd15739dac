"""The structure: its constructors, its transpose, its checks."""

from __future__ import annotations

import re

import pytest
import torch

from peergraph.aggregate import Csc, g_spmm
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.aggregate.sparse.index_tensors import indptr_if_sorted, is_arange, row_of_edges
from peergraph.sampling import Block
from tests.aggregate.graphs import features, random_graph
from tests.named_case import named_cases
from tests.pairwise import pairwise


@named_cases("dtype", [torch.int32, torch.int64])
def test_edges_that_are_grouped_stay_where_they_are(
    device: torch.device, dtype: torch.dtype
) -> None:
    graph = random_graph(device, dtype=dtype, grouped=True)
    sizes = graph.num_destinations, graph.num_sources
    csc = Csc.from_edge_index(graph.edge_index, *sizes, check=False)
    assert csc.edge_ids is None
    assert csc.indices.data_ptr() == graph.edge_index.data_ptr()
    assert torch.equal(graph.csc().indices, csc.indices)
    degrees = torch.bincount(graph.edge_index[1], minlength=graph.num_destinations)
    assert torch.equal(csc.in_degrees().long(), degrees)
    assert (csc.num_sources, csc.num_destinations, csc.num_edges) == (40, 30, 300)


def test_other_edges_are_sorted_stably(device: torch.device) -> None:
    graph = random_graph(device)
    rows = graph.csc()
    order = torch.sort(graph.edge_index[1], stable=True).indices
    assert rows.edge_ids is not None
    assert torch.equal(rows.edge_ids, order)
    assert torch.equal(rows.indices, graph.edge_index[0][order])


@named_cases("grouped", [False, True])
@named_cases("dtype", [torch.int32, torch.int64])
def test_transpose(device: torch.device, grouped: bool, dtype: torch.dtype) -> None:
    graph = random_graph(device, grouped=grouped, dtype=dtype)
    csc = graph.csc()
    rows = csc.transpose()
    assert rows is csc.transpose()
    assert (rows.num_destinations, rows.num_sources) == (graph.num_sources, graph.num_destinations)
    assert rows.edge_ids is not None
    source = torch.arange(40, device=device).repeat_interleave(rows.indptr.diff().long())
    edges = graph.edge_index[:, rows.edge_ids.long()]
    assert torch.equal(edges[0].long(), source)
    assert torch.equal(edges[1], rows.indices)
    order = csc.edge_ids
    positions = csc.transpose_tensors()[2]
    assert torch.equal(rows.edge_ids, positions if order is None else order[positions.long()])


@named_cases("dtype", [torch.int32, torch.int64])
def test_block(device: torch.device, dtype: torch.dtype) -> None:
    indptr = torch.tensor([0, 2, 2, 3], device=device, dtype=dtype)
    block = Block(indptr, torch.tensor([3, 1, 3], device=device, dtype=dtype), None, 0)
    csc = Csc.from_block(block, 4)
    x = features(4, (4,), device)
    out = g_spmm(csc, "copy_u", "sum", x)
    assert torch.equal(out, torch.stack([x[3] + x[1], torch.zeros_like(x[0]), x[3]]))
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert gradient[:, 0].tolist() == [0.0, 1.0, 0.0, 2.0]


def test_isolated_tail_is_trimmed(device: torch.device) -> None:
    indptr = torch.tensor([0, 2, 3, 3, 3, 3, 3], device=device)
    indices = torch.tensor([0, 1, 1], device=device)
    csc = Csc(indptr, indices, 2, num_nonisolated=2, transient=True)
    few = csc.trim_isolated_tail()
    assert few is csc.trim_isolated_tail()
    assert (few.num_destinations, few.num_edges, few.num_sources) == (2, 3, 2)
    assert few.transient
    # Not known, or not worth it.
    for count in (None, 5, 6):
        whole = Csc(indptr, indices, 2, num_nonisolated=count)
        assert whole.trim_isolated_tail() is whole
    nothing = Csc(indptr[:1], indices[:0], 2).trim_isolated_tail()
    assert nothing.num_destinations == 0


def test_choice_of_backward(device: torch.device) -> None:
    graph = random_graph(device, grouped=True)
    assert graph.csc().gradient_matrix("auto", False) is not None
    assert graph.csc().gradient_matrix("atomic", False) is None
    rows = graph.csc()
    once = Csc(rows.indptr, rows.indices, graph.num_sources, transient=True)
    assert (once.gradient_matrix("auto", False) is None) == (device.type == "cuda")
    assert once.gradient_matrix("auto", True) is once.transpose()
    assert once.gradient_matrix("auto", False) is once.transpose()
    with pytest.raises(ValueError, match="backward must be 'auto', 'transpose' or 'atomic'"):
        once.gradient_matrix("sort", False)
    with pytest.raises(ValueError, match=r"adds in no fixed order, got deterministic=True"):
        once.gradient_matrix("atomic", True)


def test_inference_makes_no_transpose(device: torch.device) -> None:
    csc = random_graph(device).csc()
    x = features(csc.num_sources, (4,), device)
    with torch.no_grad():
        g_spmm(csc, "copy_u", "sum", x)
    g_spmm(csc, "copy_u", "sum", x.detach())
    assert csc._transpose is None


def test_a_block_with_more_sources_than_were_said() -> None:
    block = Block(torch.tensor([0, 2]), torch.tensor([0, 3]), None, 0)
    with pytest.raises(IndexError, match=r"block\.row\[1\] = 3 is out of range for 3 sources"):
        Csc.from_block(block, 3)


def test_structures_with_edge_ids_are_checked_on_their_device(device: torch.device) -> None:
    indptr, indices = INDPTR.to(device), INDICES.to(device)
    with pytest.raises(ValueError, match=r"edge_ids\[1\] = 2 repeats an earlier id"):
        Csc(indptr, indices, 2, edge_ids=torch.tensor([2, 2, 0], device=device))
    Csc(indptr, indices, 2, edge_ids=torch.tensor([2, 1, 0], dtype=torch.int32, device=device))


INDPTR = torch.tensor([0, 2, 3])
INDICES = torch.tensor([0, 1, 1])


@named_cases(
    ("changes", "error", "text"),
    [
        ({"indptr": INDPTR.float()}, TypeError, "indptr must be int32 or int64, got torch.float32"),
        ({"indices": INDICES.short()}, TypeError, "indices must be int32 or int64"),
        ({"indptr": INDPTR[None]}, ValueError, "indptr must have one dimension, got [1, 3]"),
        ({"indptr": INDPTR[:0]}, ValueError, "indptr must have at least one offset"),
        ({"indptr": INDPTR + 1}, ValueError, "indptr must run from 0 to 3 edges, got 1 to 4"),
        ({"indptr": INDPTR[:2]}, ValueError, "indptr must run from 0 to 3 edges, got 0 to 2"),
        (
            {"indptr": torch.tensor([0, 4, 3])},
            ValueError,
            "must not fall, it does after position 1",
        ),
        ({"num_nonisolated": 3}, ValueError, "num_nonisolated must be 0 to 2 destinations, got 3"),
        (
            {"num_nonisolated": 1},
            ValueError,
            "num_nonisolated is 1, but later destinations have 1 edges",
        ),
        ({"num_sources": 1}, IndexError, "indices[1] = 1 is out of range for 1 sources"),
        ({"indices": -INDICES}, IndexError, "indices[1] = -1 is out of range for 2 sources"),
        ({"edge_ids": INDICES[:2]}, ValueError, "edge_ids must have 3 items, got 2"),
        ({"edge_ids": INDICES}, ValueError, "edge_ids[2] = 1 repeats an earlier id"),
        ({"edge_ids": INDICES + 2}, IndexError, "edge_ids[1] = 3 is out of range for 3 edges"),
        ({"edge_ids": INDICES - 1}, IndexError, "edge_ids[0] = -1 is out of range for 3 edges"),
        ({"indices": [0, 1, 1]}, TypeError, "indices must be a tensor, got list"),
        ({"num_sources": 2.0}, TypeError, "num_sources must be an int, got 2.0"),
        (
            {"duplicate_counts": torch.ones(2, dtype=torch.int32)},
            ValueError,
            "duplicate_counts[1] must be at least 2, as often as the source occurs, got 1",
        ),
        ({"duplicate_counts": INDICES[:2]}, TypeError, "duplicate_counts must be int32"),
        ({"duplicate_counts": INDICES.int()}, ValueError, "must have 2 items, got 3"),
    ],
)
def test_bad_structures(changes: dict[str, object], error: type[Exception], text: str) -> None:
    arguments = {"indptr": INDPTR, "indices": INDICES, "num_sources": 2} | changes
    with pytest.raises(error, match=re.escape(text)):
        Csc(**arguments)


def test_bad_edge_index(device: torch.device) -> None:
    edges = torch.tensor([[0, 5], [1, 2]], device=device)
    with pytest.raises(IndexError, match=r"edge_index\[0\]\[1\] = 5 is out of range for 5 sources"):
        Csc.from_edge_index(edges, 3, 5)
    with pytest.raises(IndexError, match=r"edge_index\[1\]\[1\] = 2 is out of range for 2 dest"):
        Csc.from_edge_index(edges, 2, 6)
    with pytest.raises(ValueError, match=r"edge_index must be \[2, edges\], got \[1, 2\]"):
        Csc.from_edge_index(edges[:1], 2, 6)
    with pytest.raises(TypeError, match=r"must be int32 or int64, got torch\.float32"):
        Csc.from_edge_index(edges.float(), 2, 6)
    for other in (edges.cpu().numpy(), edges.tolist(), None):
        with pytest.raises(TypeError, match="edge_index must be a tensor"):
            Csc.from_edge_index(other, 2, 6)  # type: ignore[arg-type]


ID_TYPES = [torch.int32, torch.int64]


@named_cases(
    ("offsets", "ids", "edges"),
    pairwise(ID_TYPES, ID_TYPES, [0, 1, 300]),
)
def test_transpose_of_any_id_types(
    device: torch.device, offsets: torch.dtype, ids: torch.dtype, edges: int
) -> None:
    graph = random_graph(device, num_edges=edges, grouped=True)
    rows = graph.csc()
    csc = Csc(rows.indptr.to(offsets), rows.indices.to(ids), graph.num_sources)
    indptr, indices, positions = csc.transpose_tensors()
    assert (indptr.dtype, indices.dtype, positions.dtype) == (offsets, ids, offsets)
    order = torch.argsort(graph.edge_index[0], stable=True)
    degrees = torch.bincount(graph.edge_index[0], minlength=graph.num_sources)
    assert torch.equal(positions.long(), order)
    assert torch.equal(indices.long(), graph.edge_index[1][order])
    assert torch.equal(indptr.diff().long(), degrees)


@named_cases("dtype", ID_TYPES)
def test_indptr_of_sorted_keys_only(device: torch.device, dtype: torch.dtype) -> None:
    def indptr_of(*keys: int) -> list[int] | None:
        indptr = indptr_if_sorted(torch.tensor(keys, dtype=dtype, device=device), 4)
        assert indptr is None or indptr.dtype == dtype
        return None if indptr is None else indptr.tolist()

    assert indptr_of() == [0, 0, 0, 0, 0]
    assert indptr_of(0) == [0, 1, 1, 1, 1]
    assert indptr_of(1, 1, 3) == [0, 0, 2, 2, 3]
    assert indptr_of(3, 3, 3) == [0, 0, 0, 0, 3]
    assert indptr_of(1, 0) is None
    assert indptr_of(0, 2, 2, 1, 3) is None


@named_cases("key", [-1, 4])
def test_keys_out_of_range(key: int) -> None:
    with pytest.raises(IndexError, match=f"destination id {key} is out of range for 4 nodes"):
        indptr_if_sorted(torch.tensor([key]), 4)


def test_sources_out_of_range_without_check() -> None:
    csc = Csc(torch.tensor([0, 2]), torch.tensor([0, 7]), 5, check=False)
    with pytest.raises(IndexError, match="edge 1: source id 7 is out of range for 5 nodes"):
        csc.transpose()


@named_cases("dtype", ID_TYPES)
def test_is_arange(device: torch.device, dtype: torch.dtype) -> None:
    for count in (0, 1, 1023, 1024, 1025, 5000):
        ids = torch.arange(count, dtype=dtype, device=device)
        assert is_arange(ids), count
        for position in {0, count // 2, count - 1} if count else ():
            other = ids.clone()
            other[position] += 1
            assert not is_arange(other), (count, position)


def test_default_devices_do_not_matter(device: torch.device) -> None:
    edge_index = torch.tensor([[0, 2, 1, 2], [1, 0, 1, 0]], device=device)
    expected = Csc.from_edge_index(edge_index, 2, 3)
    with torch.device("meta"):
        actual = Csc.from_edge_index(edge_index, 2, 3)
        turned = actual.transpose()
    assert torch.equal(actual.indices, expected.indices)
    assert torch.equal(turned.indptr, expected.transpose().indptr)


def test_negative_numbers_of_nodes() -> None:
    edge_index = torch.empty(2, 0, dtype=torch.int64)
    for name, count in (("num_destinations", (-1, 3)), ("num_sources", (3, -1))):
        with pytest.raises(ValueError, match=f"{name} must not be negative, got -1"):
            Csc.from_edge_index(edge_index, *count)
    with pytest.raises(ValueError, match="num_sources must not be negative, got -3"):
        Csc(torch.zeros(1, dtype=torch.int64), edge_index[0], -3)


def test_edges_grouped_by_column(device: torch.device) -> None:
    """The same edges as in the transpose, perhaps in another order."""
    for dtype in (torch.int32, torch.int64):
        for num_edges in (0, 300):
            for grouped in (False, True):
                graph = random_graph(device, 40, 30, num_edges, dtype, grouped)
                matrix = graph.csc()
                actual, expected = matrix.grouped_by_column(), matrix.transpose()
                assert torch.equal(actual.indptr, expected.indptr.int())
                columns = row_of_edges(actual.indptr, num_edges)
                keys = [
                    columns * (30 * num_edges + 1)
                    + each.indices * num_edges
                    + (each.edge_ids if each.edge_ids is not None else 0)
                    for each in (actual, expected)
                ]
                assert torch.equal(*(key.sort().values for key in keys))


def test_padding_is_not_grouped(device: torch.device) -> None:
    """Edges behind the last row of a structure of a fixed shape may have any columns."""
    indptr = torch.tensor([0, 2, 3], device=device)
    indices = torch.tensor([1, 0, 1, 10**6, -5], device=device)
    matrix = EdgeMatrix(indptr, indices, 2)
    grouped = matrix.grouped_by_column()
    assert grouped.indptr.tolist() == [0, 1, 3]
    assert sorted(grouped.indices[:3].tolist()) == [0, 0, 1]
    x = torch.ones(2, 8, device=device)
    assert grouped.sum_messages(x, None, "copy_u").tolist() == [[1.0] * 8, [2.0] * 8]
